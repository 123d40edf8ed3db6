"""The timeline keeps to the Trace Event Format, puts each thing on its track, and ties kernels to their launches.

The checker below has the format's rules for the phases that are written: the document is "Trace Event Format",
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU/preview.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from otelgpu.model.profiles import ProfileColumns, ValueType
from otelgpu.model.resource import Resource, resource
from otelgpu.model.spans import Attribute, SpanColumns, SpanKind, Text
from otelgpu.render.timeline import timeline
from otelgpu.render.timeline_samples import MOST_SAMPLES
from otelgpu.render.timeline_tracks import MOST_LANES
from tests.unit.render.profile_columns import HOSTILE, START, profile

OWNER = resource({"process.pid": 100, "process.executable.name": "python3"})
OFF_CPU = ValueType(type="off_cpu", unit="nanoseconds")


def faults(document: Any) -> list[str]:
    """Each rule of the format that an event breaks."""
    found = []
    flows: dict[Any, list[Any]] = defaultdict(list)
    apart: dict[Any, list[tuple[str, str, float]]] = defaultdict(list)
    named, used = set(), set()
    slices: dict[Any, list[tuple[float, float]]] = defaultdict(list)
    if document.get("displayTimeUnit") not in ("ms", "ns"):
        found.append("displayTimeUnit")
    for event in document["traceEvents"]:
        phase, what = event.get("ph"), json.dumps(event)[:200]
        if not isinstance(event.get("name"), str) or not event["name"]:
            found.append(f"no name: {what}")
        if any(
            not isinstance(event.get(key), int) or not 0 <= event[key] < 1 << 31 for key in ("pid", "tid")
        ):
            found.append(f"pid or tid: {what}")
        if not isinstance(event.get("ts"), int | float) or event["ts"] < 0:
            found.append(f"ts: {what}")
        if "args" in event and not isinstance(event["args"], dict):
            found.append(f"args: {what}")
        track = event["pid"], event["tid"]
        if phase == "M":
            names = {
                "process_name": str,
                "thread_name": str,
                "process_sort_index": int,
                "thread_sort_index": int,
            }
            key = "name" if event["name"].endswith("_name") else "sort_index"
            if not isinstance(event["args"].get(key), names.get(event["name"], ())):
                found.append(f"metadata: {what}")
            if event["name"] == "thread_name":
                if track in named:
                    found.append(f"named twice: {what}")
                named.add(track)
            continue
        used.add(track)
        if phase == "X":
            if not isinstance(event.get("dur"), int | float) or event["dur"] < 0:
                found.append(f"dur: {what}")
            slices[track].append((event["ts"], event["ts"] + event.get("dur", 0)))
        elif phase == "i":
            if event.get("s") not in ("g", "p", "t"):
                found.append(f"scope: {what}")
        elif phase in ("b", "e"):
            apart[event["pid"], event["cat"], event["id"]].append((phase, event["name"], event["ts"]))
        elif phase in ("s", "f"):
            flows[event["cat"], event["name"], event["id"]].append(event)
            if phase == "f" and event.get("bp") != "e":
                found.append(f"bp: {what}")
        else:
            found.append(f"phase: {what}")
    found += [f"not named: {track}" for track in used - named]
    for identity, events in flows.items():
        if sorted(event["ph"] for event in events) != ["f", "s"]:
            found.append(f"flow without two ends: {identity}")
        if {event["ph"]: event["ts"] for event in events}.get("s", 0) > events[-1]["ts"]:
            found.append(f"flow back in time: {identity}")
        for event in events:
            if not any(begin <= event["ts"] <= end for begin, end in slices[event["pid"], event["tid"]]):
                found.append(f"flow that is tied to nothing: {identity}")
    for identity, ends in apart.items():
        if (
            [phase for phase, _, _ in ends] != ["b", "e"]
            or ends[0][1] != ends[1][1]
            or ends[0][2] > ends[1][2]
        ):
            found.append(f"asynchronous event without two ends: {identity}")
    for track, some in slices.items():
        open_: list[float] = []
        for begin, end in sorted(some, key=lambda one: (one[0], -one[1])):
            while open_ and open_[-1] <= begin + 1e-6:
                open_.pop()
            if open_ and end > open_[-1] + 1e-3:
                found.append(f"slices that cross on {track}")
            open_.append(end)
    return found


def spans(
    rows: Sequence[tuple[str, int, int]],
    scope: str = "otelgpu.cuda",
    kind: SpanKind = SpanKind.INTERNAL,
    owner: Resource = OWNER,
    **columns: Any,
) -> SpanColumns:
    """Names with begin and end in microseconds after ``START``. ``columns``: attributes, "_" for "."."""
    count = len(rows)
    return SpanColumns(
        resource=owner,
        scope=scope,
        kind=kind,
        trace_id=np.ones((count, 16), dtype=np.uint8),
        span_id=np.arange(8 * count, dtype=np.uint8).reshape(count, 8),
        parent_span_id=np.zeros((count, 8), dtype=np.uint8),
        trace_state=None,
        flags=np.ones(count, dtype=np.uint32),
        start_unix_ns=np.array([START + 1000 * begin for _, begin, _ in rows], dtype=np.uint64),
        end_unix_ns=np.array([START + 1000 * end for _, _, end in rows], dtype=np.uint64),
        name=Text.of([name for name, _, _ in rows]),
        status=np.zeros(count, dtype=np.uint8),
        status_message=None,
        attributes=tuple(Attribute.of(key.replace("_", "."), values) for key, values in columns.items()),
    )


def drawn(given: Sequence[SpanColumns], profiles: Sequence[ProfileColumns] = ()) -> Any:
    document = json.loads(timeline(given, profiles))
    assert faults(document) == []
    return document


def tracks(document: Any) -> dict[str, list[tuple[str, float, float]]]:
    """By process and track, names with begin and length in microseconds."""
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in document["traceEvents"]
        if event["name"] == "thread_name" and event["ph"] == "M"
    }
    found: dict[str, list[tuple[str, float, float]]] = defaultdict(list)
    for event in document["traceEvents"]:
        if event["ph"] in "Xi":
            found[names[event["pid"], event["tid"]]].append((event["name"], event["ts"], event.get("dur", 0)))
    return dict(found)


def launches(*rows: tuple[str, int, int], **columns: Sequence[Any]) -> SpanColumns:
    count = len(rows)
    reported: dict[str, Any] = {
        "thread_id": [7] * count,
        "cuda_stream": [5] * count,
        "cuda_kernel_name": ["flash"] * count,
    }
    return spans(rows, **(reported | columns))


def kernels(
    *rows: tuple[str, int, int], called: Sequence[int] = (0,), **columns: Sequence[Any]
) -> SpanColumns:
    """``called``: when the host call of each began, in microseconds after ``START``."""
    count = len(rows)
    reported = {
        "cuda_correlation_id": [1] * count,
        "cuda_device_index": [0] * count,
        "cuda_call_delay": [(begin - at) / 1e6 for (_, begin, _), at in zip(rows, called, strict=True)],
    }
    return launches(*rows, **(reported | columns))


def test_each_thing_is_on_its_track() -> None:
    document = drawn(
        [
            spans([("chat", 0, 100)], scope="otelgpu.http", kind=SpanKind.SERVER),
            spans([("prefill", 10, 40), ("decode", 40, 90)], scope="otelgpu.http"),
            spans([("engine step", 10, 40)], scope="otelgpu.engine", thread_id=[7]),
            launches(("cudaLaunchKernel flash", 12, 14)),
            kernels(("flash", 20, 30)),
            spans(
                [("ncclAllReduce", 50, 60)],
                scope="otelgpu.nccl",
                nccl_communicator_hash=["ab"],
                nccl_rank=[1],
            ),
            spans([("RDMA", 50, 60)], scope="otelgpu.rdma", rdma_qp_number=[9], rdma_device=["mlx5_0"]),
            spans([("write", 1, 2)], scope="otelgpu.file", thread_id=[8]),
            spans([("Xid", 3, 3)], scope="otelgpu.hardware"),
        ]
    )
    assert tracks(document) == {
        "requests": [("chat", 0, 100), ("prefill", 10, 30), ("decode", 40, 50)],
        "steps": [("engine step", 10, 30)],
        "thread 7": [("cudaLaunchKernel flash", 12, 2)],
        "thread 8": [("write", 1, 1)],
        "GPU 0 stream 5": [("flash", 20, 10)],
        "communicator ab rank 1": [("ncclAllReduce", 50, 10)],
        "queue pair 9 mlx5_0": [("RDMA", 50, 10)],
        "otelgpu.hardware": [("Xid", 3, 0)],
    }


def test_requests_and_steps_are_on_top() -> None:
    document = drawn(
        [
            launches(("cudaLaunchKernel", 12, 14)),
            spans([("engine step", 10, 40)], scope="otelgpu.engine"),
            kernels(("flash", 20, 30)),
            spans([("chat", 0, 100)], scope="otelgpu.http", kind=SpanKind.SERVER),
        ]
    )
    order = {
        (each["pid"], each["tid"]): each["args"]["sort_index"]
        for each in document["traceEvents"]
        if each["name"] == "thread_sort_index"
    }
    names = {
        order[each["pid"], each["tid"]]: each["args"]["name"]
        for each in document["traceEvents"]
        if each["name"] == "thread_name"
    }
    assert [names[each] for each in sorted(names)] == ["requests", "steps", "thread 7", "GPU 0 stream 5"]


def test_a_thread_has_its_own_number() -> None:
    [event] = [each for each in drawn([launches(("launch", 1, 2))])["traceEvents"] if each["ph"] == "X"]
    assert (event["pid"], event["tid"]) == (100, 7)
    assert event["args"]["cuda.kernel.name"] == "flash"
    assert event["args"]["trace_id"] == "01" * 16


def test_what_overlaps_goes_to_a_further_lane() -> None:
    rows = [("one", 0, 10), ("inside", 2, 5), ("crosses", 5, 15), ("after", 20, 30)]
    found = tracks(drawn([spans(rows, scope="otelgpu.http", kind=SpanKind.SERVER)]))
    assert {name: [each[0] for each in some] for name, some in found.items()} == {
        "requests": ["one", "inside", "after"],
        "requests (2)": ["crosses"],
    }


def test_two_hosts_processes_of_one_number_are_two() -> None:
    owners = [resource({"process.pid": 1, "process.executable.name": name}) for name in ("a", "b")]
    document = drawn([spans([("x", 0, 1)], owner=owner, thread_id=[3]) for owner in owners])
    names = [each["args"]["name"] for each in document["traceEvents"] if each["name"] == "process_name"]
    assert sorted(names) == ["a (1)", "b (1)"]
    assert len({each["pid"] for each in document["traceEvents"]}) == 2


def flows(document: Any) -> dict[float, float]:
    """When the kernel at the flow's end began, by when it was launched; microseconds."""
    ends: dict[Any, dict[str, float]] = defaultdict(dict)
    for event in document["traceEvents"]:
        if event["ph"] in "sf":
            ends[event["id"]][event["ph"]] = event["ts"]
    return {each["s"]: each["f"] for each in ends.values()}


