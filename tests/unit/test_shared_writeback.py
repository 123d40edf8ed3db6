"""Whose it may be what the kernel wrote back in nobody's name beside a profile of block requests."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from otelgpu.cli.shared_writeback import LEAST_BYTES, SharedWriteback, read
from otelgpu.families.profiles import names
from otelgpu.families.profiles.discover.charged_groups import NOT_CHARGED
from otelgpu.model.profiles import ProfileColumns
from otelgpu.model.spans import Attribute, Text
from tests.unit.export.profile_builders import samples
from tests.unit.test_stall_surroundings import PID, process

MIB = 1 << 20


class Machine:
    """Processes and disks, as files."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.disks = folder / "proc", folder / "block"

    def dirty(self, pid: int, mib: int, *, started: int = 5) -> None:
        process(self.proc, pid, 1, started=started)
        (self.proc / str(pid) / "io").write_text(f"write_bytes: {mib * MIB}\n")

    def disk(self, name: str, mib: int, *, slaves: tuple[str, ...] = ()) -> None:
        for each in slaves:
            (self.disks / name / "slaves" / each).mkdir(parents=True, exist_ok=True)
        (self.disks / name).mkdir(parents=True, exist_ok=True)
        (self.disks / name / "stat").write_text(f"1 1 1 1 1 1 {mib * MIB // 512} 1 0 1 1\n")

    def watched(self) -> SharedWriteback:
        return SharedWriteback(lambda: read(proc=self.proc, disks=self.disks))


def block_writes(device: str, size: int, *, operation: str = "write") -> ProfileColumns:
    """A profile of two requests, of half of it each."""
    codes = np.zeros(2, dtype=np.intp)
    return samples(
        2,
        sample_type=names.BLOCK_BYTES,
        value=np.array([size // 2, size - size // 2]),
        attributes=tuple(
            Attribute(key=key, values=Text(codes=codes, table=(text,)))
            for key, text in ((names.BLOCK_DEVICE, device), (names.BLOCK_OPERATION, operation))
        ),
    )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    found = Machine(tmp_path)
    found.dirty(PID, 10)
    found.dirty(PID + 1, 10)
    found.disk("sda", 100)
    return found


def test_who_made_pages_dirty_meanwhile_is_a_candidate(machine: Machine) -> None:
    watched = machine.watched()
    machine.disk("sda", 140)
    machine.dirty(PID, 40)
    machine.dirty(PID + 1, 20)
    machine.dirty(PID + 2, 20)  # it began meanwhile
    watched.end([PID])
    assert watched.sentence([], {NOT_CHARGED}) == (
        "written meanwhile, and in no request of this profile: 40.0 MiB to sda; candidates, by the pages that they "
        f"made dirty meanwhile: a) b (PID {PID}, profiled) 30.0 MiB, 50%; a) b (PID {PID + 2}) 20.0 MiB, 33%; "
        f"a) b (PID {PID + 1}) 10.0 MiB, 17%"
    )


def test_a_number_that_another_process_has_now_is_counted_from_its_beginning(machine: Machine) -> None:
    watched = machine.watched()
    machine.disk("sda", 140)
    machine.dirty(PID, 12, started=6)
    watched.end([])
    assert watched.sentence([], {NOT_CHARGED}).endswith(f"a) b (PID {PID}) 12.0 MiB, 100%")


def test_what_the_profile_has_is_nobody_elses(machine: Machine) -> None:
    watched = machine.watched()
    machine.disk("sda", 140)
    machine.dirty(PID, 40)
    watched.end([])
    whole, part = block_writes("sda", 40 * MIB), block_writes("sda", 25 * MIB)
    assert watched.sentence([whole], {NOT_CHARGED}) == ""
    assert "no request of this profile: 15.0 MiB to sda;" in watched.sentence([part], {NOT_CHARGED})
    other = [block_writes("sdb", 40 * MIB), block_writes("sda", 40 * MIB, operation="read")]
    assert ": 40.0 MiB to sda;" in watched.sentence(other, {NOT_CHARGED})


def test_nothing_is_said_where_the_kernel_tells_whose_it_is(machine: Machine) -> None:
    watched = machine.watched()
    machine.disk("sda", 140)
    machine.dirty(PID, 40)
    watched.end([])
    assert watched.sentence([], {"writeback_groups_full"}) == ""


def test_a_journal_is_nobodys(machine: Machine) -> None:
    watched = machine.watched()
    machine.dirty(PID, 40)
    (machine.disks / "sda/stat").write_text(f"1 1 1 1 1 1 {(100 * MIB + LEAST_BYTES) // 512 - 1} 1 0 1 1\n")
    watched.end([])
    assert watched.sentence([], {NOT_CHARGED}) == ""


def test_a_device_made_of_others_is_not_counted_beside_them(machine: Machine) -> None:
    machine.disk("dm-0", 100, slaves=("sda",))
    watched = machine.watched()
    machine.disk("sda", 140)
    machine.disk("dm-0", 140)
    watched.end([])
    said = watched.sentence([], {NOT_CHARGED})
    assert ": 40.0 MiB to sda;" in said and said.endswith("none that still runs and may be looked at")


def test_names_are_written_so_that_no_terminal_obeys_them(machine: Machine) -> None:
    watched = machine.watched()
    machine.disk("sda", 140)
    machine.dirty(PID, 40)
    (machine.proc / str(PID) / "stat").write_text(
        (machine.proc / str(PID) / "stat").read_text().replace("a) b", "\x1b[2J")
    )
    watched.end([])
    assert "\x1b" not in watched.sentence([], {NOT_CHARGED})


@pytest.mark.parametrize("text", ["", "1 2 3", "1 1 1 1 1 1 many 1 0 1 1", "-1 " * 11])
def test_a_disk_that_says_nothing_is_left_out(machine: Machine, text: str) -> None:
    watched = machine.watched()
    (machine.disks / "sda/stat").write_text(text)
    watched.end([os.getpid()])
    assert watched.sentence([], {NOT_CHARGED}) == ""
