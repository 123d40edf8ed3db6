"""What enters the pipeline beside records: calls that were only counted, and facts about GPUs."""

from __future__ import annotations

import pytest

from otelgpu.engine.top_kernels import OTHER
from otelgpu.model.devices import DeviceReadings, DeviceSeen, Quantity
from otelgpu.model.inputs import (
    CallsCounted,
    CallsUnobserved,
    Input,
    LossCounted,
    ProcessSeen,
    RecordsLost,
    Tick,
)
from otelgpu.model.operations import OperationKind
from otelgpu.model.resource import resource
from otelgpu.model.settings import SignalSettings
from tests.unit.engine.test_pipeline import played

SERVER = resource({"service.name": "server", "process.pid": 7})


def counted(api: str, kind: OperationKind, count: int = 5, tgid: int = 7) -> list[Input]:
    return [
        ProcessSeen(tgid=7, time_ns=1, resource=SERVER),
        CallsCounted(tgid=tgid, family="cuda", kind=kind, api=api, count=count),
        Tick(time_ns=10),
    ]


def test_records_that_a_process_lost_are_in_a_metric_of_it_and_counted_once_in_all() -> None:
    inputs: list[Input] = [
        ProcessSeen(tgid=7, time_ns=1, resource=SERVER),
        LossCounted(family="cuda", reason="ring_full", count=9),
        RecordsLost(tgid=7, family="cuda", count=4),
        RecordsLost(tgid=7, family="http", count=2),
        Tick(time_ns=10),
    ]
    _, session = played(inputs)
    name, family = "otelgpu.records.lost", "otelgpu.family"
    assert session.metrics.value(name, SERVER, **{family: "cuda"}) == 4
    assert session.metrics.value(name, SERVER) == 6
    assert session.summary.losses["cuda", "ring_full"] == 9


def test_for_how_long_a_process_was_not_observed_is_in_a_metric_of_it() -> None:
    inputs: list[Input] = [
        ProcessSeen(tgid=7, time_ns=1, resource=SERVER),
        *(CallsUnobserved(tgid=7, family="cuda", duration_ns=1_250_000_000) for _ in range(2)),
        Tick(time_ns=10),
    ]
    _, session = played(inputs)
    assert session.metrics.value("otelgpu.unobserved.duration", SERVER, **{"otelgpu.family": "cuda"}) == 2.5


@pytest.mark.parametrize(
    ("api", "kind", "metric"),
    [
        ("cudaLaunchKernel", OperationKind.LAUNCH, "gpu.cuda.kernel.launch.calls"),
        ("cuLaunchKernelEx_ptsz", OperationKind.LAUNCH, "gpu.cuda.kernel.launch.calls"),
        ("cudaGraphLaunch", OperationKind.GRAPH_LAUNCH, "gpu.cuda.graph.launch.calls"),
        ("cuStreamSynchronize", OperationKind.SYNCHRONIZATION, "gpu.cuda.stream.synchronize.calls"),
        ("cudaEventRecord", OperationKind.EVENT, "gpu.cuda.event.record.calls"),
    ],
)
def test_counted_calls_are_in_the_metric_of_their_calls(api: str, kind: OperationKind, metric: str) -> None:
    rows, session = played([*counted(api, kind), *counted(api, kind, 2)])
    assert session.metrics.value(metric, SERVER) == 7
    assert rows == []
    assert (session.summary.counted, session.summary.calls[api]) == (7, 7)


def test_only_the_functions_own_metric_counts_them() -> None:
    _, session = played(counted("cudaDeviceSynchronize", OperationKind.SYNCHRONIZATION))
    assert session.metrics.value("gpu.cuda.device.synchronize.calls") == 5
    assert session.metrics.value("gpu.cuda.stream.synchronize.calls") == 0


def test_what_needs_more_than_a_number_is_not_made_up() -> None:
    _, session = played(counted("cudaMemcpy", OperationKind.COPY))
    data, _ = session.read_metrics()
    reported = {m.name for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics}
    assert not any("copies" in name or "duration" in name or "size" in name for name in reported)


def test_memory_calls_without_records_are_a_loss_of_the_ledger() -> None:
    _, session = played(counted("cudaMalloc", OperationKind.ALLOCATION))
    assert session.summary.losses["memory", "calls_counted"] == 5


def test_processes_that_found_no_room_are_counted_under_the_agent() -> None:
    _, session = played(counted("cudaLaunchKernel", OperationKind.LAUNCH, tgid=0))
    assert session.metrics.value("gpu.cuda.kernel.launch.calls", SERVER) == 0
    assert session.metrics.value("gpu.cuda.kernel.launch.calls") == 5


def test_with_kernel_names_they_are_among_the_others() -> None:
    _, session = played(
        counted("cudaLaunchKernel", OperationKind.LAUNCH), settings=SignalSettings(kernel_metrics=3)
    )
    assert session.metrics.value("gpu.cuda.kernel.launch.calls", **{"cuda.kernel.name": OTHER}) == 5


def test_a_gpu_is_reported_under_the_agents_own_resource() -> None:
    seen = DeviceSeen(time_ns=1, uuid="GPU-1", index=0, minor=0, model="H200")
    read = DeviceReadings(time_ns=2, uuid="GPU-1", values={Quantity.UTILIZATION_PERCENT: 50})
    _, session = played([seen, read, Tick(time_ns=3)])
    assert session.metrics.value("hw.gpu.utilization", **{"hw.id": "GPU-1"}) == 0.5


def test_readings_of_a_gpu_that_nobody_described_are_counted() -> None:
    _, session = played([DeviceReadings(time_ns=2, uuid="GPU-1", values={}), Tick(time_ns=3)])
    assert session.summary.losses["devices", "device_not_seen"] == 1
