"""The names of family ``cuda``: its one table.

``gpu.cuda.*`` metrics and ``cuda.memcpy.kind`` are as OpenTelemetry eBPF Instrumentation has made usual
(schemas/obi/groups/gpu); the rest is ours and is documented in docs/signals.md.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from otelgpu.families.base import CallAttribute, Holds, Instrument, Metric, OperationMetric, OperationSignals
from otelgpu.families.cuda.results import result_name
from otelgpu.model.operations import CopyDirection, OperationKind, Operations

_COPY_NAMES: Final = {
    CopyDirection.HOST_TO_HOST: "MemcpyHostToHost",
    CopyDirection.HOST_TO_DEVICE: "MemcpyHostToDevice",
    CopyDirection.DEVICE_TO_HOST: "MemcpyDeviceToHost",
    CopyDirection.DEVICE_TO_DEVICE: "MemcpyDeviceToDevice",
    CopyDirection.DEFAULT: "MemcpyDefault",
}


def copy_name(code: int) -> str:
    """``cuda.memcpy.kind`` of a direction code."""
    return _COPY_NAMES.get(CopyDirection(code), "unknown")


def _grid_size(rows: Operations) -> np.ndarray:
    return np.asarray(rows["grid"].astype(np.float64).prod(axis=1))


def _block_size(rows: Operations) -> np.ndarray:
    return np.asarray(rows["block"].astype(np.float64).prod(axis=1))


_STREAM: Final = CallAttribute("cuda.stream", lambda rows: rows["stream"])
_BYTES: Final = CallAttribute("cuda.size", lambda rows: rows["size_bytes"], Holds.SUM)

_POWERS: Final = tuple(float(4**n) for n in range(14))
_BYTE_BOUNDS: Final = tuple(float(1024 * 4**n) for n in range(-2, 12))
_CALL_SECONDS: Final = (
    1e-6,
    2e-6,
    5e-6,
    1e-5,
    2e-5,
    5e-5,
    1e-4,
    2e-4,
    5e-4,
    1e-3,
    2e-3,
    5e-3,
    1e-2,
    1e-1,
    1.0,
    10.0,
)


def _counter(name: str, unit: str, description: str) -> Metric:
    return Metric(name=name, unit=unit, instrument=Instrument.COUNTER, description=description)


def _histogram(name: str, unit: str, description: str, buckets: tuple[float, ...]) -> Metric:
    return Metric(
        name=name, unit=unit, instrument=Instrument.HISTOGRAM, description=description, buckets=buckets
    )


SIGNALS: Final = OperationSignals(
    scope="otelgpu.cuda",
    result_name=result_name,
    kernel_name="cuda.kernel.name",
    attributes={
        OperationKind.LAUNCH: (
            CallAttribute("cuda.grid.x", lambda rows: rows["grid"][:, 0]),
            CallAttribute("cuda.grid.y", lambda rows: rows["grid"][:, 1]),
            CallAttribute("cuda.grid.z", lambda rows: rows["grid"][:, 2]),
            CallAttribute("cuda.block.x", lambda rows: rows["block"][:, 0]),
            CallAttribute("cuda.block.y", lambda rows: rows["block"][:, 1]),
            CallAttribute("cuda.block.z", lambda rows: rows["block"][:, 2]),
            CallAttribute("cuda.shared_memory.size", lambda rows: rows["shared_bytes"]),
            _STREAM,
        ),
        OperationKind.GRAPH_LAUNCH: (
            _STREAM,
            CallAttribute("cuda.graph", lambda rows: rows["handle"], Holds.SINGLE),
        ),
        OperationKind.COPY: (_BYTES, _STREAM),
        OperationKind.ALLOCATION: (_BYTES,),
        OperationKind.FREE: (),
        OperationKind.SYNCHRONIZATION: (
            CallAttribute("cuda.synchronized", lambda rows: rows["handle"], Holds.SINGLE),
        ),
    },
    labels={OperationKind.COPY: (("cuda.memcpy.kind", copy_name, lambda rows: rows["direction"]),)},
    metrics=(
        OperationMetric(
            metric=_counter("gpu.cuda.kernel.launch.calls", "", "Kernel launches by the host."),
            kinds=(OperationKind.LAUNCH,),
        ),
        OperationMetric(
            metric=_counter("gpu.cuda.graph.launch.calls", "", "Graph launches by the host."),
            kinds=(OperationKind.GRAPH_LAUNCH,),
        ),
        OperationMetric(
            metric=_histogram("gpu.cuda.kernel.grid.size", "1", "Blocks in a launch's grid.", _POWERS),
            kinds=(OperationKind.LAUNCH,),
            value=_grid_size,
        ),
        OperationMetric(
            metric=_histogram("gpu.cuda.kernel.block.size", "1", "Threads in a launch's block.", _POWERS[:6]),
            kinds=(OperationKind.LAUNCH,),
            value=_block_size,
        ),
        OperationMetric(
            metric=_counter("gpu.cuda.memory.allocations", "By", "Device memory allocated."),
            kinds=(OperationKind.ALLOCATION,),
            value=lambda rows: rows["size_bytes"],
        ),
        OperationMetric(
            metric=_histogram("gpu.cuda.memory.copies", "By", "Sizes of copies.", _BYTE_BOUNDS),
            kinds=(OperationKind.COPY,),
            value=lambda rows: rows["size_bytes"].astype(np.float64),
            attribute=("cuda.memcpy.kind", copy_name, lambda rows: rows["direction"]),
        ),
        OperationMetric(
            metric=_counter("gpu.cuda.stream.synchronize.calls", "", "Waits for a stream."),
            kinds=(OperationKind.SYNCHRONIZATION,),
            apis=("cudaStreamSynchronize",),
        ),
        OperationMetric(
            metric=_counter("gpu.cuda.device.synchronize.calls", "", "Waits for the device."),
            kinds=(OperationKind.SYNCHRONIZATION,),
            apis=("cudaDeviceSynchronize",),
        ),
        OperationMetric(
            metric=_counter("gpu.cuda.event.synchronize.calls", "", "Waits for an event."),
            kinds=(OperationKind.SYNCHRONIZATION,),
            apis=("cudaEventSynchronize",),
        ),
        OperationMetric(
            metric=_histogram(
                "gpu.cuda.synchronize.duration", "s", "Host time spent waiting for the GPU.", _CALL_SECONDS
            ),
            kinds=(OperationKind.SYNCHRONIZATION,),
            value=lambda rows: rows["duration_ns"] * 1e-9,
        ),
        OperationMetric(
            metric=_counter("gpu.cuda.errors", "{call}", "Calls that returned an error."),
            kinds=tuple(OperationKind),
            attribute=("error.type", result_name, lambda rows: rows["status"]),
            failed=True,
        ),
    ),
    summaries=(
        ("cuda.launch.calls", OperationKind.LAUNCH, None),
        ("cuda.graph.launch.calls", OperationKind.GRAPH_LAUNCH, None),
        ("cuda.memcpy.calls", OperationKind.COPY, None),
        ("cuda.memcpy.size", OperationKind.COPY, lambda rows: rows["size_bytes"]),
        ("cuda.synchronize.calls", OperationKind.SYNCHRONIZATION, None),
        ("cuda.synchronize.host_time_ns", OperationKind.SYNCHRONIZATION, lambda rows: rows["duration_ns"]),
    ),
)
