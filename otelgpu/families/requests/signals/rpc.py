"""What remote procedure calls add: ``rpc.*`` of the semantic conventions (release candidate, 1.44.0)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from otelgpu.engine.metric import Measured
from otelgpu.families.requests.signals.http import DURATION_BUCKETS, is_client
from otelgpu.families.requests.signals.measuring import by_series, seconds
from otelgpu.model.exchange import Exchange, Rpc

SERVER_DURATION: Final = seconds(
    "rpc.server.call.duration",
    "Measures the duration of an incoming Remote Procedure Call.",
    DURATION_BUCKETS,
)
CLIENT_DURATION: Final = seconds(
    "rpc.client.call.duration",
    "Measures the duration of an outgoing Remote Procedure Call.",
    DURATION_BUCKETS,
)


def span_name(rpc: Rpc) -> str:
    """The fully qualified method."""
    return rpc.method or rpc.system


def columns(exchanges: Sequence[Exchange]) -> dict[str, list[Any]]:
    """Attributes by key, a value or None per exchange."""
    calls = [e.rpc for e in exchanges]
    return {
        "rpc.system.name": [c and c.system for c in calls],
        "rpc.method": [(c and c.method) or None for c in calls],
        "rpc.status_code": [(c and c.status) or None for c in calls],
        "otelgpu.rpc.request.messages": [None if c is None else c.requests for c in calls],
        "otelgpu.rpc.response.messages": [None if c is None else c.responses for c in calls],
    }


def measurements(exchanges: Sequence[Exchange]) -> list[Measured]:
    """Rate, errors and duration of calls, by method."""
    reported: dict[bool, list[tuple[int, dict[str, str | int], float | None]]] = {False: [], True: []}
    for row, e in enumerate(exchanges):
        if e.rpc is None:
            continue
        labels: dict[str, str | int] = {"rpc.system.name": e.rpc.system}
        if e.rpc.method:
            labels["rpc.method"] = e.rpc.method
        if e.rpc.status:
            labels["rpc.status_code"] = e.rpc.status
        if e.error_type:
            labels["error.type"] = e.error_type
        client = is_client(e)
        if client and e.server.port:
            labels |= {"server.address": e.server.address, "server.port": e.server.port}
        reported[client].append((row, labels, e.known_duration_s))
    return [*by_series(SERVER_DURATION, reported[False]), *by_series(CLIENT_DURATION, reported[True])]
