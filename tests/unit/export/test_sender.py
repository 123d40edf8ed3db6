"""The sender: its account is exact whatever the destination does, and its pace is the specification's."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.export.base import Accepted, Outcome, Payload, Refused, Retry, Signal
from otelgpu.export.otlp.sender import Counts, RetryPolicy, Sender
from tests.rig.examples import examples

DOWN = Retry(None, "connection refused")


def payload(items: int = 1, size: int = 10) -> Payload:
    return Payload(signal=Signal.TRACES, body=bytes(size), items=items)


class Time:
    """A clock that a wait moves on; no wait takes real time unless there is nothing to do."""

    def __init__(self) -> None:
        self.now = 1000.0

    def clock(self) -> float:
        return self.now

    def wait(self, condition: threading.Condition, seconds: float | None) -> None:
        if seconds is None or threading.current_thread().name == "MainThread":
            condition.wait(0.01)
        else:
            self.now += seconds
            condition.wait(0)


class Script:
    """A transport that plays outcomes one after the other, then accepts everything."""

    def __init__(self, outcomes: list[Outcome | Exception], time: Time | None = None) -> None:
        self._outcomes: Iterator[Outcome | Exception] = iter(outcomes)
        self._time = time
        self.at: list[float] = []
        self.timeouts: list[float] = []
        self.closed = False

    def send(self, payload: Payload, timeout_s: float) -> Outcome:
        self.at.append(self._time.now if self._time else 0.0)
        self.timeouts.append(timeout_s)
        outcome = next(self._outcomes, Accepted())
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def close(self) -> None:
        self.closed = True


class Gate:
    """A transport that hangs in ``send`` until it is opened or closed."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.entered = threading.Event()

    def send(self, payload: Payload, timeout_s: float) -> Outcome:
        self.entered.set()
        self.opened.wait(10)
        return Accepted()

    def close(self) -> None:
        self.opened.set()


def sender(transport: Script | Gate, time: Time | None = None, **options: object) -> Sender:
    clock = {"clock": time.clock, "wait": time.wait} if time else {}
    return Sender(transport, name="test", timeout_s=10.0, draw=lambda: 0.0, **clock, **options)  # type: ignore[arg-type]


def balanced(counts: Counts) -> bool:
    return counts.given == counts.accepted + counts.queued + sum(counts.lost.values())


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.002)


def test_what_the_server_takes_is_accepted() -> None:
    s = sender(Script([]))
    s.offer(payload(3))
    assert s.flush(5)
    assert (s.counts().accepted, s.counts().queued, s.counts().queued_bytes) == (3, 0, 0)
    s.close(1)


def test_partial_success_counts_the_rejected_items_and_is_not_sent_again() -> None:
    transport = Script([Accepted(4, "too old")])
    s = sender(transport)
    s.offer(payload(10))
    s.close(5)
    assert (s.counts().accepted, s.counts().lost["rejected"], len(transport.at)) == (6, 4, 1)


def test_a_server_that_rejects_more_than_it_got_cannot_break_the_account() -> None:
    s = sender(Script([Accepted(99, "?")]))
    s.offer(payload(10))
    s.close(5)
    assert (s.counts().accepted, s.counts().lost["rejected"]) == (0, 10)


def test_refused_data_is_dropped_and_the_next_is_sent() -> None:
    s = sender(Script([Refused("HTTP 400")]))
    s.offer(payload(2))
    s.offer(payload(3))
    assert s.flush(5)
    assert (s.counts().accepted, s.counts().lost["refused"]) == (3, 2)
    s.close(1)


def test_a_transport_that_raises_is_counted_not_fatal(caplog: pytest.LogCaptureFixture) -> None:
    s = sender(Script([RuntimeError("bug")]))
    s.offer(payload(2))
    s.offer(payload(3))
    assert s.flush(5)
    assert (s.counts().accepted, s.counts().lost["refused"]) == (3, 2)
    s.close(1)


