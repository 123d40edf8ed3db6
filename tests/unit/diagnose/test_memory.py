"""Device memory by category, what of it grows, and what is said of failed allocations."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.diagnose.memory.accounting import OLDER_TENSORS, TENSORS_NOT_SEEN, account
from otelgpu.diagnose.memory.categories import (
    ACTIVATIONS,
    CACHE,
    CATEGORIES,
    GRADIENTS,
    KV_CACHE,
    OPTIMIZER,
    UNKNOWN,
    WEIGHTS,
    WORKSPACE,
    is_of_allocator,
    purpose_of,
)
from otelgpu.diagnose.memory.diagnosis import Seen, diagnose
from otelgpu.diagnose.memory.growth import growths
from otelgpu.diagnose.memory.levels import CHARGED, LIMIT, RESERVED, USAGE, Levels
from otelgpu.diagnose.memory.observations import (
    DEVICE,
    TENSOR,
    Observations,
    Place,
    ProcessSeen,
    Snapshot,
)
from otelgpu.diagnose.memory.sentences import sentence
from otelgpu.diagnose.memory.verdicts import GROWTH, INCONCLUSIVE, OUT_OF_MEMORY
from otelgpu.model import memory_failures as names
from otelgpu.model.events import Event
from otelgpu.model.resource import AttributeValue, resource
from otelgpu.otlp_json.log_reader import read_events
from otelgpu.otlp_json.reader import Reader
from otelgpu.render.frames import Frame, Kind
from tests.rig.examples import examples

S = 1_000_000_000
MIB = 1 << 20
TORCH = "/usr/lib/python3/dist-packages/torch"


def python(name: str, file: str = "/home/user/train.py", line: int = 1) -> Frame:
    return Frame(Kind.PYTHON, name, file, line)


def native(name: str, file: str = "/usr/lib/libexample.so") -> Frame:
    return Frame(Kind.NATIVE, name, file)


POOL = (native("cudaMalloc"), native("c10::cuda::CUDACachingAllocator::Native::alloc_block(bool)"))


# -- categories --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frames", "category"),
    [
        ([python("Module._apply", f"{TORCH}/nn/modules/module.py"), python("main")], WEIGHTS),
        ([python("Linear.__init__", f"{TORCH}/nn/modules/linear.py")], WEIGHTS),
        ([python("load_weights", "/app/model.py")], WEIGHTS),
        ([python("CacheEngine._allocate", "/opt/vllm/worker/cache_engine.py")], KV_CACHE),
        ([python("Runner._allocate_kv_cache_tensors", "/opt/vllm/v1/runner.py")], KV_CACHE),
        ([python("AdamW._init_group", f"{TORCH}/optim/adamw.py"), python("train")], OPTIMIZER),
        ([python("Net.forward"), python("Module._call_impl", f"{TORCH}/nn/modules/module.py")], ACTIVATIONS),
        ([native("torch::autograd::Engine::evaluate_function")], GRADIENTS),
        ([python("backward", f"{TORCH}/autograd/__init__.py"), python("Net.forward")], GRADIENTS),
        ([native("cublasLtMatmul", "/x/libcublasLt.so.12"), python("Net.forward")], WORKSPACE),
        ([native("ncclAllocate", "/x/libnccl.so.2"), python("init")], WORKSPACE),
        ([python("Net.forward"), native("torch::autograd::Engine::thread_main")], ACTIVATIONS),
        ([python("fast_forwarding"), python("main")], UNKNOWN),
        ([python("apply"), native("malloc")], UNKNOWN),
        ([], UNKNOWN),
    ],
)
def test_the_innermost_frame_that_a_rule_knows_decides(frames: list[Frame], category: str) -> None:
    found = purpose_of(frames)
    assert found.category == category
    assert bool(found.evidence) == (category != UNKNOWN)


def test_what_the_allocator_takes_is_known_by_its_frames() -> None:
    assert is_of_allocator(POOL) and not is_of_allocator([native("cudaMalloc"), python("main")])


# -- accounting --------------------------------------------------------------------------------------

PLACES = [
    Place(level, device, "device", frames)
    for level in (DEVICE, TENSOR)
    for device in (0, 1)
    for frames in (
        POOL,
        (python("load_weights"),),
        (python("Net.forward"),),
        (native("x", "/x/libnccl.so.2"),),
        (python("main"),),
    )
]


@given(
    st.dictionaries(st.sampled_from(PLACES), st.integers(0, 1 << 40)),
    st.none() | st.integers(0, 1 << 41),
    st.none() | st.integers(0, 1 << 41),
)
@examples(300)
def test_categories_add_up_to_the_ledger_and_what_is_older(
    sizes: Mapping[Place, int], reserved: int | None, allocated: int | None
) -> None:
    snapshot = Snapshot(time_ns=1)
    snapshot.sizes.update(sizes)
    for device in (0, 1):
        found = account(snapshot, device, reserved=reserved, allocated=allocated)
        assert sum(found.categories.values()) == found.total
        assert found.ledger == sum(
            size for place, size in sizes.items() if (place.level, place.device) == (DEVICE, device)
        )
        assert all(size > 0 for size in found.categories.values()) and set(found.categories) <= set(
            CATEGORIES
        )
        assert found.older >= 0


def snapshot_of(sizes: Mapping[Place, int], time_ns: int = 1) -> Snapshot:
    made = Snapshot(time_ns=time_ns)
    made.sizes.update(sizes)
    return made


def test_the_worked_example_of_an_allocator_and_its_tensors() -> None:
    sizes = {
        Place(DEVICE, 0, "device", POOL): 100,
        Place(DEVICE, 0, "device", (native("f", "/x/libcublas.so.12"),)): 10,
        Place(TENSOR, 0, "", (python("load_weights"),)): 60,
    }
    found = account(snapshot_of(sizes), 0, reserved=140, allocated=80)
    assert dict(found.categories) == {WEIGHTS: 60, WORKSPACE: 10, UNKNOWN: 20, CACHE: 60}
    assert (found.ledger, found.older, found.reserved) == (110, 40, 140)
    assert found.remarks == [OLDER_TENSORS]


def test_an_allocator_whose_tensors_are_not_seen_is_unknown() -> None:
    found = account(snapshot_of({Place(DEVICE, 0, "device", POOL): 100}), 0)
    assert dict(found.categories) == {UNKNOWN: 100} and found.remarks == [TENSORS_NOT_SEEN]


# -- growth ------------------------------------------------------------------------------------------

LEAK = Place(DEVICE, 0, "device", (python("remember", line=14), python("main", line=20)))


def process_of(
    sizes: Sequence[int], place: Place = LEAK, passed: Sequence[int] = (), beside: int = 0
) -> ProcessSeen:
    """A look a second; ``passed``: bytes that were allocated before each."""
    other = Place(DEVICE, 0, "device", (python("load_weights"),))
    snapshots = [
        snapshot_of({place: size, **({other: beside} if beside else {})}, at * S)
        for at, size in enumerate(sizes, 1)
    ]
    flow = {place: [(at * S, size) for at, size in enumerate(passed, 1)]} if passed else {}
    return ProcessSeen(pid=7, program="train.py", snapshots=snapshots, flow=flow)


def test_what_grows_to_the_end_and_frees_nothing_is_found() -> None:
    (found,) = growths(process_of([at * MIB for at in range(1, 11)], passed=[MIB] * 10))
    assert (found.grown, found.held, found.rising) == (9 * MIB, 10 * MIB, 1.0)
    assert found.bytes_per_s == pytest.approx(MIB)


@pytest.mark.parametrize(
    ("sizes", "passed"),
    [
        ([1, 2, 3, 4, 5, 6, 6, 6, 6, 6, 6, 6], ()),  # a cache that is full
        ([9] * 12, ()),  # loaded once
        ([1, 2, 3, 2, 3, 4, 5, 6, 7, 8, 9, 10], ()),  # it went down
        (range(1, 11), [3] * 10),  # most of it came back
        ([1, 2, 3, 4, 5], ()),  # too short
    ],
)
def test_what_fills_and_what_comes_back_is_no_leak(sizes: Sequence[int], passed: Sequence[int]) -> None:
    assert growths(process_of([size * MIB for size in sizes], passed=[size * MIB for size in passed])) == []


def test_pieces_of_an_allocator_do_not_grow_where_tensors_are_seen() -> None:
    tensor, piece = Place(TENSOR, 0, "", (python("f"),)), Place(DEVICE, 0, "device", POOL)
    snapshots = [snapshot_of({tensor: 5 * MIB, piece: at * 20 * MIB}, at * S) for at in range(1, 11)]
    assert growths(ProcessSeen(pid=1, program="x", snapshots=snapshots)) == []


# -- the report --------------------------------------------------------------------------------------


def seen(*processes: ProcessSeen, events: Sequence[Event] = (), levels: Levels | None = None) -> Seen:
    found = Observations(
        processes=processes, types=frozenset(("device_memory_in_use",) if processes else ()), rejected={}
    )
    return Seen(profiles=found, levels=levels or Levels(), events=events)


def test_a_healthy_program_has_no_verdict_and_its_peak_is_not_its_last_look() -> None:
    sizes = [50 * MIB, 80 * MIB, 20 * MIB, 50 * MIB, 40 * MIB, 50 * MIB, 30 * MIB]
    report = diagnose(seen(process_of(sizes, beside=100 * MIB)))
    assert report.verdicts == []
    (device,) = report.devices
    assert (device.peak.bytes, device.now.bytes) == (180 * MIB, 130 * MIB)
    assert {each.category: each.bytes for each in device.peak.categories} == {
        WEIGHTS: 100 * MIB,
        UNKNOWN: 80 * MIB,
    }
    assert [each.bytes for each in device.places] == [100 * MIB, 80 * MIB]


def test_a_leak_names_its_line_and_rate() -> None:
    report = diagnose(seen(process_of([at * MIB for at in range(1, 11)])))
    (verdict,) = report.verdicts
    assert verdict.cause == GROWTH
    assert verdict.line is not None and verdict.line.line == 14
    assert sentence(verdict).startswith(
        "Memory grows: train.py (PID 7) holds 9.0 MiB more of device 0 by remember (train.py:14) ← main (train.py:20), "
        "1.0 MiB a second"
    )


def test_a_forward_pass_that_keeps_what_it_made_once_made_no_activations() -> None:
    place = Place(DEVICE, 0, "device", (python("Net.forward"),))
    report = diagnose(seen(process_of([0, *[9 * MIB] * 9], place, passed=[0, 9 * MIB])))
    (category,) = report.devices[0].now.categories
    assert (category.category, category.evidence) == (
        UNKNOWN,
        ["Net.forward (train.py:1): made once, and kept"],
    )


def test_a_place_that_gives_back_has_a_lifetime() -> None:
    place = Place(DEVICE, 0, "device", (python("Net.forward"),))
    report = diagnose(seen(process_of([8 * MIB] * 11, place, passed=[80 * MIB] * 11)))
    assert report.devices[0].places[0].lifetime_s == pytest.approx(0.1)


def metrics(*points: tuple[str, int, str, int, int]) -> Levels:
    """(name, process, device, time, value) each."""
    levels = Levels()
    for name, pid, device, time, value in points:
        levels.series.setdefault((name, pid, device), []).append((time, value))
    return levels


def test_what_the_driver_charges_beyond_is_the_context_and_what_was_not_seen() -> None:
    levels = metrics(
        (CHARGED, 7, "GPU-1", 1, 400 * MIB),
        (LIMIT, 0, "GPU-1", 1, 1000 * MIB),
        (USAGE, 0, "GPU-1", 1, 900 * MIB),
    )
    (device,) = diagnose(seen(process_of([100 * MIB] * 3), levels=levels)).devices
    assert (device.now.charged, device.now.context) == (400 * MIB, 300 * MIB)
    assert (device.total, device.free) == (1000 * MIB, 100 * MIB)


def failed(**attributes: AttributeValue) -> Event:
    return Event(
        name=names.EVENT,
        time_unix_ns=5 * S,
        text="Out of memory: …",
        attributes={f"otelgpu.memory.failure.{key}": value for key, value in attributes.items()}
        | {"cuda.device.index": 0},
        resource=resource({"process.pid": 7, "process.command": "/usr/bin/train.py"}),
    )


def test_a_failure_is_a_verdict_and_one_that_recovered_a_remark() -> None:
    lost = failed(
        outcome="unmet",
        cause="own_memory",
        requested=700,
        held=400,
        holders=("400 B by f",),
        next="do less",
        rule="r",
    )
    report = diagnose(seen(process_of([1] * 3), events=[failed(outcome="recovered"), lost]))
    (verdict,) = report.verdicts
    assert (verdict.cause, verdict.detail, verdict.bytes) == (OUT_OF_MEMORY, "own_memory", 700)
    assert verdict.rule == "r"
    assert [each.text for each in verdict.evidence] == [
        "it held 400 B that was seen to be allocated",
        "400 B by f",
    ]
    assert sentence(verdict) == (
        "Out of memory: train.py (PID 7) asked for 700 B of device 0 and did not get it (own memory): do less."
    )
    assert (report.input.failures, report.input.recovered, len(report.remarks)) == (2, 1, 1)


def test_attributes_of_a_file_may_be_anything() -> None:
    odd = failed(outcome=1, cause=2.5, requested="x", held=True, holders="text", next=("a",))
    (verdict,) = diagnose(seen(events=[odd])).verdicts
    assert (verdict.bytes, verdict.detail, verdict.next) == (0, "unknown", "")


def test_nothing_to_look_at_is_inconclusive() -> None:
    (verdict,) = diagnose(seen()).verdicts
    assert verdict.klass == INCONCLUSIVE and "no device memory" in sentence(verdict)


# -- files -------------------------------------------------------------------------------------------


def line(**record: object) -> bytes:
    owner = {"attributes": [{"key": "process.pid", "value": {"intValue": "7"}}]}
    scope = {"logRecords": [{"timeUnixNano": "5", "severityNumber": 13, **record}]}
    return json.dumps({"resourceLogs": [{"resource": owner, "scopeLogs": [scope]}]}).encode()


def test_events_of_a_file_are_those_that_have_a_name() -> None:
    attributes = [
        {"key": names.REQUESTED, "value": {"intValue": "9"}},
        {"key": names.HOLDERS, "value": {"arrayValue": {"values": [{"stringValue": "a"}]}}},
    ]
    reader = Reader("f")
    lines = [
        line(eventName=names.EVENT, body={"stringValue": "text"}, attributes=attributes),
        line(body={"stringValue": "no event"}),
        line(eventName="x", attributes=[{"key": "a", "value": 7}]),
        b'{"resourceLogs": 7}',
        b'{"resourceLogs": ',
    ]
    (found,) = read_events(lines, reader)
    assert (found.text, found.warns, found.time_unix_ns) == ("text", True, 5)
    assert found.attributes == {names.REQUESTED: 9, names.HOLDERS: ("a",)}
    assert found.resource.get("process.pid") == 7
    assert reader.skips.counts.total() == 3


def test_levels_of_a_file_are_read_by_process_and_device() -> None:
    point = {
        "timeUnixNano": "10",
        "asInt": "5",
        "attributes": [{"key": "torch.device", "value": {"stringValue": "cuda:0"}}],
    }
    later = {**point, "timeUnixNano": "30", "asInt": "8"}
    bad = {**point, "asInt": "many"}
    owner = {"attributes": [{"key": "process.pid", "value": {"intValue": "7"}}]}
    metric = {"name": RESERVED, "sum": {"dataPoints": [point, bad, later]}}
    other = {"name": "other", "sum": {"dataPoints": [point]}}
    document = {"resourceMetrics": [{"resource": owner, "scopeMetrics": [{"metrics": [metric, other]}]}]}
    levels = Levels()
    levels.read([json.dumps(document).encode(), b'{"resourceMetrics": 1}'])
    assert [levels.at(RESERVED, 7, "cuda:0", time) for time in (1, 10, 29, 30, 99)] == [5, 5, 5, 8, 8]
    assert levels.at(RESERVED, 8, "cuda:0", 10) is None
    assert (levels.points, levels.rejected) == (2, 2)
