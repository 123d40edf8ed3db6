"""What is exported of energy: names, and the one place where they are written. Pure."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from otelgpu.engine.metric import Instrument, Metric
from otelgpu.families.gpu.energy.intervals import NS_PER_S, EnergySource
from otelgpu.families.gpu.energy.sharing import Method, Used
from otelgpu.model.exchange import Exchange

SCOPE: Final = "otelgpu.energy"

ENERGY_KEY: Final = "otelgpu.gen_ai.request.energy"
METHOD: Final = "otelgpu.gen_ai.request.energy.method"
IDLE_POWER: Final = "otelgpu.gen_ai.request.energy.idle_power"
SOURCE: Final = "otelgpu.energy.source"
GPU_TIME: Final = "otelgpu.gen_ai.request.gpu_time"
COST_KEY: Final = "otelgpu.gen_ai.request.cost"
CURRENCY: Final = "otelgpu.cost.currency"
USE: Final = "otelgpu.gpu.energy.use"

ATTRIBUTES: Final = (ENERGY_KEY, METHOD, IDLE_POWER, SOURCE, GPU_TIME, COST_KEY, CURRENCY)
"""Of the spans of requests."""

J_PER_NJ: Final = 1e-9
_NJ_PER_KWH: Final = 3_600_000 * 1_000_000_000
_NS_PER_HOUR: Final = 3600 * NS_PER_S
_TOKENS: Final = 1000

REQUEST_ENERGY: Final = Metric(
    name="otelgpu.gen_ai.request.energy",
    unit="J",
    instrument=Instrument.HISTOGRAM,
    description="Energy that GPUs used for a request, without what they would have used idle.",
    buckets=tuple(float(4**power) for power in range(-2, 10)),
)
TOKEN_ENERGY: Final = Metric(
    name="otelgpu.gen_ai.request.energy_per_1000_tokens",
    unit="J",
    instrument=Instrument.HISTOGRAM,
    description="The same by 1,000 output tokens.",
    buckets=tuple(float(4**power) for power in range(12)),
)
REQUEST_COST: Final = Metric(
    name="otelgpu.gen_ai.request.cost",
    unit="1",
    instrument=Instrument.HISTOGRAM,
    description="What a request cost by the configured prices, in the currency of `otelgpu.cost.currency`.",
    buckets=tuple(10.0**power for power in range(-7, 2)),
)
DEVICE_ENERGY: Final = Metric(
    name="otelgpu.gpu.energy",
    unit="J",
    instrument=Instrument.COUNTER,
    description="Energy that a GPU used, by what for: over `otelgpu.gpu.energy.use` sums up to the counter's growth.",
    per_unit=NS_PER_S,
)

LABELS: Final = (
    "gen_ai.operation.name",
    "gen_ai.provider.name",
    "gen_ai.request.model",
    "gen_ai.response.model",
)


class Use:
    """Values of :data:`USE`."""

    IDLE: Final = "idle"
    REQUESTS: Final = "requests"
    UNATTRIBUTED: Final = "unattributed"


class Prices(Struct, frozen=True, kw_only=True):
    """What is paid, in one currency; 0: nothing."""

    per_kwh: float = 0.0
    per_gpu_hour: float = 0.0
    currency: str = ""

    def cost(self, used: Used) -> float | None:
        """Of a request; None where no price is known."""
        if not (self.per_kwh or self.per_gpu_hour):
            return None
        energy = used.nanojoules / _NJ_PER_KWH * self.per_kwh
        return energy + used.time_ns / _NS_PER_HOUR * self.per_gpu_hour


def attributes(
    used: Used, method: Method, idle_power: str, source: EnergySource, prices: Prices
) -> dict[str, Any]:
    """What the span of a request says that something was charged to."""
    found: dict[str, Any] = {
        ENERGY_KEY: used.nanojoules * J_PER_NJ,
        METHOD: str(method),
        IDLE_POWER: idle_power,
        SOURCE: str(source),
        GPU_TIME: used.time_ns / NS_PER_S,
    }
    cost = prices.cost(used)
    if cost is not None:
        found[COST_KEY] = cost
        if prices.currency:
            found[CURRENCY] = prices.currency
    return found


def measurements(
    exchange: Exchange, used: Used, prices: Prices
) -> list[tuple[Metric, dict[str, str | int], float]]:
    """What a generation adds to the metrics."""
    generation = exchange.generation
    if generation is None:
        return []
    values = generation.operation, generation.provider, generation.request_model, generation.response_model
    labels: dict[str, str | int] = {key: value for key, value in zip(LABELS, values, strict=True) if value}
    joules = used.nanojoules * J_PER_NJ
    found: list[tuple[Metric, dict[str, str | int], float]] = [(REQUEST_ENERGY, labels, joules)]
    if generation.output_tokens:
        found.append((TOKEN_ENERGY, labels, joules * _TOKENS / generation.output_tokens))
    cost = prices.cost(used)
    if cost is not None:
        paid = {**labels, CURRENCY: prices.currency} if prices.currency else labels
        found.append((REQUEST_COST, paid, cost))
    return found
