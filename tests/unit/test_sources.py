"""Two sources as one: order, ticks and counts."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest

from otelgpu.layout.btf import Btf
from otelgpu.model.inputs import ClockAnchor, Input, LossCounted, Tick
from otelgpu.sources import JointSource


def loss(reason: str) -> LossCounted:
    return LossCounted(family="cuda", reason=reason, count=1)


class Scripted:
    """A source that collects what it is given."""

    placements = ()
    btf: dict[str, Btf] = {}  # noqa: RUF012

    def __init__(self, name: str, *collections: list[Input]) -> None:
        self.name = name
        self.btf_sections = {name: name.encode()}
        self.stems = frozenset({name})
        self.gpu_processes = {len(name)}
        self._collections = list(collections)
        self.asked: list[str] = []

    def observe(self, tgid: int) -> None:
        self.asked.append(f"observe {tgid}")

    def observe_running(self) -> None:
        self.asked.append("observe_running")

    def prepare_file(self, path: Path) -> None:
        self.asked.append(f"prepare {path}")

    def wait(self, timeout_s: float, others: Collection[int] = ()) -> set[int]:
        self.asked.append("wait")
        return set(others)

    def collect(self) -> list[Input]:
        return self._collections.pop(0)

    def losses(self) -> list[Input]:
        return [loss(self.name)]

    def totals(self) -> dict[tuple[str, str], int]:
        return {("cuda", self.name): 2, ("live", "process_vanished"): 3}

    def start_holding(self) -> None:
        self.asked.append("start_holding")

    def stop_holding(self) -> None:
        self.asked.append("stop_holding")

    def close(self) -> None:
        self.asked.append("close")


def test_calls_come_first_and_the_tick_is_theirs() -> None:
    calls = Scripted("calls", [loss("a"), Tick(time_ns=5)])
    talks = Scripted("talks", [ClockAnchor(monotonic_ns=1, unix_ns=2), loss("b"), Tick(time_ns=9)])
    collected = JointSource(calls, talks).collect()
    assert collected == [loss("a"), ClockAnchor(monotonic_ns=1, unix_ns=2), loss("b"), Tick(time_ns=5)]


def test_what_both_have_is_joined() -> None:
    joint = JointSource(Scripted("calls"), Scripted("requests"))
    assert joint.btf_sections == {"calls": b"calls", "requests": b"requests"}
    assert joint.stems == {"calls", "requests"}
    assert joint.gpu_processes == {5, 8}
    assert joint.losses() == [loss("calls"), loss("requests")]
    assert joint.totals() == {
        ("cuda", "calls"): 2,
        ("cuda", "requests"): 2,
        ("live", "process_vanished"): 6,
    }


@pytest.mark.parametrize(
    ("ask", "expected"),
    [
        (lambda joint: joint.observe(7), "observe 7"),
        (lambda joint: joint.observe_running(), "observe_running"),
        (lambda joint: joint.prepare_file(Path("x")), "prepare x"),
        (lambda joint: joint.start_holding(), "start_holding"),
        (lambda joint: joint.stop_holding(), "stop_holding"),
        (lambda joint: joint.close(), "close"),
    ],
)
def test_both_are_asked(ask: object, expected: str) -> None:
    calls, talks = Scripted("calls"), Scripted("talks")
    ask(JointSource(calls, talks))  # type: ignore[operator]
    assert (calls.asked, talks.asked) == ([expected], [expected])


def test_the_calls_source_alone_is_waited_for() -> None:
    calls, talks = Scripted("calls"), Scripted("talks")
    assert JointSource(calls, talks).wait(0.1, [3]) == {3}
    assert (calls.asked, talks.asked) == (["wait"], [])
