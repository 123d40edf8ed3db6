"""In which order unwind tables are made: what all stacks go through first, and processes in turn."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from otelgpu.elf.eh_frame import Frames
from otelgpu.families.profiles.discover import unwind_tables
from otelgpu.families.profiles.discover.unwind_tables import NOT_MADE, UnwindTables
from otelgpu.families.profiles.discover.unwinder import Rows, Unwinder, UnwinderError
from otelgpu.kernel.loader import LoadedFamily, read_image

SETTLED_S = 30.0
LIBRARY = Path("/lib64/ld-linux-x86-64.so.2")
"""Something with an .eh_frame, of which copies stand for other files."""
TEXT_BYTES = 0x1000


class Scripted(Unwinder):
    """Makes tables of ``count`` rows, and remembers of which files; ``during`` runs while one is made."""

    def __init__(self, count: int = 8) -> None:
        super().__init__()
        self.made: list[str] = []
        self.during: Callable[[str], None] = lambda name: None
        self._count = count

    @contextmanager
    def rows(self, descriptor: int, frames: Frames) -> Iterator[Rows]:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        name = path.rpartition("/")[2]
        self.made.append(name)
        self.during(name)
        row = b"\0\x10\0\0\1\0\1\0"
        parts = lambda multiple: iter([row * -(-self._count // multiple) * multiple])  # noqa: E731
        yield cast("Rows", SimpleNamespace(count=self._count, damaged=0, parts=parts))


class Arrays:
    """A map of arrays that is none; ``kept``: what is in it, by number."""

    def __init__(self, outer: object, value_bytes: int) -> None:
        self.kept: dict[int, object] = {}
        self.puts = 0

    def make(self, entries: int, parts: Iterable[bytes]) -> int:
        assert all(parts)
        return os.memfd_create("array")

    def put(self, key: int, content: bytes) -> None:
        self.kept[key] = content
        self.puts += 1

    def put_all(self, made: Mapping[int, int]) -> None:
        self.kept.update(made)

    def delete(self, key: int) -> bool:
        return self.kept.pop(key, None) is not None


class Host:
    """Processes and what they have mapped, as /proc would report it."""

    def __init__(self, folder: Path) -> None:
        self.proc, self._libraries = folder / "proc", folder / "libraries"
        self._libraries.mkdir()

    def library(self, name: str, more_bytes: int = 0) -> Path:
        path = self._libraries / name
        if not path.exists():
            shutil.copy(LIBRARY, path)
            os.truncate(path, path.stat().st_size + more_bytes)
        return path

    def start(self, tgid: int, program: Path, libraries: Sequence[Path]) -> None:
        process = self.proc / str(tgid)
        process.mkdir(parents=True)
        (process / "map_files").mkdir()
        (process / "exe").symlink_to(program)
        lines = []
        for number, path in enumerate((*libraries, program)):
            start = 0x10000 * (number + 1)
            (process / "map_files" / f"{start:x}-{start + TEXT_BYTES:x}").symlink_to(path)
            lines.append(
                f"{start:x}-{start + TEXT_BYTES:x} r-xp 00001000 00:00 {path.stat().st_ino} {path}\n"
            )
        (process / "maps").write_text("".join(lines))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    if not LIBRARY.exists():
        pytest.skip(f"this system has no {LIBRARY}")
    return Host(tmp_path)


@pytest.fixture
def scripted() -> Scripted:
    return Scripted()


@pytest.fixture
def tables(host: Host, scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> Iterator[UnwindTables]:
    monkeypatch.setattr(unwind_tables, "MapOfArrays", Arrays)
    loaded = cast("LoadedFamily", SimpleNamespace(image=read_image("profile"), map=lambda name: name))
    made = UnwindTables(loaded, proc=host.proc, unwinder=scripted)
    yield made
    made.close()


def test_what_all_stacks_go_through_comes_first_and_the_large_last(
    host: Host, scripted: Scripted, tables: UnwindTables
) -> None:
    names = {"libvast.so": 9000, "libsmall.so": 0, "libc.so.6": 5000, "libpython3.11.so.1.0": 7000}
    libraries = [host.library(name, more) for name, more in names.items()]
    host.start(4, host.library("serve", 3000), libraries)
    tables.see(4)
    assert tables.settle(SETTLED_S)
    assert scripted.made == ["serve", "libc.so.6", "libpython3.11.so.1.0", "libsmall.so", "libvast.so"]


def test_a_process_with_many_libraries_gives_way_to_others(
    host: Host, scripted: Scripted, tables: UnwindTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unwind_tables, "_TURN_S", 0.0)
    many = [host.library(f"lib{letter}.so", 1000 * at) for at, letter in enumerate("wxyz")]
    host.start(4, host.library("first"), many)
    host.start(5, host.library("second"), [])
    scripted.during = lambda name: tables.see(5) if name == "first" else None
    tables.see(4)
    assert tables.settle(SETTLED_S)
    assert scripted.made == ["first", "second", "libw.so", "libx.so", "liby.so", "libz.so"]


def test_with_nobody_waiting_a_process_is_gone_through_once(
    host: Host, tables: UnwindTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unwind_tables, "_TURN_S", 0.0)
    host.start(4, host.library("first"), [host.library(f"lib{letter}.so") for letter in "wxyz"])
    tables.see(4)
    assert tables.settle(SETTLED_S)
    assert cast("Any", tables._processes_map).puts == 2  # that nothing is there yet, and all of it


def test_a_file_that_a_program_is_about_to_load_is_not_kept_waiting(
    host: Host, scripted: Scripted, tables: UnwindTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unwind_tables, "_TURN_S", 0.0)
    host.start(4, host.library("first"), [host.library("liba.so"), host.library("libb.so", 1000)])
    ahead = host.library("libsoon.so")
    scripted.during = lambda name: tables.prepare(ahead) if name == "first" else None
    tables.see(4)
    assert tables.settle(SETTLED_S)
    assert scripted.made == ["first", "libsoon.so", "liba.so", "libb.so"]


def test_a_process_with_samples_comes_before_those_that_may_have_some(
    host: Host, scripted: Scripted, tables: UnwindTables
) -> None:
    for number in range(1, 5):
        host.start(number, host.library(f"program{number}"), [])

    def others(name: str) -> None:
        if name == "program1":
            for number in (2, 3, 4):
                tables.see(number)
            tables.hurry(4)
            tables.hurry(1)  # nothing is asked for of it

    scripted.during = others
    tables.see(1)
    assert tables.settle(SETTLED_S)
    assert scripted.made == ["program1", "program4", "program2", "program3"]


def test_within_its_turn_a_process_is_not_interrupted(
    host: Host, scripted: Scripted, tables: UnwindTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unwind_tables, "_TURN_S", 60.0)
    host.start(4, host.library("first"), [host.library("liba.so")])
    host.start(5, host.library("second"), [])
    scripted.during = lambda name: tables.see(5) if name == "first" else None
    tables.see(4)
    assert tables.settle(SETTLED_S)
    assert scripted.made == ["first", "liba.so", "second"]


def test_waiting_is_for_what_is_under_way_and_no_longer_than_was_said(
    host: Host, scripted: Scripted, tables: UnwindTables
) -> None:
    host.start(4, host.library("first"), [])
    go_on = threading.Event()
    scripted.during = lambda name: cast("Any", go_on.wait(SETTLED_S))
    tables.see(4)
    assert not tables.settle(0.2)
    go_on.set()
    assert tables.settle(SETTLED_S)
    assert tables.rows > 0


def test_files_of_processes_that_ended_are_kept_up_to_a_number(
    host: Host, scripted: Scripted, tables: UnwindTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unwind_tables, "_UNUSED_FILES", 3)
    for tgid in range(10, 17):
        host.start(tgid, host.library(f"program{tgid}"), [])
        tables.see(tgid)
        assert tables.settle(SETTLED_S)
        tables.forget(tgid)
        assert tables.settle(SETTLED_S)
    assert len(tables._files) == len(cast("Any", tables._files_map).kept) == 3
    host.start(17, host.library("program16"), [])  # was kept
    host.start(18, host.library("program10"), [])
    made = len(scripted.made)
    for tgid in (17, 18):
        tables.see(tgid)
        assert tables.settle(SETTLED_S)
    assert scripted.made[made:] == ["program10"]


def test_a_table_that_cannot_be_made_is_counted_and_the_others_are(
    host: Host, scripted: Scripted, tables: UnwindTables
) -> None:
    def fail(name: str) -> None:
        if name == "libbad.so":
            raise UnwinderError("its program has ended before its time")

    scripted.during = fail
    host.start(4, host.library("first"), [host.library("libbad.so"), host.library("libgood.so", 1000)])
    tables.see(4)
    assert tables.settle(SETTLED_S)
    assert tables.counters == {NOT_MADE: 1}
    assert scripted.made == ["first", "libbad.so", "libgood.so"]


def test_no_descriptor_is_left_behind(
    host: Host, scripted: Scripted, tables: UnwindTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unwind_tables, "_MAX_UNPUT", 2)
    waiting: list[int] = []
    scripted.during = lambda name: waiting.append(len(tables._unput))
    before = len(os.listdir("/proc/self/fd"))
    host.start(4, host.library("first"), [host.library(f"lib{number}.so") for number in range(9)])
    tables.see(4)
    assert tables.settle(SETTLED_S)
    assert len(waiting) == 10 and max(waiting) == 1
    tables.close()
    assert len(os.listdir("/proc/self/fd")) == before
