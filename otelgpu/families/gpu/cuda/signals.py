"""The names of family ``cuda``: its one table.

``gpu.cuda.*`` metrics, ``cuda.memcpy.kind`` and ``cuda.device.index`` are as OpenTelemetry eBPF Instrumentation
has made usual (schemas/obi/groups/gpu); the rest is ours: docs/reference/signals.md. What is reported of
memory that is in use comes from the ledger (otelgpu/families/gpu/memory), under the names of ``memory`` here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from otelgpu.engine.memory_names import memory_names
from otelgpu.engine.metric import Instrument, Metric
from otelgpu.engine.operation_signals import (
    CALL_SECONDS,
    CallAttribute,
    Holds,
    OperationMetric,
    OperationSignals,
    OperationTotal,
)
from otelgpu.families.gpu.cuda.decode import NAMES_PEER
from otelgpu.families.gpu.cuda.functions import Functions, api_level
from otelgpu.families.gpu.cuda.results import result_name
from otelgpu.model.operations import (
    DEVICE_MEMORY,
    DEVICE_UNKNOWN,
    LARGEST_SIZE,
    CopyDirection,
    Field,
    OperationKind,
    Operations,
    Seconds,
    Volume,
    memory_name,
)

_COPY_NAMES: Final[Mapping[int, str]] = {
    CopyDirection.HOST_TO_HOST: "MemcpyHostToHost",
    CopyDirection.HOST_TO_DEVICE: "MemcpyHostToDevice",
    CopyDirection.DEVICE_TO_HOST: "MemcpyDeviceToHost",
    CopyDirection.DEVICE_TO_DEVICE: "MemcpyDeviceToDevice",
    CopyDirection.DEFAULT: "MemcpyDefault",
}


def copy_name(code: int) -> str:
    """``cuda.memcpy.kind`` of a direction code, whatever number a record has."""
    return _COPY_NAMES.get(code, "unknown")


def _bytes(rows: Operations) -> npt.NDArray[Any]:
    return np.asarray(np.minimum(rows["size_bytes"], LARGEST_SIZE))


def _device_bytes(rows: Operations) -> npt.NDArray[Any]:
    return np.where(np.isin(rows["memory"], list(DEVICE_MEMORY)), _bytes(rows), 0)


_SECONDS: Final = Seconds(Field("duration_ns"))
_NOTHING: Final = (1 << 64) - 1  # a device or context that a call does not name


def _requested(rows: Operations) -> npt.NDArray[Any]:
    return np.where(rows["extra"] == NAMES_PEER, np.uint64(_NOTHING), rows["handle"])


def _peer(rows: Operations) -> npt.NDArray[Any]:
    return np.where(rows["extra"] == NAMES_PEER, rows["other"], np.uint64(_NOTHING))


_MEMORY_NAMES: Final = memory_names("cuda")
_DEVICE: Final = CallAttribute(_MEMORY_NAMES.device, Field("device"), absent=DEVICE_UNKNOWN)
_STREAM: Final = CallAttribute("cuda.stream", Field("stream"))
_BYTES: Final = CallAttribute("cuda.size", Field("size_bytes"), Holds.SUM)
_ADDRESS: Final = CallAttribute("cuda.memory.address", Field("handle"), Holds.SINGLE)
_NODES: Final = CallAttribute("cuda.graph.nodes", Field("extra"), Holds.SINGLE, absent=0)
_MEMORY: Final = (_MEMORY_NAMES.kind, memory_name, Field("memory"))

_POWERS: Final = tuple(float(4**n) for n in range(14))
_BYTE_BOUNDS: Final = tuple(float(1024 * 4**n) for n in range(-2, 12))


def _counter(name: str, unit: str, description: str) -> Metric:
    return Metric(name=name, unit=unit, instrument=Instrument.COUNTER, description=description)


def _histogram(name: str, unit: str, description: str, buckets: tuple[float, ...]) -> Metric:
    return Metric(
        name=name, unit=unit, instrument=Instrument.HISTOGRAM, description=description, buckets=buckets
    )


_STREAM_CREATE: Final = Functions(
    *("cudaStreamCreate", "cudaStreamCreateWithFlags", "cudaStreamCreateWithPriority"),
    *("cuStreamCreate", "cuStreamCreateWithPriority"),
    *("cudaExecutionCtxStreamCreate", "cuGreenCtxStreamCreate"),
)
_DEVICE_SYNCHRONIZE: Final = Functions(
    *("cudaDeviceSynchronize", "cudaThreadSynchronize", "cudaExecutionCtxSynchronize", "cuCtxSynchronize")
)
_EVENT_RECORD: Final = Functions(
    "cudaEventRecord", "cudaEventRecordWithFlags", "cuEventRecord", "cuEventRecordWithFlags"
)

SIGNALS: Final = OperationSignals(
    scope="otelgpu.cuda",
    result_name=result_name,
    kernel_name="cuda.kernel.name",
    memory=_MEMORY_NAMES,
    attributes={
        OperationKind.LAUNCH: (
            CallAttribute("cuda.grid.x", Field("grid", 0)),
            CallAttribute("cuda.grid.y", Field("grid", 1)),
            CallAttribute("cuda.grid.z", Field("grid", 2)),
            CallAttribute("cuda.block.x", Field("block", 0)),
            CallAttribute("cuda.block.y", Field("block", 1)),
            CallAttribute("cuda.block.z", Field("block", 2)),
            CallAttribute("cuda.shared_memory.size", Field("shared_bytes")),
            _STREAM,
            _DEVICE,
        ),
        OperationKind.GRAPH_LAUNCH: (
            _STREAM,
            CallAttribute("cuda.graph", Field("handle"), Holds.SINGLE),
            _NODES,
            _DEVICE,
        ),
        OperationKind.COPY: (_BYTES, _STREAM, _DEVICE),
        OperationKind.ALLOCATION: (_BYTES, _ADDRESS, _DEVICE),
        OperationKind.FREE: (_ADDRESS, _DEVICE),
        OperationKind.SYNCHRONIZATION: (
            CallAttribute("cuda.synchronized", Field("handle"), Holds.SINGLE),
            _DEVICE,
        ),
        OperationKind.SET: (_BYTES, _STREAM, _DEVICE),
        OperationKind.MAPPING: (
            _BYTES,
            _ADDRESS,
            CallAttribute("cuda.memory.handle", Field("other"), Holds.SINGLE, absent=0),
            _DEVICE,
        ),
        OperationKind.STREAM: (
            CallAttribute("cuda.stream", Field("handle"), Holds.SINGLE),
            _DEVICE,
        ),
        OperationKind.EVENT: (
            CallAttribute("cuda.event", Field("handle"), Holds.SINGLE),
            _STREAM,
            _DEVICE,
        ),
        OperationKind.GRAPH: (
            CallAttribute("cuda.graph", Field("other"), Holds.SINGLE, absent=0),
            CallAttribute("cuda.graph.definition", Field("handle"), Holds.SINGLE, absent=0),
            _NODES,
            CallAttribute("cuda.stream", Field("stream"), absent=0),
        ),
        OperationKind.MODULE: (
            CallAttribute("cuda.module", Field("handle"), Holds.SINGLE, absent=0),
            _DEVICE,
        ),
        OperationKind.DEVICE: (
            CallAttribute("cuda.device.requested", _requested, Holds.SINGLE, absent=_NOTHING),
            CallAttribute("cuda.device.peer", _peer, Holds.SINGLE, absent=_NOTHING),
            _DEVICE,
        ),
    },
    labels={
        OperationKind.COPY: (("cuda.memcpy.kind", copy_name, Field("direction")),),
        OperationKind.ALLOCATION: (_MEMORY,),
    },
    api_labels=(("cuda.api", api_level),),
    metrics=(
        OperationMetric(
            metric=_counter("gpu.cuda.kernel.launch.calls", "", "Kernel launches by the host."),
            kinds=(OperationKind.LAUNCH,),
            by_kernel=True,
        ),
        OperationMetric(
            metric=_counter("gpu.cuda.graph.launch.calls", "", "Graph launches by the host."),
            kinds=(OperationKind.GRAPH_LAUNCH,),
        ),
        OperationMetric(
            metric=_histogram("gpu.cuda.kernel.grid.size", "1", "Blocks in a launch's grid.", _POWERS),
            kinds=(OperationKind.LAUNCH,),
            value=Volume(Field("grid")),
        ),
        OperationMetric(
            metric=_histogram("gpu.cuda.kernel.block.size", "1", "Threads in a launch's block.", _POWERS[:6]),
            kinds=(OperationKind.LAUNCH,),
            value=Volume(Field("block")),
        ),
        OperationMetric(
            metric=_histogram(
                "gpu.cuda.kernel.launch.host.duration",
                "s",
                "Host time inside the launching call; the kernel's time on the GPU is not in it.",
                CALL_SECONDS,
            ),
            kinds=(OperationKind.LAUNCH, OperationKind.GRAPH_LAUNCH),
            value=_SECONDS,
            returned=True,
        ),
        OperationMetric(
            metric=_counter("gpu.cuda.memory.allocations", "By", "Device memory allocated."),
            kinds=(OperationKind.ALLOCATION,),
            value=_device_bytes,
        ),
        OperationMetric(
            metric=_counter("gpu.cuda.memory.allocation.calls", "{call}", "Allocations, by kind of memory."),
            kinds=(OperationKind.ALLOCATION,),
            attribute=_MEMORY,
        ),
        OperationMetric(
            metric=_counter("gpu.cuda.memory.free.calls", "{call}", "Calls that give memory back."),
            kinds=(OperationKind.FREE,),
        ),
        OperationMetric(
            metric=_counter(
                "gpu.cuda.host.register.bytes", "By", "The program's own memory that was pinned."
            ),
            kinds=(OperationKind.ALLOCATION,),
            apis=Functions("cudaHostRegister", "cuMemHostRegister"),
            value=_bytes,
        ),
        OperationMetric(
            metric=_counter("gpu.cuda.memset.bytes", "By", "Memory filled with a value."),
            kinds=(OperationKind.SET,),
            value=_bytes,
        ),
        OperationMetric(
            metric=_histogram("gpu.cuda.memory.copies", "By", "Sizes of copies.", _BYTE_BOUNDS),
            kinds=(OperationKind.COPY,),
            value=lambda rows: rows["size_bytes"].astype(np.float64),
            attribute=("cuda.memcpy.kind", copy_name, Field("direction")),
        ),
        OperationMetric(
            metric=_counter("gpu.cuda.stream.create.calls", "", "Streams made."),
            kinds=(OperationKind.STREAM,),
            apis=_STREAM_CREATE,
        ),
        OperationMetric(
            metric=_counter("gpu.cuda.stream.destroy.calls", "", "Streams ended."),
            kinds=(OperationKind.STREAM,),
            apis=Functions("cudaStreamDestroy", "cuStreamDestroy"),
        ),
        OperationMetric(
            metric=_counter("gpu.cuda.event.record.calls", "", "Events recorded on a stream."),
            kinds=(OperationKind.EVENT,),
            apis=_EVENT_RECORD,
        ),
        OperationMetric(
            metric=_counter("gpu.cuda.stream.synchronize.calls", "", "Waits for a stream."),
            kinds=(OperationKind.SYNCHRONIZATION,),
            apis=Functions("cudaStreamSynchronize", "cuStreamSynchronize"),
        ),
        OperationMetric(
            metric=_counter("gpu.cuda.device.synchronize.calls", "", "Waits for the device or its context."),
            kinds=(OperationKind.SYNCHRONIZATION,),
            apis=_DEVICE_SYNCHRONIZE,
        ),
        OperationMetric(
            metric=_counter("gpu.cuda.event.synchronize.calls", "", "Waits for an event."),
            kinds=(OperationKind.SYNCHRONIZATION,),
            apis=Functions("cudaEventSynchronize", "cuEventSynchronize"),
        ),
        OperationMetric(
            metric=_histogram(
                "gpu.cuda.synchronize.duration", "s", "Host time spent waiting for the GPU.", CALL_SECONDS
            ),
            kinds=(OperationKind.SYNCHRONIZATION,),
            value=_SECONDS,
            returned=True,
        ),
        OperationMetric(
            metric=_counter("gpu.cuda.errors", "{call}", "Calls that returned an error."),
            kinds=tuple(OperationKind),
            failed=True,
        ),
    ),
    summaries=(
        OperationTotal(key="cuda.launch.calls", kind=OperationKind.LAUNCH),
        OperationTotal(key="cuda.graph.launch.calls", kind=OperationKind.GRAPH_LAUNCH),
        OperationTotal(key="cuda.memcpy.calls", kind=OperationKind.COPY),
        OperationTotal(key="cuda.memcpy.size", kind=OperationKind.COPY, value=Field("size_bytes")),
        OperationTotal(key="cuda.synchronize.calls", kind=OperationKind.SYNCHRONIZATION),
        OperationTotal(
            key="cuda.synchronize.host.duration",
            kind=OperationKind.SYNCHRONIZATION,
            value=Field("duration_ns"),
            per_unit=1_000_000_000,
        ),
    ),
)
