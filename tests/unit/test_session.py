"""A session changes where it exports to without losing anything, or the count of it."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from otelgpu import session as session_module
from otelgpu.export.base import deliveries_of
from otelgpu.model.inputs import Tick
from otelgpu.model.self_telemetry import Delivery
from otelgpu.model.settings import SignalSettings
from otelgpu.session import Session


class Destination:
    """Takes items into a queue that closing delivers."""

    def __init__(self, port: int = 0) -> None:
        self.port = port
        self.queued = self.accepted = self.points = 0
        self.closed = threading.Event()

    def export_spans(self, batches: Iterable[Any]) -> None:
        self.queued += sum(len(batch) for batch in batches)

    def export_metrics(self, data: Any, items: int) -> None:
        self.points += items

    def export_profiles(self, batches: Any) -> None:
        self.profiles = [*getattr(self, "profiles", []), *batches]

    def flush(self, deadline_s: float) -> bool:
        return True

    def close(self, deadline_s: float) -> None:
        self.accepted, self.queued = self.accepted + self.queued, 0
        self.closed.set()

    def stats(self) -> Mapping[str, int]:
        return {
            "spans_accepted": self.accepted,
            "spans_queued": self.queued,
            "points_accepted": self.points,
            "points_queued": 0,
        }

    def deliveries(self) -> list[Delivery]:
        address = ("::1", self.port)
        return [replace(each, address=address) for each in deliveries_of("fake", self.stats(), 7.0)]


class EventDestination(Destination):
    """Has a place for events, too."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Any] = []

    def export_events(self, events: Sequence[Any]) -> None:
        self.events += events


class Pipeline:
    """Makes three spans and an event at each tick."""

    summary = None

    def __init__(self) -> None:
        self.reported: list[SignalSettings] = []

    def feed(self, item: object) -> Iterable[Any]:
        return [range(3)] if isinstance(item, Tick) else ()

    def finish(self) -> Iterable[Any]:
        return [range(2)]

    def take_profiles(self) -> list[Any]:
        return []

    def take_events(self) -> list[str]:
        return ["it happened"]

    def metric_parts(self, *, most: int = 6) -> Iterator[tuple[Any, int]]:
        return ((SimpleNamespace(), min(most, 11 - at)) for at in range(0, 11, most))

    def reconfigure(self, settings: SignalSettings) -> None:
        self.reported.append(settings)


def opened(*exporters: Destination) -> Session:
    pipeline: Any = Pipeline()
    return Session(pipeline, exporters, metric_interval_s=3600.0)


def accepted(session: Session) -> int:
    return sum(each.accepted + each.queued for _, each in session.deliveries() if not each.metrics)


def test_what_was_given_to_a_destination_stays_counted_when_it_is_replaced() -> None:
    old, kept, new = Destination(), Destination(), Destination()
    session = opened(old, kept)
    session.take([Tick(time_ns=1)])
    session.replace_exporters([new, kept])
    session.take([Tick(time_ns=2)])
    assert (old.accepted, new.queued, kept.queued) == (3, 3, 6)
    assert accepted(session) == 12
    assert (
        session.finish()["spans_accepted"] == 3 + 5 + 8
    )  # a queue that was delivered, and what the end brings


def test_events_go_to_those_that_have_a_place_for_them() -> None:
    one, other = Destination(), EventDestination()
    session = opened(one, other)
    session.take([Tick(time_ns=1)])
    assert other.events == ["it happened"]
    session.finish()
    assert other.events == ["it happened"] * 2


def test_a_replaced_destination_ends_without_being_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "RETIRE_SECONDS", 1.0)
    old, slow = Destination(), threading.Event()
    close = old.close
    old.close = lambda deadline_s: (slow.wait(2), close(deadline_s))[1]  # type: ignore[method-assign]
    session = opened(old)
    session.replace_exporters([Destination()])
    assert not old.closed.is_set()
    slow.set()
    assert old.closed.wait(2)


def test_the_state_of_what_was_replaced_is_nobody_s_concern() -> None:
    session = opened(Destination())
    session.replace_exporters([Destination()])
    assert [(place, each.failing_s) for place, each in session.deliveries() if not each.metrics] == [
        (0, 7.0),
        (0, 0.0),
    ]


def test_a_destination_that_is_replaced_again_and_again_leaves_one_sum() -> None:
    exporters = [Destination() for _ in range(6)]
    session = opened(exporters[0])
    for number, exporter in enumerate(exporters[1:], 1):
        session.take([Tick(time_ns=number)])
        session.replace_exporters([exporter])
        assert exporters[number - 1].closed.wait(2)
    wait_for_those_replaced()
    gone = weakref.ref(exporters[0])
    del exporters[:-1]
    session.export_metrics()
    assert gone() is None
    assert [(each.metrics, each.accepted) for _, each in session.deliveries()] == [
        *((False, 0), (True, 11)),
        *((False, 15), (True, 0)),
    ]
    assert session.finish()["spans_accepted"] == 15 + 2


def test_of_endless_addresses_the_latest_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "ENDED_KEPT", 4)
    session = opened(Destination())
    for port in range(1, 10):
        session.replace_exporters([Destination(port)])
        wait_for_those_replaced()
    session.export_metrics()
    assert [each.address for _, each in session.deliveries() if each.metrics] == [
        ("::1", 9),
        ("::1", 7),
        ("::1", 8),
    ]


def wait_for_those_replaced() -> None:
    for thread in threading.enumerate():
        if thread.name == "otelgpu-retire":
            thread.join(2)


def test_metrics_that_are_kept_elsewhere_are_brought_in_first() -> None:
    calls = []
    session = opened(Destination())
    session.before_metrics = lambda: calls.append("asked")
    session.export_metrics()
    assert calls == ["asked"]


def test_metrics_take_a_part_of_each_turn_and_all_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "METRICS_SECONDS", 0.0)
    exporter = Destination()
    session = opened(exporter)
    session.reconfigure(SignalSettings(), metric_interval_s=0.0)
    seen = []
    for time_ns in range(5):
        session.take([Tick(time_ns=time_ns)])
        seen.append(exporter.points)
    assert seen == [6, 11, 11, 17, 22], "one begins when the one before has ended"
    session.take([Tick(time_ns=9)])
    session.take([Tick(time_ns=10)])
    assert exporter.points == 22 + 6
    session.finish()
    assert exporter.points == 22 + 11 + 11


def test_who_wants_metrics_whole_gets_them_so() -> None:
    pipeline: Any = Pipeline()
    exporter = Destination()
    given: list[int] = []
    exporter.export_metrics = lambda _, items: given.append(items)  # type: ignore[method-assign]
    Session(pipeline, [exporter], metric_interval_s=None, whole_metrics=True).export_metrics()
    assert given == [11]


def test_another_interval_counts_from_the_change() -> None:
    exporter = Destination()
    session = opened(exporter)
    session.reconfigure(SignalSettings(detail="all"), metric_interval_s=0.0)
    session.take([Tick(time_ns=1)])
    assert exporter.points == 11


def test_free_memory_is_given_back_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []
    monkeypatch.setattr(session_module, "give_back", lambda: given.append(time.monotonic()))
    monkeypatch.setattr(session_module, "GIVE_BACK_S", 0.1)
    observed = opened(Destination())
    until_s = time.monotonic() + 10
    while len(given) < 2 and time.monotonic() < until_s:
        observed.take([])
    assert len(given) == 2
    assert given[1] - given[0] > 0.05  # the first was asked for a moment before it was noted
