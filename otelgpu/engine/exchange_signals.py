"""A family's names for exchanges, in its module ``exchange_signals`` as ``SIGNALS``: the registry finds them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from otelgpu.engine import registry
from otelgpu.engine.metric import Measured
from otelgpu.model.exchange import Exchange
from otelgpu.model.spans import Attribute


class ExchangeSignals(Struct, frozen=True, kw_only=True):
    """A family's names for exchanges, many of which are reported at a time, each with its route."""

    scope: str
    span_name: Callable[[Exchange, str], str]
    attributes: Callable[[Sequence[Exchange], Sequence[str]], tuple[Attribute, ...]]  # a row per exchange
    metrics: Callable[[Sequence[Exchange], Sequence[str]], list[Measured]]


def exchange_signals() -> dict[str, ExchangeSignals]:
    """Those of all families that have exchanges, by package."""
    found = {}
    for package, signals in registry.parts("exchange_signals", "SIGNALS").items():
        assert isinstance(signals, ExchangeSignals), (
            f"SIGNALS of {package}.exchange_signals is no ExchangeSignals"
        )
        found[package] = signals
    return found
