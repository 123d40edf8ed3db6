"""What ``otelgpu top`` shows: rates of a moment, from two readings of a session's metrics. Pure.

In: two MetricsData of one session, cumulative, and the seconds between them. Out: rows, by the table of
:data:`VIEWS`: a :class:`Sheet` says which labels make a row and which metric makes each of its columns. A quantity
that nobody told is None, never zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from otelgpu.signals import collective_metrics, collective_names, queue_pair_names
from otelgpu.signals.fabric_counters import DIRECTION, RECEIVE, TRANSMIT

if TYPE_CHECKING:
    from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

Labels = Mapping[str, str | int]
Value = float | str | None

PROCESS: Final = "process.pid"
SERVICE: Final = "service.name"


class Unit(Enum):
    """How a column is written."""

    TEXT = "text"
    COUNT = "count"
    BYTES = "bytes"
    SECONDS = "seconds"
    SHARE = "share"


class How(Enum):
    """How a column comes of its metric's series in a row."""

    RATE = "rate"  # growth a second: of a histogram, its measurements
    SUM_RATE = "sum_rate"  # growth a second of a histogram's sum
    TOTAL = "total"  # as it stands, added up
    MEAN = "mean"  # of a histogram's new measurements; of levels, as they stand
    P50 = "p50"
    P99 = "p99"
    LABEL = "label"  # the text of a label, of a series that stands at 1
    WORST = "worst"  # the label whose new measurements have the largest mean


_QUANTILES: Final = {How.P50: 0.5, How.P99: 0.99}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """``metrics``: the first of them that a row has. ``where``: only series with these labels.

    ``without``: not those. ``label``: for :attr:`How.LABEL` and :attr:`How.WORST`.
    """

    key: str
    title: str
    how: How
    metrics: tuple[str, ...]
    unit: Unit = Unit.COUNT
    where: Labels = field(default_factory=dict)
    without: Labels = field(default_factory=dict)
    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """One table. ``keys``: label of a series, or attribute of its resource → (column, title)."""

    name: str
    title: str
    keys: Mapping[str, tuple[str, str]]
    columns: tuple[Column, ...]
    sort: str


Row = dict[str, Value]


@dataclass(slots=True)
class _Point:
    value: float = 0.0
    count: float = 0.0
    bounds: tuple[float, ...] = ()
    buckets: tuple[float, ...] = ()

    def since(self, before: _Point | None) -> _Point:
        """What came since; a series that is new began at zero."""
        if before is None or len(before.buckets) != len(self.buckets):
            return self
        return _Point(
            self.value - before.value,
            self.count - before.count,
            self.bounds,
            tuple(now - then for now, then in zip(self.buckets, before.buckets, strict=True)),
        )


_Series = tuple[str, tuple[tuple[str, str | int], ...]]  # metric, labels with those of the resource
_Points = dict[_Series, _Point]


def rows(sheet: Sheet, before: MetricsData, after: MetricsData, seconds: float, sort: str = "") -> list[Row]:
    """The rows of a sheet, the largest in column ``sort`` first; a row of which nothing is known is left out."""
    wanted = {metric for column in sheet.columns for metric in column.metrics}
    then = _points(before, wanted, sheet)
    series: dict[tuple[str | int, ...], _Points] = {}
    for one, point in _points(after, wanted, sheet).items():
        labels = dict(one[1])
        series.setdefault(tuple(labels.get(key, "") for key in sheet.keys), {})[one] = point
    found = []
    for key, points in series.items():
        row: Row = {
            name: (value if value != "" else None)
            for (name, _), value in zip(sheet.keys.values(), key, strict=True)
        }
        cells = {column.key: _cell(column, points, then, seconds) for column in sheet.columns}
        if any(value is not None for value in cells.values()):
            found.append(row | cells)
    by = sort or sheet.sort
    if by not in column_keys(sheet):
        raise KeyError(by)
    # Of equals, in the order of their keys.
    found.sort(key=lambda row: [_ordered(row[name]) for name, _ in sheet.keys.values()])
    text = any(isinstance(row[by], str) for row in found)
    found.sort(key=lambda row: _ordered(row[by]), reverse=not text)
    return found


def column_keys(sheet: Sheet) -> list[str]:
    """By what a sheet can be sorted."""
    return [name for name, _ in sheet.keys.values()] + [column.key for column in sheet.columns]


