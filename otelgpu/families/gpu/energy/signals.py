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
CARBON_KEY: Final = "otelgpu.gen_ai.request.carbon"
USE: Final = "otelgpu.gpu.energy.use"

ATTRIBUTES: Final = (ENERGY_KEY, METHOD, IDLE_POWER, SOURCE, GPU_TIME, COST_KEY, CURRENCY, CARBON_KEY)
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
REQUEST_CARBON: Final = Metric(
    name=CARBON_KEY,
    unit="g",
    instrument=Instrument.HISTOGRAM,
    description="What a request's energy emitted by the configured carbon intensity, in grams of CO2 equivalent.",
    buckets=tuple(10.0**power for power in range(-6, 3)),
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


class Rates(Struct, frozen=True, kw_only=True):
    """What is paid, in one currency, and emitted, in grams of CO2 equivalent; 0: not known."""

    per_kwh: float = 0.0
    per_gpu_hour: float = 0.0
    currency: str = ""
    carbon_grams_per_kwh: float = 0.0

    def cost(self, used: Used) -> float | None:
        """Of a request; None where no price is known."""
        if not (self.per_kwh or self.per_gpu_hour):
            return None
        energy = used.nanojoules / _NJ_PER_KWH * self.per_kwh
        return energy + used.time_ns / _NS_PER_HOUR * self.per_gpu_hour

    def carbon_grams(self, used: Used) -> float | None:
        """Of a request; None where no intensity is known."""
        return (
            used.nanojoules / _NJ_PER_KWH * self.carbon_grams_per_kwh if self.carbon_grams_per_kwh else None
        )


def attributes(
    used: Used, method: Method, idle_power: str, source: EnergySource, rates: Rates
) -> dict[str, Any]:
    """What the span of a request says that something was charged to."""
    found: dict[str, Any] = {
        ENERGY_KEY: used.nanojoules * J_PER_NJ,
        METHOD: str(method),
        IDLE_POWER: idle_power,
        SOURCE: str(source),
        GPU_TIME: used.time_ns / NS_PER_S,
    }
    cost = rates.cost(used)
    if cost is not None:
        found[COST_KEY] = cost
        if rates.currency:
            found[CURRENCY] = rates.currency
    carbon = rates.carbon_grams(used)
    if carbon is not None:
        found[CARBON_KEY] = carbon
    return found


def measurements(
    exchange: Exchange, used: Used, rates: Rates
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
    cost = rates.cost(used)
    if cost is not None:
        paid = {**labels, CURRENCY: rates.currency} if rates.currency else labels
        found.append((REQUEST_COST, paid, cost))
    carbon = rates.carbon_grams(used)
    if carbon is not None:
        found.append((REQUEST_CARBON, labels, carbon))
    return found
