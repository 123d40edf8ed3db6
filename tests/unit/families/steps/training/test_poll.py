"""What kept ranks from running: what grew between two looks, of all cgroups above a process, and of ranks only."""

from __future__ import annotations

from pathlib import Path

import pytest

from otelgpu.families.steps.training import poll
from otelgpu.families.steps.training.poll import INTERVAL_NS, PressureReader
from otelgpu.model.inputs import Input
from otelgpu.model.pressure import ProcessPressed

RANK = b"HOME=/root\0RANK=3\0WORLD_SIZE=4\0"


class Machine:
    """Files as the kernel has them."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.cgroups = folder / "proc", folder / "cgroup"
        self.reader = PressureReader(self.proc, self.cgroups)
        self.now_ns = 0

    def process(self, tgid: int, *, faults: int = 0, cgroup: str = "0::/a/b", environ: bytes = RANK) -> None:
        folder = self.proc / str(tgid)
        folder.mkdir(parents=True, exist_ok=True)
        fields = ["S", *map(str, range(1, 9)), str(faults), "77", "78"]
        (folder / "stat").write_text(f"{tgid} (a) name (b) {' '.join(fields)}\n")
        (folder / "cgroup").write_text(f"{cgroup}\n")
        (folder / "environ").write_bytes(environ)

    def quota(self, path: str, text: str) -> None:
        (self.cgroups / path).mkdir(parents=True, exist_ok=True)
        (self.cgroups / path / "cpu.stat").write_text(f"nr_periods 9\n{text}\n")

    def look(self, *tgids: int) -> list[Input]:
        self.now_ns += INTERVAL_NS
        return list(self.reader.collect(self.now_ns, set(tgids)))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def grown(inputs: list[Input]) -> list[tuple[int, int, int]]:
    assert all(isinstance(each, ProcessPressed) for each in inputs)
    return [(each.tgid, each.throttled_ns, each.major_faults) for each in inputs]  # type: ignore[union-attr]


def test_what_grew_is_reported_once(machine: Machine) -> None:
    machine.process(7, faults=5)
    machine.quota("a/b", "throttled_usec 1000")
    assert machine.look(7) == []
    machine.process(7, faults=8)
    machine.quota("a/b", "throttled_usec 3500")
    (found,) = machine.look(7)
    assert grown([found]) == [(7, 2_500_000, 3)]
    assert isinstance(found, ProcessPressed) and found.time_ns - found.since_ns == INTERVAL_NS
    assert machine.look(7) == []


def test_a_quota_above_counts(machine: Machine) -> None:
    machine.process(7)
    machine.look(7)
    machine.quota("a", "throttled_usec 2")
    machine.quota("a/b", "throttled_usec 3")
    assert grown(machine.look(7)) == [(7, 5000, 0)]


def test_the_first_version_of_cgroups_is_read(machine: Machine) -> None:
    machine.process(7, cgroup="5:memory:/m\n4:cpu,cpuacct:/x\n0::/")
    machine.look(7)
    machine.quota("cpu/x", "throttled_time 70")
    assert grown(machine.look(7)) == [(7, 70, 0)]


def test_looks_are_apart(machine: Machine) -> None:
    machine.process(7)
    machine.look(7)
    machine.process(7, faults=9)
    assert list(machine.reader.collect(machine.now_ns + INTERVAL_NS - 1, {7})) == []
    assert grown(machine.look(7)) == [(7, 0, 9)]


@pytest.mark.parametrize("environ", [b"", b"HOME=/root\0XRANK=3\0"])
def test_who_is_no_rank_is_of_no_interest(machine: Machine, environ: bytes) -> None:
    machine.process(7, environ=environ)
    machine.look(7)
    machine.process(7, faults=9, environ=environ)
    assert machine.look(7) == []


@pytest.mark.parametrize("cgroup", ["0::/../../etc", "nonsense", "", "0::", "4:cpu:/../x", ":::"])
def test_a_place_that_leads_elsewhere_is_not_looked_at(machine: Machine, cgroup: str) -> None:
    machine.process(7, cgroup=cgroup)
    machine.look(7)
    machine.quota("../etc", "throttled_usec 2000")
    machine.quota("x", "throttled_usec 2000")
    assert machine.look(7) == []


@pytest.mark.parametrize(
    "text", ["throttled_usec", "throttled_usec -3", "throttled_usec x", "throttled_usec " + "9" * 30]
)
def test_what_is_no_number_is_nothing(machine: Machine, text: str) -> None:
    machine.process(7)
    machine.look(7)
    machine.quota("a/b", text)
    assert machine.look(7) == []


def test_a_process_that_ends_or_moves_begins_anew(machine: Machine) -> None:
    machine.process(7, faults=5)
    machine.quota("a/b", "throttled_usec 9000")
    machine.look(7)
    machine.process(7, faults=5, cgroup="0::/c")
    assert machine.look(7) == []
    (machine.proc / "7" / "stat").unlink()
    assert machine.look(7) == machine.look() == machine.look(7) == []


def test_ranks_have_a_bound(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poll, "PROCESSES", 2)
    for tgid in (7, 8, 9):
        machine.process(tgid)
    machine.look(7, 8, 9)
    for tgid in (7, 8, 9):
        machine.process(tgid, faults=1)
    assert [tgid for tgid, *_ in grown(machine.look(7, 8, 9))] == [7, 8]