def _ordered(value: Value) -> tuple[int, float, str]:
    if value is None:
        return 0, 0.0, ""
    return (2, 0.0, value) if isinstance(value, str) else (1, value, "")


def _cell(column: Column, points: _Points, before: _Points, seconds: float) -> Value:
    for metric in column.metrics:
        mine = {
            one: point for one, point in points.items() if one[0] == metric and _fits(column, dict(one[1]))
        }
        if mine:
            return _value(column, mine, before, seconds)
    return None


def _fits(column: Column, labels: dict[str, str | int]) -> bool:
    return column.where.items() <= labels.items() and not any(
        labels.get(key) == value for key, value in column.without.items()
    )


def _value(column: Column, points: _Points, before: _Points, seconds: float) -> Value:
    if column.how is How.TOTAL:
        return sum(point.value for point in points.values())
    if column.how is How.LABEL:
        texts = {
            str(dict(labels).get(column.label, "")) for (_, labels), point in points.items() if point.value
        }
        return ", ".join(sorted(texts - {""})) or None
    new = {one: point.since(before.get(one)) for one, point in points.items()}
    if column.how is How.WORST:
        means = {one: point.value / point.count for one, point in new.items() if point.count > 0}
        worst = max(means, key=lambda one: means[one], default=None)
        return str(dict(worst[1]).get(column.label, "")) or None if worst is not None else None
    together = _together(new.values())
    if column.how is How.MEAN:
        if not together.buckets:
            return sum(point.value for point in points.values()) / len(points)
        return together.value / together.count if together.count > 0 else None
    if column.how in _QUANTILES:
        return _quantile(together, _QUANTILES[column.how])
    if seconds <= 0:
        return None
    grown = together.count if column.how is How.RATE and together.buckets else together.value
    return max(grown, 0.0) / seconds


def _together(points: Iterable[_Point]) -> _Point:
    """Series of one metric as one."""
    found = _Point()
    for point in points:
        found.value += point.value
        found.count += point.count
        if point.buckets and not found.buckets:
            found.bounds, found.buckets = point.bounds, point.buckets
        elif len(point.buckets) == len(found.buckets):
            found.buckets = tuple(a + b for a, b in zip(found.buckets, point.buckets, strict=True))
    return found


def _quantile(histogram: _Point, share: float) -> float | None:
    """The upper bound of the bucket in which it is; None beyond the last, where there is none."""
    total = sum(histogram.buckets)
    if total <= 0:
        return None
    seen = 0.0
    for count, bound in zip(histogram.buckets, histogram.bounds, strict=False):
        seen += count
        if seen >= share * total:
            return bound
    return None


def _points(data: MetricsData, wanted: set[str], sheet: Sheet) -> _Points:
    found: _Points = {}
    for part in data.resource_metrics:
        own = [_label(each) for each in part.resource.attributes if each.key in sheet.keys]
        for scope in part.scope_metrics:
            for metric in scope.metrics:
                if metric.name in wanted:
                    for labels, point in _of_metric(metric):
                        found[metric.name, tuple(sorted([*own, *labels]))] = point
    return found


def _of_metric(metric: Any) -> Iterable[tuple[list[tuple[str, str | int]], _Point]]:
    kind = metric.WhichOneof("data")
    for point in getattr(metric, kind).data_points if kind else ():
        labels = [_label(each) for each in point.attributes]
        if kind == "histogram":
            yield (
                labels,
                _Point(point.sum, point.count, tuple(point.explicit_bounds), tuple(point.bucket_counts)),
            )
        else:
            yield labels, _Point(float(getattr(point, point.WhichOneof("value"))))


def _label(attribute: Any) -> tuple[str, str | int]:
    value = attribute.value
    kind = value.WhichOneof("value")
    if kind == "int_value":
        return attribute.key, int(value.int_value)
    return attribute.key, str(getattr(value, kind)) if kind else ""


def _rate(key: str, title: str, *metrics: str, unit: Unit = Unit.COUNT, **more: Any) -> Column:
    return Column(key=key, title=title, how=How.RATE, metrics=metrics, unit=unit, **more)


_qp = queue_pair_names
_OF_PROCESS: Final = {SERVICE: ("service", "service"), PROCESS: ("pid", "pid")}
_SUCCESS: Final = {_qp.STATUS: "success"}

