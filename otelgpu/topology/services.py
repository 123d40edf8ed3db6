"""Requests between services: from spans of both sides, and from what the Collector's service graph counts. Pure.

A request is a server's span whose parent is the client's span in another service. The service graph connector counts
the same of traces that this program never sees: where a pair of services is in both, the spans are taken.

Source: opentelemetry-collector-contrib/connector/servicegraphconnector (README: metrics and their attributes).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct, field

from otelgpu.model.resource import AttributeValue
from otelgpu.otlp_json.messages import Metric, Point, Span
from otelgpu.otlp_json.reader import attributes, identity, time_ns
from otelgpu.topology.devices import value_of
from otelgpu.topology.graph import Call
from otelgpu.topology.owners import Owner, shown

REQUESTS: Final = "traces_service_graph_request_total"
FAILED: Final = "traces_service_graph_request_failed_total"
TAKEN: Final = frozenset((REQUESTS, FAILED))
MOST_SPANS: Final = 1 << 20
_MOST_PAIRS: Final = 1 << 16
_SERVER, _CLIENT, _ERROR, _DELTA = 2, 3, 2, 1
SPANS, SERVICE_GRAPH = "spans", "servicegraph"

Pair = tuple[str, str]


class _Answered(Struct, frozen=True):
    parent: bytes
    service: str
    seconds: float
    failed: bool


class _Counted(Struct):
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
    _counted: dict[tuple[str, Pair], _Counted] = field(default_factory=dict)

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
        """A point of one of :data:`TAKEN`. Raises ValueError for one that cannot be read."""
        if metric.sum is None:
            return
        described: Mapping[str, AttributeValue] = attributes(point.attributes)
        pair = shown(described.get("client", "")), shown(described.get("server", ""))
        if not all(pair):
            return
        at, value = time_ns(point.time_unix_nano), value_of(point)
        counted = self._counted.get((metric.name, pair))
        is_delta = metric.sum.aggregation_temporality == _DELTA
        if counted is None:
            if len(self._counted) >= _MOST_PAIRS:
                self.beyond += 1
                return
            is_whole = is_delta or time_ns(point.start_time_unix_nano) >= self.begin_ns
            counted = self._counted[metric.name, pair] = _Counted(0.0 if is_whole else value, at - 1)
        if at > counted.time_ns:
            counted.grown += value if is_delta or value < counted.value else value - counted.value
            counted.value, counted.time_ns = 0.0 if is_delta else value, at

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
        for (name, pair), counted in self._counted.items():
            if name == REQUESTS and pair not in calls:
                failed = self._counted.get((FAILED, pair))
                calls[pair] = Call(
                    client=pair[0],
                    server=pair[1],
                    calls=int(counted.grown),
                    errors=int(failed.grown) if failed is not None else 0,
                    mean_s=0.0,
                    source=SERVICE_GRAPH,
                )
        return [calls[pair] for pair in sorted(calls)]
