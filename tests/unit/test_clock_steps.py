"""The clock of the day is set while requests are served: what belongs together keeps its order and its lengths."""

from __future__ import annotations

import time
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.kernel import clock
from otelgpu.model.inputs import Batch, ClockAnchor, Input, Tick
from tests.rig.examples import examples
from tests.unit.engine.test_pipeline import played
from tests.unit.families.records import MS, UNIX_OFFSET_NS, Host
from tests.unit.model.builders import Row

HOUR_NS = 3_600_000_000_000
SECOND_NS = 1_000_000_000


@cache
def served() -> list[tuple[int, Batch]]:
    """Three requests one after the other, and work of no request between them: records, and when they came."""
    host = Host()
    host.accept()
    for _ in range(3):
        host.serve(tokens=3)
        host.launch(0x1000, tid=300)
    return [(sent.submitted_ns, sent.batch) for sent in host.sent]


def stepped(steps: dict[int, int]) -> list[Input]:
    """The records with a tick after each, and the clock set by so much before some of them."""
    inputs, ahead_ns = Host().preamble(), UNIX_OFFSET_NS
    for number, (now_ns, batch) in enumerate(served()):
        if number in steps:
            ahead_ns += steps[number]
            inputs.append(ClockAnchor(monotonic_ns=now_ns, unix_ns=now_ns + ahead_ns))
        inputs += [batch, Tick(time_ns=now_ns + MS // 2)]
    return inputs


def relative(rows: list[Row]) -> dict[tuple[str, str], tuple[int, int]]:
    """Each span's start, counted from that of its trace's root, and its length."""
    roots = {row.trace_id: row.start_ns for row in rows if not row.parent_id}
    return {
        (row.trace_id, row.span_id): (row.start_ns - roots[row.trace_id], row.end_ns - row.start_ns)
        for row in rows
    }


@cache
def undisturbed() -> Any:
    """What is said where nobody sets the clock."""
    return relative(played(stepped({}))[0])


@examples(40)
@given(
    st.dictionaries(st.integers(0, len(served()) - 1), st.integers(-HOUR_NS, HOUR_NS), min_size=1, max_size=4)
)
def test_the_times_within_a_trace_are_those_of_a_clock_that_nobody_set(steps: dict[int, int]) -> None:
    rows, _ = played(stepped(steps))
    assert relative(rows) == undisturbed()
    by_id = {row.span_id: row for row in rows}
    for row in rows:
        if row.parent_id:
            parent = by_id[row.parent_id]
            assert parent.start_ns <= row.start_ns <= row.end_ns <= parent.end_ns


def test_what_is_reported_after_the_clock_was_set_has_the_new_time() -> None:
    last = len(served()) - 1
    rows, _ = played(stepped({last - 4: HOUR_NS}))
    undisturbed, _ = played(stepped({}))
    moved = [row.start_ns - same.start_ns for row, same in zip(rows, undisturbed, strict=True)]
    assert set(moved) == {0, HOUR_NS}


def test_metrics_never_end_before_they_began() -> None:
    _, session = played(stepped({3: -HOUR_NS}))
    data, _ = session.read_metrics()
    points = [
        point
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in (*metric.sum.data_points, *metric.gauge.data_points, *metric.histogram.data_points)
    ]
    assert points
    assert all(point.start_time_unix_nano <= point.time_unix_nano for point in points)


class Clocks:
    """CLOCK_MONOTONIC and CLOCK_REALTIME as a test sets them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.monotonic_ns, self.unix_ns = 50 * SECOND_NS, UNIX_OFFSET_NS
        patch.setattr(time, "clock_gettime_ns", self.read)

    def read(self, which: int) -> int:
        return self.monotonic_ns if which == time.CLOCK_MONOTONIC else self.unix_ns

    def run(self, passed_ns: int) -> None:
        self.monotonic_ns += passed_ns
        self.unix_ns += passed_ns


def test_the_clocks_are_paired_anew_every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks, anchors = Clocks(monkeypatch), clock.Anchors()
    assert anchors.due() == ClockAnchor(monotonic_ns=50 * SECOND_NS, unix_ns=UNIX_OFFSET_NS)
    found = []
    for _ in range(40):
        clocks.run(SECOND_NS // 2)
        found.append(anchors.due())
    assert [number for number, anchor in enumerate(found, start=1) if anchor] == [20, 40]


@pytest.mark.parametrize("step_ns", [HOUR_NS, -HOUR_NS, 2 * MS, -2 * MS])
def test_a_clock_that_is_set_or_goes_on_through_a_suspend_is_noticed_at_once(
    monkeypatch: pytest.MonkeyPatch, step_ns: int
) -> None:
    """CLOCK_MONOTONIC stands still while the machine is suspended: the other one is ahead by so much after it."""
    clocks, anchors = Clocks(monkeypatch), clock.Anchors()
    anchors.due()
    clocks.run(SECOND_NS)
    clocks.unix_ns += step_ns
    anchor = anchors.due()
    assert anchor == ClockAnchor(monotonic_ns=clocks.monotonic_ns, unix_ns=clocks.unix_ns)
    clocks.run(SECOND_NS)
    assert anchors.due() is None
