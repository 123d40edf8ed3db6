"""What grew since the last report, of counters that only grow."""

from __future__ import annotations

from otelgpu.model.inputs import LossCounted
from otelgpu.model.losses import LossReports

FULL, CUT = ("http", "ring_full"), ("http", "cut")


def lost(key: tuple[str, str], count: int) -> LossCounted:
    return LossCounted(family=key[0], reason=key[1], count=count)


def test_each_loss_is_reported_once() -> None:
    reports = LossReports()
    assert reports.take({FULL: 2, CUT: 0}) == [lost(FULL, 2)]
    assert reports.take({FULL: 2, CUT: 3}) == [lost(CUT, 3)]
    assert reports.take({FULL: 5, CUT: 3}) == [lost(FULL, 3)]
    assert reports.take({FULL: 5, CUT: 3}) == []


def test_a_counter_that_is_gone_or_fell_is_reported_again_beyond_what_was_reported() -> None:
    reports = LossReports()
    reports.take({FULL: 5})
    assert reports.take({}) == []
    assert reports.take({FULL: 4}) == []
    assert reports.take({FULL: 6}) == [lost(FULL, 1)]
