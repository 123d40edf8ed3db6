"""A metric's definition: name, unit, instrument, description; and what is measured of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

from msgspec import Struct


class Instrument(Enum):
    """OpenTelemetry instrument kinds that this project uses."""

    COUNTER = "counter"
    HISTOGRAM = "histogram"
    UP_DOWN_COUNTER = "updowncounter"  # reported as it stands: a sum that can fall
    GAUGE = "gauge"  # reported as it stands


class Metric(Struct, frozen=True, kw_only=True):
    """One metric's definition. ``buckets`` are a histogram's explicit bounds, in ``unit``.

    ``whole``: False of a counter whose sum has a fraction. ``per_unit``: so many of what a counter is fed make
    one of its unit: a time is summed up in nanoseconds, exactly, and exported in seconds.
    """

    name: str
    unit: str
    instrument: Instrument
    description: str
    buckets: tuple[float, ...] = ()
    whole: bool = True
    per_unit: int = 1


class Measured(Struct, frozen=True, kw_only=True):
    """What some facts add to one series of a metric; ``labels`` are of bounded cardinality.

    ``rows``: which fact each value is of, by position; an exemplar names its span.
    """

    metric: Metric
    labels: Mapping[str, str | int]
    values: Sequence[float]
    rows: Sequence[int]
