"""The names of family ``nccl``: its one table.

Of single calls: what they were given and how long the host was inside them, which is the time that it takes to
queue the work, not that of the work. What is reported of whole collectives, across ranks and over time, comes from
``otelgpu.signals``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from otelgpu.engine.contract import (
    CALL_SECONDS,
    CallAttribute,
    Holds,
    Instrument,
    Metric,
    OperationMetric,
    OperationSignals,
)
from otelgpu.families.nccl.names import BYTES, HASH, OPERATION, RANK, RANKS, SCOPE, operation_of
from otelgpu.families.nccl.results import datatype_name, reduction_name, result_name
from otelgpu.model.communicators import hash_text
from otelgpu.model.operations import DEVICE_UNKNOWN, OperationKind, Operations

# nccl.operation → its forms; what moves data between ranks.
_COLLECTIVES: Final = (
    *("AllReduce", "ReduceScatter", "Reduce", "Broadcast", "AllGather"),
    *("AlltoAll", "Gather", "Scatter"),
)
_POINTS: Final = ("Send", "Recv", "PutSignal", "Signal", "WaitSignal")


def _seconds(rows: Operations) -> npt.NDArray[Any]:
    return np.asarray(rows["duration_ns"] * 1e-9)


def _bytes(rows: Operations) -> npt.NDArray[Any]:
    return np.asarray(rows["size_bytes"])


def _one_code(rows: Operations) -> npt.NDArray[Any]:
    return np.zeros(len(rows), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Forms:
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


_RANK: Final = CallAttribute(RANK, lambda rows: rows["rank"].astype(np.int64), absent=-1)
_STREAM: Final = CallAttribute("nccl.stream", lambda rows: rows["stream"])
_GROUP: Final = CallAttribute("nccl.group", lambda rows: rows["group"], Holds.SINGLE, absent=0)
_COMMUNICATOR: Final = CallAttribute("nccl.communicator", lambda rows: rows["handle"], absent=0)
_DEVICE: Final = CallAttribute("nccl.device.index", lambda rows: rows["device"], absent=DEVICE_UNKNOWN)
_BYTES: Final = CallAttribute(BYTES, lambda rows: rows["size_bytes"], Holds.SUM)
_HASH: Final = (HASH, hash_text, lambda rows: rows["communicator_hash"])
_DATATYPE: Final = ("nccl.datatype", datatype_name, lambda rows: rows["datatype"])
_REDUCTION: Final = ("nccl.reduction", reduction_name, lambda rows: rows["reduction"])

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
            CallAttribute("nccl.root", lambda rows: rows["peer"].astype(np.int64), absent=-1),
            _GROUP,
            _COMMUNICATOR,
            _DEVICE,
        ),
        OperationKind.POINT_TO_POINT: (
            _BYTES,
            _STREAM,
            _RANK,
            CallAttribute("nccl.peer", lambda rows: rows["peer"].astype(np.int64), absent=-1),
            _GROUP,
            _COMMUNICATOR,
            _DEVICE,
        ),
        OperationKind.COMMUNICATOR: (
            _COMMUNICATOR,
            _RANK,
            CallAttribute(RANKS, lambda rows: rows["extra"], Holds.SINGLE, absent=0),
            CallAttribute("nccl.registered.size", lambda rows: rows["size_bytes"], Holds.SUM, absent=0),
            _DEVICE,
        ),
        OperationKind.GROUP: (
            CallAttribute("nccl.group", lambda rows: rows["group"], Holds.SINGLE),
            CallAttribute("nccl.group.calls", lambda rows: rows["extra"], Holds.SINGLE),
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
        *_by_operation(ENQUEUED, _seconds, returned=True),
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