def test_each_kernel_flows_from_its_launch() -> None:
    host = launches(("l", 0, 1), ("l", 2, 3), ("l", 4, 5))
    device = kernels(("flash", 10, 20), ("flash", 20, 30), ("flash", 30, 40), called=[4, 0, 2])
    assert flows(drawn([host, device])) == {4: 10, 0: 20, 2: 30}


def test_launches_that_are_one_span_have_all_their_kernels() -> None:
    host = launches(("l", 0, 9), ("l", 15, 16), otelgpu_count=[2, 1])
    rows = [("flash", 10, 12), ("flash", 12, 14), ("flash", 20, 30), ("flash", 30, 40)]
    device = kernels(*rows, called=[0, 6, 15, 12])  # the last one's call is of no span
    document = drawn([host, device])
    ends = sorted(each["ts"] for each in document["traceEvents"] if each["ph"] == "f")
    assert ends == [10, 12, 20]
    assert sorted(each["ts"] for each in document["traceEvents"] if each["ph"] == "s") == [0, 0, 15]


@pytest.mark.parametrize("called", [-1, 1, 3])
def test_a_kernel_whose_launch_has_no_span_is_tied_to_no_other(called: int) -> None:
    host = launches(("l", 0, 1), ("l", 2, 3))
    assert flows(drawn([host, kernels(("flash", 10, 20), called=[called])])) == {}


