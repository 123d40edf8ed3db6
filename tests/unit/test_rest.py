"""When the loop may rest: after a while in which nothing came, until something is due."""

from __future__ import annotations

import time
from types import SimpleNamespace

from otelgpu.engine.attribution.unattributed import GRACE_NS, WINDOW_NS
from otelgpu.engine.pipeline import Pipeline
from otelgpu.model.inputs import ClockAnchor, LossCounted, ProcessGone, Tick
from otelgpu.rest import LONGEST_S, QUIET_S, Rest
from otelgpu.session import Session
from tests.unit.engine.test_pipeline import pipeline
from tests.unit.families.records import MS, Host


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


NOTHING = [
    Tick(time_ns=1),
    ClockAnchor(monotonic_ns=1, unix_ns=2),
    LossCounted(family="http", reason="ring_full", count=1),
]


def resting(clock: Clock, *, due_in_s: float = 60.0) -> Rest:
    return Rest(SimpleNamespace(due_in_s=lambda now_s: due_in_s), clock=clock)


def test_it_rests_once_it_has_been_quiet_for_a_while() -> None:
    clock = Clock()
    rest = resting(clock)
    clock.now += QUIET_S - 0.1
    rest.turned(NOTHING)
    assert rest.longest_s == 0.0
    clock.now += 0.1
    assert rest.longest_s == LONGEST_S


def test_whatever_comes_of_the_source_ends_the_quiet() -> None:
    clock = Clock()
    rest = resting(clock)
    clock.now += QUIET_S
    rest.turned([*NOTHING, ProcessGone(tgid=7, time_ns=1)])
    assert rest.longest_s == 0.0


def test_it_rests_until_something_is_due_at_most() -> None:
    clock = Clock()
    rest = resting(clock, due_in_s=0.3)
    clock.now += QUIET_S
    assert rest.longest_s == 0.3


def fed(engine: Pipeline, host: Host, *, seconds: float = 0.0) -> None:
    """What a host has sent since the last time, and ticks for so long, the first at once."""
    inputs, host.sent = [*host.preamble(), *(sent.batch for sent in host.sent)], []
    for item in [*inputs, *(Tick(time_ns=host.now_ns + n * 200 * MS) for n in range(int(seconds * 5) + 1))]:
        list(engine.feed(item))
    host.now_ns += int(seconds * 1e9)


def due_in_s(engine: Pipeline, host: Host) -> float:
    return Session(engine, (), metric_interval_s=None).due_in_s(host.now_ns / 1e9)


def test_a_request_that_is_not_answered_is_due_when_it_is_given_up() -> None:
    engine, host = pipeline(), Host()
    host.accept()
    host.ask()
    fed(engine, host, seconds=3.0)
    assert 60 < due_in_s(engine, host) < 3600
    host.launch()
    fed(engine, host)
    assert due_in_s(engine, host) == 0.0  # what waits for it may be given up earlier


def test_what_came_since_the_last_tick_is_due_at_the_next() -> None:
    engine, host = pipeline(), Host()
    host.launch()
    for sent in host.sent:
        list(engine.feed(sent.batch))
    assert due_in_s(engine, host) == 0.0


def test_after_the_last_request_there_is_nothing_to_do() -> None:
    engine, host = pipeline(), Host()
    host.accept()
    host.serve()
    fed(engine, host, seconds=20.0)
    assert due_in_s(engine, host) > 60  # until its connection is given up


def test_calls_of_no_request_are_due_when_their_window_is_over() -> None:
    engine, host = pipeline(), Host()
    host.launch()
    fed(engine, host, seconds=2.0)
    left_s = due_in_s(engine, host)
    assert 0 < left_s <= (WINDOW_NS + GRACE_NS) / 1e9
    assert not spans(engine, host, left_s - 0.1)
    assert spans(engine, host, left_s + 0.001)


def spans(engine: Pipeline, host: Host, after_s: float) -> int:
    return sum(map(len, engine.feed(Tick(time_ns=host.now_ns + int(after_s * 1e9)))))


def test_metrics_are_exported_at_their_time() -> None:
    session = Session(pipeline(), (), metric_interval_s=30.0)
    now_s = time.monotonic()
    session._pipeline.feed(Tick(time_ns=int(now_s * 1e9)))
    assert session.due_in_s(now_s + 31.0) == 0.0
    assert session.due_in_s(now_s) <= 30.0
