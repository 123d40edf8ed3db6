"""What every exchange reports: HTTP's attributes and the duration of requests, of clients and servers.

``http.route`` and ``url.template`` are derived from the path (:mod:`otelgpu.families.requests.routes`), because
frameworks do not report theirs to an observer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from otelgpu.engine.metric import Instrument, Measured, Metric
from otelgpu.families.requests.signals.measuring import NS, seconds
from otelgpu.model.exchange import CLIENT, Endpoint, Exchange, Opened, StartSource

DURATION_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
SERVER_DURATION: Final = seconds(
    "http.server.request.duration", "Duration of HTTP server requests.", DURATION_BUCKETS
)
CLIENT_DURATION: Final = seconds(
    "http.client.request.duration", "Duration of HTTP client requests.", DURATION_BUCKETS
)
ACTIVE_REQUESTS: Final = Metric(
    name="http.server.active_requests",
    unit="{request}",
    instrument=Instrument.UP_DOWN_COUNTER,
    description="HTTP requests, gRPC among them, whose head a server has read and which have not ended.",
)
_METHODS: Final = frozenset(
    ("CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "QUERY", "TRACE")
)


def is_client(exchange: Exchange) -> bool:
    """Whether the process was the client."""
    return exchange.role is CLIENT


def scheme(exchange: Exchange | Opened) -> str:
    """``url.scheme``: as the bytes crossed the socket."""
    return "https" if exchange.tls else "http"


def method_label(method: str) -> str:
    """A method that was seen, if it is a known one, for clients may send anything."""
    return method if method in _METHODS else "_OTHER"


def _method(exchange: Exchange) -> str | None:
    """None where it was not seen."""
    return method_label(exchange.method) if exchange.method else None


def span_name(exchange: Exchange, route: str) -> str:
    """``{method} {route}``, as far as they are known."""
    method = exchange.method if exchange.method in _METHODS else "HTTP"
    return f"{method} {route}" if exchange.path else method


def _is_http(exchange: Exchange) -> bool:
    return exchange.protocol in ("http", "websocket")


def _size_unknown(exchange: Exchange) -> bool:
    """Whether an unknown part of the response passed unseen."""
    return bool(exchange.incomplete) and not exchange.response_bytes


def columns(exchanges: Sequence[Exchange], routes: Sequence[str]) -> dict[str, list[Any]]:
    """Attributes by key, a value or None per exchange."""
    are_http = [_is_http(e) for e in exchanges]
    routed = [http and bool(e.path) and e.rpc is None for e, http in zip(exchanges, are_http, strict=True)]
    clients = [is_client(e) for e in exchanges]
    return {
        "http.request.method": [
            _method(e) if http else None for e, http in zip(exchanges, are_http, strict=True)
        ],
        "http.route": [
            route if known and not client else None
            for route, known, client in zip(routes, routed, clients, strict=True)
        ],
        "url.template": [
            route if known and client else None
            for route, known, client in zip(routes, routed, clients, strict=True)
        ],
        "url.path": [(e.path or None) if http else None for e, http in zip(exchanges, are_http, strict=True)],
        "url.scheme": [scheme(e) if http else None for e, http in zip(exchanges, are_http, strict=True)],
        "network.protocol.name": [e.protocol for e in exchanges],
        "network.protocol.version": [e.protocol_version or None for e in exchanges],
        "http.request.size": [e.request_bytes for e in exchanges],
        "http.response.size": [None if _size_unknown(e) else e.response_bytes for e in exchanges],
        "thread.id": [e.tid for e in exchanges],
        "http.response.status_code": [e.status_code or None for e in exchanges],
        "server.address": [e.server.address if e.server.port else None for e in exchanges],
        "server.port": [e.server.port or None for e in exchanges],
        "client.address": [e.client.address if e.client.port else None for e in exchanges],
        "client.port": [e.client.port or None for e in exchanges],
        "user_agent.original": [e.user_agent or None for e in exchanges],
        "otelgpu.start.source": [e.start_source._value_ for e in exchanges],
        "otelgpu.http.time_to_read": [
            (e.read_ns - e.start_ns) * NS if e.start_source is StartSource.ARRIVAL and e.read_ns else None
            for e in exchanges
        ],
        "otelgpu.http.time_to_first_byte": [
            (e.first_byte_ns - e.start_ns) * NS if e.first_byte_ns else None for e in exchanges
        ],
        "error.type": [e.error_type or None for e in exchanges],
        "otelgpu.incomplete": [e.incomplete or None for e in exchanges],
    }


class _Series(NamedTuple):
    """What tells the series of a metric of requests apart."""

    client: bool
    method: str | None
    scheme: str
    route: str | None
    status_code: int
    error_type: str
    server: Endpoint | None  # of clients, where it is known

    def labels(self) -> dict[str, str | int]:
        """The same as attributes."""
        labels: dict[str, str | int] = {}
        if self.method:
            labels["http.request.method"] = self.method
        labels["url.scheme"] = self.scheme
        if self.route is not None:
            labels["url.template" if self.client else "http.route"] = self.route
        if self.status_code:
            labels["http.response.status_code"] = self.status_code
        if self.error_type:
            labels["error.type"] = self.error_type
        if self.server is not None:
            labels |= {"server.address": self.server.address, "server.port": self.server.port}
        return labels


def measurements(exchanges: Sequence[Exchange], routes: Sequence[str]) -> list[Measured]:
    """Rate, errors and duration of requests, by route: servers' first."""
    found: dict[_Series, tuple[list[float], list[int]]] = {}
    alike: dict[tuple[object, ...], tuple[list[float], list[int]]] = {}  # by what their series is made of
    for row, (e, route) in enumerate(zip(exchanges, routes, strict=True)):
        duration_s = e.known_duration_s
        if duration_s is None or e.rpc is not None or not _is_http(e):
            continue
        client = e.role is CLIENT
        server = e.server if client and e.server.port else None
        known = route if e.path else None
        made_of = client, e.method, e.tls, known, e.status_code, e.error_type, server
        if (measured := alike.get(made_of)) is None:
            series = _Series(client, _method(e), scheme(e), known, e.status_code, e.error_type, server)
            measured = alike[made_of] = found.setdefault(series, ([], []))
        values, rows = measured
        values.append(duration_s)
        rows.append(row)
    return [
        Measured(
            metric=CLIENT_DURATION if series.client else SERVER_DURATION,
            labels=series.labels(),
            values=values,
            rows=rows,
        )
        for series, (values, rows) in sorted(found.items(), key=lambda item: item[0].client)
    ]
