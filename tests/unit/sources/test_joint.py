"""Two sources as one: order, ticks and counts."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest

from otelgpu.elf.btf import Btf
from otelgpu.model.inputs import ClockAnchor, Input, LossCounted, ProcessGone, ProcessSeen, Tick
from otelgpu.model.resource import Resource, resource
from otelgpu.sources.joint import JointSource


def loss(reason: str) -> LossCounted:
    return LossCounted(family="cuda", reason=reason, count=1)


def program(start: str, path: str = "/bin/serve", title: str = "serve") -> Resource:
    """As a process is described."""
    return resource({"service.instance.id": start, "process.executable.path": path, "service.name": title})


def seen(tgid: int, described: Resource) -> ProcessSeen:
    return ProcessSeen(tgid=tgid, time_ns=1, resource=described)


def gone(tgid: int) -> ProcessGone:
    return ProcessGone(tgid=tgid, time_ns=1)


class Scripted:
    """A source that collects what it is given."""

    probed_files = ()
    btf: dict[str, Btf] = {}  # noqa: RUF012

    def __init__(self, name: str, *collections: list[Input]) -> None:
        self.name = name
        self.btf_sections = {name: name.encode()}
        self.library_names = frozenset({name})
        self.gpu_processes = {len(name)}
        self._collections = list(collections)
        self.asked: list[str] = []
        self.ready: list[set[int]] = []  # answers of wait()

    def fileno(self) -> int:
        return 99

    def observe(self, tgid: int, *, execs: bool = False) -> None:
        self.asked.append(f"observe {tgid}, {execs}" if execs else f"observe {tgid}")

    def observe_running(self) -> None:
        self.asked.append("observe_running")

    def prepare_file(self, path: Path) -> None:
        self.asked.append(f"prepare {path}")

    def wait(self, timeout_s: float, others: Collection[int] = (), *, longest_s: float = 0.0) -> set[int]:
        self.asked.append("wait")
        return self.ready.pop(0)

    def collect(self) -> list[Input]:
        return self._collections.pop(0)

    def losses(self) -> list[Input]:
        return [loss(self.name)]

    def totals(self) -> dict[tuple[str, str], int]:
        return {("cuda", self.name): 2, ("live", "process_vanished"): 3}

    def start_holding(self) -> None:
        self.asked.append("start_holding")

    def complete(self) -> None:
        pass

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
    assert joint.library_names == {"calls", "requests"}
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
        (lambda joint: joint.observe(7, execs=True), "observe 7, True"),
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


def test_more_that_becomes_known_of_a_process_that_calls_is_reported_whoever_learns_it() -> None:
    calls = Scripted("calls", [seen(7, program("a")), Tick(time_ns=5)], [Tick(time_ns=6)])
    more = ProcessSeen(tgid=7, time_ns=5, resource=program("a", title="named"), same_program=True)
    talks = Scripted("talks", [seen(7, program("a")), Tick(time_ns=5)], [more, Tick(time_ns=6)])
    joint = JointSource(calls, talks)
    assert joint.collect() == [seen(7, program("a")), Tick(time_ns=5)]
    assert joint.collect() == [more, Tick(time_ns=6)]


def test_a_wait_ends_when_there_is_something_for_the_one_who_waits() -> None:
    calls, talks = Scripted("calls"), Scripted("talks")
    calls.ready, talks.ready = [{99}, {99, 3}], [set(), set()]
    assert JointSource(calls, talks).wait(10, [3]) == {3}
    assert (calls.asked, talks.asked) == (
        ["wait"] * 2,
        ["wait"] * 2,
    )  # the first was for the talks' own events


def test_a_wait_ends_when_a_ring_of_either_fills() -> None:
    calls, talks = Scripted("calls"), Scripted("talks")
    calls.ready, talks.ready = [set(), {99}], [set(), {7}]
    joint = JointSource(calls, talks)
    assert joint.wait(10) == set()
    assert joint.wait(10) == set()
    assert (calls.ready, talks.ready) == ([], [])


def test_a_process_that_calls_is_described_by_those_who_see_its_calls() -> None:
    calls = Scripted("calls", [seen(5, program("a")), loss("name"), Tick(time_ns=5)], [Tick(time_ns=6)])
    talks = Scripted(
        "talks", [seen(5, program("a", title="other")), seen(6, program("b"))], [seen(5, program("a"))]
    )
    joint = JointSource(calls, talks)
    assert joint.collect() == [seen(6, program("b")), seen(5, program("a")), loss("name"), Tick(time_ns=5)]
    assert joint.collect() == [Tick(time_ns=6)]


@pytest.mark.parametrize("other", [program("a", path="/bin/other"), program("z")])
def test_another_program_or_process_is_described_anew(other: Resource) -> None:
    calls = Scripted("calls", [seen(5, program("a")), Tick(time_ns=5)], [Tick(time_ns=6)])
    joint = JointSource(calls, Scripted("talks", [], [seen(5, other)]))
    joint.collect()
    assert joint.collect() == [seen(5, other), Tick(time_ns=6)]


def test_a_process_that_calls_has_ended_when_its_last_call_is_there() -> None:
    calls = Scripted(
        "calls",
        [seen(5, program("a")), Tick(time_ns=5)],
        [loss("call"), gone(5), Tick(time_ns=6)],
        [Tick(time_ns=7)],
    )
    talks = Scripted("talks", [gone(5), gone(6)], [gone(5)], [gone(5)])
    joint = JointSource(calls, talks)
    assert joint.collect() == [seen(5, program("a")), gone(6), Tick(time_ns=5)]
    assert joint.collect() == [loss("call"), gone(5), Tick(time_ns=6)]
    assert joint.collect() == [gone(5), Tick(time_ns=7)]  # of another one by then
