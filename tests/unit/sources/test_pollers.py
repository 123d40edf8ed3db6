"""What is read beside a source: opened as the settings have it, in front of a tick, losses under its own name."""

from __future__ import annotations

import select
from collections import Counter
from collections.abc import Callable, Set

import pytest
from msgspec.structs import replace

from otelgpu.engine import registry
from otelgpu.model.inputs import Input, LossCounted, ProcessGone, Tick
from otelgpu.model.settings import Settings
from otelgpu.processes.polling import Look, Poller, Polling
from otelgpu.sources.pollers import Pollers, looks


class Reads:
    """Finds the end of each process that uses a device."""

    def __init__(self) -> None:
        self.counters: Counter[str] = Counter()
        self.interval_ms = 0
        self.stopped = 0

    def collect(self, now_ns: int, users: Set[int]) -> list[Input]:
        self.counters["missed"] += 1
        return [ProcessGone(tgid=tgid, time_ns=5) for tgid in sorted(users)]

    def stop(self) -> None:
        self.stopped += 1


class Adjustable(Reads):
    def adjust(self, settings: Settings) -> None:
        self.interval_ms = settings.get("interval_ms", 0)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Reads]:
    made: list[Reads] = []

    def opening(kind: type[Reads], setting: str) -> Polling:
        def open_it(settings: Settings) -> Poller | None:
            if not settings.get(setting, False):
                return None
            made.append(kind())
            return made[-1]

        return Polling(losses=setting, open=open_it)

    found = {"p.a": opening(Reads, "a"), "p.b": opening(Adjustable, "b"), "p.c": opening(Reads, "c")}
    monkeypatch.setattr(registry, "parts", lambda module, name: found)
    return made


def test_what_is_read_goes_before_the_tick(opened: list[Reads]) -> None:
    pollers = Pollers(Settings({"a": True, "b": True}))
    assert [type(each) for each in opened] == [Reads, Adjustable]
    tick = Tick(time_ns=9)
    ends = [ProcessGone(tgid=1, time_ns=5), ProcessGone(tgid=2, time_ns=5)]
    losses = [LossCounted(family=name, reason="missed", count=1) for name in ("a", "b")]
    assert pollers.join([tick], {1, 2}) == [*ends, *ends, *losses, tick]
    pollers.adjust(Settings({"interval_ms": 50}))
    assert [each.interval_ms for each in opened] == [0, 50]
    pollers.stop()
    assert [each.stopped for each in opened] == [1, 1]


class Hastening(Reads):
    hastened = 0

    def hasten(self) -> None:
        self.hastened += 1


def test_who_reads_some_of_it_often_is_hastened(monkeypatch: pytest.MonkeyPatch) -> None:
    poller, other = Hastening(), Reads()
    found = {
        "p.a": Polling(losses="a", open=lambda settings: other),
        "p.b": Polling(losses="b", open=lambda settings: poller),
    }
    monkeypatch.setattr(registry, "parts", lambda module, name: found)
    pollers = Pollers(Settings())
    pollers.hasten()
    pollers.hasten()
    assert poller.hastened == 2


class Announcing(Reads):
    def announce(self, found: Callable[[], None]) -> None:
        self.found = found


def test_what_is_announced_wakes_whoever_waits_until_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    poller = Announcing()
    found = {"p.a": Polling(losses="a", open=lambda settings: poller)}
    monkeypatch.setattr(registry, "parts", lambda module, name: found)
    pollers, tick = Pollers(Settings()), Tick(time_ns=9)

    def wakes() -> bool:
        return bool(select.select([pollers.fd], [], [], 0)[0])

    assert not wakes()
    poller.found()
    poller.found()
    assert wakes()
    pollers.join([tick], set())
    assert not wakes()


def test_where_nothing_is_asked_for_nothing_is_read(opened: list[Reads]) -> None:
    tick = Tick(time_ns=9)
    assert Pollers(Settings()).join([tick], {1}) == [tick]
    assert opened == []


def test_the_families_pollers_are_off_unless_they_are_asked_for() -> None:
    tick = Tick(time_ns=9)
    assert Pollers(Settings({"device_interval_ms": 0, "fabric_interval_ms": 0})).join([tick], {1}) == [tick]


def test_devices_are_looked_at_once_where_a_family_has_some(monkeypatch: pytest.MonkeyPatch) -> None:
    look = Look(inputs=(ProcessGone(tgid=1, time_ns=5),), note="one does not answer")
    polled = Polling(losses="a", open=lambda settings: None)
    found = {"p.a": polled, "p.b": replace(polled, look=lambda: look)}
    monkeypatch.setattr(registry, "parts", lambda module, name: found)
    assert list(looks()) == [look]


def test_a_setting_of_another_type_is_a_mistake() -> None:
    settings = Settings({"budget": "much", "whole": 2})
    with pytest.raises(TypeError, match="setting budget is 'much', which is no float"):
        settings.get("budget", 1.0)
    assert (settings.get("whole", 1.0), settings.get("other", 1.0)) == (2.0, 1.0)
