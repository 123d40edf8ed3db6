"""Probes of providers come and go as the budget says, and keep time of it."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from otelgpu.families.rdma.discover import windows as verbs_windows
from otelgpu.families.rdma.discover.windows import MAKERS, POLLS, POSTS, ProbeWindows, ProviderFile
from otelgpu.kernel.libbpf import BpfError
from otelgpu.kernel.probe_budget import ProbeBudget

MS = 1_000_000
SECOND = 1_000 * MS


@dataclass
class Machine:
    """A placer, a clock and a program that posts and polls at a rate while it is probed."""

    posts_per_s: int = 0
    polls_per_s: int = 0
    now_ns: int = SECOND
    attached: list[tuple[str, tuple[tuple[str, int], ...]]] = field(default_factory=list)
    windows_set: list[int] = field(default_factory=list)
    refuse: str = ""
    probed_ns: dict[str, int] = field(default_factory=lambda: {POSTS: 0, POLLS: 0})

    def place_at(
        self, path: str, library_name: str, offsets: dict[str, int]
    ) -> tuple[list[Any], list[BpfError]]:
        if self.refuse in offsets:
            return [], [BpfError("no")]
        entry = (library_name, tuple(sorted(offsets.items())))
        self.attached.append(entry)
        return [SimpleNamespace(detach=lambda: self.attached.remove(entry))], []

    def kinds(self) -> set[str]:
        return {library_name for library_name, _ in self.attached}

    def calls(self) -> dict[int, tuple[int, int]]:
        return {
            7: (
                self.posts_per_s * self.probed_ns[POSTS] // SECOND,
                self.polls_per_s * self.probed_ns[POLLS] // SECOND,
            ),
            8: (0, 0),
        }

    def run(self, windows: ProbeWindows, seconds: float) -> None:
        """Let time pass, a millisecond at a time, and do what is due."""
        until = self.now_ns + int(seconds * SECOND)
        due = windows.step(self.now_ns)
        while self.now_ns < until:
            for kind in self.kinds() & self.probed_ns.keys():
                self.probed_ns[kind] += MS
            self.now_ns += MS
            if self.now_ns >= due:
                due = windows.step(self.now_ns)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(verbs_windows, "monotonic_ns", lambda: made.now_ns)
    return made


def opened(machine: Machine, percent: float, trap_ns: float = 3_000.0) -> ProbeWindows:
    windows = ProbeWindows(
        machine,
        ProbeBudget(percent, trap_ns),
        read_calls=machine.calls,
        set_window=machine.windows_set.append,
    )
    file = ProviderFile(descriptor=os.dup(0))
    windows.add(file, POSTS, {("post_send", 16)})
    windows.add(file, POLLS, {("poll_cq", 32)})
    return windows


def test_posts_stay_and_polls_come_and_go(machine: Machine) -> None:
    machine.polls_per_s = 300_000
    windows = opened(machine, 1.0)
    machine.run(windows, 20)
    posts_ns, polls_ns = windows.observed(machine.now_ns)
    assert posts_ns == machine.now_ns - windows.began_ns == 20 * SECOND
    assert polls_ns == machine.probed_ns[POLLS]
    assert 0.005 < polls_ns / (20 * SECOND) < 0.0125
    assert POLLS not in machine.kinds()
    windows.close()
    assert machine.attached == []


def test_the_latency_window_is_open_exactly_while_polls_are(machine: Machine) -> None:
    machine.polls_per_s = 300_000
    windows = opened(machine, 1.0)
    machine.run(windows, 5)
    assert [bool(number) for number in machine.windows_set] == [True, False] * (len(machine.windows_set) // 2)
    assert len({number for number in machine.windows_set if number}) == len(machine.windows_set) // 2 >= 2
    windows.close()


def test_a_program_that_posts_more_than_is_affordable_is_probed_in_windows(machine: Machine) -> None:
    machine.posts_per_s = 200_000
    windows = opened(machine, 1.0)
    machine.run(windows, 1)
    assert POSTS not in machine.kinds()
    before = machine.probed_ns[POSTS]
    machine.run(windows, 30)
    assert 0 < (machine.probed_ns[POSTS] - before) / (30 * SECOND) < 0.02
    assert windows.observed(machine.now_ns)[0] == machine.probed_ns[POSTS]
    windows.close()


def test_posts_are_seen_whenever_polls_are(machine: Machine) -> None:
    machine.posts_per_s, machine.polls_per_s = 200_000, 300_000
    windows = opened(machine, 2.0)
    machine.run(windows, 2)
    seen = set()
    for _ in range(10_000):
        machine.run(windows, 0.001)
        seen.add(frozenset(machine.kinds() & {POSTS, POLLS}))
    assert frozenset({POLLS}) not in seen
    assert frozenset({POSTS, POLLS}) in seen and frozenset() in seen
    windows.close()


def test_makers_are_probed_at_once_whatever_the_budget(machine: Machine) -> None:
    windows = opened(machine, 0)
    windows.add(ProviderFile(descriptor=os.dup(0)), MAKERS, {("create_qp_ex", 48)})
    machine.run(windows, 3)
    assert machine.kinds() == {MAKERS}
    windows.close()


def test_functions_learnt_later_are_probed_while_their_kind_is(machine: Machine) -> None:
    windows = opened(machine, float("inf"))
    machine.run(windows, 0.1)
    file = windows._files[0]
    windows.add(file, POSTS, {("post_send", 16), ("post_send", 64), ("wr_send", 80)})
    assert (POSTS, (("post_send", 64), ("wr_send", 80))) in machine.attached
    assert len(machine.attached) == 3
    windows.close()


def test_one_body_for_two_functions_is_probed_once_and_counted(machine: Machine) -> None:
    windows = opened(machine, float("inf"))
    windows.add(windows._files[0], POSTS, {("wr_send", 16)})
    machine.run(windows, 0.1)
    assert windows.counters["functions_shared"] == 1
    assert machine.attached.count((POSTS, (("post_send", 16),))) == 1
    windows.close()


def test_a_refused_probe_is_counted(machine: Machine) -> None:
    machine.refuse = "poll_cq"
    windows = opened(machine, float("inf"))
    machine.run(windows, 0.1)
    assert windows.counters["probes_refused"] == 1
    assert machine.kinds() == {POSTS}
    windows.close()


def test_what_a_probe_costs_is_tried_once_the_first_probes_are_there(machine: Machine) -> None:
    kinds: list[set[str]] = []
    budget = ProbeBudget(1.0, 3_000.0)
    tried = threading.Event()

    def measure() -> float:
        kinds.append(machine.kinds())
        tried.set()
        return 40_000.0

    windows = ProbeWindows(
        machine, budget, read_calls=machine.calls, set_window=machine.windows_set.append, measure_trap=measure
    )
    windows.add(ProviderFile(descriptor=os.dup(0)), POSTS, {("post_send", 16)})
    windows.start()
    assert tried.wait(30)
    windows.close()
    assert len(kinds) == 1 and POSTS in kinds[0]
    budget.measured(posts=1_000, posts_ns=SECOND)  # 4 % of a core at that price, 0.3 % at the other
    assert not budget.posts.is_always