def test_back_off_grows_to_the_cap_and_starts_anew_after_success() -> None:
    time = Time()
    transport = Script([DOWN] * 4 + [Accepted(), DOWN], time)
    s = sender(transport, time, retry=RetryPolicy(initial_s=1, factor=2, cap_s=5))
    s.offer(payload())
    s.offer(payload())
    assert s.flush(100)
    assert [at - 1000 for at in transport.at] == [0, 1, 3, 7, 12, 12, 13]
    s.close(1)


def test_jitter_only_shortens_a_wait() -> None:
    policy = RetryPolicy(initial_s=1, factor=1.5, cap_s=30, jitter=0.5)
    assert [policy.wait_s(n, 0.0) for n in (1, 2, 3)] == [1, 1.5, 2.25]
    assert policy.wait_s(1, 0.999) == pytest.approx(0.5, abs=0.01)
    assert policy.wait_s(10_000, 0.0) == 30


def test_the_wait_that_the_server_asks_for_is_kept() -> None:
    time = Time()
    transport = Script([Retry(17.0, "throttled")], time)
    s = sender(transport, time)
    s.offer(payload())
    assert s.flush(100)
    assert [at - 1000 for at in transport.at] == [0, 17]
    s.close(1)


def test_old_data_is_given_up_and_counted() -> None:
    time = Time()
    s = sender(Script([DOWN] * 1000, time), time, retry=RetryPolicy(horizon_s=60))
    s.offer(payload(5))
    until(lambda: s.counts().lost["retries_exhausted"] == 5)
    assert s.counts().queued == 0
    s.close(1)


def test_a_full_queue_drops_the_newest() -> None:
    gate = Gate()
    s = sender(gate, queue_bytes=100)
    s.offer(payload(1, 60))
    assert gate.entered.wait(5)
    s.offer(payload(2, 40))
    s.offer(payload(4, 1))
    counts = s.counts()
    assert (counts.queued, counts.queued_bytes, counts.lost["queue_full"]) == (3, 100, 4)
    gate.opened.set()
    s.close(5)
    assert (s.counts().accepted, s.counts().lost["queue_full"]) == (3, 4)


def test_less_room_drops_what_waited_longest_but_not_what_is_being_sent() -> None:
    gate = Gate()
    s = sender(gate, queue_bytes=100)
    s.offer(payload(1, 40))
    assert gate.entered.wait(5)
    for items, size in ((2, 20), (4, 20), (8, 20)):
        s.offer(payload(items, size))
    s.fit(60)
    counts = s.counts()
    assert (counts.queued, counts.queued_bytes, counts.lost["memory_short"]) == (1 + 8, 60, 2 + 4)
    s.fit(10)  # what is being sent stays, and is more
    assert (s.counts().queued, s.counts().lost["memory_short"]) == (1, 2 + 4 + 8)
    s.offer(payload(16, 1))
    assert s.counts().lost["queue_full"] == 16
    s.fit(100)
    s.offer(payload(32, 60))
    gate.opened.set()
    s.close(5)
    assert s.counts().accepted == 1 + 32
    assert s.counts().given == s.counts().accepted + sum(s.counts().lost.values())


def test_close_counts_what_is_left_even_when_the_server_hangs() -> None:
    gate = Gate()
    s = sender(gate)
    s.offer(payload(1))
    assert gate.entered.wait(5)
    s.offer(payload(2))
    began = time.monotonic()
    s.close(0.1)
    assert time.monotonic() - began < 2
    assert (s.counts().accepted, s.counts().lost["shutdown"], s.counts().queued) == (0, 3, 0)
    s.offer(payload(4))
    assert s.counts().lost["shutdown"] == 7
    s.close(0.1)


def test_close_tries_once_more_without_waiting_out_a_back_off() -> None:
    transport = Script([DOWN])
    s = sender(transport, retry=RetryPolicy(initial_s=60, cap_s=60))
    s.offer(payload(3))
    until(lambda: len(transport.at) == 1)
    s.close(5)
    assert (s.counts().accepted, transport.closed) == (3, True)