def test_a_kernel_that_seems_to_begin_before_its_launch_is_not_tied_back_in_time() -> None:
    assert flows(drawn([launches(("l", 5, 9)), kernels(("flash", 4, 20), called=[5])])) == {}


def test_kernels_of_other_threads_are_not_tied() -> None:
    assert flows(drawn([launches(("l", 0, 1)), kernels(("k", 10, 20), thread_id=[8])])) == {}


# -- samples ---------------------------------------------------------------------------------------------


def of_thread(count: int) -> tuple[Attribute, ...]:
    return Attribute.of("thread.id", [7] * count), Attribute.of("thread.name", ["worker"] * count)


def test_samples_are_instants_on_their_thread() -> None:
    batch = profile([(("main", "py:step:3"), 10)], times=[START + 5000], owner=OWNER, attributes=of_thread(1))
    document = drawn([launches(("launch", 0, 9))], [batch])
    assert tracks(document) == {"worker (7)": [("launch", 0, 9), ("step (model.py:3)", 5, 0)]}
    [event] = [each for each in document["traceEvents"] if each["ph"] == "i"]
    assert event["args"] == {"stack": ["step (model.py:3)", "main"], "nanoseconds": 10}


def test_waits_last_as_long_as_they_did() -> None:
    rows = [(("main", "k:io_schedule"), 4_000_000)]
    batch = profile(rows, type_=OFF_CPU, times=[START], owner=OWNER, attributes=of_thread(1))
    assert tracks(drawn([], [batch])) == {"worker (7): waits": [("off_cpu: io_schedule", 0, 4000)]}


