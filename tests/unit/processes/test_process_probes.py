"""Probes come off the process that calls them too often, and off no other, and are back when it is calm."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from otelgpu.kernel.libbpf import BpfError
from otelgpu.kernel.uprobe_links import UprobeLinks
from otelgpu.model.inputs import CallsUnobserved
from otelgpu.processes import process_probes
from otelgpu.processes.process_probes import ProcessProbes

MS = 1_000_000
SECOND = 1_000 * MS
TRAP_NS = 3_000.0
BUSY, CALM = 7, 8


@dataclass
class Machine:
    """A clock, and processes that launch at a rate; the kernel counts while they are probed."""

    rates: dict[int, int] = field(default_factory=lambda: {BUSY: 50_000, CALM: 100})
    now_ns: int = SECOND
    attached: list[int] = field(default_factory=list)
    probed_ns: dict[int, int] = field(default_factory=lambda: {BUSY: 0, CALM: 0})
    forgotten: list[int] = field(default_factory=list)
    refuses: bool = False

    def attach(self, tgid: int) -> tuple[list[Any], list[BpfError]]:
        if self.refuses:
            return [], [BpfError("no")]
        self.attached.append(tgid)
        return [SimpleNamespace(detach=lambda: self.attached.remove(tgid))], []

    def hits(self) -> dict[int, int]:
        return {tgid: self.rates[tgid] * probed // SECOND for tgid, probed in self.probed_ns.items()}

    def run(self, probes: ProcessProbes, seconds: float) -> None:
        """Let time pass, a millisecond at a time, and do what is due."""
        until, due = self.now_ns + int(seconds * SECOND), 0
        while self.now_ns < until:
            if self.now_ns >= due:
                due = probes.step(self.now_ns)
            for tgid in set(self.attached):
                self.probed_ns[tgid] += MS
            self.now_ns += MS


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(process_probes, "monotonic_ns", lambda: made.now_ns)
    monkeypatch.setattr(process_probes, "uprobe_links", lambda: UprobeLinks.MULTI)
    monkeypatch.setattr(process_probes, "kernel_version", lambda: (6, 10))
    monkeypatch.setattr(process_probes, "detach_all", lambda links: [link.detach() for link in links])
    monkeypatch.setattr(process_probes.threading, "Thread", lambda **_: SimpleNamespace(start=int, join=int))
    return made


def opened(machine: Machine, percent: float = 1.0) -> ProcessProbes:
    return ProcessProbes((), percent, lambda: TRAP_NS, machine.hits, machine.forgotten.append)


@pytest.fixture
def probes(machine: Machine) -> Iterator[ProcessProbes]:
    made = opened(machine)
    for tgid in (BUSY, CALM):
        made.add(tgid, machine)  # type: ignore[arg-type]
    yield made
    made.close()
    assert not machine.attached


def test_the_busy_process_pays_no_more_than_the_budget_and_the_calm_one_is_always_observed(
    machine: Machine, probes: ProcessProbes
) -> None:
    machine.run(probes, 1)
    before = dict(machine.probed_ns)
    machine.run(probes, 60)
    share = (machine.probed_ns[BUSY] - before[BUSY]) / (60 * SECOND)
    assert 0.006 < share * 50_000 * TRAP_NS / SECOND <= 0.01
    assert machine.probed_ns[CALM] == 61 * SECOND


def reported(probes: ProcessProbes, machine: Machine, tgid: int) -> list[CallsUnobserved]:
    found = probes.collect(machine.now_ns)
    return [each for each in found if isinstance(each, CallsUnobserved) and each.tgid == tgid]


def test_it_is_said_once_and_for_how_long_nothing_was_observed_is_counted(
    machine: Machine, probes: ProcessProbes, caplog: pytest.LogCaptureFixture
) -> None:
    unobserved_ns = 0
    with caplog.at_level(logging.WARNING):
        for _ in range(20):
            machine.run(probes, 1)
            unobserved_ns += sum(each.duration_ns for each in reported(probes, machine, BUSY))
        probes.forget(BUSY)
    unobserved_ns += sum(each.duration_ns for each in reported(probes, machine, BUSY))
    assert [record.args[:1] for record in caplog.records if isinstance(record.args, tuple)] == [(BUSY,)]
    assert probes.counters["probes_taken_off"] == 1
    assert unobserved_ns == 20 * SECOND - machine.probed_ns[BUSY]


def test_all_is_observed_again_once_it_is_calm(
    machine: Machine, probes: ProcessProbes, caplog: pytest.LogCaptureFixture
) -> None:
    machine.run(probes, 10)
    machine.rates[BUSY] = 10
    with caplog.at_level(logging.WARNING):
        machine.run(probes, 30)
    assert probes.counters["probes_kept_again"] == 1
    assert "all its calls are observed again" in caplog.text
    before = machine.probed_ns[BUSY]
    machine.run(probes, 10)
    assert machine.probed_ns[BUSY] - before == 10 * SECOND


def test_a_process_that_ended_has_no_probes_left_and_its_count_is_forgotten(
    machine: Machine, probes: ProcessProbes
) -> None:
    machine.run(probes, 0.1)
    probes.forget(CALM)
    probes.step(machine.now_ns)
    assert machine.attached == [BUSY]
    assert machine.forgotten == [CALM]


def test_a_program_that_is_about_to_be_started_has_its_probes_from_the_beginning(machine: Machine) -> None:
    made = opened(machine)
    made.enter(BUSY)
    made.expect(machine)  # type: ignore[arg-type]
    assert machine.attached == [BUSY]
    made.add(BUSY, machine)  # type: ignore[arg-type]
    assert machine.attached == [BUSY]
    made.close()


def test_what_the_kernel_refuses_is_counted(machine: Machine) -> None:
    machine.refuses = True
    made = opened(machine)
    made.add(BUSY, machine)  # type: ignore[arg-type]
    assert made.counters["process_probes_refused"] == 1
    made.close()


@pytest.mark.parametrize(("links", "version"), [(UprobeLinks.SINGLE, (6, 10)), (UprobeLinks.MULTI, (6, 9))])
def test_a_kernel_that_probes_no_single_process_is_refused(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, links: UprobeLinks, version: tuple[int, int]
) -> None:
    monkeypatch.setattr(process_probes, "uprobe_links", lambda: links)
    monkeypatch.setattr(process_probes, "kernel_version", lambda: version)
    with pytest.raises(BpfError, match=r"Linux 6\.10"):
        opened(machine)