def test_close_does_not_press_a_server_that_asked_to_be_left_alone() -> None:
    transport = Script([Retry(60.0, "throttled")])
    s = sender(transport)
    s.offer(payload(3))
    until(lambda: len(transport.at) == 1)
    s.close(0.1)
    assert (len(transport.at), s.counts().lost["shutdown"]) == (1, 3)


def test_attempts_while_closing_get_only_the_time_that_is_left() -> None:
    gate_opened = Script([DOWN])
    s = sender(gate_opened, retry=RetryPolicy(initial_s=60, cap_s=60))
    s.offer(payload())
    until(lambda: len(gate_opened.timeouts) == 1)
    s.close(2)
    assert gate_opened.timeouts[0] == 10
    assert gate_opened.timeouts[1] <= 2


def test_flush_says_whether_everything_was_settled() -> None:
    gate = Gate()
    s = sender(gate)
    assert s.flush(0.0)
    s.offer(payload())
    assert not s.flush(0.05)
    gate.opened.set()
    assert s.flush(5)
    s.close(1)


def test_one_line_is_logged_when_a_destination_goes_down_and_one_when_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "otelgpu.export")
    time = Time()
    s = sender(Script([DOWN] * 5, time), time)
    s.offer(payload())
    assert s.flush(100)
    s.close(1)
    down, up = [record.getMessage() for record in caplog.records]
    assert "connection refused" in down
    assert "delivering again; 0 items were lost" in up


def test_attempts_are_reported_by_how_they_ended() -> None:
    time = Time()
    s = sender(Script([DOWN, DOWN, Accepted(rejected=1), Refused("bad")], time), time)
    s.offer(payload(items=3, size=10))
    s.offer(payload(items=2, size=20))
    assert s.flush(5)
    counts = s.counts()
    assert {how: sum(reported.counts) for how, reported in counts.attempts.items()} == {
        "transient": 2,
        "": 1,
        "refused": 1,
    }
    assert (counts.retries, counts.sent_bytes) == (2, 10)
    s.close(1)


def test_a_destination_fails_from_its_first_failure_until_it_accepts() -> None:
    time = Time()
    s = sender(Script([Refused("bad")], time), time)
    s.offer(payload())
    assert s.flush(5)
    time.now += 7
    assert s.counts().failing_s == 7
    s.offer(payload())
    assert s.flush(5)
    assert s.counts().failing_s == 0
    s.close(1)


def test_the_same_warning_of_a_server_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    s = sender(Script([Accepted(1, "bad unit")] * 5))
    for _ in range(5):
        s.offer(payload(2))
    s.close(5)
    assert len([r for r in caplog.records if "bad unit" in r.getMessage()]) == 1


outcomes = st.one_of(
    st.builds(Accepted, st.integers(0, 12)),
    st.builds(Retry, st.none() | st.floats(0, 400), st.just("x")),
    st.builds(Refused, st.just("x")),
    st.just(OSError("x")),
)


@given(
    script=st.lists(outcomes, max_size=25),
    offers=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 60)), max_size=12),
)
@examples(60)
def test_every_item_is_accepted_queued_or_lost_at_every_moment(
    script: list[Outcome | Exception], offers: list[tuple[int, int]]
) -> None:
    logging.getLogger("otelgpu.export").disabled = True
    clock = Time()
    s = sender(Script(script, clock), clock, queue_bytes=150)
    try:
        for items, size in offers:
            s.offer(payload(items, size))
            assert balanced(s.counts())
        s.close(1000)
        counts = s.counts()
        assert balanced(counts)
        assert (counts.given, counts.queued) == (sum(items for items, _ in offers), 0)
    finally:
        logging.getLogger("otelgpu.export").disabled = False
        s.close(0)
