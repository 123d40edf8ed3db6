"""OTLP metrics as Prometheus text, format 0.0.4. Pure.

Names and labels follow https://opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics/: what is
no letter or digit becomes ``_``; the unit and, for counters, ``_total`` end the name; the resource is the series
``target_info``. Scopes are not reported: there is one. Example: ``process.cpu.time`` in ``s`` becomes
``process_cpu_time_seconds_total``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from otelgpu.engine.metric import Instrument
from otelgpu.engine.prometheus_names import label_name, metric_name

if TYPE_CHECKING:
    from opentelemetry.proto.common.v1.common_pb2 import KeyValue
    from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric, MetricsData

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_TYPES: Final = {Instrument.COUNTER: "counter", Instrument.HISTOGRAM: "histogram"}
"""What has none here is a gauge."""
_LABEL_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_HELP_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})


def exposition(data: MetricsData) -> bytes:
    """All of ``data``: sums, gauges and explicit-bucket histograms."""
    lines: list[str] = []
    for resource in data.resource_metrics:
        reported = _labels(resource.resource.attributes)
        lines += [
            "# HELP target_info Target metadata.",
            "# TYPE target_info gauge",
            f"target_info{reported} 1",
        ]
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                lines += _metric(metric)
    return "".join(f"{line}\n" for line in lines).encode()


def _metric(metric: Metric) -> Iterator[str]:
    kind = metric.WhichOneof("data")
    instrument = _instrument(metric)
    name = metric_name(metric.name, metric.unit, instrument)
    yield f"# HELP {name} {metric.description.translate(_HELP_ESCAPES)}"
    yield f"# TYPE {name} {_TYPES.get(instrument, 'gauge')}"
    if kind == "histogram":
        for point in metric.histogram.data_points:
            yield from _histogram(name, point)
    else:
        for point in getattr(metric, kind or "gauge").data_points:
            value = point.as_int if point.WhichOneof("value") == "as_int" else point.as_double
            yield f"{name}{_labels(point.attributes)} {_number(value)}"


def _instrument(metric: Metric) -> Instrument:
    if metric.HasField("sum"):
        return Instrument.COUNTER if metric.sum.is_monotonic else Instrument.UP_DOWN_COUNTER
    return Instrument.HISTOGRAM if metric.HasField("histogram") else Instrument.GAUGE


def _histogram(name: str, point: Any) -> Iterator[str]:
    count = 0
    for bound, more in zip((*map(_number, point.explicit_bounds), "+Inf"), point.bucket_counts, strict=True):
        count += more
        yield f"{name}_bucket{_labels(point.attributes, [('le', bound)])} {count}"
    yield f"{name}_sum{_labels(point.attributes)} {_number(point.sum)}"
    yield f"{name}_count{_labels(point.attributes)} {point.count}"


def _labels(attributes: Iterable[KeyValue], more: Iterable[tuple[str, str]] = ()) -> str:
    """Attributes whose keys become one label are reported together, in the order of the keys."""
    found: dict[str, list[str]] = {}
    for attribute in sorted(attributes, key=lambda each: each.key):
        found.setdefault(label_name(attribute.key), []).append(_text(attribute.value))
    pairs = [(key, ";".join(values)) for key, values in found.items()] + list(more)
    text = ",".join(f'{key}="{value.translate(_LABEL_ESCAPES)}"' for key, value in pairs)
    return f"{{{text}}}" if text else ""


def _text(value: Any) -> str:
    kind = value.WhichOneof("value")
    if kind == "bool_value":
        return "true" if value.bool_value else "false"
    if kind == "array_value":
        return ",".join(map(_text, value.array_value.values))
    return str(getattr(value, kind)) if kind is not None else ""


def _number(value: float) -> str:
    return repr(value).replace("inf", "Inf").replace("nan", "NaN")
