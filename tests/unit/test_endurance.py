"""The verdict on growth: what rises is distinguished from what is uneven."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.endurance.growth import Verdict, judge, rise


def verdicts(rss: list[float], entries: list[int]) -> dict[str, Verdict]:
    samples: list[dict[str, Any]] = [
        {
            "time_s": 30.0 * row,
            "rss_kib": kib,
            "anonymous_kib": 0,
            "fds": 100,
            "threads": 7,
            "children": 0,
            "objects": 50_000,
            "maps": {},
            "containers": {"otelgpu.x.X.table": count},
        }
        for row, (kib, count) in enumerate(zip(rss, entries, strict=True))
    ]
    return {verdict.name: verdict for verdict in judge(samples)}


def test_a_line_is_not_tilted_by_peaks() -> None:
    values = [10.0 + 2 * row for row in range(50)]
    values[10] = values[49] = 1000.0
    assert rise(range(50), values) == pytest.approx(98, rel=0.05)
    assert rise([1.0], [5.0]) == 0


def test_what_fills_at_first_and_then_goes_up_and_down_does_not_grow() -> None:
    saw = [150_000 + 3000 * math.sin(row) for row in range(80)]
    found = verdicts([100_000.0 + 2000 * row for row in range(20)] + saw, [row % 40 for row in range(100)])
    assert not any(verdict.grows for verdict in found.values())


def test_a_leak_is_found_and_named() -> None:
    found = verdicts([100_000.0 + 100 * row for row in range(100)], [3 * row for row in range(100)])
    assert {name for name, verdict in found.items() if verdict.grows} == {
        "rss_kib",
        "containers: otelgpu.x.X.table",
    }
