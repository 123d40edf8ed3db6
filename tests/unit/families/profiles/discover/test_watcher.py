"""The profile family's watcher: what it is reported of processes, and when what it knows of them ends."""

from __future__ import annotations

import ctypes
import os
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from otelgpu.config import Config
from otelgpu.families.profiles.discover import watcher as profile_watcher
from otelgpu.families.profiles.discover.stacks import StackNamer
from otelgpu.families.profiles.discover.watcher import ProfileWatcher
from otelgpu.kernel.libbpf import BpfError
from otelgpu.model.inputs import Batch
from otelgpu.model.samples import StackNamed
from otelgpu.processes.discovery import SeesProcesses, SeesScope
from otelgpu.sources.family_discoveries import FamilyDiscoveries
from tests.unit.families.profiles.discover.test_stacks import BTF, ENDS, parts

OWN = os.getpid()


class Walked:
    """What BPF is to be reported; keeps what was asked of it."""

    def __init__(self) -> None:
        self.counters: Counter[str] = Counter({"lost": 2})
        self.asked: list[tuple[str, int]] = []
        self.hurried: list[int] = []

    def see(self, tgid: int) -> None:
        self.asked.append(("see", tgid))

    def mapped(self, tgid: int) -> None:
        self.asked.append(("mapped", tgid))

    def forget(self, tgid: int) -> None:
        self.asked.append(("forget", tgid))

    def prepare(self, path: Path) -> None:
        self.asked.append((f"prepare {path}", 0))

    def hurry(self, tgid: int) -> None:
        self.hurried.append(tgid)

    def settle(self, seconds: float) -> None:
        self.asked.append(("settle", int(seconds)))

    def close(self) -> None:
        self.asked.append(("close", 0))


class Reported:
    """BPF's map of stacks that were reported."""

    def __init__(self) -> None:
        self.deleted: list[int] = []
        self.is_broken = False

    def delete(self, key: bytes) -> bool:
        if self.is_broken:
            raise BpfError("no such map")
        self.deleted.append(struct.unpack("<Q", key)[0])
        return True


class Rig:
    def __init__(self) -> None:
        self.walked, self.reported = Walked(), Reported()
        self.watcher = ProfileWatcher(StackNamer(ENDS), self.reported, [self.walked], self.walked)

    def stack(self, *, tgid: int = OWN, stack: int = 1, user: tuple[int, ...] = (0x10,)) -> None:
        self.watcher.look(
            Batch(family="profile", kind="profile_stack", records=parts(tgid, user=user, stack=stack))
        )

    def sample(self, *tgids: int) -> None:
        records = np.zeros(len(tgids), dtype=BTF.dtype("profile_sample"))
        records["head"]["tgid"] = tgids
        self.watcher.look(Batch(family="profile", kind="profile_sample", records=records))

    def named(self) -> list[tuple[int, int]]:
        found = self.watcher.collect(0)
        assert all(isinstance(each, StackNamed) for each in found)
        return [(each.tgid, each.stack) for each in found if isinstance(each, StackNamed)]


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.watcher.close()


def test_a_stack_is_named_in_the_collection_in_which_it_was_reported(rig: Rig) -> None:
    rig.stack(stack=5)
    rig.stack(stack=6)
    assert rig.named() == [(OWN, 5), (OWN, 6)]
    assert rig.named() == []


def test_what_a_program_is_about_to_load_is_looked_at_and_waited_for(rig: Rig) -> None:
    rig.watcher.prepare(Path("/bin/x"))
    rig.watcher.settle((), 3)
    assert rig.walked.asked == [("prepare /bin/x", 0), ("settle", 3)]


def test_who_is_waited_for_is_looked_at_however_young_it_is(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profile_watcher, "age_s", lambda tgid: 0.1)
    rig.sample(301)
    rig.watcher.settle((300, 301), 3)
    assert rig.walked.asked == [("see", 301), ("see", 300), ("settle", 3)]


def test_a_process_is_looked_at_with_its_first_record_and_not_again(rig: Rig) -> None:
    rig.sample(300, 301, 300)
    rig.sample(301)
    rig.stack(tgid=302)
    assert rig.walked.asked == [("see", 300), ("see", 301), ("see", 302)]


def test_what_a_process_maps_is_reported_once_it_has_samples(rig: Rig) -> None:
    rig.watcher.mapped(300)
    assert rig.walked.asked == []
    rig.sample(300)
    rig.watcher.mapped(300)
    assert rig.walked.asked == [("see", 300), ("mapped", 300)]


def test_a_process_that_has_run_for_a_while_is_looked_at_before_it_has_samples(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profile_watcher, "age_s", {300: 0.2, 301: 5.0}.__getitem__)
    rig.watcher.expect(300)
    rig.watcher.expect(301)
    rig.watcher.mapped(301)
    rig.watcher.expect(301)
    assert rig.walked.asked == [("see", 301), ("mapped", 301)]


