"""Device time through the whole session: records in, device spans among a request's own out."""

from __future__ import annotations

from typing import Any

import pytest

from otelgpu.model.inputs import Batch, Tick
from otelgpu.model.settings import SignalSettings
from tests.unit.engine.test_pipeline import UNIX_OFFSET_NS, named, one, played
from tests.unit.families.records import MS, Host, record, stream_end, stream_event, stream_head

LATE_MS = 2_000  # what CUPTI hands over comes after the request was answered


def activity(correlation: int, start_ns: int, **fields: Any) -> Batch:
    head = {"time_ns": start_ns, "duration_ns": 7000, "tgid": 100, "returned": 1}
    given = {"work": 1, "name": 0xAB, "sampled": 1_000_000, "stream": 13} | fields
    return record("cuda", "cuda_activity", head, correlation=correlation, **given)


def name(text: bytes) -> Batch:
    head = {"time_ns": 1, "tgid": 100}
    padded = text.ljust(176, b"\0")
    made = record("cuda", "cuda_activity_name", head, name=0xAB, offset=0, length=len(text))
    made.records["text"][0] = list(padded) if made.records["text"].dtype.kind != "S" else padded
    return made


@pytest.fixture
def host() -> Host:
    """A request: one launch in its prefill, a graph launch in its decode."""
    made = Host()
    made.accept()
    made.ask()
    made.launch(other=7)
    made.write(stream_head())
    made.write(stream_event("t0"))
    made.cuda("cuda_graph_launch", "cudaGraphLaunch", caller=8)
    made.write(stream_event("t1"))
    made.write(stream_end())
    return made


def work(host: Host) -> list[Batch]:
    graph = [activity(8, host.now_ns + i * MS, graph_node=i, graph=3) for i in (1, 2, 3)]
    return [name(b"_Z6decodev"), activity(7, host.now_ns), *graph]


@pytest.mark.parametrize("late", [False, True])
def test_device_work_is_in_the_phase_of_its_host_call(host: Host, late: bool) -> None:
    inputs = host.inputs()
    inputs[3:3] = [activity(0, 1, work=0)]  # a slice begins
    device = work(host)
    given = (
        [*inputs, *device, Tick(time_ns=host.now_ns + LATE_MS * MS)]
        if late
        else [*inputs[:-1], *device, inputs[-1]]
    )
    rows, _ = played(given, demangle=lambda text, tgid: f"{text}()", shorten=lambda full: full.upper())
    kernels = named(rows, "_Z6DECODEV()")
    assert {row["cuda.kernel.name"] for row in kernels} == {"_Z6decodev()"}
    found = {row.get("cuda.graph.node"): row for row in kernels}
    assert set(found) == {None, 1, 2, 3}
    request, prefill, decode = (one(rows, title) for title in ("chat tiny", "prefill", "decode"))
    assert {row.trace_id for row in kernels} == {request.trace_id}
    # What comes after the answer finds the request, whose phases are reported and gone by then.
    parents = [prefill, decode] if not late else [request, request]
    assert [found[None].parent_id, found[1].parent_id] == [parent.span_id for parent in parents]
    assert found[None].start_ns == host.now_ns + UNIX_OFFSET_NS
    assert found[None].end_ns - found[None].start_ns == 7000


def test_with_phases_alone_there_are_metrics_and_no_spans(host: Host) -> None:
    inputs = host.inputs()
    rows, session = played([*inputs[:-1], *work(host), inputs[-1]], settings=SignalSettings(detail="phases"))
    assert not [row for row in rows if row.get("cuda.correlation.id")]
    data, _ = session.read_metrics()
    points = {m.name: m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics}
    assert points["gpu.cuda.kernel.duration"].histogram.data_points[0].count == 4
    assert points["gpu.cuda.device_time.calls"].sum.data_points[0].as_int == 2


def test_what_finds_no_call_is_a_counted_loss(host: Host) -> None:
    inputs = host.inputs()
    _, session = played([*inputs[:-1], activity(99, host.now_ns), inputs[-1]])
    assert session.summary.losses["device_time", "activities_without_call"] == 1
    assert session.summary.losses["device_time", "calls_without_activity"] == 2
