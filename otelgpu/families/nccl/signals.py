"""The names of family ``nccl``: its one table.

Of single calls: what they were given and how long the host was inside them, which is the time that it takes to
queue the work, not that of the work. What is reported of whole collectives, across ranks and over time, comes from
``metrics`` and ``spans``. Numbers of NCCL in words are those of nccl.h of 2.18 to 2.32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from otelgpu.engine.metric import Instrument, Metric
from otelgpu.engine.names import COLLECTIVE_PEER, COLLECTIVE_ROOT
from otelgpu.engine.operation_signals import (
    CALL_SECONDS,
    CallAttribute,
    Holds,
    OperationMetric,
    OperationSignals,
)
from otelgpu.families.nccl.names import BYTES, HASH, OPERATION, RANK, RANKS, SCOPE, operation_of
from otelgpu.model.communicators import hash_text
from otelgpu.model.operations import DEVICE_UNKNOWN, Field, OperationKind, Operations, Seconds

RESULTS: Final[Mapping[int, str]] = {
    0: "ncclSuccess",
    1: "ncclUnhandledCudaError",
    2: "ncclSystemError",
    3: "ncclInternalError",
    4: "ncclInvalidArgument",
    5: "ncclInvalidUsage",
    6: "ncclRemoteError",
    7: "ncclInProgress",
    8: "ncclTimeout",
}
IN_PROGRESS: Final = 7
"""A non-blocking communicator goes on by itself: no error."""

DATATYPES: Final[Mapping[int, tuple[str, int]]] = {
    0: ("int8", 1),
    1: ("uint8", 1),
    2: ("int32", 4),
    3: ("uint32", 4),
    4: ("int64", 8),
    5: ("uint64", 8),
    6: ("float16", 2),
    7: ("float32", 4),
    8: ("float64", 8),
    9: ("bfloat16", 2),
    10: ("float8e4m3", 1),
    11: ("float8e5m2", 1),
}
"""ncclDataType_t → name, bytes of an element."""

REDUCTIONS: Final[Mapping[int, str]] = {0: "sum", 1: "prod", 2: "max", 3: "min", 4: "avg", 5: "custom"}
"""ncclRedOp_t → name; ``custom`` stands for those that a program has made (NCCL_REDUCTION_OF_OWN)."""

NONE: Final = 255
"""NCCL_NO_TYPE and NCCL_NO_REDUCTION of bpf/nccl/nccl.h."""


def result_name(_api: str, code: int) -> str:
    """The enumerator that ``code`` is; one that is not known is ``ncclResult_t(<code>)``."""
    return RESULTS.get(code, f"ncclResult_t({code})")


def datatype_name(code: int) -> str:
    """``nccl.datatype``: the elements' type; ``""`` of calls that move none."""
    if code == NONE:
        return ""
    return DATATYPES[code][0] if code in DATATYPES else f"ncclDataType_t({code})"


def reduction_name(code: int) -> str:
    """``nccl.reduction``; ``""`` of calls that reduce nothing."""
    return REDUCTIONS.get(code, "")


# nccl.operation → its forms; what moves data between ranks.
_COLLECTIVES: Final = (
    *("AllReduce", "ReduceScatter", "Reduce", "Broadcast", "AllGather"),
    *("AlltoAll", "Gather", "Scatter"),
)
_POINTS: Final = ("Send", "Recv", "PutSignal", "Signal", "WaitSignal")


def _bytes(rows: Operations) -> npt.NDArray[Any]:
    return np.asarray(rows["size_bytes"])


def _one_code(rows: Operations) -> npt.NDArray[Any]:
    return np.zeros(len(rows), dtype=np.int64)


class Forms(Struct, frozen=True):
    """The functions whose ``nccl.operation`` is ``operation``."""

    operation: str

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and operation_of(name) == self.operation


def _by_operation(metric: Metric, column: Any = None, *, returned: bool = False) -> Iterator[OperationMetric]:
    """A rule for each function, so that its series is distinguished by ``nccl.operation``."""
    kinds = [(OperationKind.COLLECTIVE, name) for name in _COLLECTIVES]
    kinds += [(OperationKind.POINT_TO_POINT, name) for name in _POINTS]
    for kind, name in kinds:
        yield OperationMetric(
            metric=metric,
            kinds=(kind,),
            apis=Forms(name),
            value=column,
            attribute=(OPERATION, lambda _, name=name: name, _one_code),  # type: ignore[misc]
            returned=returned,
        )


