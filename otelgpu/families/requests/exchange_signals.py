"""The names of exchanges: the one table of family ``http``, as an :class:`ExchangeSignals`. Pure.

What every exchange reports is in ``signals/http.py`` and ``rpc.py``, what a generation adds in ``gen_ai.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from otelgpu.engine.exchange_signals import ExchangeSignals
from otelgpu.engine.metric import Measured
from otelgpu.families.requests.signals import gen_ai, http, rpc
from otelgpu.model.exchange import Exchange
from otelgpu.model.spans import Attribute


def span_name(exchange: Exchange, route: str) -> str:
    """A plug-in's name, ``{operation} {model}`` of a generation, an RPC's method, else ``{method} {route}``."""
    if exchange.span_name:
        return exchange.span_name
    generation = exchange.generation
    if generation is not None and generation.request_model:
        return f"{generation.operation} {generation.request_model}"
    if exchange.rpc is not None:
        return rpc.span_name(exchange.rpc)
    return http.span_name(exchange, route)


def attributes(exchanges: Sequence[Exchange], routes: Sequence[str]) -> tuple[Attribute, ...]:
    """The attributes of the exchanges' spans, a column each; what no exchange has is left out."""
    columns: dict[str, list[Any]] = http.columns(exchanges, routes)
    if any(e.rpc is not None for e in exchanges):
        columns |= rpc.columns(exchanges)
    if any(e.generation is not None for e in exchanges):
        columns |= gen_ai.columns(exchanges)
    for position, exchange in enumerate(exchanges):
        for key, value in exchange.attributes:
            columns.setdefault(key, [None] * len(exchanges))[position] = value
    return tuple(Attribute.of(key, values) for key, values in columns.items() if _any_reported(values))


def _any_reported(values: Sequence[object]) -> bool:
    """Whether any exchange has the attribute."""
    return values.count(None) < len(values)


def measurements(exchanges: Sequence[Exchange], routes: Sequence[str]) -> list[Measured]:
    """What exchanges add to the metrics, by series."""
    return [
        *http.measurements(exchanges, routes),
        *(rpc.measurements(exchanges) if any(e.rpc is not None for e in exchanges) else ()),
        *gen_ai.measurements(exchanges),
    ]


SIGNALS: Final = ExchangeSignals(
    scope="otelgpu.http", span_name=span_name, attributes=attributes, metrics=measurements
)
