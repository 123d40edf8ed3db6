"""The names of family ``mpi``: its one table. Attributes of collectives are those that all libraries' have."""

from __future__ import annotations

from typing import Final

import numpy as np

from otelgpu.engine.metric import Instrument, Metric
from otelgpu.engine.names import COLLECTIVE_BYTES, COLLECTIVE_PEER, COLLECTIVE_ROOT
from otelgpu.engine.operation_signals import (
    CALL_SECONDS,
    CallAttribute,
    Holds,
    OperationMetric,
    OperationSignals,
)
from otelgpu.model.operations import Field, OperationKind

SCOPE: Final = "otelgpu.mpi"

DURATION: Final = Metric(
    name="mpi.call.duration",
    unit="s",
    instrument=Instrument.HISTOGRAM,
    description="Collectives of MPI, sends and receives that block: from when this rank came until it was done.",
    buckets=CALL_SECONDS,
)
MOVED: Final = Metric(
    name="mpi.bytes",
    unit="By",
    instrument=Instrument.COUNTER,
    description="Bytes of the callers' own messages, as the calls give them.",
)

SIGNALS: Final = OperationSignals(
    scope=SCOPE,
    result_name=lambda _, code: str(code),  # not read: a failure ends the program, as MPI's default is
    attributes={
        OperationKind.COLLECTIVE: (
            CallAttribute(COLLECTIVE_BYTES, Field("size_bytes"), Holds.SUM),
            CallAttribute(COLLECTIVE_ROOT, Field("peer"), absent=-1),
        ),
        OperationKind.POINT_TO_POINT: (
            CallAttribute(COLLECTIVE_BYTES, Field("size_bytes"), Holds.SUM),
            CallAttribute(COLLECTIVE_PEER, Field("peer"), absent=-1),
        ),
    },
    labels={OperationKind.COLLECTIVE: (), OperationKind.POINT_TO_POINT: ()},
    api_labels=(),
    metrics=(
        OperationMetric(
            metric=DURATION,
            kinds=(OperationKind.COLLECTIVE, OperationKind.POINT_TO_POINT),
            value=lambda rows: np.asarray(rows["duration_ns"] * 1e-9),
            returned=True,
        ),
        OperationMetric(
            metric=MOVED,
            kinds=(OperationKind.COLLECTIVE, OperationKind.POINT_TO_POINT),
            value=lambda rows: np.asarray(rows["size_bytes"]),
        ),
    ),
    summaries=(),  # of requests and windows: collectives are reported in traces of their own
    runs_collectives=True,
)
