"""Family hip without a device: records of its layout through the whole session, and what shows what comes out."""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from otelgpu.families.gpu.hip.decode import HipDecoder
from otelgpu.families.gpu.hip.signals import SIGNALS

from otelgpu.elf.btf import BtfError
from otelgpu.engine import presentation, registry, top_views
from otelgpu.engine.call_stacks import CallStacks
from otelgpu.engine.operation_spans import Vocabulary
from otelgpu.engine.pipeline import Pipeline
from otelgpu.export.console.exporter import ConsoleExporter
from otelgpu.families.profiles.operations import OperationProfiles
from otelgpu.model.inputs import Batch, FunctionNamed, Input, ProcessSeen, Tick
from otelgpu.model.operations import Memory, OperationKind
from otelgpu.model.profiling import ProfileKind
from otelgpu.model.resource import resource
from otelgpu.model.settings import SignalSettings
from otelgpu.model.spans import SpanColumns
from otelgpu.render.timeline import timeline
from otelgpu.view.shown import shown
from tests.unit.families.records import MS, UNIX_OFFSET_NS, Host, btf
from tests.unit.model.builders import Row, read_out

KERNEL, DEVICE = 0x1000, 1
APIS = {name: number for number, name in HipDecoder(btf("hip")).apis.items()}


def call(api: str, kind: OperationKind, at_ms: int, **fields: Any) -> Batch:
    """One call of a process, a millisecond long."""
    record = np.zeros(1, dtype=btf("hip").dtype("hip_call"))
    head = {"time_ns": at_ms * MS, "duration_ns": MS, "tgid": 100, "tid": 101, "kind": kind, "returned": 1}
    for name, value in head.items():
        record["head"][name] = value
    for name, value in {"api": APIS[api], "device": DEVICE, **fields}.items():
        record[name] = value
    return Batch(family="hip", kind="hip_call", records=record)


def calls() -> list[Batch]:
    """Five allocations of 4 KiB, two of them freed, one refused; three launches; two copies; a wait."""
    device = {"memory": Memory.DEVICE, "bytes": 4096}
    given = [
        *(call("hipMalloc", OperationKind.ALLOCATION, 10 + n, object=0x9000 + n, **device) for n in range(5)),
        call("hipMalloc", OperationKind.ALLOCATION, 20, status=2, **device),
        *(call("hipFree", OperationKind.FREE, 21 + n, object=0x9000 + n, memory=1) for n in range(2)),
        call("hipHostMalloc", OperationKind.ALLOCATION, 25, object=0xA000, memory=Memory.HOST, bytes=512),
        call("hipMemcpy", OperationKind.COPY, 30, bytes=100, detail=1),
        call("hipMemcpy", OperationKind.COPY, 31, bytes=200, detail=2),
    ]
    for n in range(3):
        launch = call("hipLaunchKernel", OperationKind.LAUNCH, 40 + n, function=KERNEL)
        launch.records["grid"], launch.records["block"] = (8, 4, 2), (128, 1, 1)
        given.append(launch)
    return [*given, call("hipStreamSynchronize", OperationKind.SYNCHRONIZATION, 50, object=7)]


def fed(inputs: Sequence[Input]) -> tuple[list[SpanColumns], Pipeline]:
    """A session of all families that has not ended, and what came out of it so far."""
    families = registry.with_records()
    types = {name: btf(name) for name in families}
    own = resource({"service.name": "otelgpu"})
    made = Pipeline(
        families, types, seed=1, own=own, start_unix_ns=UNIX_OFFSET_NS, settings=SignalSettings(detail="all")
    )
    before = [
        *(item for item in Host().preamble() if not isinstance(item, ProcessSeen)),
        ProcessSeen(tgid=100, time_ns=1, resource=resource({"process.pid": 100})),
        FunctionNamed(tgid=100, address=KERNEL, name="axpy(float)", known=True),
    ]
    spans = [batch for item in (*before, *inputs, Tick(time_ns=2000 * MS)) for batch in made.feed(item)]
    return spans, made


@pytest.fixture(scope="module")
def spans() -> list[SpanColumns]:
    found, made = fed(calls())
    return [*found, *made.finish()]


def rows(spans: Sequence[SpanColumns]) -> list[Row]:
    return [row for row in read_out(spans) if row.name.startswith("hip")]


def test_each_call_is_a_span_under_names_of_its_own(spans: list[SpanColumns]) -> None:
    assert Counter(row.name for row in rows(spans)) == {
        "hipMalloc": 6,
        "hipFree": 2,
        "hipHostMalloc": 1,
        "hipMemcpy": 2,
        "hipLaunchKernel axpy(float)": 3,
        "hipStreamSynchronize": 1,
    }
    keys = {key for row in rows(spans) for key, _ in row.attributes}
    assert {key.partition(".")[0] for key in keys} == {"hip", "otelgpu", "thread", "error"}


