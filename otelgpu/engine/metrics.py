"""Cumulative counters, explicit-bucket histograms and current values, fed in columns, read out as OTLP.

The SDK's instruments take one measurement at a time and read the clock; here a batch
of a hundred thousand operations is a few numpy calls, and time is an argument, so that a replay gives the
same numbers. Message shapes: opentelemetry/proto/metrics/v1/metrics.proto.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, overload

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from otelgpu.engine import names
from otelgpu.engine.metric import Instrument, Metric
from otelgpu.model.context import Context
from otelgpu.model.distributions import Distribution
from otelgpu.model.losses import Reasons
from otelgpu.model.resource import AttributeValue, Resource
from otelgpu.model.shares import Headroom, Pool, Refusals, Share

if TYPE_CHECKING:
    from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData, ResourceMetrics, ScopeMetrics

SERIES_PER_METRIC: Final = 2000
"""Distinct attribute sets of one metric and resource; what comes beyond joins one series of
``otel.metric.overflow`` (OpenTelemetry metrics SDK specification, cardinality limits)."""

SERIES: Final = 16_000
"""Of all processes, of which each and each container has its share: 12 MB."""

POINTS_AT_ONCE: Final = 250
"""Data points of a part: some 20 ms until they are in a file, and 0.3 MB."""

REASONS: Final = Reasons(
    "metrics",
    {
        "series_refused": "a measurement has no series of its own, since its process or container has its share of "
        "them: it is in the one with `otel.metric.overflow`, or, of what stands at a level, nowhere",
        "series_dropped": "a measurement of a metric for which such a process or container has no series at all",
    },
)
"""What one count of (``metrics``, reason) means."""

_MOST: Final = (1 << 63) - 1  # of an OTLP integer
_NOBODY: Final = "processes that nobody could look at"

Labels = tuple[tuple[str, str | int], ...]
_SUMS: Final = frozenset({Instrument.COUNTER, Instrument.HISTOGRAM})
_OVERFLOW: Final[Labels] = (("otel.metric.overflow", True),)


class Growing(Protocol):
    """A series of a counter, or of a histogram."""

    def grow(self, count: int) -> None:
        """Add to a counter."""

    def fill(self, counts: npt.NDArray[np.int64], total: float) -> None:
        """Add measurements that somebody else put into the histogram's buckets: shape (bounds + 1,).

        ``total`` is their sum. Their least and greatest are not known, and not distinguished from then on.
        """


class _Series(Struct):
    count: int = 0
    total: float = 0.0
    minimum: float = float("inf")
    maximum: float = float("-inf")
    buckets: npt.NDArray[np.int64] | None = None
    exemplars: dict[int, _Exemplar] | None = None  # by bucket: the newest since the last read
    whole: _Series | None = None  # the one that it was added to: who keeps this one adds to that

    def grow(self, count: int) -> None:
        if self.whole is not None:
            self.whole.grow(count)
            return
        self.count += 1
        self.total += count

    def join(self, whole: _Series) -> None:
        """Be part of another from here on, with all that was added."""
        self.whole = whole
        whole.count += self.count
        whole.total += self.total
        whole.minimum, whole.maximum = min(whole.minimum, self.minimum), max(whole.maximum, self.maximum)
        if self.buckets is not None:
            whole.buckets = self.buckets if whole.buckets is None else whole.buckets + self.buckets
        if self.exemplars:
            whole.exemplars = self.exemplars | (whole.exemplars or {})

    def fill(self, counts: npt.NDArray[np.int64], total: float) -> None:
        if self.whole is not None:
            self.whole.fill(counts, total)
            return
        self.count += int(counts.sum())
        self.total += total
        self.minimum, self.maximum = float("-inf"), float("inf")
        self.buckets = counts.copy() if self.buckets is None else self.buckets + counts

    def absorb(self, found: Distribution) -> None:
        """Add measurements to a histogram."""
        self.count += found.count
        self.total += found.total
        self.minimum, self.maximum = min(self.minimum, found.least), max(self.maximum, found.most)
        self.buckets = found.buckets if self.buckets is None else self.buckets + found.buckets


class _Exemplar(NamedTuple):
    value: float
    unix_ns: int
    context: Context


class _Table(Struct):
    metric: Metric
    scope: str
    share: Share | None  # of which its series are, and one more for those that overflow; None: of nobody's
    series: dict[Labels, _Series] = field(default_factory=dict)

    def close(self) -> None:
        """Nothing of it is kept any more."""
        if self.share is not None:
            self.share.release(1 + len(self.series.keys() - {_OVERFLOW}))
        self.series = {}


class _Part:
    """A message with metrics of some resources. ``points``: how many data points it holds."""

    def __init__(self) -> None:
        from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

        self.data, self.points = MetricsData(), 0
        self._owners: dict[Resource, ResourceMetrics] = {}
        self._scopes: dict[tuple[Resource, str], ScopeMetrics] = {}

    def scope(self, resource: Resource, name: str) -> ScopeMetrics:
        """The place of what one resource has of one scope."""
        from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
        from opentelemetry.proto.resource.v1.resource_pb2 import Resource as ResourceMessage

        if resource not in self._owners:
            message = ResourceMessage(attributes=[key_value(k, v) for k, v in resource.attributes])
            self._owners[resource] = self.data.resource_metrics.add(
                resource=message, schema_url=names.SCHEMA_URL
            )
        if (resource, name) not in self._scopes:
            self._scopes[resource, name] = self._owners[resource].scope_metrics.add(
                scope=InstrumentationScope(name=name), schema_url=names.SCHEMA_URL
            )
        return self._scopes[resource, name]


class Metrics:
    """All series of a session. ``start_unix_ns`` is where the cumulative sums begin.

    ``own``: this program, which has no share. ``capacity``: how many series all others have. ``counters``:
    measurements that found none, by reason.
    """

    def __init__(
        self,
        start_unix_ns: int,
        own: Resource | None = None,
        capacity: int = SERIES,
        headroom: Headroom | None = None,
    ) -> None:
        self._start, self._own = start_unix_ns, own
        self._pool = Pool(capacity, headroom=headroom)
        self._shares: dict[Resource, Share] = {}
        self.counters: Counter[str] = Counter()
        self.refused = Refusals()
        self._tables: dict[tuple[Resource, str], _Table] = {}
        self._names: dict[Resource, Resource] = {}  # what was renamed → what it is called now

    def add(
        self, metric: Metric, scope: str, resource: Resource, labels: Mapping[str, str | int], values: Any
    ) -> None:
        """Add measurements of one attribute set: a number, or a column of them."""
        one = isinstance(values, int | float)  # requests and losses come one by one
        column = np.atleast_1d(np.asarray(values)) if not one else np.zeros(1)
        if not len(column):
            return
        series = self._series(metric, scope, resource, labels)
        if one or len(column) == 1:
            _add_one(metric, series, values if one else column[0].item())
            return
        if metric.instrument is Instrument.COUNTER:
            series.count += len(column)
            series.total += int(column.sum())
            return
        series.absorb(distribution(column, metric.buckets))

    def add_distribution(
        self,
        metric: Metric,
        scope: str,
        resource: Resource,
        labels: Mapping[str, str | int],
        found: Distribution,
    ) -> None:
        """Add measurements of one attribute set to a histogram, which somebody else put into its buckets."""
        self._series(metric, scope, resource, labels).absorb(found)

    def growing(
        self, metric: Metric, scope: str, resource: Resource, labels: Mapping[str, str | int]
    ) -> Growing:
        """One series to add to, for what is added to again and again; of no use once it was unset or forgotten."""
        return self._series(metric, scope, resource, labels)

    def exemplify(
        self,
        metric: Metric,
        resource: Resource,
        labels: Mapping[str, str | int],
        values: Sequence[float],
        contexts: Sequence[tuple[Context, int] | None],
    ) -> None:
        """Say of measurements that were added which sampled span (and Unix time, ns) each is of.

        A histogram's bucket keeps the newest until it is read (SDK specification, aligned exemplar reservoir).
        """
        table = self._tables.get((self.owner(resource), metric.name))
        series = table.series.get(tuple(sorted(labels.items()))) if table is not None else None
        if series is None:
            return  # it went into the series of what overflows
        if series.exemplars is None:
            series.exemplars = {}
        buckets, newest = metric.buckets, {}
        for value, reported in zip(values, contexts, strict=True):
            if reported is not None:
                newest[bisect_left(buckets, value)] = value, reported
        for bucket, (value, (context, time_unix_ns)) in newest.items():
            series.exemplars[bucket] = _Exemplar(float(value), time_unix_ns, context)

    def set(
        self,
        metric: Metric,
        scope: str,
        resource: Resource,
        labels: Mapping[str, str | int],
        value: float,
    ) -> None:
        """Report what a gauge stands at, or a counter that somebody else keeps; what was reported before is replaced.

        What finds no series of its own is not reported, for sums of gauges mean nothing.
        """
        series = self._series(metric, scope, resource, labels, overflows=False)
        if series is not None:
            series.count, series.total = 1, value

    def unset(
        self, metric: Metric, resource: Resource, labels: Mapping[str, str | int] | None = None
    ) -> None:
        """Report one series of a gauge, or all of its ``resource``, no more."""
        table = self._tables.get((self.owner(resource), metric.name))
        if table is None:
            return
        if labels is None:
            taken, table.series = table.series, {}
        else:
            key = tuple(sorted(labels.items()))
            taken = {key: table.series.pop(key)} if key in table.series else {}
        if table.share is not None:
            table.share.release(len(taken.keys() - {_OVERFLOW}))

    @overload
    def _series(
        self, metric: Metric, scope: str, resource: Resource, labels: Mapping[str, str | int]
    ) -> _Series: ...
    @overload
    def _series(
        self,
        metric: Metric,
        scope: str,
        resource: Resource,
        labels: Mapping[str, str | int],
        *,
        overflows: Literal[False],
    ) -> _Series | None: ...
    def _series(
        self,
        metric: Metric,
        scope: str,
        resource: Resource,
        labels: Mapping[str, str | int],
        *,
        overflows: bool = True,
    ) -> _Series | None:
        owner = self.owner(resource)
        table = self._tables.get((owner, metric.name))
        if table is None:
            share = self._share_of(owner)
            if share is not None and not share.reserve(1):
                self._refuse(share, "series_dropped")
                return _Series() if overflows else None  # which nobody will see
            table = self._tables[owner, metric.name] = _Table(metric, scope, share)
        key: Labels = tuple(sorted(labels.items()))
        if (series := table.series.get(key)) is not None:
            return series
        if len(table.series) >= SERIES_PER_METRIC:
            key = _OVERFLOW
        elif table.share is not None and not table.share.reserve(1):
            self._refuse(table.share, "series_refused")
            key = _OVERFLOW
        if key == _OVERFLOW and not overflows:
            return None
        return table.series.setdefault(key, _Series())

    def charge(self, resource: Resource, process: int, payer: str) -> None:
        """From here on, what is reported of a resource is of a process, and in the share of a container or user."""
        share = self._shares.get(resource)
        if share is None or share.container != payer:
            self._shares[resource] = self._pool.new_share(process, payer)

    def _share_of(self, owner: Resource) -> Share | None:
        if owner == self._own:
            return None
        if owner not in self._shares:
            self.charge(owner, 0, _NOBODY)
        return self._shares[owner]

    def _refuse(self, share: Share, reason: str) -> None:
        self.counters[reason] += 1
        self.refused.add(share.process, share.container)

    def value(self, name: str, resource: Resource | None = None, **labels: str | int) -> float:
        """The sum of a counter, or of a histogram's measurements, over the matching series."""
        wanted = set(labels.items())
        return sum(
            series.total / table.metric.per_unit if table.metric.per_unit != 1 else series.total
            for (owner, metric), table in self._tables.items()
            if metric == name and (resource is None or owner == self.owner(resource))
            for key, series in table.series.items()
            if wanted <= set(key)
        )

    def forget(self, resources: Collection[Resource]) -> None:
        """Drop the series of resources that are gone, after their last export."""
        for key in [key for key in self._tables if key[0] in resources]:
            self._tables.pop(key).close()
        for resource in resources:
            self._shares.pop(resource, None)
        if self._names:
            self._names = {old: new for old, new in self._names.items() if new not in resources}

    def rename(self, before: Resource | None, after: Resource) -> None:
        """What was reported of ``before`` goes on under ``after``, which is the same with more known of it.

        Where there is something of that name already, sums are added up, and of levels its own are kept.
        Whoever keeps ``before`` still may use it, and so may who keeps a series: it is the same one. None: ``after``
        is one of its own from here on, though another may have had that name before more of it was known.
        """
        if before is None:
            self._names.pop(after, None)
            return
        before = self.owner(before)
        if before == after:
            return
        for key in [key for key in self._tables if key[0] == before]:
            moved = self._tables.pop(key)
            there = self._tables.setdefault((after, key[1]), moved)
            if there is not moved:
                added = moved.series
                moved.close()
                if there.share is not None:
                    there.share.charge(len(added.keys() - there.series.keys() - {_OVERFLOW}))
                for labels, series in added.items():
                    kept = there.series.setdefault(labels, series)
                    if kept is not series and there.metric.instrument in _SUMS:
                        series.join(kept)
        if (share := self._shares.pop(before, None)) is not None:
            self._shares.setdefault(after, share)
        self._names = {old: after if new == before else new for old, new in self._names.items()}
        self._names[before] = after
        self._names.pop(after, None)

    def owner(self, resource: Resource) -> Resource:
        """What a resource is called now."""
        return self._names.get(resource, resource) if self._names else resource

    def read(self, time_unix_ns: int, only: tuple[Resource, str] | None = None) -> tuple[MetricsData, int]:
        """Everything as one MetricsData, and how many data points it holds; or what one resource has of one scope."""
        chosen = [key for key, table in self._tables.items() if only in (None, (key[0], table.scope))]
        return next(self._parts(chosen, lambda: time_unix_ns))

    def parts(
        self,
        clock: Callable[[], int],
        *,
        departed: Collection[Resource] = (),
        most: int = POINTS_AT_ONCE,
    ) -> Iterator[tuple[MetricsData, int]]:
        """The same in parts of at most ``most`` points, of which each is read when it is asked for; one at least.

        ``clock``: the time of a part's points, Unix time in ns. ``departed``: resources whose series come last, and
        are forgotten then.
        """
        yield from self._parts(sorted(self._tables, key=lambda key: key[0] in departed), clock, most)
        self.forget(departed)

    def _parts(
        self,
        keys: Iterable[tuple[Resource, str]],
        clock: Callable[[], int],
        most: int = sys.maxsize,
    ) -> Iterator[tuple[MetricsData, int]]:
        part, last = _Part(), None
        for key in keys:
            table = self._tables.get(key)
            if table is None:  # forgotten or renamed between two parts
                continue
            series = list(table.series.items())
            while series:
                room = most - part.points
                self._report(part, key, table, series[:room], clock())
                series = series[room:]
                if part.points >= most:
                    yield part.data, part.points
                    part, last = _Part(), part
        if part.points or last is None:
            yield part.data, part.points

    def _report(
        self,
        part: _Part,
        key: tuple[Resource, str],
        table: _Table,
        series: Collection[tuple[Labels, _Series]],
        time_unix_ns: int,
    ) -> None:
        self._start = min(self._start, time_unix_ns)  # the clock was set back: nothing ends before it began
        metric = part.scope(key[0], table.scope).metrics.add(
            name=key[1], unit=table.metric.unit, description=table.metric.description
        )
        for labels, each in series:
            self._point(metric, table.metric, labels, each, time_unix_ns)
        part.points += len(series)

    def _point(
        self, message: Any, metric: Metric, labels: Labels, series: _Series, time_unix_ns: int
    ) -> None:
        from opentelemetry.proto.metrics.v1 import metrics_pb2 as pb

        common: dict[str, Any] = {
            "attributes": [key_value(key, value) for key, value in labels],
            "start_time_unix_nano": self._start,
            "time_unix_nano": time_unix_ns,
        }
        if metric.instrument is Instrument.COUNTER:
            message.sum.aggregation_temporality = pb.AGGREGATION_TEMPORALITY_CUMULATIVE
            message.sum.is_monotonic = True
            if metric.per_unit != 1:
                message.sum.data_points.add(as_double=series.total / metric.per_unit, **common)
            elif metric.whole:
                message.sum.data_points.add(as_int=min(int(series.total), _MOST), **common)
            else:
                message.sum.data_points.add(as_double=series.total, **common)
            return
        if metric.instrument in (Instrument.GAUGE, Instrument.UP_DOWN_COUNTER):
            self._standing(message, metric, series, common)
            return
        message.histogram.aggregation_temporality = pb.AGGREGATION_TEMPORALITY_CUMULATIVE
        buckets = (
            series.buckets if series.buckets is not None else np.zeros(len(metric.buckets) + 1, np.int64)
        )
        if isfinite(series.minimum):
            common |= {"min": series.minimum, "max": series.maximum}
        point = message.histogram.data_points.add(
            count=series.count,
            sum=series.total,
            bucket_counts=buckets.tolist(),
            explicit_bounds=metric.buckets,
            **common,
        )
        for _, reported in sorted((series.exemplars or {}).items()):
            point.exemplars.add(
                as_double=reported.value,
                time_unix_nano=reported.unix_ns,
                trace_id=reported.context.trace_id,
                span_id=reported.context.span_id,
            )
        series.exemplars = None

    def _standing(self, message: Any, metric: Metric, series: _Series, common: dict[str, Any]) -> None:
        from opentelemetry.proto.metrics.v1 import metrics_pb2 as pb

        whole = isinstance(series.total, int)
        value = {"as_int": min(int(series.total), _MOST)} if whole else {"as_double": series.total}
        if metric.instrument is Instrument.GAUGE:
            del common["start_time_unix_nano"]
            message.gauge.data_points.add(**value, **common)
            return
        message.sum.aggregation_temporality = pb.AGGREGATION_TEMPORALITY_CUMULATIVE
        message.sum.data_points.add(**value, **common)