def test_a_wait_is_called_by_its_state_and_python_line() -> None:
    rows = [(("py:train:7", "main", "k:io_schedule"), 1_000_000), (("main", "k:io_schedule"), 1_000_000)]
    words = Text.of(["uninterruptible", "runnable"])
    state = Attribute(key="otelgpu.thread.state", values=words, present=np.array([True, False]))
    times = [START, START + 2_000_000]
    batch = profile(rows, type_=OFF_CPU, times=times, owner=OWNER, attributes=(*of_thread(2), state))
    (found,) = tracks(drawn([], [batch])).values()
    assert [name for name, *_ in found] == [
        "off_cpu: uninterruptible, train (model.py:7)",
        "off_cpu: io_schedule",
    ]


def test_block_requests_overlap_as_they_like() -> None:
    type_ = ValueType(type="block_time", unit="nanoseconds")
    rows = [(("main",), 10_000), (("main",), 20_000), (("main",), 5_000)]
    batch = profile(rows, type_=type_, times=[START, START + 1000, START + 2000], owner=OWNER)
    document = drawn([], [batch])
    found = [(each["ph"], each["id"], each["ts"]) for each in document["traceEvents"] if each["ph"] in "be"]
    assert found == [("b", 0, 0), ("e", 0, 10), ("b", 1, 1), ("e", 1, 21), ("b", 2, 2), ("e", 2, 7)]


