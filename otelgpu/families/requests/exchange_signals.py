"""The type of this family's one table of exported names: :class:`ExchangeSignals`. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from otelgpu.engine.contract import Measured
from otelgpu.model.exchange import Exchange
from otelgpu.model.spans import Attribute


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeSignals:
    """Exported names of exchanges. The functions take many exchanges at a time, each with its route."""

    scope: str
    span_name: Callable[[Exchange, str], str]
    attributes: Callable[[Sequence[Exchange], Sequence[str]], tuple[Attribute, ...]]  # a row per exchange
    metrics: Callable[[Sequence[Exchange], Sequence[str]], list[Measured]]
