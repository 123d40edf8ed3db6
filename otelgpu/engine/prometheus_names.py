"""What Prometheus calls a metric and an attribute of OpenTelemetry. Pure.

Source: https://opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics/
"""

from __future__ import annotations

import re
from typing import Final

from otelgpu.engine.metric import Instrument

_UNITS: Final = {
    "s": "seconds",
    "By": "bytes",
    "Cel": "celsius",
    "W": "watts",
    "J": "joules",
    "g": "grams",
    "Hz": "hertz",
    "By/s": "bytes_per_second",
}
_NOT_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9_]+")


def metric_name(name: str, unit: str, instrument: Instrument) -> str:
    """What Prometheus calls a metric, here and where it receives OTLP: of the unit 1, gauges alone are ratios."""
    found = re.sub("_{2,}", "_", _NOT_IN_NAMES.sub("_", name))
    suffix = "" if unit.startswith("{") else _UNITS.get(unit, _NOT_IN_NAMES.sub("_", unit).strip("_"))
    if unit == "1":
        suffix = "ratio" if instrument is Instrument.GAUGE else ""
    if suffix and not found.endswith(f"_{suffix}"):
        found += f"_{suffix}"
    return f"{found.removesuffix('_total')}_total" if instrument is Instrument.COUNTER else found


def label_name(key: str) -> str:
    """Of the key of an attribute."""
    name = re.sub("_{2,}", "_", _NOT_IN_NAMES.sub("_", key))
    return f"key_{name}" if name[:1].isdigit() else name
