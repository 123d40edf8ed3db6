"""What names of energy mean, and which attributes their metrics have."""

from __future__ import annotations

from typing import Final

from otelgpu.engine.description_tables import (
    EXAMPLE,
    TEXT,
    Described,
    Descriptions,
    MetricTable,
    Page,
)
from otelgpu.engine.hardware_names import ID
from otelgpu.families.gpu.energy import signals

DESCRIPTIONS: Final = Descriptions(
    attributes={
        signals.ENERGY_KEY: Described(
            "Joules that GPUs used for the request, without what they would have used idle.", "143.2"
        ),
        signals.METHOD: Described(
            "How the request's part was found, most of it: `steps` (tokens in steps of the engine), `device_time`, "
            "`calls` (host time in its calls) or `concurrency` (equally among requests under way).",
            "steps",
        ),
        signals.IDLE_POWER: Described(
            "How it is known what the GPU draws idle: `measured`, `configured` or `unknown` (nothing was subtracted).",
            "measured",
        ),
        signals.SOURCE: Described(
            "`counter` (the GPU's own) or `power` (readings of power, integrated: an estimate).", "counter"
        ),
        signals.GPU_TIME: Described(
            "Seconds: the request's part of the time in which GPUs worked for requests, summed over GPUs.",
            "0.41",
        ),
        signals.COST_KEY: Described("By the configured prices, in `otelgpu.cost.currency`.", "0.00021"),
        signals.CURRENCY: Described("The setting `currency`.", "EUR"),
        signals.CARBON_KEY: Described(
            "Grams of CO2 equivalent: its energy × the setting `carbon_grams_per_kwh`.", "0.015"
        ),
        signals.USE: Described("`idle`, `requests` (that have ended) or `unattributed`.", "requests"),
    },
    metrics=(
        MetricTable(
            scope=signals.SCOPE,
            metrics={
                signals.REQUEST_ENERGY: signals.LABELS,
                signals.TOKEN_ENERGY: signals.LABELS,
                signals.REQUEST_COST: (*signals.LABELS, signals.CURRENCY),
                signals.REQUEST_CARBON: signals.LABELS,
                signals.DEVICE_ENERGY: (ID, signals.USE),
            },
            page="energy metrics",
        ),
    ),
    pages={
        "energy attributes": Page(
            header=("Attribute", "Value", "Example"),
            rows=dict.fromkeys(signals.ATTRIBUTES, (TEXT, EXAMPLE)),
        )
    },
)
