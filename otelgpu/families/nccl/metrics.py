"""What collectives took: waits, arrival skew, algorithm and bus bandwidth. Pure; fed in columns.

Bandwidth is defined as nccl-tests define it (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md and the ``GetBw`` of
each test): the bytes of the whole operation by time, and, for the bus, by the part of them that crosses each link.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from typing import Final

import numpy as np
import numpy.typing as npt

from otelgpu.engine.metric import Instrument, Metric
from otelgpu.engine.metrics import Metrics
from otelgpu.families.nccl import collective_names as names
from otelgpu.families.nccl.calls import Calls
from otelgpu.families.nccl.collective_names import Function
from otelgpu.model.codes import Codes, combine, distinct, order_of
from otelgpu.model.communicators import hash_text
from otelgpu.model.resource import Resource

F64 = npt.NDArray[np.float64]

_TIMES: Final = (
    1e-6,
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
    2e-2,
    5e-2,
    0.1,
    0.5,
    1.0,
    10.0,
)
_RATES: Final = tuple(digit * 10.0**power for power in range(6, 12) for digit in (1, 2, 5))

COMMUNICATORS: Final = 64
"""Communicators by whose hash series are distinguished; others are reported together."""

OTHERS: Final = "other"


def _histogram(name: str, unit: str, buckets: tuple[float, ...], description: str) -> Metric:
    return Metric(
        name=name, unit=unit, instrument=Instrument.HISTOGRAM, description=description, buckets=buckets
    )


WAIT: Final = _histogram(
    "nccl.wait.duration",
    "s",
    _TIMES,
    "Host time in the synchronisation that followed collectives on their stream.",
)
SKEW: Final = _histogram(
    names.SKEW,
    "s",
    _TIMES,
    "From the first to the last call of a collective, among the ranks seen by this agent.",
)
LATENESS: Final = _histogram(
    names.LATENESS,
    "s",
    _TIMES,
    "From the first call of a collective that this agent saw to the call of a rank.",
)
DURATION: Final = _histogram(
    "nccl.collective.duration", "s", _TIMES, "Time that collectives took, by where it was measured."
)
ALGORITHM: Final = _histogram(
    names.ALGORITHM_BANDWIDTH, "By/s", _RATES, "Bytes of a collective by its time, as nccl-tests define it."
)
BUS: Final = _histogram(
    names.BUS_BANDWIDTH, "By/s", _RATES, "Algorithm bandwidth by the part that crosses a link (nccl-tests)."
)

_SERIES: Final = (names.OPERATION, names.HASH)
METRICS: Final[Mapping[Metric, tuple[str, ...]]] = {
    WAIT: _SERIES,
    SKEW: _SERIES,
    LATENESS: (*_SERIES, names.RANK),
    DURATION: (*_SERIES, names.TIME_SOURCE),
    ALGORITHM: (*_SERIES, names.TIME_SOURCE),
    BUS: (*_SERIES, names.TIME_SOURCE),
}
"""Each metric and the attributes of its series."""

# Whether the whole operation is as many messages as there are ranks, and which part of it crosses each link:
# of n ranks, (k*n - k)/n with k below; 0: all of it, once.
_SHAPES: Final[Mapping[str, tuple[bool, int]]] = {
    "AllReduce": (False, 2),
    "AllGather": (True, 1),
    "ReduceScatter": (True, 1),
    "AlltoAll": (True, 1),
    "Gather": (True, 1),
    "Scatter": (True, 1),
    "Broadcast": (False, 0),
    "Reduce": (False, 0),
    "Send": (False, 0),
    "Recv": (False, 0),
}


def bandwidths(name: str, size_bytes: F64, seconds: F64, ranks: F64) -> tuple[F64, F64] | None:
    """Algorithm and bus bandwidth, bytes per second, of calls of a function; None: nccl-tests have no such."""
    shape = _SHAPES.get(name)
    if shape is None:
        return None
    whole, links = shape
    algorithm = size_bytes * (ranks if whole else 1) / seconds
    return algorithm, algorithm * (links * (ranks - 1) / ranks if links else 1)


class Times:
    """How long collectives took: of each call seconds, NaN where that is not known, and the index of who says it."""

    def __init__(self, calls: Calls, functions: list[Function]) -> None:
        rows, found = calls.rows, calls.found
        of_gpu = found["device_ns"] > 0
        until = found["wait_end_ns"].astype(np.float64) - rows["start_ns"].astype(np.float64)
        alone = (found["wait_count"] == 1) | found["run"]
        self.source = np.where(of_gpu, 1, np.where(found["run"], 2, 0)).astype(np.intp)
        seconds = np.where(of_gpu, found["device_ns"], np.where(alone, until, np.nan)) * 1e-9
        self.seconds: F64 = np.where(seconds > 0, seconds, np.nan)
        self.algorithm = np.full(len(calls), np.nan)
        self.bus = np.full(len(calls), np.nan)
        known = (self.seconds > 0) & (found["ranks"] > 0)
        for code in np.unique(found["function"][known]).tolist():
            mine = np.flatnonzero(known & (found["function"] == code))
            made = bandwidths(
                functions[code].name,
                rows["size_bytes"][mine].astype(np.float64),
                self.seconds[mine],
                found["ranks"][mine].astype(np.float64),
            )
            if made is not None:
                self.algorithm[mine], self.bus[mine] = made

    def of(self, chosen: Codes) -> Times:
        """Those of some calls."""
        some = copy(self)
        some.seconds, some.source = self.seconds[chosen], self.source[chosen]
        some.algorithm, some.bus = self.algorithm[chosen], self.bus[chosen]
        return some


class CollectiveMeter:
    """Feeds the metrics of a session."""

    def __init__(self, metrics: Metrics, resource_of: Callable[[int], Resource]) -> None:
        self._metrics, self._resource_of = metrics, resource_of
        self._labelled: dict[int, str] = {}

    def measure(self, calls: Calls, times: Times, lateness: F64, functions: list[Function]) -> None:
        """Calls that are reported now. ``lateness``: of each, seconds; NaN where there is nothing to compare."""
        found = calls.found
        waited = np.where(
            found["wait_count"] > 0, (found["wait_end_ns"] - found["wait_start_ns"]) * 1e-9, np.nan
        )
        columns = ((WAIT, waited), (LATENESS, lateness))
        timed = ((DURATION, times.seconds), (ALGORITHM, times.algorithm), (BUS, times.bus))
        for resource, labels, rows in self._series(calls, functions):
            rank = int(found["rank"][rows[0]])
            for metric, values in columns:
                own = {names.RANK: rank} if metric is LATENESS else {}
                self._add(metric, resource, labels | own, values[rows])
            for code, source in enumerate(names.TIME_SOURCES):
                which = times.source[rows] == code
                for metric, values in timed:
                    self._add(metric, resource, labels | {names.TIME_SOURCE: source}, values[rows[which]])

    def measure_wait(self, tgid: int, function: Function, communicator: int, seconds: float) -> None:
        """A wait for a call that has been reported already."""
        labels = {names.OPERATION: function.name, names.HASH: self._label(communicator)}
        self._metrics.add(WAIT, names.SCOPE, self._resource_of(tgid), labels, seconds)

    def measure_skew(self, calls: Calls, skew: F64, functions: list[Function]) -> None:
        """Of collectives, one call each: seconds between their first and last ranks."""
        for resource, labels, rows in self._series(calls, functions):
            self._add(SKEW, resource, labels, skew[rows])

    def _add(self, metric: Metric, resource: Resource, labels: Mapping[str, str | int], values: F64) -> None:
        values = values[np.isfinite(values)]
        if len(values):
            self._metrics.add(metric, names.SCOPE, resource, labels, values)

    def _series(
        self, calls: Calls, functions: list[Function]
    ) -> Iterator[tuple[Resource, dict[str, str | int], Codes]]:
        """Calls of one process, function, communicator and rank."""
        found = calls.found
        coded = [distinct(np.ascontiguousarray(calls.rows["tgid"]))]
        coded += [distinct(np.ascontiguousarray(found[name])) for name in ("function", "rank", "hash")]
        codes, count = combine([(code, len(values)) for values, code in coded], len(calls))
        order = order_of(codes, count)
        begin = 0
        for end in np.cumsum(np.bincount(codes, minlength=count)).tolist():
            rows = order[begin:end]
            begin = end
            first = found[rows[0]]
            labels: dict[str, str | int] = {
                names.OPERATION: functions[int(first["function"])].name,
                names.HASH: self._label(int(first["hash"])),
            }
            yield self._resource_of(int(calls.rows["tgid"][rows[0]])), labels, rows

    def _label(self, communicator: int) -> str:
        known = self._labelled.get(communicator)
        if known is None:
            if len(self._labelled) >= COMMUNICATORS:
                return OTHERS
            known = self._labelled[communicator] = hash_text(communicator)
        return known