_QUEUE_PAIRS: Final = Sheet(
    name="queue_pairs",
    title="RDMA queue pairs",
    keys={
        **_OF_PROCESS,
        _qp.DEVICE: ("device", "device"),
        _qp.PORT: ("port", "port"),
        _qp.NUMBER: ("queue_pair", "qp"),
        _qp.TYPE: ("type", "type"),
    },
    columns=(
        Column(
            key="state",
            title="state",
            how=How.LABEL,
            metrics=(_qp.QUEUE_PAIR_STATUS.name,),
            label=_qp.STATE,
            unit=Unit.TEXT,
        ),
        Column(
            key="communicator",
            title="communicator",
            how=How.LABEL,
            metrics=(_qp.QUEUE_PAIR_STATUS.name,),
            label=_qp.COMMUNICATOR,
            unit=Unit.TEXT,
        ),
        _rate("work_requests_per_s", "WR/s", _qp.REQUESTS_ESTIMATED.name, _qp.REQUESTS.name),
        _rate("bytes_per_s", "bytes/s", _qp.IO_ESTIMATED.name, _qp.IO.name, unit=Unit.BYTES),
        _rate("completions_per_s", "compl/s", _qp.COMPLETED.name),
        Column(key="outstanding", title="outst.", how=How.TOTAL, metrics=(_qp.OUTSTANDING.name,)),
        Column(key="latency_p50_s", title="p50", how=How.P50, metrics=(_qp.LATENCY.name,), unit=Unit.SECONDS),
        Column(key="latency_p99_s", title="p99", how=How.P99, metrics=(_qp.LATENCY.name,), unit=Unit.SECONDS),
        Column(
            key="failures", title="failed", how=How.TOTAL, metrics=(_qp.COMPLETED.name,), without=_SUCCESS
        ),
        _rate("losses_per_s", "lost/s", _qp.LOSSES.name),
        Column(
            key="observed_share",
            title="seen",
            how=How.MEAN,
            metrics=(_qp.OBSERVED.name,),
            where={_qp.PATH: "post"},
            unit=Unit.SHARE,
        ),
    ),
    sort="bytes_per_s",
)


def _way(direction: str) -> dict[str, Any]:
    return {"where": {DIRECTION: direction, "hw.type": "network"}}


_PORTS: Final = Sheet(
    name="ports",
    title="RDMA ports",
    keys={_qp.DEVICE: ("device", "device"), _qp.PORT: ("port", "port")},
    columns=(
        Column(key="up", title="up", how=How.TOTAL, metrics=("hw.network.up",)),
        Column(
            key="limit_bytes_per_s",
            title="speed",
            how=How.TOTAL,
            metrics=("hw.network.bandwidth.limit",),
            unit=Unit.BYTES,
        ),
        _rate("sent_bytes_per_s", "sent/s", "hw.network.io", unit=Unit.BYTES, **_way(TRANSMIT)),
        _rate("received_bytes_per_s", "received/s", "hw.network.io", unit=Unit.BYTES, **_way(RECEIVE)),
        _rate("sent_packets_per_s", "pkt sent/s", "hw.network.packets", **_way(TRANSMIT)),
        _rate("received_packets_per_s", "pkt rcvd/s", "hw.network.packets", **_way(RECEIVE)),
        _rate("naks_per_s", "NAK/s", "rdma.port.naks"),
        _rate("retries_per_s", "retry/s", "rdma.port.retries"),
        _rate("out_of_sequence_per_s", "ooseq/s", "rdma.port.out_of_sequence"),
        _rate("cnps_per_s", "CNP/s", "rdma.port.cnps"),
        _rate("errors_per_s", "err/s", "hw.errors", where={"hw.type": "network"}),
    ),
    sort="sent_bytes_per_s",
)

