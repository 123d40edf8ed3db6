"""The names of family ``hip``: its one table. Memory in use is reported under ``gpu.hip.memory.*``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from otelgpu.families.gpu.hip.results import result_name

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
from otelgpu.model.operations import (
    DEVICE_MEMORY,
    DEVICE_UNKNOWN,
    LARGEST_SIZE,
    CopyDirection,
    OperationKind,
    Operations,
    memory_name,
)

_COPY_NAMES: Final[Mapping[int, str]] = {
    CopyDirection.HOST_TO_HOST: "hipMemcpyHostToHost",
    CopyDirection.HOST_TO_DEVICE: "hipMemcpyHostToDevice",
    CopyDirection.DEVICE_TO_HOST: "hipMemcpyDeviceToHost",
    CopyDirection.DEVICE_TO_DEVICE: "hipMemcpyDeviceToDevice",
    CopyDirection.DEFAULT: "hipMemcpyDefault",
}


def copy_name(code: int) -> str:
    """``hip.memcpy.kind`` of a direction code, whatever number a record has."""
    return _COPY_NAMES.get(code, "unknown")


def _bytes(rows: Operations) -> npt.NDArray[Any]:
    return np.asarray(np.minimum(rows["size_bytes"], LARGEST_SIZE))


def _device_bytes(rows: Operations) -> npt.NDArray[Any]:
    return np.where(np.isin(rows["memory"], list(DEVICE_MEMORY)), _bytes(rows), 0)


def _seconds(rows: Operations) -> npt.NDArray[Any]:
    return np.asarray(rows["duration_ns"] * 1e-9)


_MEMORY_NAMES: Final = memory_names("hip")
_DEVICE: Final = CallAttribute(_MEMORY_NAMES.device, lambda rows: rows["device"], absent=DEVICE_UNKNOWN)
_STREAM: Final = CallAttribute("hip.stream", lambda rows: rows["stream"])
_SIZE: Final = CallAttribute("hip.size", lambda rows: rows["size_bytes"], Holds.SUM)
_ADDRESS: Final = CallAttribute("hip.memory.address", lambda rows: rows["handle"], Holds.SINGLE)
_MEMORY: Final = (_MEMORY_NAMES.kind, memory_name, lambda rows: rows["memory"])
_DIRECTION: Final = ("hip.memcpy.kind", copy_name, lambda rows: rows["direction"])
_BYTE_BOUNDS: Final = tuple(float(1024 * 4**n) for n in range(-2, 12))


def _counter(name: str, unit: str, description: str) -> Metric:
    return Metric(name=name, unit=unit, instrument=Instrument.COUNTER, description=description)


def _histogram(name: str, unit: str, description: str, buckets: tuple[float, ...]) -> Metric:
    return Metric(
        name=name, unit=unit, instrument=Instrument.HISTOGRAM, description=description, buckets=buckets
    )


SIGNALS: Final = OperationSignals(
    scope="otelgpu.hip",
    result_name=result_name,
    kernel_name="hip.kernel.name",
    memory=_MEMORY_NAMES,
    attributes={
        OperationKind.LAUNCH: (
            *(
                CallAttribute(f"hip.{what}.{axis}", lambda rows, what=what, at=at: rows[what][:, at])  # type: ignore[misc]
                for what in ("grid", "block")
                for at, axis in enumerate("xyz")
            ),
            CallAttribute("hip.shared_memory.size", lambda rows: rows["shared_bytes"]),
            _STREAM,
            _DEVICE,
        ),
        OperationKind.GRAPH_LAUNCH: (_STREAM, _DEVICE),
        OperationKind.COPY: (_SIZE, _STREAM, _DEVICE),
        OperationKind.ALLOCATION: (_SIZE, _ADDRESS, _DEVICE),
        OperationKind.FREE: (_ADDRESS, _DEVICE),
        OperationKind.SYNCHRONIZATION: (_DEVICE,),
        OperationKind.SET: (_SIZE, _STREAM, _DEVICE),
        OperationKind.STREAM: (_DEVICE,),
        OperationKind.EVENT: (_STREAM, _DEVICE),
        OperationKind.DEVICE: (_DEVICE,),
    },
    labels={OperationKind.COPY: (_DIRECTION,), OperationKind.ALLOCATION: (_MEMORY,)},
    api_labels=(),
    metrics=(
        OperationMetric(
            metric=_counter("gpu.hip.kernel.launch.calls", "", "Kernel launches by the host."),
            kinds=(OperationKind.LAUNCH,),
            by_kernel=True,
        ),
        OperationMetric(
            metric=_counter("gpu.hip.graph.launch.calls", "", "Graph launches by the host."),
            kinds=(OperationKind.GRAPH_LAUNCH,),
        ),
        OperationMetric(
            metric=_histogram(
                "gpu.hip.kernel.launch.host.duration",
                "s",
                "Host time inside the launching call; the kernel's time on the GPU is not in it.",
                CALL_SECONDS,
            ),
            kinds=(OperationKind.LAUNCH,),
            value=_seconds,
            returned=True,
        ),
        OperationMetric(
            metric=_counter("gpu.hip.memory.allocations", "By", "Device memory allocated."),
            kinds=(OperationKind.ALLOCATION,),
            value=_device_bytes,
        ),
        OperationMetric(
            metric=_counter("gpu.hip.memory.free.calls", "{call}", "Calls that give memory back."),
            kinds=(OperationKind.FREE,),
        ),
        OperationMetric(
            metric=_histogram("gpu.hip.memory.copies", "By", "Sizes of copies.", _BYTE_BOUNDS),
            kinds=(OperationKind.COPY,),
            value=lambda rows: rows["size_bytes"].astype(np.float64),
            attribute=_DIRECTION,
        ),
        OperationMetric(
            metric=_histogram(
                "gpu.hip.synchronize.duration", "s", "Host time spent waiting for the GPU.", CALL_SECONDS
            ),
            kinds=(OperationKind.SYNCHRONIZATION,),
            value=_seconds,
            returned=True,
        ),
        OperationMetric(
            metric=_counter("gpu.hip.errors", "{call}", "Calls that returned an error."),
            kinds=tuple(OperationKind),
            failed=True,
        ),
    ),
    summaries=(
        OperationTotal(key="hip.launch.calls", kind=OperationKind.LAUNCH),
        OperationTotal(key="hip.memcpy.calls", kind=OperationKind.COPY),
        OperationTotal(key="hip.memcpy.size", kind=OperationKind.COPY, value=lambda rows: rows["size_bytes"]),
        OperationTotal(key="hip.synchronize.calls", kind=OperationKind.SYNCHRONIZATION),
    ),
)
