"""The names of family ``probe``: what a user's probes are called is the user's own; here is what is made of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from otelgpu.engine.metric import Instrument, Metric
from otelgpu.engine.operation_signals import (
    CALL_SECONDS,
    CallAttribute,
    Holds,
    OperationMetric,
    OperationSignals,
)
from otelgpu.families.user_probes.decode import SLOTS
from otelgpu.model.operations import OperationKind, Operations
from otelgpu.model.user_probes import UserProbe

SCOPE: Final = "otelgpu.probe"
NAME: Final = "otelgpu.probe.name"
ARGUMENT: Final = "otelgpu.probe.argument."
"""What the name of a value begins with; the rest is the user's."""
NOT_READ: Final = -(1 << 63)
"""Stands for a value that was not read, or is another probe's."""
BUCKETS: Final = (0.0, 5.0, 10.0, 25.0, 50.0, 75.0, 100.0, 250.0, 500.0, 750.0, 1e3, 2.5e3, 5e3, 7.5e3, 1e4)
"""The specification's default bounds of histograms."""


def signals_of(probes: Sequence[UserProbe]) -> OperationSignals:
    """The table of a session with these probes."""
    return OperationSignals(
        scope=SCOPE,
        result_name=lambda api, status: "",
        attributes={OperationKind.PROBE: tuple(_attributes(probes))},
        labels={OperationKind.PROBE: ()},
        api_labels=((NAME, str),),
        metrics=tuple(_metric(probe) for probe in probes if probe.metric is not None),
        summaries=(),
    )


def _attributes(probes: Sequence[UserProbe]) -> list[CallAttribute]:
    places: dict[str, list[tuple[int, int]]] = {}
    for probe in probes:
        for slot, argument in enumerate(probe.arguments):
            places.setdefault(argument.name, []).append((probe.number, slot))
    return [
        CallAttribute(ARGUMENT + name, _values_of(found), Holds.SINGLE, absent=NOT_READ)
        for name, found in places.items()
    ]


def _values_of(places: Sequence[tuple[int, int]]) -> Callable[[Operations], npt.NDArray[Any]]:
    def column(rows: Operations) -> npt.NDArray[Any]:
        found = np.full(len(rows), NOT_READ, np.int64)
        for number, slot in places:
            mine = (rows["api"] == number) & (rows["extra"] >> np.uint64(slot) & np.uint64(1) != 0)
            found[mine] = rows[SLOTS[slot]][mine].astype(np.int64)
        return found

    return column


def _metric(probe: UserProbe) -> OperationMetric:
    wanted = probe.metric
    assert wanted is not None
    metric = Metric(
        name=wanted.name,
        unit=wanted.unit,
        instrument=Instrument.HISTOGRAM if wanted.histogram else Instrument.COUNTER,
        description=f"Hits of the probe {probe.name}."
        if not wanted.value
        else f"{wanted.value} of {probe.name}.",
        buckets=() if not wanted.histogram else BUCKETS if wanted.value else CALL_SECONDS,
    )
    if wanted.value:
        slot = [argument.name for argument in probe.arguments].index(wanted.value)
        signed = probe.arguments[slot].signed
        value: Callable[[Operations], npt.NDArray[Any]] | None = _measured(slot, signed and wanted.histogram)
    else:
        value = _seconds if wanted.histogram else None
    return OperationMetric(
        metric=metric,
        kinds=(OperationKind.PROBE,),
        apis=(probe.name,),
        value=value,
        returned=wanted.histogram and not wanted.value,
    )


def _measured(slot: int, signed: bool) -> Callable[[Operations], npt.NDArray[Any]]:
    """Of a counter what is negative counts as nothing: its sum does not fall."""

    def column(rows: Operations) -> npt.NDArray[Any]:
        values = rows[SLOTS[slot]].astype(np.int64)
        return values if signed else np.maximum(values, 0)

    return column


def _seconds(rows: Operations) -> npt.NDArray[Any]:
    return np.asarray(rows["duration_ns"] * 1e-9)
