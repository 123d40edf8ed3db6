"""Inputs in, spans and metrics out: whole requests through the real decoders, without a kernel."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.engine import function_names, registry
from otelgpu.engine import pipeline as module
from otelgpu.engine.attribution import pending as requests
from otelgpu.engine.facts import TrafficParsed
from otelgpu.engine.pipeline import Pipeline
from otelgpu.engine.processes import LINGER_NS
from otelgpu.model.engine_messages import EngineItem, EngineOutput
from otelgpu.model.inputs import Batch, FunctionNamed, Input, LossCounted, ProcessGone, ProcessSeen, Tick
from otelgpu.model.operations import Memory
from otelgpu.model.resource import resource
from otelgpu.model.sampling import Exclusion, Sampler, TailRule
from otelgpu.model.settings import SignalSettings
from tests.rig.examples import examples
from tests.unit.families.records import (
    MS,
    UNIX_OFFSET_NS,
    Host,
    btf,
    completion,
    joined,
    plain_answer,
    stream_end,
    stream_event,
    stream_head,
)
from tests.unit.model.builders import Row, read_out

OWN = resource({"service.name": "otelgpu"})
TRACE, CALLER = "0102030405060708090a0b0c0d0e0f10", "0102030405060708"
LAUNCH_PREFILL, LAUNCH_DECODE = "cudaLaunchKernel void prefill<float>(int)", "cudaLaunchKernel decode(int)"


def pipeline(**options: Any) -> Pipeline:
    """A session of both families."""
    sections = {name: btf(name) for name in registry.with_records()}
    return Pipeline(
        registry.with_records(),
        sections,
        **({"seed": 1, "own": OWN, "start_unix_ns": UNIX_OFFSET_NS} | options),
    )


def played(
    inputs: Iterable[Input], session: Pipeline | None = None, **options: Any
) -> tuple[list[Row], Pipeline]:
    """Every span that the inputs and the end of the session give, and the session."""
    session = session or pipeline(**options)
    rows = [row for item in inputs for row in read_out(session.feed(item))]
    return rows + read_out(session.finish()), session


def named(rows: Iterable[Row], name: str) -> list[Row]:
    return [row for row in rows if row.name == name]


def one(rows: Iterable[Row], name: str) -> Row:
    (row,) = named(rows, name)
    return row


def children(rows: Iterable[Row], parent: Row) -> list[tuple[str, int]]:
    """Name and count of each span right under another, in order of time."""
    mine = [row for row in rows if row.parent_id == parent.span_id]
    assert {row.trace_id for row in mine} <= {parent.trace_id}
    return [(row.name, row.get("otelgpu.count") or 1) for row in sorted(mine, key=lambda row: row.start_ns)]


@pytest.fixture
def host() -> Host:
    made = Host()
    made.accept()
    return made


# -- the tree ---------------------------------------------------------------------------------------


def test_a_streamed_request_has_its_phases_and_each_its_own_cuda_calls(host: Host) -> None:
    host.serve(tokens=3)
    rows, _ = played(host.inputs())
    request, prefill, decode = (one(rows, name) for name in ("chat tiny", "prefill", "decode"))
    assert children(rows, request) == [("prefill", 1), ("decode", 1)]
    assert children(rows, prefill) == [
        ("cudaMemcpyAsync", 1),
        (LAUNCH_PREFILL, 2),
        ("cudaStreamSynchronize", 1),
    ]
    assert children(rows, decode) == [(LAUNCH_DECODE, 1), ("cudaStreamSynchronize", 1)] * 2
    assert (request.parent_id, len(rows)) == ("", 10)


def test_the_phases_fill_the_request(host: Host) -> None:
    host.serve()
    rows, _ = played(host.inputs())
    request, prefill, decode = (one(rows, name) for name in ("chat tiny", "prefill", "decode"))
    assert (prefill.start_ns, prefill.end_ns) == (request.start_ns, decode.start_ns)
    assert decode.end_ns == request.end_ns
    assert prefill.end_ns - prefill.start_ns == round(request["gen_ai.latency.time_to_first_token"] * 1e9)


def test_the_request_sums_up_what_its_phases_do(host: Host) -> None:
    host.serve(tokens=3)
    rows, _ = played(host.inputs())
    calls = [one(rows, name).get("cuda.launch.calls") for name in ("chat tiny", "prefill", "decode")]
    waits = [
        one(rows, name).get("cuda.synchronize.host.duration") for name in ("chat tiny", "prefill", "decode")
    ]
    assert (calls, waits) == ([4, 2, 2], [0.003, 0.001, 0.002])
    assert one(rows, "prefill")["cuda.memcpy.size"] == 4096


def test_a_callers_trace_is_continued(host: Host) -> None:
    host.serve(traceparent=f"00-{TRACE}-{CALLER}-01", tracestate="vendor=1")
    rows, _ = played(host.inputs())
    request = one(rows, "chat tiny")
    assert (request.parent_id, request.state, request.flags) == (CALLER, "vendor=1", 1)
    assert {row.trace_id for row in rows} == {TRACE}


def test_an_unsampled_trace_stays_unsampled_but_is_measured(host: Host) -> None:
    host.serve(tokens=3, traceparent=f"00-{TRACE}-{CALLER}-00")
    rows, session = played(host.inputs())
    assert rows == []
    assert session.metrics.value("gpu.cuda.kernel.launch.calls") == 4
    assert session.summary.requests == 1
    assert session.summary.losses["correlate", "unsampled_requests"] == 1


@pytest.mark.parametrize(("slow_s", "kept"), [(0.0, False), (1e-9, True), (60.0, False)])
def test_what_the_sampler_left_out_is_measured_and_reported_only_where_it_was_slow(
    host: Host, slow_s: float, kept: bool
) -> None:
    settings = SignalSettings(sampler=Sampler(ratio=0.0), tail=TailRule(slow_first_token_s=slow_s))
    host.serve(tokens=3)
    rows, session = played(host.inputs(), settings=settings)
    assert session.metrics.value("gpu.cuda.kernel.launch.calls") == 4
    assert session.summary.requests == 1
    assert session.summary.losses["correlate", "sampled_out_requests"] == (0 if kept else 1)
    assert session.summary.losses["correlate", "unsampled_requests"] == 0
    assert {row.name for row in rows} >= ({"chat tiny", "prefill", "decode"} if kept else set())
    assert bool(rows) is kept and all(row.flags == 1 for row in rows)


def test_a_ratio_keeps_whole_requests_and_says_of_how_many_each_is_one(host: Host) -> None:
    for _ in range(40):
        host.serve(tokens=3)
    everything, _ = played(host.inputs())
    rows, session = played(host.inputs(), settings=SignalSettings(sampler=Sampler(ratio=0.25)))
    kept = {row.trace_id for row in rows}
    assert 0 < len(kept) < 40
    assert kept == {row.trace_id for row in everything if int(row.trace_id[-14:], 16) >= 0xC0000000000000}
    assert [row.name for row in rows] == [row.name for row in everything if row.trace_id in kept]
    assert {row.state for row in named(rows, "chat tiny")} == {"ot=th:c"}
    assert session.summary.losses["correlate", "sampled_out_requests"] == 40 - len(kept)
    assert session.summary.requests == 40


@pytest.mark.parametrize("given", [{"paths": ("/v1/chat/*",)}, {"paths": ("/health*",)}])
def test_what_is_excluded_is_measured_by_its_route_and_is_no_trace(
    host: Host, given: dict[str, tuple[str, ...]]
) -> None:
    exclusion = Exclusion(**given)
    host.serve(tokens=3)
    rows, session = played(host.inputs(), settings=SignalSettings(exclusion=exclusion))
    excluded = exclusion.fits("/v1/chat/completions", "")
    assert bool(rows) is not excluded
    assert session.summary.losses["correlate", "excluded_requests"] == int(excluded)
    assert session.summary.losses["correlate", "unsampled_requests"] == 0
    assert session.metrics.value("gpu.cuda.kernel.launch.calls") == 4
    route = {"http.route": "/v1/chat/completions"}
    assert session.metrics.value("http.server.request.duration", **route) > 0


def test_another_sampler_holds_from_the_next_request_on(host: Host) -> None:
    session = pipeline(settings=SignalSettings(sampler=Sampler(ratio=0.0)))
    session.reconfigure(SignalSettings())
    host.serve(tokens=3)
    assert named(played(host.inputs(), session)[0], "chat tiny")


def test_late_work_of_an_unsampled_request_is_not_reported_either(host: Host) -> None:
    rows, session = played(late_work(host, traceparent=f"00-{TRACE}-{CALLER}-00"))
    assert rows == []
    assert session.metrics.value("gpu.cuda.kernel.launch.calls") == 1


def test_an_answer_that_is_not_streamed_has_no_phases(host: Host) -> None:
    host.ask(stream=False)
    host.launch(0x1000)
    host.write(completion(prompt_tokens=3, completion_tokens=2))
    rows, _ = played(host.inputs())
    assert children(rows, one(rows, "chat tiny")) == [(LAUNCH_PREFILL, 1)]
    assert {row.name for row in rows} == {"chat tiny", LAUNCH_PREFILL}


def test_a_tick_in_which_only_telemetry_was_exported_reports_nothing(host: Host) -> None:
    host.read(b"POST /v1/traces HTTP/1.1\r\ncontent-length: 1\r\n\r\n\0")
    host.write(plain_answer())
    rows, session = played(host.inputs())
    assert rows == []
    assert session.summary.losses["http", "telemetry_exports"] == 1


def test_requests_on_one_connection_are_apart(host: Host) -> None:
    for function in (0x1000, 0x2000):
        host.read(b"GET /health HTTP/1.1\r\n\r\n")
        host.launch(function)
        host.write(plain_answer())
    rows, _ = played(host.inputs())
    first, second = sorted(named(rows, "GET /health"), key=lambda row: row.start_ns)
    assert (children(rows, first), children(rows, second)) == ([(LAUNCH_PREFILL, 1)], [(LAUNCH_DECODE, 1)])
    assert first.trace_id != second.trace_id


def test_threads_that_serve_at_the_same_time_keep_their_work(host: Host) -> None:
    host.accept(2)
    host.ask(connection=1, tid=101, stream=False)
    host.ask(connection=2, tid=102, stream=False)
    for _ in range(3):
        host.launch(0x1000, tid=101)
        host.launch(0x2000, tid=102)
    for connection, tid in ((2, 102), (1, 101)):
        host.write(completion(completion_tokens=1), connection=connection, tid=tid)
    rows, _ = played(host.inputs())
    trees = {row["client.port"]: children(rows, row) for row in named(rows, "chat tiny")}
    assert trees == {40001: [(LAUNCH_PREFILL, 3)], 40002: [(LAUNCH_DECODE, 3)]}


def test_spans_have_unix_times(host: Host) -> None:
    host.launch()
    begin, end = host.now_ns - MS, host.now_ns
    rows, _ = played(host.inputs())
    launch = one(rows, LAUNCH_PREFILL)
    assert (launch.start_ns, launch.end_ns) == (begin + UNIX_OFFSET_NS, end + UNIX_OFFSET_NS)


# -- ids --------------------------------------------------------------------------------------------


def test_the_same_inputs_give_the_same_ids_and_another_seed_gives_others(host: Host) -> None:
    host.serve()
    host.launch(tid=999)
    same, again, other = ({row.span_id for row in played(host.inputs(), seed=seed)[0]} for seed in (1, 1, 2))
    assert same == again
    assert not same & other


def test_every_span_has_an_id_of_its_own(host: Host) -> None:
    for _ in range(5):
        host.serve()
        host.launch(tid=999)
    rows, _ = played(host.inputs())
    assert len({(row.trace_id, row.span_id) for row in rows}) == len(rows)


# -- work that has no request -----------------------------------------------------------------------


def test_work_without_a_request_stays_visible_under_a_root(host: Host) -> None:
    host.launch(0x1000, times=3, tid=200)
    host.copy(tid=201)
    rows, session = played(host.inputs())
    root = one(rows, "unattributed gpu work")
    assert children(rows, root) == [(LAUNCH_PREFILL, 3), ("cudaMemcpyAsync", 1)]
    assert (root["otelgpu.unattributed.reason"], root["cuda.launch.calls"]) == ("no_request", 3)
    assert (session.summary.unattributed, session.summary.linked) == (4, 0)


def test_processes_have_roots_of_their_own() -> None:
    hosts = [Host(tgid=tgid) for tgid in (100, 200)]
    for host in hosts:
        host.launch(tid=host.tgid + 1)
    rows, _ = played([*hosts[0].inputs(), *hosts[1].inputs()])
    roots = named(rows, "unattributed gpu work")
    assert [root.resource.get("process.pid") for root in roots] == [100, 200]
    assert len({root.trace_id for root in roots}) == 2


def test_a_thread_with_two_requests_at_once_is_not_linked_to_either(host: Host) -> None:
    host.accept(2)
    host.ask(connection=1, stream=False)
    host.launch(0x1000)
    host.ask(connection=2, stream=False)
    host.launch(0x2000)
    for connection in (1, 2):
        host.write(completion(completion_tokens=1), connection=connection)
    rows, session = played(host.inputs())
    assert one(rows, "unattributed gpu work")["otelgpu.unattributed.reason"] == "ambiguous"
    assert children(rows, one(rows, "unattributed gpu work")) == [(LAUNCH_DECODE, 1)]
    assert (session.summary.ambiguous, session.summary.linked) == (1, 1)


def iterate(host: Host, session: Pipeline) -> None:
    """Three iterations of thread 200, and what says that its process is an engine."""
    for _ in range(3):
        host.copy(tid=200)
        host.launch(times=2, tid=200)
        host.synchronize(tid=200)
    said = EngineOutput(
        time_ns=host.now_ns,
        tgid=100,
        tid=201,
        sent=True,
        connection=1,
        engine="vllm",
        items=(EngineItem("r", 1, False),),
    )
    session.feed(TrafficParsed(messages=[said]))  # type: ignore[arg-type]


def test_steps_of_an_engines_thread_are_in_the_summary_and_are_no_loss(host: Host) -> None:
    session = pipeline()
    iterate(host, session)
    rows, _ = played(host.inputs(), session)
    steps = named(rows, "engine.step")
    assert steps
    assert (session.summary.steps, session.summary.stepped) == (len(steps), 4 * len(steps))
    assert session.summary.linked_by == {}
    assert ("steps", "steps") not in session.summary.losses


def test_windows_are_reported_when_they_are_over(host: Host) -> None:
    host.launch(tid=200)
    session = pipeline()
    for item in host.inputs():
        assert list(session.feed(item)) == []
    reported = read_out(session.feed(Tick(time_ns=8_100 * MS)))
    assert [row.name for row in reported] == ["unattributed gpu work", LAUNCH_PREFILL]
    assert list(session.finish()) == []


def test_a_process_that_nobody_saw_has_a_resource(host: Host) -> None:
    host.launch(tid=200)
    rows, _ = played(sent.batch for sent in host.sent)
    assert {row.resource for row in rows} == {
        resource({"service.name": "unknown_service", "process.pid": 100})
    }


# -- late, lost, gone -------------------------------------------------------------------------------


def late_work(host: Host, **headers: str) -> list[Input]:
    """A launch that began under a request returns after another thread answered it and that was reported."""
    host.ask(tid=101, stream=False, **headers)
    host.launch(0x1000, tid=101, took_ns=50 * MS)
    launch = host.sent.pop()
    host.write(completion(completion_tokens=1), tid=102)
    launch.batch.heads["duration_ns"] = host.now_ns + MS - launch.batch.heads["time_ns"]
    return [*host.inputs(), launch.batch, Tick(time_ns=host.now_ns + 5 * MS)]


def test_late_work_is_counted_and_reported_under_its_request(host: Host) -> None:
    rows, session = played(late_work(host))
    assert children(rows, one(rows, "chat tiny")) == [(LAUNCH_PREFILL, 1)]
    assert session.summary.losses["correlate", "late_operations"] == 1


def test_a_process_that_ends_takes_its_request_with_it(host: Host) -> None:
    host.ask(stream=False)
    host.launch()
    inputs = host.inputs()
    gone = host.gone()
    rows, _ = played([*inputs, gone, Tick(time_ns=host.now_ns + MS)])
    request = one(rows, "chat tiny")
    assert (request["error.type"], request.status, request.end_ns) == (
        "process_exited",
        2,
        gone.time_ns + UNIX_OFFSET_NS,
    )
    assert children(rows, request) == [(LAUNCH_PREFILL, 1)]


def test_a_thread_id_that_is_used_again_by_another_process_has_no_request(host: Host) -> None:
    host.ask(stream=False)
    gone = host.gone()
    inputs = [*host.inputs(), gone, Tick(time_ns=host.now_ns + MS)]
    later = Host(tgid=300, now_ns=host.now_ns + 10 * MS)
    later.launch(tid=101)
    rows, session = played([*inputs, *later.inputs()])
    assert session.summary.unattributed == 1
    assert children(rows, one(rows, "unattributed gpu work")) == [(LAUNCH_PREFILL, 1)]


def test_losses_are_metrics_of_the_program_itself(host: Host) -> None:
    losses = [LossCounted(family="cuda", reason="ring_full", count=n) for n in (3, 4, 0)]
    _, session = played([*losses, Tick(time_ns=1)])
    assert session.metrics.value("otelgpu.losses", OWN, **{"otelgpu.reason": "ring_full"}) == 7
    assert session.summary.losses == {("cuda", "ring_full"): 7}


def test_what_a_conversation_counts_is_reported_once(host: Host) -> None:
    host.read(b"\x00\x01garbage\r\n\r\n" * 3)
    _, session = played(
        [*host.inputs(), Tick(time_ns=host.now_ns + 2 * MS), Tick(time_ns=host.now_ns + 3 * MS)]
    )
    assert session.summary.losses["http", "protocol_unknown"] == 1


def test_calls_beyond_the_bound_are_summed_and_counted_on_the_request(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "OPERATIONS_PER_REQUEST", 3)
    host.ask(stream=False)
    host.launch(times=8)
    host.write(completion(completion_tokens=1))
    rows, session = played(host.inputs())
    request = one(rows, "chat tiny")
    assert (request["cuda.launch.calls"], request["otelgpu.operations.dropped"]) == (8, 5)
    assert children(rows, request) == [(LAUNCH_PREFILL, 3)]
    assert session.summary.losses["correlate", "operations_not_kept"] == 5


def left_unanswered(rows: list[Row]) -> list[tuple[str, int]]:
    root = one(rows, "unattributed gpu work")
    assert root["otelgpu.unattributed.reason"] == "unanswered"
    return children(rows, root)


def test_work_of_a_request_that_is_never_answered_is_reported_at_the_end(host: Host) -> None:
    host.ask(stream=False)
    host.launch(times=3)
    rows, session = played(host.inputs())
    assert left_unanswered(rows) == [(LAUNCH_PREFILL, 3)]
    assert session.summary.losses["correlate", "unanswered_requests"] == 1


def test_requests_under_way_at_the_end_are_counted_though_nothing_came_for_long(host: Host) -> None:
    host.ask(stream=False)
    rows, session = played([*host.inputs(), *(Tick(time_ns=host.now_ns + n * 1000 * MS) for n in range(60))])
    assert rows == []
    assert session.summary.losses["http", "requests_under_way"] == 1


def test_the_end_takes_what_began_after_the_last_tick_too(host: Host) -> None:
    host.ask(stream=False)
    tick = Tick(time_ns=host.now_ns)
    host.launch(times=3)
    rows, _ = played([*host.preamble(), tick, *(sent.batch for sent in host.sent)])
    assert left_unanswered(rows) == [(LAUNCH_PREFILL, 3)]


def test_work_of_what_turned_out_to_be_no_request_is_reported(host: Host) -> None:
    host.read(b"POST /v1/chat/comp")
    host.launch(times=3)
    host.close()
    rows, _ = played(host.inputs())
    assert left_unanswered(rows) == [(LAUNCH_PREFILL, 3)]


def test_a_request_that_came_to_nothing_does_not_hold_its_work_for_ever(host: Host) -> None:
    host.read(b"POST /v1/chat/comp")
    host.launch(times=3)
    host.close()
    session = pipeline()
    late = [Tick(time_ns=host.now_ns + seconds * 1000 * MS) for seconds in (100, 200, 300, 400)]
    rows = [row for item in [*host.inputs(), *late] for row in read_out(session.feed(item))]
    assert left_unanswered(rows) == [(LAUNCH_PREFILL, 3)]


def test_a_request_that_takes_minutes_keeps_its_work(host: Host) -> None:
    host.ask(stream=False)
    host.launch()
    waiting = host.inputs()
    before = len(host.sent)
    for _ in range(20):
        host.now_ns += 30_000 * MS
        waiting.append(Tick(time_ns=host.now_ns))
    host.write(completion(completion_tokens=1))
    answer = [*(sent.batch for sent in host.sent[before:]), Tick(time_ns=host.now_ns + MS)]
    rows, _ = played([*waiting, *answer])
    assert children(rows, one(rows, "chat tiny")) == [(LAUNCH_PREFILL, 1)]


# -- names ------------------------------------------------------------------------------------------


def test_a_kernel_that_has_no_name_yet_is_unknown(host: Host) -> None:
    host.launch(0x7777, tid=200)
    rows, _ = played(host.inputs())
    assert one(rows, "cudaLaunchKernel [unknown]")["cuda.kernel.name"] == "[unknown]"


def test_the_short_name_is_in_the_span_name_and_the_full_one_in_an_attribute(host: Host) -> None:
    host.launch(0x1000, tid=200)
    rows, _ = played(host.inputs(), shorten=lambda name: name.split("<")[0].split()[-1])
    assert one(rows, "cudaLaunchKernel prefill")["cuda.kernel.name"] == "void prefill<float>(int)"


def test_no_address_is_in_the_name_of_a_kernel_without_a_symbol(host: Host) -> None:
    for kernel in (0x5000, 0x6000, 0x1000):
        host.launch(kernel, tid=200)
    place = FunctionNamed(
        tgid=100, address=0x5000, name="libx.so+0x10", known=False, module="libx.so", build_id="ab", offset=16
    )
    nowhere = FunctionNamed(tgid=100, address=0x6000, name="[unknown]+0x6000", known=False)
    rows, _ = played([*host.preamble(), place, nowhere, *host.inputs()[4:]])
    keys = [f"cuda.kernel.{key}" for key in ("name", "module", "build_id", "offset")]
    found = {tuple(row.get(key) for key in keys) for row in rows if row.scope == "otelgpu.cuda"}
    assert found == {
        ("[unknown]", "libx.so", "ab", 16),
        ("[unknown]", None, None, None),
        ("void prefill<float>(int)", None, None, None),
    }
    launches = [row.name for row in rows if row.name.startswith("cudaLaunchKernel")]
    assert launches.count("cudaLaunchKernel [unknown]") == 2


def test_an_address_is_named_per_process() -> None:
    hosts = [Host(tgid=tgid) for tgid in (100, 200)]
    for host in hosts:
        host.launch(0x1000, tid=host.tgid)
    other = FunctionNamed(tgid=200, address=0x1000, name="other()", known=True)
    rows, _ = played([*hosts[0].inputs(), *hosts[1].preamble(), other, *hosts[1].inputs()[4:]])
    found = {
        row.resource.get("process.pid"): row["cuda.kernel.name"]
        for row in rows
        if row.scope == "otelgpu.cuda"
    }
    assert found == {100: "void prefill<float>(int)", 200: "other()"}


def test_a_new_program_image_forgets_the_names(host: Host) -> None:
    host.launch(0x1000)
    again = ProcessSeen(tgid=100, time_ns=9, resource=OWN)
    rows, _ = played([*host.preamble(), again, *host.inputs()[4:]])
    assert [row["cuda.kernel.name"] for row in rows if row.scope == "otelgpu.cuda"] == ["[unknown]"]


def test_names_beyond_the_bound_are_counted(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(function_names, "NAMES", 2)
    host.launch(0x2000, tid=200)
    rows, session = played(host.inputs())
    assert one(rows, "cudaLaunchKernel [unknown]").status == 0
    assert session.summary.losses["symbols", "kernel_names_full"] == 1


# -- errors and detail ------------------------------------------------------------------------------


def test_a_call_that_fails_has_the_errors_name(host: Host) -> None:
    host.cuda("cuda_allocation", "cudaMalloc", tid=200, status=2, bytes=1 << 40)
    rows, session = played(host.inputs())
    failed = one(rows, "cudaMalloc")
    assert (failed.status, failed.message, failed["error.type"]) == (2, *["cudaErrorMemoryAllocation"] * 2)
    assert session.metrics.value("gpu.cuda.errors", **{"error.type": "cudaErrorMemoryAllocation"}) == 1
    assert session.metrics.value("gpu.cuda.memory.allocations") == 0
    assert session.summary.errors == {"cudaMalloc: cudaErrorMemoryAllocation": 1}


def test_a_call_whose_return_was_not_seen_has_not_failed(host: Host) -> None:
    host.cuda("cuda_allocation", "cudaMalloc", tid=200, status=2)
    host.sent[-1].batch.heads["returned"] = 0
    rows, session = played(host.inputs())
    assert (one(rows, "cudaMalloc").status, session.summary.errors) == (0, {})


def test_an_error_answer_is_an_error_span(host: Host) -> None:
    host.read(b"GET /x HTTP/1.1\r\n\r\n")
    host.write(plain_answer(503))
    rows, session = played(host.inputs())
    assert (one(rows, "GET /x").status, one(rows, "GET /x")["error.type"]) == (2, "503")
    assert session.summary.request_errors == 1


def allocate(host: Host, address: int, size: int, caller: int = 0x3000) -> None:
    host.cuda(
        "cuda_allocation", "cudaMalloc", object=address, bytes=size, memory=Memory.DEVICE, caller=caller
    )


def test_memory_that_is_held_is_reported_with_its_site(host: Host) -> None:
    allocate(host, 0xA000, 500)
    allocate(host, 0xB000, 70)
    host.cuda("cuda_free", "cudaFree", object=0xA000, memory=Memory.DEVICE)
    site = FunctionNamed(tgid=host.tgid, address=0x3000, name="load_weights+0x10", known=True)
    known = len(host.preamble())
    _, session = played([*host.preamble(), site, *host.inputs()[known:]])
    session.read_metrics()
    assert session.metrics.value("gpu.cuda.memory.usage") == 70
    assert session.metrics.value("gpu.cuda.memory.peak") == 570
    at = {"code.function.name": "load_weights+0x10"}
    assert session.metrics.value("gpu.cuda.memory.site.usage", **at) == 70


def test_a_process_that_ended_or_is_another_program_holds_no_memory(host: Host) -> None:
    for ends in (
        ProcessGone(tgid=host.tgid, time_ns=host.now_ns + 500 * MS),
        ProcessSeen(tgid=host.tgid, time_ns=host.now_ns + 500 * MS, resource=resource({"service.name": "b"})),
    ):
        allocate(host, 0xA000, 500)
        _, session = played([*host.inputs(), ends, Tick(time_ns=host.now_ns + 600 * MS)])
        session.read_metrics()
        assert session.metrics.value("gpu.cuda.memory.usage") == 0


def test_what_ended_long_before_the_export_is_reported_as_what_it_was_and_then_forgotten() -> None:
    session = pipeline()
    for tgid in range(300, 320):
        host = Host(tgid=tgid, now_ns=(tgid - 299) * 1000 * MS)
        allocate(host, 0xA000, 500)
        for item in [*host.inputs(), host.gone(), Tick(time_ns=host.now_ns + MS)]:
            session.feed(item)
    session.feed(Tick(time_ns=host.now_ns + 2 * LINGER_NS))  # an export a minute is usual
    reported, _ = session.read_metrics()
    attributes = [
        {each.key: each.value for each in of.resource.attributes} for of in reported.resource_metrics
    ]
    names = [each["service.name"].string_value for each in attributes]
    assert (names.count("llm"), names.count("unknown_service")) == (20, 0)
    left, _ = session.read_metrics()
    assert [of for of in left.resource_metrics if len(of.resource.attributes) > 1] == []
    assert session.tracked["process"] == 0


def test_metrics_carry_kernel_names_when_asked_to(host: Host) -> None:
    host.launch(0x1000, times=5)
    _, session = played(host.inputs(), settings=SignalSettings(kernel_metrics=3))
    by_name = {"cuda.kernel.name": "void prefill<float>(int)"}
    assert session.metrics.value("gpu.cuda.kernel.launch.calls", **by_name) == 5
    _, session = played(host.inputs())
    assert session.metrics.value("gpu.cuda.kernel.launch.calls", **by_name) == 0


def test_detail_phases_has_the_sums_and_no_calls(host: Host) -> None:
    host.serve()
    host.launch(tid=200)
    rows, _ = played(host.inputs(), settings=SignalSettings(detail="phases"))
    assert {row.name for row in rows} == {"chat tiny", "prefill", "decode", "unattributed gpu work"}
    assert one(rows, "prefill")["cuda.launch.calls"] == 2


def test_detail_all_has_every_call(host: Host) -> None:
    host.serve(tokens=1)
    rows, _ = played(host.inputs(), settings=SignalSettings(detail="all"))
    assert len(named(rows, LAUNCH_PREFILL)) == 2


def test_a_parent_has_a_bounded_number_of_spans(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SPANS_PER_PARENT", {"ops": 4})
    host.ask(stream=False)
    for _ in range(10):
        host.launch(0x1000)
        host.launch(0x2000)
    host.write(completion(completion_tokens=1))
    rows, _ = played(host.inputs())
    counts = dict.fromkeys((LAUNCH_PREFILL, LAUNCH_DECODE), 0)
    for name, count in (found := children(rows, one(rows, "chat tiny"))):
        counts[name] += count
    assert (len(found), counts) == (6, {LAUNCH_PREFILL: 10, LAUNCH_DECODE: 10})


def test_a_parent_has_as_many_spans_as_are_asked_for(host: Host) -> None:
    host.ask(stream=False)
    for _ in range(10):
        host.launch(0x1000)
        host.launch(0x2000)
    host.write(completion(completion_tokens=1))
    rows, _ = played(host.inputs(), settings=SignalSettings(detail="all", spans_per_parent=4))
    assert len(children(rows, one(rows, "chat tiny"))) == 6


# -- metrics ----------------------------------------------------------------------------------------


def test_a_request_is_measured_as_the_conventions_say(host: Host) -> None:
    host.serve(tokens=3)
    rows, session = played(host.inputs())
    request = one(rows, "chat tiny")
    assert (
        session.metrics.value("gen_ai.server.time_to_first_token")
        == request["gen_ai.latency.time_to_first_token"]
    )
    seconds = (request.end_ns - request.start_ns) * 1e-9
    for name in ("http.server.request.duration", "gen_ai.server.request.duration"):
        assert session.metrics.value(name) == pytest.approx(seconds)
    each = (seconds - request["gen_ai.latency.time_to_first_token"]) / 2
    assert session.metrics.value("gen_ai.server.time_per_output_token") == pytest.approx(each)


def test_metrics_have_the_time_of_the_last_tick(host: Host) -> None:
    host.launch()
    session = pipeline()
    for item in host.inputs():
        session.feed(item)
    data, points = session.read_metrics()
    found = [
        p.time_unix_nano - UNIX_OFFSET_NS
        for r in data.resource_metrics
        for s in r.scope_metrics
        for m in s.metrics
        for p in (m.sum if m.HasField("sum") else m.histogram).data_points
    ]
    assert set(found) == {host.now_ns + MS}
    assert len(found) == points


# -- batching ---------------------------------------------------------------------------------------


def busy_host(steps: list[tuple[int, int]]) -> Host:
    """Three connections, each served by its own thread now and then, and work of a thread without any."""
    host = Host()
    for connection in (1, 2, 3):
        host.accept(connection, tid=100 + connection)
    stage = dict.fromkeys((1, 2, 3), 0)
    for connection, action in steps:
        tid = 100 + connection
        if action == 0:
            host.launch(0x1000 * (1 + stage[connection] % 2), tid=tid)
        elif action == 1:
            host.synchronize(tid=tid, took_ns=800 * MS)
        elif action == 2:
            host.copy(tid=200, took_ns=1500 * MS)
        elif action == 3:
            host.read(b"GET /both HTTP/1.1\r\n\r\n", connection=connection, tid=101)
            host.write(plain_answer(), connection=connection, tid=101) if not stage[connection] else None
        else:
            data = (None, stream_head(), stream_event("a"), stream_end())[stage[connection]]
            if data is None:
                host.ask(connection=connection, tid=tid)
            else:
                host.write(data, connection=connection, tid=tid)
            stage[connection] = (stage[connection] + 1) % 4
    return host


steps = st.lists(st.tuples(st.integers(1, 3), st.sampled_from([0, 0, 1, 2, 3, 4, 4, 4, 4])), max_size=40)


def counted(session: Pipeline) -> object:
    """Every series: counts and buckets as they are, sums to nine digits (floats are added in another order)."""
    data, _ = session.read_metrics()
    found = {}
    for r in data.resource_metrics:
        for m in (m for s in r.scope_metrics for m in s.metrics):
            for p in m.sum.data_points:
                found[r.resource.SerializeToString(), m.name, str(p.attributes)] = p.as_int
            for p in m.histogram.data_points:
                key = r.resource.SerializeToString(), m.name, str(p.attributes)
                found[key] = (p.count, tuple(p.bucket_counts), f"{p.sum:.9g}", p.min, p.max)
    return found


@examples(60)
@given(steps, st.data())
def test_how_inputs_are_cut_into_batches_and_ticks_does_not_matter(
    done: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Ids, times, counts and metrics are the same; only the order differs in which spans are reported.

    Windows are the same too: an honest tick at T comes after every call that ended before T, and a window
    stays open for a second more, so no call misses the window in which it ended.
    """
    host = busy_host(done)
    whole, first = played(host.inputs())
    cuts = data.draw(st.sets(st.integers(1, len(host.sent))))
    inputs: list[Input] = host.preamble()
    interval: list[Batch] = []
    for i, sent in enumerate(host.sent, start=1):
        interval.append(sent.batch)
        if i in cuts:
            if data.draw(st.booleans()):  # as a live collection does: one family's ring after the other's
                interval.sort(key=lambda batch: batch.family == "http")
            inputs += joined(interval)
            interval = []
            inputs.append(Tick(time_ns=sent.submitted_ns + data.draw(st.integers(-MS // 2, MS // 2))))
    inputs += [*joined(interval), Tick(time_ns=host.now_ns + MS)]
    cut, second = played(inputs)
    assert sorted(map(repr, cut)) == sorted(map(repr, whole))
    assert counted(second) == counted(first)


def test_an_exit_is_dealt_with_at_the_next_tick_whatever_came_first(host: Host) -> None:
    host.ask(stream=False)
    host.launch()
    inputs = host.inputs()
    gone = ProcessGone(tgid=100, time_ns=host.now_ns + MS)
    at_once, _ = played([*inputs[:-1], gone, Tick(time_ns=host.now_ns + 2 * MS)])
    after, _ = played([*inputs, gone, Tick(time_ns=host.now_ns + 2 * MS)])
    assert sorted(map(repr, at_once)) == sorted(map(repr, after))


def test_a_call_that_began_after_the_tick_waits_for_what_says_whose_it_is() -> None:
    """The ring of requests was held up: of what is behind that nothing had been read, and the tick is of then."""
    host = Host()
    host.accept()
    held_up_ns = host.now_ns
    host.ask(stream=False)
    host.launch()
    host.write(plain_answer())
    calls = [sent.batch for sent in host.sent if sent.batch.family == "cuda"]
    others = [sent.batch for sent in host.sent if sent.batch.family != "cuda"]
    first = [*host.preamble(), others[0], *calls, Tick(time_ns=held_up_ns)]
    rows, _ = played([*first, *others[1:], Tick(time_ns=host.now_ns + MS)])
    (request,) = [row for row in rows if row.get("http.request.method")]
    (launch,) = [row for row in rows if row.name.startswith("cudaLaunchKernel")]
    assert launch.trace_id == request.trace_id
    assert request.get("cuda.launch.calls") == 1


def test_a_call_of_a_process_that_has_ended_waits_for_no_later_tick() -> None:
    host, session = Host(), pipeline()
    tick = Tick(time_ns=host.now_ns)
    host.launch()
    gone = ProcessGone(tgid=host.tgid, time_ns=host.now_ns)
    for item in (*host.preamble(), *(sent.batch for sent in host.sent), gone, tick):
        session.feed(item)
    assert not session._ahead


def test_times_that_are_none_and_too_many_calls_wait_for_no_later_tick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("otelgpu.engine.pipeline._MOST_AHEAD", 50)
    host, session = Host(), pipeline()
    host.launch()
    host.now_ns += 3_600_000 * MS
    host.launch()
    tick = Tick(time_ns=host.sent[0].submitted_ns - 500 * MS)
    for item in (*host.preamble(), *(sent.batch for sent in host.sent), tick):
        session.feed(item)
    assert sum(len(rows) for waiting in session._ahead.values() for rows in waiting) == 1
    host.now_ns = host.sent[0].submitted_ns
    host.sent.clear()
    host.launch(times=100)
    for sent in host.sent:
        session.feed(sent.batch)
        session.feed(tick)
    assert sum(len(rows) for waiting in session._ahead.values() for rows in waiting) == 51
