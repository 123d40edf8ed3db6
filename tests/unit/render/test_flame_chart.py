"""Observations of threads as the flame chart draws them: from when to when, of whom, and what has no place in it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from otelgpu.model.profiles import ProfileColumns, ValueType
from otelgpu.model.spans import Attribute
from otelgpu.render import flame_chart
from otelgpu.render.flame_graph import flame_graph
from tests.unit.render.profile_columns import CPU, GPU, PARTS, SECOND, START, page_data, profile
from tests.unit.render.test_flame_graph import numbers

MS = 1_000_000
OFF_CPU = ValueType(type="off_cpu", unit="nanoseconds")


def threads(*numbers: int, present: list[bool] | None = None) -> tuple[Attribute, ...]:
    made = Attribute.of("thread.id", list(numbers))
    if present is None:
        return (made,)
    return (Attribute(key=made.key, values=made.values, present=np.array(present)),)


def chart_of(*batches: ProfileColumns) -> dict[str, Any] | None:
    return page_data(flame_graph(batches, PARTS))[0].get("chart")


def drawn(*batches: ProfileColumns) -> list[tuple[int, int, str, int]]:
    """Begin and length in microseconds, leaf and thread."""
    [reported] = page_data(flame_graph(batches, PARTS))
    chart, frames = reported["chart"], numbers(reported["frame"])
    columns = [numbers(chart[name]) for name in ("at", "length", "node", "thread")]
    return [
        (at, length, reported["frames"]["label"][frames[node]], thread)
        for at, length, node, thread in zip(*columns, strict=True)
    ]


def test_a_sample_is_drawn_before_it_and_what_is_measured_behind_its_begin() -> None:
    rows = [(("main", "a"), 10 * MS), (("main", "b"), 5 * MS)]
    times = [START + 30 * MS, START + 50 * MS]
    of = threads(7, 7)
    sampled = profile(rows, times=times, attributes=of)
    measured = profile(rows, times=times, attributes=of, type_=OFF_CPU)
    assert drawn(sampled) == [(0, 10_000, "a", 0), (25_000, 5_000, "b", 0)]
    assert drawn(measured) == [(0, 10_000, "a", 0), (20_000, 5_000, "b", 0)]


def test_batches_come_in_order_of_time_each_with_its_threads() -> None:
    later = profile(
        [(("b",), MS), (("a",), MS)],
        times=[START + 2 * SECOND, START + SECOND],
        attributes=threads(8, 9),
    )
    sooner = profile([(("c",), MS)], times=[START], attributes=threads(9))
    assert [(leaf, thread) for _, _, leaf, thread in drawn(later, sooner)] == [("c", 1), ("a", 1), ("b", 0)]


def test_what_has_no_time_or_no_thread_is_left_out_and_counted() -> None:
    rows = [(("a",), MS), (("b",), MS)]
    timed = profile(rows, times=[START, START + MS], attributes=threads(7, 0, present=[True, False]))
    summed = profile([(("c",), MS)], attributes=threads(7))
    chart = chart_of(timed, summed)
    assert chart is not None
    assert (numbers(chart["at"]), chart["left_out"]) == ([0], 2)


@pytest.mark.parametrize(
    "batch",
    [
        profile([(("a",), MS)], times=[START]),
        profile([(("a",), MS)], attributes=threads(7)),
        profile([(("a",), MS)], times=[START], attributes=threads(7), type_=GPU),
        profile(
            [(("a",), 1)], times=[START], attributes=threads(7), type_=ValueType(type="cpu", unit="count")
        ),
    ],
    ids=["no thread", "no time", "on a device", "no durations"],
)
def test_without_time_of_a_thread_there_is_no_chart(batch: ProfileColumns) -> None:
    assert chart_of(batch) is None


def test_of_too_many_the_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flame_chart, "MOST_OBSERVATIONS", 2)
    rows = [((name,), MS) for name in "abc"]
    batch = profile(rows, times=[START + at * MS for at in (2, 0, 1)], attributes=threads(7, 7, 7))
    assert [leaf for _, _, leaf, _ in drawn(batch)] == ["c", "a"]
    chart = chart_of(batch)
    assert chart is not None and chart["left_out"] == 1


def test_of_too_long_a_time_the_last_hour_is_kept() -> None:
    batch = profile(
        [(("a",), MS), (("b",), MS)], times=[START, START + 3601 * SECOND], attributes=threads(7, 7)
    )
    assert [leaf for _, _, leaf, _ in drawn(batch)] == ["b"]


def test_the_threads_beyond_the_list_are_in_no_row_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("otelgpu.render.observed.MOST_THREADS", 1)
    monkeypatch.setattr(flame_chart, "MOST_THREADS", 1)
    rows = [(("a",), 3 * MS), (("b",), MS), (("c",), MS)]
    batch = profile(rows, times=[START] * 3, attributes=threads(7, 8, 9), type_=CPU)
    assert [leaf for _, _, leaf, _ in drawn(batch)] == ["a"]
