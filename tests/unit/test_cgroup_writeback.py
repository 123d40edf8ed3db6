"""Whom the kernel charges for what it writes back: files of control groups as guests with 6.1, 6.12 and 7 have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from otelgpu.cli.cgroup_writeback import charged_writes
from otelgpu.cli.stall_surroundings import between, read
from otelgpu.diagnose.stall.surroundings import GroupWrites
from tests.unit.test_stall_surroundings import PID, process

IO_STAT = "7:7 \n4095:0 rbytes=2048 wbytes={} rios=2 wios=40 dbytes=0 dios=0\n"


class Machine:
    """Files of processes and of control groups; ``/`` has what the root has."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.cgroups, self.block = folder / "proc", folder / "cgroup", folder / "block"
        self.proc.mkdir()
        self.cgroups.mkdir()
        for file in ("cgroup.controllers", "io.stat", "memory.stat"):
            (self.cgroups / file).write_text("io memory\n")

    def group(self, path: str, written: int | str | None, *, memory: bool = True) -> None:
        folder = self.cgroups / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup.type").write_text("domain\n")
        if written is not None:
            text = written if isinstance(written, str) else IO_STAT.format(written)
            (folder / "io.stat").write_text(text)
        if memory:
            (folder / "memory.current").write_text("1\n")

    def process(self, pid: int, group: str, dirtied: int) -> None:
        process(self.proc, pid, 1, group=f"0::{group}\n")
        (self.proc / str(pid) / "io").write_text(f"write_bytes: {dirtied}\n")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def meanwhile(machine: Machine, group: str, *, written: tuple[int, int] = (100, 900)) -> GroupWrites | None:
    """Between two readings in which ``group`` has so much; a neighbour in it, one below it, one outside."""
    readings = []
    for number, size in enumerate(written):
        machine.group(group.lstrip("/"), size)
        machine.group(f"{group}/below".lstrip("/"), 5, memory=False)
        machine.process(PID, group, 50 + 600 * number)
        for other, place in enumerate((group, f"{group}/below", "/elsewhere"), 1):
            machine.process(PID + other, place, 1 + 10**other * number)
        readings.append(read(PID, proc=machine.proc, cgroups=machine.cgroups))
    return between(*readings, frozenset((PID,)), pid=PID).group_writes


def test_what_a_group_wrote_meanwhile_is_said_with_what_others_in_it_made_dirty(machine: Machine) -> None:
    found = meanwhile(machine, "/pod/job")
    assert found == GroupWrites(group="/pod/job", bytes_by_device={"4095:0": 800}, others_dirtied_bytes=110)


def test_what_was_written_before_is_not_of_now(machine: Machine) -> None:
    found = meanwhile(machine, "/job", written=(900, 900))
    assert found is not None and found.bytes_by_device == {}


def charged_to(machine: Machine, group: str) -> str | None:
    machine.process(PID, group, 7)
    reading = read(PID, proc=machine.proc, cgroups=machine.cgroups)
    return reading.charged.group if reading.charged is not None else None


def test_pages_are_charged_where_their_memory_is(machine: Machine) -> None:
    machine.group("pod", 1)
    machine.group("pod/memory_ends_above", 1, memory=False)
    machine.group("pod/io_ends_above", None)
    machine.group("pod/io_ends_above/both", None, memory=False)
    assert charged_to(machine, "/pod/memory_ends_above") == "/pod"
    assert charged_to(machine, "/pod/io_ends_above/both") == "/pod"


@pytest.mark.parametrize(
    ("group", "why"),
    [
        ("/", "the root's account is of the whole machine"),
        ("/none", "no controller is on"),
        ("/memory", "requests are of the root, as io is not on"),
        ("/gone", "there is no such group"),
        ("/../../etc", "it is outside of what is seen"),
    ],
)
def test_where_nobody_is_charged_nothing_is_said(machine: Machine, group: str, why: str) -> None:
    machine.group("none", None, memory=False)
    machine.group("memory", None)
    assert charged_to(machine, group) is None, why


def test_a_machine_with_version_1_charges_nobody(machine: Machine) -> None:
    machine.group("job", 1)
    (machine.cgroups / "cgroup.controllers").unlink()
    assert charged_to(machine, "/job") is None


@pytest.mark.parametrize(
    "text", ["", "7:0\n", "7:0 wbytes=x\n", "x wbytes=1\n", "7:0 wbytes=-1\n", "\0" * 70_000]
)
def test_lines_of_another_form_are_left_out(machine: Machine, text: str) -> None:
    machine.group("job", text)
    machine.process(PID, "/job", 7)
    charged = read(PID, proc=machine.proc, cgroups=machine.cgroups).charged
    assert charged is not None and charged.written == {}


def test_a_device_has_the_name_of_its_link(machine: Machine, tmp_path: Path) -> None:
    machine.group("job", 9)
    machine.process(PID, "/job", 7)
    machine.block.mkdir()
    (machine.block / "4095:0").symlink_to("../../devices/virtual/block/loop0")
    found = charged_writes(PID, (), proc=machine.proc, cgroups=machine.cgroups, block=machine.block)
    assert found is not None and found.written == {"loop0": 9}