def test_a_launch_says_its_kernel_and_shape(spans: list[SpanColumns]) -> None:
    launch = next(row for row in rows(spans) if "Launch" in row.name)
    assert (launch["hip.kernel.name"], launch["hip.device.index"]) == ("axpy(float)", DEVICE)
    assert [launch[f"hip.grid.{axis}"] for axis in "xyz"] == [8, 4, 2]
    assert [launch[f"hip.block.{axis}"] for axis in "xyz"] == [128, 1, 1]


def test_a_failed_call_says_its_result(spans: list[SpanColumns]) -> None:
    failed = [row["error.type"] for row in rows(spans) if row.get("error.type")]
    assert failed == ["hipErrorOutOfMemory"]


def test_work_of_no_request_is_summed_under_its_names(spans: list[SpanColumns]) -> None:
    (window,) = (dict(row.attributes) for row in read_out(spans) if row.name == "unattributed gpu work")
    totals = {key: value for key, value in window.items() if key.startswith(("hip.", "cuda."))}
    assert totals == {
        "hip.launch.calls": 3,
        "hip.memcpy.calls": 2,
        "hip.memcpy.size": 300,
        "hip.synchronize.calls": 1,
    }


def test_memory_in_use_is_reported_under_its_names() -> None:
    """Three of five allocations are held at the end of the calls: the process has not ended."""
    _, made = fed(calls())
    exported, _ = made.read_metrics()
    found = {
        metric.name
        for of in exported.resource_metrics
        for scope in of.scope_metrics
        for metric in scope.metrics
    }
    assert made.metrics.value("gpu.hip.memory.usage") == 3 * 4096
    assert made.metrics.value("gpu.hip.memory.live.allocations") == 3
    assert made.metrics.value("gpu.hip.memory.allocation.failures") == 1
    assert made.metrics.value("gpu.hip.host.memory.usage") == 512
    assert made.metrics.value("gpu.hip.kernel.launch.calls") == 3
    assert {"gpu.hip.memory.peak", "gpu.hip.memory.copies", "gpu.hip.errors"} <= found
    assert [name for name in found if "cuda" in name] == []


def test_profiles_have_its_calls_under_types_of_its_own() -> None:
    decoder = HipDecoder(btf("hip"))
    known = Vocabulary(families=[(decoder, SIGNALS)], kernels=["unknown"], short_kernels=["unknown"])
    profiles = OperationProfiles((ProfileKind.CUDA, ProfileKind.KERNEL, ProfileKind.MEM), CallStacks(), known)
    for batch in calls():
        profiles.see_calls(decoder.decode(batch))
    found = profiles.take(9000 * MS, final=True)
    sums: Counter[str] = Counter()
    for each in found:
        sums[each.sample_type.type] += int(each.rows["value"].sum())
    assert sums == {
        "hip_calls": 15,
        "hip_time": 15 * MS,
        "kernel_launches": 3,
        "kernel_launch_time": 3 * MS,
        "device_memory_allocated": 5 * 4096 + 512,
        "device_memory_allocations": 6,
    }
    labels = {label for each in found if each.kind is ProfileKind.MEM for label in each.labels}
    assert labels == {
        (("hip.memory.kind", kind), ("hip.device.index", DEVICE)) for kind in ("device", "host")
    }


def test_the_console_shows_direction_and_size(spans: list[SpanColumns]) -> None:
    stream = io.StringIO()
    exporter = ConsoleExporter(stream)
    exporter.export_spans(spans)
    exporter.flush(1)
    assert re.search(r"hipMemcpy +1\.00 ms +hipMemcpyHostToDevice +100 B", stream.getvalue()), (
        stream.getvalue()
    )


def test_the_viewer_knows_its_calls_by_kind(spans: list[SpanColumns]) -> None:
    rules = [rule for rule in shown()["rules"] if rule["scope"] == "otelgpu.hip"]
    kinds = Counter(
        next(rule["kind"] for rule in rules if re.search(rule.get("name", ""), row.name))
        for row in rows(spans)
    )
    assert kinds == {"memory": 9, "copy": 2, "launch": 3, "sync": 1}
    assert "hip.launch.calls" in shown()["launches"]


def test_the_timeline_has_its_calls_on_their_thread(spans: list[SpanColumns]) -> None:
    events = json.loads(timeline(spans))["traceEvents"]
    tracks = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert "thread 101" in tracks
    assert sum(event["ph"] == "X" and event["name"].startswith("hip") for event in events) == 15


def test_its_work_is_on_a_track_for_each_stream() -> None:
    (rule,) = (rule for rule in presentation.track_rules() if rule.attribute == "hip.correlation.id")
    assert rule.track({"hip.device.index": 1, "hip.stream.id": 7}) == ((1, 7), "GPU 1 stream 7")


def test_top_has_a_view_of_its_metrics() -> None:
    top_table, _ = top_views.top_views()["hip"].top_tables
    own = {spec.metric.name for spec in SIGNALS.metrics}
    assert {name for column in top_table.columns for name in column.metrics} <= own


def test_records_of_another_layout_are_refused() -> None:
    with pytest.raises(BtfError):
        HipDecoder(btf("cuda"))