_COLLECTIVE_KEYS: Final = {
    collective_names.HASH: ("communicator", "communicator"),
    collective_names.OPERATION: ("operation", "operation"),
}
_COMMUNICATORS: Final = Sheet(
    name="communicators",
    title="NCCL communicators",
    keys=_COLLECTIVE_KEYS,
    columns=(
        _rate(
            "calls_per_s",
            "calls/s",
            "nccl.calls",
            collective_metrics.LATENESS.name,
            collective_metrics.DURATION.name,
            collective_metrics.WAIT.name,
        ),
        _rate("bytes_per_s", "bytes/s", "nccl.bytes", unit=Unit.BYTES),
        Column(
            key="duration_mean_s",
            title="time",
            how=How.MEAN,
            metrics=(collective_metrics.DURATION.name,),
            unit=Unit.SECONDS,
        ),
        Column(
            key="algorithm_bytes_per_s",
            title="algbw",
            how=How.MEAN,
            metrics=(collective_metrics.ALGORITHM.name,),
            unit=Unit.BYTES,
        ),
        Column(
            key="bus_bytes_per_s",
            title="busbw",
            how=How.MEAN,
            metrics=(collective_metrics.BUS.name,),
            unit=Unit.BYTES,
        ),
        Column(
            key="skew_mean_s",
            title="skew",
            how=How.MEAN,
            metrics=(collective_metrics.SKEW.name,),
            unit=Unit.SECONDS,
        ),
        Column(
            key="skew_p99_s",
            title="skew p99",
            how=How.P99,
            metrics=(collective_metrics.SKEW.name,),
            unit=Unit.SECONDS,
        ),
        Column(
            key="last_rank",
            title="last rank",
            how=How.WORST,
            metrics=(collective_metrics.LATENESS.name,),
            label=collective_names.RANK,
            unit=Unit.TEXT,
        ),
    ),
    sort="calls_per_s",
)
_RANKS: Final = Sheet(
    name="ranks",
    title="NCCL ranks: how much later each calls than the first",
    keys={
        **_COLLECTIVE_KEYS,
        collective_names.RANK: ("rank", "rank"),
        **_OF_PROCESS,
    },
    columns=(
        _rate("calls_per_s", "calls/s", collective_metrics.LATENESS.name),
        Column(
            key="lateness_mean_s",
            title="late",
            how=How.MEAN,
            metrics=(collective_metrics.LATENESS.name,),
            unit=Unit.SECONDS,
        ),
        Column(
            key="lateness_p99_s",
            title="late p99",
            how=How.P99,
            metrics=(collective_metrics.LATENESS.name,),
            unit=Unit.SECONDS,
        ),
    ),
    sort="lateness_mean_s",
)

_LAUNCHES: Final = "gpu.cuda.kernel.launch.calls"
_PROCESSES: Final = Sheet(
    name="processes",
    title="CUDA processes",
    keys=_OF_PROCESS,
    columns=(
        _rate("launches_per_s", "launches/s", _LAUNCHES),
        _rate("graph_launches_per_s", "graphs/s", "gpu.cuda.graph.launch.calls"),
        Column(
            key="launch_host_p99_s",
            title="launch p99",
            how=How.P99,
            metrics=("gpu.cuda.kernel.launch.host.duration",),
            unit=Unit.SECONDS,
        ),
        _rate("copies_per_s", "copies/s", "gpu.cuda.memory.copies"),
        Column(
            key="copied_bytes_per_s",
            title="copied/s",
            how=How.SUM_RATE,
            metrics=("gpu.cuda.memory.copies",),
            unit=Unit.BYTES,
        ),
        _rate("waits_per_s", "waits/s", "gpu.cuda.synchronize.duration"),
        Column(
            key="waited_share",
            title="waited",
            how=How.SUM_RATE,
            metrics=("gpu.cuda.synchronize.duration",),
            unit=Unit.SHARE,
        ),
        _rate("allocated_bytes_per_s", "alloc/s", "gpu.cuda.memory.allocations", unit=Unit.BYTES),
        _rate("errors_per_s", "err/s", "gpu.cuda.errors"),
    ),
    sort="launches_per_s",
)

VIEWS: Final[Mapping[str, Sequence[Sheet]]] = {
    "rdma": (_QUEUE_PAIRS, _PORTS),
    "nccl": (_COMMUNICATORS, _RANKS),
    "cuda": (_PROCESSES,),
}
"""Name of a view → its tables."""

FAMILIES: Final[Mapping[str, Sequence[str]]] = {
    "rdma": ("verbs", "nccl"),
    "nccl": ("nccl", "cuda"),
    "cuda": ("cuda",),
}
"""Name of a view → the families that it is made of."""