_RANK: Final = CallAttribute(RANK, Field("rank"), absent=-1)
_STREAM: Final = CallAttribute("nccl.stream", Field("stream"))
_GROUP: Final = CallAttribute("nccl.group", Field("group"), Holds.SINGLE, absent=0)
_COMMUNICATOR: Final = CallAttribute("nccl.communicator", Field("handle"), absent=0)
_DEVICE: Final = CallAttribute("nccl.device.index", Field("device"), absent=DEVICE_UNKNOWN)
_BYTES: Final = CallAttribute(BYTES, Field("size_bytes"), Holds.SUM)
_HASH: Final = (HASH, hash_text, Field("communicator_hash"))
_DATATYPE: Final = ("nccl.datatype", datatype_name, Field("datatype"))
_REDUCTION: Final = ("nccl.reduction", reduction_name, Field("reduction"))

CALLS: Final = Metric(
    name="nccl.calls",
    unit="{call}",
    instrument=Instrument.COUNTER,
    description="Calls that move data between ranks.",
)
MOVED: Final = Metric(
    name="nccl.bytes",
    unit="By",
    instrument=Instrument.COUNTER,
    description="Bytes of the callers' own messages, as the calls give them.",
)
ENQUEUED: Final = Metric(
    name="nccl.enqueue.duration",
    unit="s",
    instrument=Instrument.HISTOGRAM,
    description="Host time inside calls that queue work; the work itself is not in it.",
    buckets=CALL_SECONDS,
)
ERRORS: Final = Metric(
    name="nccl.errors",
    unit="{call}",
    instrument=Instrument.COUNTER,
    description="Calls that returned an error.",
)

SIGNALS: Final = OperationSignals(
    scope=SCOPE,
    result_name=result_name,
    attributes={
        OperationKind.COLLECTIVE: (
            _BYTES,
            _STREAM,
            _RANK,
            CallAttribute(COLLECTIVE_ROOT, Field("peer"), absent=-1),
            _GROUP,
            _COMMUNICATOR,
            _DEVICE,
        ),
        OperationKind.POINT_TO_POINT: (
            _BYTES,
            _STREAM,
            _RANK,
            CallAttribute(COLLECTIVE_PEER, Field("peer"), absent=-1),
            _GROUP,
            _COMMUNICATOR,
            _DEVICE,
        ),
        OperationKind.COMMUNICATOR: (
            _COMMUNICATOR,
            _RANK,
            CallAttribute(RANKS, Field("extra"), Holds.SINGLE, absent=0),
            CallAttribute("nccl.registered.size", Field("size_bytes"), Holds.SUM, absent=0),
            _DEVICE,
        ),
        OperationKind.GROUP: (
            CallAttribute("nccl.group", Field("group"), Holds.SINGLE),
            CallAttribute("nccl.group.calls", Field("extra"), Holds.SINGLE),
            _COMMUNICATOR,
            _RANK,
            _DEVICE,
        ),
    },
    labels={
        OperationKind.COLLECTIVE: (_HASH, _DATATYPE, _REDUCTION),
        OperationKind.POINT_TO_POINT: (_HASH, _DATATYPE),
        OperationKind.COMMUNICATOR: (_HASH,),
        OperationKind.GROUP: (_HASH,),
    },
    api_labels=((OPERATION, operation_of),),
    metrics=(
        *_by_operation(CALLS),
        *_by_operation(MOVED, _bytes),
        *_by_operation(ENQUEUED, Seconds(Field("duration_ns")), returned=True),
        OperationMetric(
            metric=ERRORS,
            kinds=(
                *(OperationKind.COLLECTIVE, OperationKind.POINT_TO_POINT),
                *(OperationKind.COMMUNICATOR, OperationKind.GROUP),
            ),
            failed=True,
        ),
    ),
    summaries=(),  # of requests and windows: collectives are reported in traces of their own
)
