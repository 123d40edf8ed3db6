"""Counters of trouble in OTLP metrics: when and how much each grew, which is evidence of its host. Pure.

In: metrics of one resource after the other, in the order of their lines. Out: a growth for each pair of points between
which a counter is larger. What it stood at before its first point is not known, and one that begins anew says nothing
until its next point.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from otelgpu.engine.hardware_names import ERRORS
from otelgpu.engine.names import ERROR_TYPE
from otelgpu.families.gpu.devices import metrics as devices
from otelgpu.families.rdma import port_counters as ports
from otelgpu.otlp_json.messages import Metric, Point
from otelgpu.otlp_json.reader import attributes, double, time_ns
from otelgpu.store.batches import text as cut

TROUBLE: Final = {
    ports.RETRIES.name: "requests that an RDMA port sent again",
    ports.NAKS.name: "negative acknowledgements of an RDMA port",
    ports.OUT_OF_SEQUENCE.name: "packets that came to an RDMA port out of order, for one before was lost",
    ports.DROPS.name: "packets that an RDMA port dropped",
    ports.SLOW_RESTARTS.name: "times that RoCE held a queue pair back after a loss",
    devices.THROTTLED.name: "seconds for which a GPU's clocks were held down",
    ERRORS.name: "hardware errors",
}
"""Metric → what one of it is."""

MARKS: Final = tuple(f'"{name}"'.encode() for name in TROUBLE)
"""One of them is in a line that has such a metric."""

_ARE_SPANS: Final = ("xid", "sxid")  # of hardware errors, with what the driver said
_MOST_SERIES: Final = 1 << 17
_CUMULATIVE: Final = 2


class Growth(Struct, frozen=True):
    """Unix seconds of two points of a counter of a host, and how much it grew between them."""

    host: str
    t0: float
    t1: float
    name: str
    value: float
    text: str


class _Last(Struct):
    time_ns: int
    value: float


class Counters:
    """All series that were seen."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str, str], _Last] = {}

    def take(self, host: str, metric: Metric) -> Iterator[Growth]:
        """Of a host's metric. Raises ValueError for a point that cannot be read."""
        text = TROUBLE.get(metric.name)
        if text is None or metric.sum is None or metric.sum.aggregation_temporality != _CUMULATIVE:
            return
        for point in metric.sum.data_points:
            yield from self._grown(host, metric.name, text, point)

    def _grown(self, host: str, name: str, text: str, point: Point) -> Iterator[Growth]:
        described = attributes(point.attributes)
        if str(described.get(ERROR_TYPE, "")).startswith(_ARE_SPANS):
            return
        of_what = cut(", ".join(str(value) for _, value in sorted(described.items())))
        at, value = time_ns(point.time_unix_nano), _value(point)
        key = host, name, of_what
        last = self._last.get(key)
        if last is None:
            if len(self._last) < _MOST_SERIES:
                self._last[key] = _Last(at, value)
            return
        if at <= last.time_ns:  # another gateway has delivered it too
            return
        if value > last.value:
            said = f"{text} ({of_what})" if of_what else text
            yield Growth(host, last.time_ns * 1e-9, at * 1e-9, name, value - last.value, said)
        last.time_ns, last.value = at, value


def _value(point: Point) -> float:
    raw = point.as_double if point.as_double is not None else point.as_int
    return double(raw) if raw is not None else 0.0
