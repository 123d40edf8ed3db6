"""Requests wait for operations of which it is not yet known whose they are, and not for long."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from otelgpu.correlate.threads import ThreadTimeline
from otelgpu.model.handoffs import Handoff, HandoffEvent
from otelgpu.signals.ownership import Ownership
from tests.unit.model.builders import calls

MS = 1_000_000


def waiting() -> Ownership:
    """An operation of a thread that was woken just before it, at 90 ms; it is 100 ms."""
    nothing = cast(Any, None)  # what is not yet given to anybody
    owned = Ownership(ThreadTimeline(), *[nothing] * 5)
    owned.hand_off([Handoff(time_ns=89 * MS, tgid=100, tid=8, event=HandoffEvent.WOKEN, waker=7)])
    owned.settle(100 * MS, final=False)
    assert owned.answerable_ns == 100 * MS
    assert owned.give(calls(tid=8, tgid=100, start_ns=90 * MS), np.zeros(1, dtype=np.int64)) == []
    return owned


def test_a_request_that_was_answered_since_waits() -> None:
    assert waiting().answerable_ns == 90 * MS


def test_it_does_not_wait_for_long() -> None:
    owned = waiting()
    owned._now_ns = 1000 * MS
    assert owned.answerable_ns == 750 * MS