def test_quick_calls_that_were_summed_have_no_length() -> None:
    rows, times = [(("main", "k:a"), 3000), (("main", "k:b"), 5000)], [START, START + 4000]
    time = profile(rows, type_=ValueType(type="syscall_time", unit="nanoseconds"), times=times, owner=OWNER)
    counts = [(stack, count) for (stack, _), count in zip(rows, (1, 20), strict=True)]
    count = profile(counts, type_=ValueType(type="syscalls", unit="count"), times=times, owner=OWNER)
    document = drawn([], [time, count])
    assert tracks(document) == {"no thread: waits": [("syscall_time: a", 0, 3), ("syscall_time: b", 4, 0)]}
    [summed] = [each for each in document["traceEvents"] if each["ph"] == "i"]
    assert summed["args"]["calls"] == 20


def test_what_others_report_already_is_left_out_and_counted() -> None:
    kinds = [
        ("cpu", "nanoseconds"),
        ("python_cpu", "nanoseconds"),
        ("file_bytes", "bytes"),
        ("cuda_time", "nanoseconds"),
    ]
    batches = [
        profile([((name,), 1)], type_=ValueType(type=name, unit=unit), times=[START]) for name, unit in kinds
    ]
    document = drawn([], batches)
    assert tracks(document) == {"no thread": [("cpu", 0, 0)]}
    assert document["otherData"]["samples_left_out"] == 3


def test_what_finds_no_lane_is_counted() -> None:
    rows = [(f"r{i}", i, 1000 + i) for i in range(MOST_LANES + 5)]
    document = drawn([spans(rows, scope="otelgpu.http", kind=SpanKind.SERVER)])
    assert len(tracks(document)) == MOST_LANES
    assert document["otherData"]["events_without_room"] == 5


@pytest.mark.slow
def test_many_samples_are_thinned_and_counted() -> None:
    count = 2 * MOST_SAMPLES + 3
    one = profile([(("main",), 1)], times=[START])
    batch = replace(
        one,
        value=np.ones(count, dtype=np.int64),
        stack=np.zeros(count, dtype=np.intp),
        time_unix_ns=np.uint64(START) + np.arange(count, dtype=np.uint64),
    )
    document = json.loads(timeline([], [batch]))
    other = document["otherData"]
    assert other["samples_shown"] <= MOST_SAMPLES
    assert other["samples_shown"] + other["samples_left_out"] == count


def test_profiles_without_times_are_left_out_and_counted() -> None:
    document = drawn([], [profile({("a",): 1, ("b",): 1})])
    assert document["otherData"]["samples_left_out"] == 2


@pytest.mark.parametrize("hostile", HOSTILE)
def test_any_name_and_value_is_held(hostile: str) -> None:
    columns: dict[str, Any] = {"thread_id": [7], "x_y": [hostile], "big": [2**63 - 1], "odd": [float("nan")]}
    reported = [spans([(hostile, 0, 1)], scope=hostile, **columns)]
    document = drawn(reported, [profile([((hostile,), 1)], times=[START], attributes=of_thread(1))])
    wanted = hostile.encode("utf-8", "replace").decode()
    args = next(each["args"] for each in document["traceEvents"] if each["ph"] == "X")
    assert (args["x.y"], args["big"], args["odd"]) == (wanted, str(2**63 - 1), "nan")


def test_nothing_is_a_timeline_too() -> None:
    assert drawn([])["traceEvents"] == []


@pytest.mark.parametrize(
    "event",
    [
        {"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 0},
        {"ph": "X", "name": "", "pid": 1, "tid": 1, "ts": 0, "dur": 1},
        {"ph": "Q", "name": "a", "pid": 1, "tid": 1, "ts": 0},
        {"ph": "i", "name": "a", "pid": 1, "tid": 1, "ts": 0},
        {"ph": "s", "name": "a", "cat": "a", "id": 1, "pid": 1, "tid": 1, "ts": 0},
        {"ph": "i", "s": "t", "name": "a", "pid": 1, "tid": 1, "ts": "0"},
    ],
)
def test_the_checker_finds_fault_with_what_is_wrong(event: dict[str, Any]) -> None:
    name = {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "ts": 0, "args": {"name": "t"}}
    assert len(faults({"displayTimeUnit": "ns", "traceEvents": [name]})) == 0
    assert faults({"displayTimeUnit": "ns", "traceEvents": [name, event]}) != []