def distribution(
    column: npt.NDArray[Any], bounds: Sequence[float], total: float | None = None
) -> Distribution:
    """Of one measurement at least; ``total``: their sum, where that is known better than by adding them up."""
    # Few look-ups in sorted measurements cost less than many in the bounds.
    ordered = np.sort(column)
    upto = [0, *np.searchsorted(ordered, bounds, side="right").tolist(), len(ordered)]
    return Distribution(
        count=len(column),
        total=float(column.sum()) if total is None else total,
        least=float(ordered[0]),
        most=float(ordered[-1]),
        buckets=np.array([after - before for before, after in pairwise(upto)], dtype=np.int64),
    )


def _add_one(metric: Metric, series: _Series, value: float) -> None:
    """The same for a single number, without numpy's overhead."""
    series.count += 1
    if metric.instrument is Instrument.COUNTER:
        series.total += int(value)
        return
    series.total += value
    series.minimum = min(series.minimum, value)
    series.maximum = max(series.maximum, value)
    if series.buckets is None:
        series.buckets = np.zeros(len(metric.buckets) + 1, dtype=np.int64)
    series.buckets[bisect_left(metric.buckets, value)] += 1


def key_value(key: str, value: AttributeValue) -> Any:
    """An OTLP KeyValue."""
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue

    if isinstance(value, bool):
        return KeyValue(key=key, value=AnyValue(bool_value=value))
    if isinstance(value, int):
        return KeyValue(key=key, value=AnyValue(int_value=value))
    if isinstance(value, float):
        return KeyValue(key=key, value=AnyValue(double_value=value))
    if isinstance(value, tuple):
        items = [AnyValue(string_value=item) for item in value]
        return KeyValue(key=key, value=AnyValue(array_value=ArrayValue(values=items)))
    return KeyValue(key=key, value=AnyValue(string_value=value))
