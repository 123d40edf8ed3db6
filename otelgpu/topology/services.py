"""Requests between services: from spans of both sides, and from what the Collector's service graph counts. Pure.

A request is a server's span whose parent is the client's span in another service. The service graph connector counts
the same of traces that this program never sees: where a pair of services is in both, the spans are taken. A pair has
more than one series: requests that failed are one of their own, and so are those of each Collector and of each value of
an attribute that its configuration adds.

Source: opentelemetry-collector-contrib/connector/servicegraphconnector (README: metrics and their attributes).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct, field

from otelgpu.otlp_json.messages import Metric, Point, Span
from otelgpu.otlp_json.reader import attributes, double, identity, time_ns, uint64
from otelgpu.topology.devices import value_of
from otelgpu.topology.graph import Call
from otelgpu.topology.owners import Owner, shown

REQUESTS: Final = "traces_service_graph_request_total"
FAILED: Final = "traces_service_graph_request_failed_total"
TAKEN: Final = frozenset((REQUESTS, FAILED))
"""Counters."""
DURATIONS: Final = "traces_service_graph_request_server"
"""A histogram of seconds, as the server saw them."""
SECONDS, TIMED = f"{DURATIONS}_seconds_sum", f"{DURATIONS}_seconds_count"
"""Its sum and its count, as Prometheus calls them."""
MOST_SPANS: Final = 1 << 20
MOST_SERIES: Final = 1 << 16
"""Of which half is for counts alone: durations without them say nothing."""
_MOST: Final = float(1 << 63)
_SERVER, _CLIENT, _ERROR, _DELTA = 2, 3, 2, 1
SPANS, SERVICE_GRAPH = "spans", "servicegraph"

Pair = tuple[str, str]
Series = tuple[str, int, tuple[tuple[str, str], ...]]
"""Of a counter: its name, since when it counts in Unix nanoseconds, and its attributes by name."""


class _Answered(Struct, frozen=True):
    parent: bytes
    service: str
    seconds: float
    failed: bool


class _Counted(Struct):
    pair: Pair
    value: float
    time_ns: int
    grown: float = 0.0


class Services(Struct):
    """``beyond``: spans and series that are not taken, for there are too many."""

    begin_ns: int
    beyond: int = 0
    _asked: dict[bytes, str] = field(default_factory=dict)
    _answered: list[_Answered] = field(default_factory=list)
    _seen: set[bytes] = field(default_factory=set)
    _counted: dict[Series, _Counted] = field(default_factory=dict)

    def take_span(self, owner: Owner, span: Span) -> None:
        """A span of any scope. Raises ValueError for ids and times that are none."""
        if span.kind not in (_SERVER, _CLIENT) or not owner.service:
            return
        if len(self._asked) + len(self._answered) >= MOST_SPANS:
            self.beyond += 1
            return
        own = identity(span.trace_id, 16) + identity(span.span_id, 8)
        if span.kind == _CLIENT:
            self._asked[own] = owner.service
        elif span.parent_span_id and own not in self._seen:
            self._seen.add(own)
            took_ns = time_ns(span.end_time_unix_nano) - time_ns(span.start_time_unix_nano)
            parent = own[:16] + identity(span.parent_span_id, 8)
            failed = span.status.code == _ERROR
            self._answered.append(_Answered(parent, owner.service, max(took_ns, 0) / 1e9, failed))

    def take_metric(self, metric: Metric, point: Point) -> None:
        """A point of one of :data:`TAKEN`, or of :data:`DURATIONS`. Raises ValueError for one that cannot be read."""
        is_histogram = metric.name == DURATIONS
        points = metric.histogram if is_histogram else metric.sum
        if points is None:
            return
        described = {key: shown(value) for key, value in attributes(point.attributes).items()}
        is_delta = points.aggregation_temporality == _DELTA
        start, at = time_ns(point.start_time_unix_nano), time_ns(point.time_unix_nano)
        if is_histogram:
            values = {SECONDS: double(point.sum or 0.0), TIMED: float(uint64(point.count))}
        else:
            values = {metric.name: value_of(point)}
        for name, value in values.items():
            self._take(name, described, value, start_ns=start, at_ns=at, is_delta=is_delta)

    def take_sample(
        self, name: str, labels: Mapping[str, str], value: float, *, at_ns: int, source: str
    ) -> None:
        """What a counter that is called as in Prometheus has counted since its process began, which ``source`` is.

        Raises ValueError.
        """
        described = {key: shown(each) for key, each in labels.items()} | {
            "": source
        }  # no label has that name
        self._take(name, described, value, start_ns=self.begin_ns, at_ns=at_ns, is_delta=False)

    def _take(
        self,
        name: str,
        described: Mapping[str, str],
        value: float,
        *,
        start_ns: int,
        at_ns: int,
        is_delta: bool,
    ) -> None:
        pair = described.get("client", ""), described.get("server", "")
        if not all(pair):
            return
        if not 0 <= value <= _MOST:
            raise ValueError(f"{value} is no count")
        series = name, 0 if is_delta else start_ns, tuple(sorted(described.items()))
        counted = self._counted.get(series)
        if counted is None:
            if len(self._counted) >= (MOST_SERIES if name in TAKEN else MOST_SERIES // 2):
                self.beyond += 1
                return
            is_whole = is_delta or start_ns >= self.begin_ns
            counted = self._counted[series] = _Counted(pair, 0.0 if is_whole else value, at_ns - 1)
        if at_ns > counted.time_ns:
            counted.grown += value if is_delta or value < counted.value else value - counted.value
            counted.value, counted.time_ns = 0.0 if is_delta else value, at_ns

    def calls(self) -> list[Call]:
        """Of each pair of services, by name."""
        found: dict[Pair, list[_Answered]] = {}
        for answered in self._answered:
            client = self._asked.get(answered.parent)
            if client is not None and client != answered.service:
                found.setdefault((client, answered.service), []).append(answered)
        calls = {
            pair: Call(
                client=pair[0],
                server=pair[1],
                calls=len(some),
                errors=sum(each.failed for each in some),
                mean_s=sum(each.seconds for each in some) / len(some),
                source=SPANS,
            )
            for pair, some in found.items()
        }
        for pair, each in self._by_pair().items():
            if REQUESTS in each and pair not in calls:
                timed = each.get(TIMED, 0.0)
                calls[pair] = Call(
                    client=pair[0],
                    server=pair[1],
                    calls=int(each[REQUESTS]),
                    errors=int(each.get(FAILED, 0.0)),
                    mean_s=each.get(SECONDS, 0.0) / timed if timed > 0 else 0.0,
                    source=SERVICE_GRAPH,
                )
        return [calls[pair] for pair in sorted(calls)]

    def _by_pair(self) -> dict[Pair, dict[str, float]]:
        """By a counter's name: what it grew by, of all its series."""
        found: dict[Pair, dict[str, float]] = {}
        for (name, _, _), counted in self._counted.items():
            of_pair = found.setdefault(counted.pair, {})
            of_pair[name] = of_pair.get(name, 0.0) + counted.grown
        return found