def test_a_process_out_of_scope_is_not_looked_at_however_long_it_has_run(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profile_watcher, "age_s", lambda tgid: 5.0)
    watchers = FamilyDiscoveries()
    watchers.add("profile", "profile", rig.watcher)
    watchers.mapped(300, placed=False, in_scope=False)
    watchers.mapped(301, placed=True, in_scope=False)
    assert rig.walked.asked == []
    watchers.mapped(302, placed=False)
    assert rig.walked.asked == [("see", 302)]


def test_a_program_that_was_started_for_its_profile_is_looked_at_once_it_has_begun(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profile_watcher, "is_child", lambda tgid: True)
    monkeypatch.setattr(profile_watcher, "is_copy_of_this", {300: True, 301: False}.__getitem__)
    rig.watcher.expect(300)
    rig.watcher.expect(301)
    assert rig.walked.asked == [("see", 301)]


def test_it_is_a_watcher_of_every_process(rig: Rig) -> None:
    assert isinstance(rig.watcher, SeesProcesses) and isinstance(rig.watcher, SeesScope)


def test_the_last_stacks_of_a_process_are_named_and_then_it_is_forgotten(rig: Rig) -> None:
    rig.stack(tgid=OWN, stack=9)
    rig.watcher.forget(OWN)
    assert rig.named() == [(OWN, 9)]
    assert rig.walked.asked == [("see", OWN), ("forget", OWN)]
    assert rig.reported.deleted == [9]
    rig.sample(OWN)
    assert rig.walked.asked[-1] == ("see", OWN)


def test_a_process_without_samples_is_not_forgotten_either(rig: Rig) -> None:
    rig.watcher.forget(300)
    rig.watcher.program_changed(300)
    assert rig.named() == [] and rig.walked.asked == []


def test_another_program_is_another_process(rig: Rig) -> None:
    rig.stack(tgid=OWN, stack=9)
    rig.named()
    rig.watcher.program_changed(OWN)
    rig.sample(OWN)
    assert rig.walked.asked == [("see", OWN), ("forget", OWN), ("see", OWN)]
    rig.named()
    assert rig.reported.deleted == [9]


def test_what_was_reported_before_a_program_changed_is_named_by_what_it_was(rig: Rig) -> None:
    libc = ctypes.cast(ctypes.CDLL(None).qsort, ctypes.c_void_p).value
    assert libc is not None
    rig.stack(tgid=OWN, stack=9, user=(libc,))
    rig.watcher.program_changed(OWN)
    found = rig.watcher.collect(0)
    assert [each.frames[0].name for each in found if isinstance(each, StackNamed)] == ["qsort"]


def test_a_number_that_comes_again_at_once_is_the_new_process(rig: Rig) -> None:
    rig.sample(300)
    rig.watcher.forget(300)
    rig.named()
    rig.sample(300)
    rig.named()
    assert rig.walked.asked == [("see", 300), ("forget", 300), ("see", 300)]


def test_a_stack_that_cannot_be_asked_for_again_is_counted(rig: Rig) -> None:
    rig.stack(stack=9)
    rig.watcher.forget(OWN)
    rig.reported.is_broken = True
    rig.named()
    assert rig.watcher.counters["stack_not_reported_again"] == 1


def test_the_counters_are_those_of_all(rig: Rig) -> None:
    rig.stack(tgid=1 << 30)
    rig.named()
    assert rig.watcher.counters["lost"] == 2
    assert rig.watcher.counters["stack_process_gone"] == 1


def test_processes_are_bounded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_watcher, "MAX_SEEN", 10)
    rig.sample(*range(1000, 1100))
    assert list(rig.watcher._seen) == list(range(1090, 1100))
    assert [tgid for what, tgid in rig.walked.asked if what == "forget"] == list(range(1000, 1090))


def test_closing_twice_closes_once(rig: Rig) -> None:
    rig.watcher.close()
    rig.watcher.close()
    assert rig.walked.asked == [("close", 0)]


def test_a_collection_names_for_no_longer_than_it_may_and_the_last_takes_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rings fill meanwhile: a slice is no longer than the time between two collections."""
    limits: list[tuple[float, bool]] = []
    namer = StackNamer(ENDS, None)

    def collect(limit_s: float, *, last: bool) -> list[StackNamed]:
        limits.append((limit_s, last))
        return []

    monkeypatch.setattr(namer, "collect", collect)
    watcher = ProfileWatcher(namer, Reported())
    watcher.collect(1)
    watcher.complete()
    watcher.collect(2)
    watcher.close()
    assert [last for _, last in limits] == [False, True]
    assert 0 < limits[0][0] <= Config().interval_ms / 1000 < limits[1][0]


def test_what_has_samples_is_hurried_each_time(rig: Rig) -> None:
    """It may have been looked at, and wait behind all others."""
    rig.sample(300)
    rig.sample(300, 301)
    assert rig.walked.hurried == [300, 300, 301]
