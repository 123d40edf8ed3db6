"""In whose name the kernel writes back: what BPF is told of control groups and processes, which come and go."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from otelgpu.families.profiles.discover import charged_groups
from otelgpu.families.profiles.discover.charged_groups import GROUPS_FULL, NOT_CHARGED, ChargedGroups
from otelgpu.kernel.libbpf import BpfError
from tests.unit.test_cgroup_writeback import Machine


class Owners(dict[bytes, bytes]):
    """BPF's map."""

    is_full = False

    def put(self, key: bytes, value: bytes) -> None:
        if self.is_full:
            raise BpfError("no room")
        self[key] = value

    def delete(self, key: bytes) -> bool:
        return self.pop(key, None) is not None


class Rig:
    def __init__(self, folder: Path) -> None:
        self.machine, self.owners = Machine(folder), Owners()
        for name in "abc":
            self.machine.group(name, 0)
        self.groups = ChargedGroups(self.owners, proc=self.machine.proc, cgroups=self.machine.cgroups)

    def see(self, pid: int, group: str) -> None:
        self.machine.process(pid, group, 0)
        self.groups.see(pid)

    def told(self) -> dict[str, tuple[int, ...]]:
        """Group → process, and the group's number."""
        ids = {(self.machine.cgroups / name).stat().st_ino: name for name in "abc"}
        return {
            ids[struct.unpack("=Q", key)[0]]: struct.unpack("=II", value)
            for key, value in self.owners.items()
        }


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.groups.close()


def test_a_group_s_first_process_stands_for_it_and_the_next_when_that_ends(rig: Rig) -> None:
    for pid, group in ((10, "/a"), (20, "/b"), (11, "/a")):
        rig.see(pid, group)
    assert rig.told() == {"a": (10, 1), "b": (20, 2)}
    rig.groups.forget(10)
    assert rig.told() == {"a": (11, 1), "b": (20, 2)}
    rig.groups.forget(11)
    rig.groups.forget(11)
    assert rig.told() == {"b": (20, 2)}
    rig.see(30, "/c")
    assert rig.told() == {"b": (20, 2), "c": (30, 1)}
    assert not any(rig.groups.counters.values())


def test_a_process_whose_group_is_not_charged_is_counted(rig: Rig) -> None:
    for pid, group in ((10, "/"), (11, "/elsewhere"), (12, "/../out")):
        rig.see(pid, group)
    (rig.machine.cgroups / "cgroup.controllers").unlink()  # as with control groups of version 1
    rig.see(13, "/a")
    rig.groups.see(14)  # it has ended
    assert rig.told() == {}
    assert rig.groups.counters[NOT_CHARGED] == 5
    rig.groups.forget(10)


def test_groups_beyond_those_that_are_kept_are_counted(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charged_groups, "MOST_GROUPS", 1)
    rig.groups = ChargedGroups(rig.owners, proc=rig.machine.proc, cgroups=rig.machine.cgroups)
    rig.see(10, "/a")
    rig.see(20, "/b")
    assert rig.told() == {"a": (10, 1)}
    assert rig.groups.counters[GROUPS_FULL] == 1
    rig.groups.forget(20)
    rig.groups.forget(10)
    rig.owners.is_full = True
    rig.see(30, "/c")
    assert rig.told() == {}
    assert rig.groups.counters[GROUPS_FULL] == 2
    rig.groups.forget(30)
