"""The program that makes unwind tables: shut in, ended by what it must not outlive, and no harm when it fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from otelgpu.elf.eh_frame import MAX_BYTES, Frames
from otelgpu.families.profiles.discover.unwinder import PROGRAM, Unwinder, UnwinderError
from tests.rig.unwind_rows import ROW, table_of
from tests.unit.families.profiles.python.frames import ADDRESS
from tests.unit.families.profiles.python.frames import Frames as Section

FUNCTIONS = 40_009
"""Their rows are more than a pipe holds: who makes them waits until they are taken."""


@pytest.fixture(scope="module")
def section() -> bytes:
    made = Section().shared()
    parts = [made.content]
    function = Section().shared().function(0x1000, 16)
    body = bytearray(function.content[len(parts[0]) :])
    at = len(parts[0])
    for number in range(FUNCTIONS):
        body[4:8] = (at + 4).to_bytes(4, "little")
        body[8:12] = (0x1000 + 32 * number - (ADDRESS + at + 8)).to_bytes(4, "little", signed=True)
        parts.append(bytes(body))
        at += len(body)
    return b"".join(parts)


@contextmanager
def holding(content: bytes) -> Iterator[tuple[int, Frames]]:
    """An open file that is a section, and where it lies."""
    descriptor = os.memfd_create("section")
    try:
        os.write(descriptor, content)
        yield descriptor, Frames(offset=0, size_bytes=len(content), address=ADDRESS)
    finally:
        os.close(descriptor)


def status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def children() -> set[int]:
    return {
        int(pid) for each in Path("/proc/self/task").glob("*/children") for pid in each.read_text().split()
    }


def test_rows_come_in_parts_of_whole_blocks(section: bytes) -> None:
    with holding(section) as (descriptor, frames):
        whole = table_of(descriptor, frames)
        with Unwinder().rows(descriptor, frames) as rows:
            parts = list(rows.parts(64))
    assert len(whole.rows) == rows.count == 2 * FUNCTIONS
    assert {len(part) % (64 * ROW.itemsize) for part in parts} == {0} and len(parts) > 1
    assert b"".join(parts).startswith(whole.rows.tobytes())
    filling = b"".join(parts)[len(whole.rows.tobytes()) :]
    assert len(filling) < 64 * ROW.itemsize and set(filling[::8]) == {0xFF}


def test_it_can_do_nothing_but_read_and_write(section: bytes) -> None:
    before = children()
    with holding(section) as (descriptor, frames), Unwinder().rows(descriptor, frames) as rows:
        assert rows.count > 1 << 16
        (pid,) = children() - before  # it waits until the rest is taken
        status = status_of(pid)
        limits = Path(f"/proc/{pid}/limits").read_text()
        nice = os.getpriority(os.PRIO_PROCESS, pid)
        assert os.getsid(pid) == pid
        assert Path(f"/proc/{pid}/cmdline").read_bytes().count(b"\0") == 4
        assert os.geteuid() != 0 or Path(f"/proc/{pid}/environ").read_bytes() == b""
        opened = sorted(os.listdir(f"/proc/{pid}/fd")) if os.geteuid() == 0 else ["0", "1", "2"]
    assert (status["Seccomp"], status["NoNewPrivs"]) == ("2", "1")
    assert {int(status[name], 16) for name in ("CapEff", "CapPrm", "CapInh")} == {0}
    assert opened == ["0", "1", "2"]
    assert int(status["VmRSS"].split()[0]) < 16 << 10
    assert nice > os.getpriority(os.PRIO_PROCESS, 0)
    assert [line.split()[3] for line in limits.splitlines() if line.startswith("Max cpu")] == ["20"]
    assert children() == before


def test_one_that_is_stopped_is_ended_too(section: bytes) -> None:
    before = children()
    with holding(section) as (descriptor, frames), Unwinder().rows(descriptor, frames):
        (pid,) = children() - before
        os.kill(pid, signal.SIGSTOP)
    assert children() == before


def test_it_ends_with_who_started_it(tmp_path: Path, section: bytes) -> None:
    (tmp_path / "section").write_bytes(section)
    source = f"""
import os, time
from otelgpu.families.profiles.discover.unwinder import Unwinder
from otelgpu.elf.eh_frame import Frames
file = os.open({str(tmp_path / "section")!r}, os.O_RDONLY)
with Unwinder().rows(file, Frames(offset=0, size_bytes={len(section)}, address={ADDRESS})) as rows:
    with open("/proc/self/task/%d/children" % os.getpid()) as children:
        print(children.read(), flush=True)
    time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert status_of(pid)["Name"] == "unwinder"
        parent.kill()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not Path(f"/proc/{pid}").exists()


def test_a_file_that_is_cut_off_under_it_ends_it_and_nobody_else(tmp_path: Path) -> None:
    path = tmp_path / "short"
    path.write_bytes(bytes(100))
    with path.open("rb") as file, pytest.raises(UnwinderError, match="ended before its time"):
        table_of(file.fileno(), Frames(offset=0, size_bytes=1 << 20, address=0))


@pytest.mark.parametrize("size", [0, MAX_BYTES + 1])
def test_more_than_it_has_room_for_is_refused(size: int) -> None:
    with holding(b"\0") as (descriptor, _), pytest.raises(UnwinderError):
        table_of(descriptor, Frames(offset=0, size_bytes=size, address=0))


def test_a_large_section_of_nothing_takes_little(tmp_path: Path) -> None:
    """A file without blocks on its disk: terminators, as long as the limit lets it be."""
    with (tmp_path / "sparse").open("w+b") as file:
        file.truncate(MAX_BYTES)
        assert len(table_of(file.fileno(), Frames(offset=0, size_bytes=MAX_BYTES, address=0)).rows) == 0


def test_one_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    before = children()
    with (
        holding(b"\0") as (descriptor, frames),
        pytest.raises(UnwinderError, match="too long"),
        Unwinder(slow, limit_s=0.2).rows(descriptor, frames),
    ):
        pass
    assert children() == before


def test_closing_ends_what_is_under_way(tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    unwinder = Unwinder(slow)
    threading.Timer(0.2, unwinder.close).start()
    began = time.monotonic()
    with holding(b"\0") as (descriptor, frames):
        for _ in range(2):  # under way, and asked for later
            with pytest.raises(UnwinderError), unwinder.rows(descriptor, frames):
                pass
    assert time.monotonic() - began < 30


def test_without_the_program_that_is_said(tmp_path: Path) -> None:
    with (
        holding(b"\0") as (descriptor, frames),
        pytest.raises(UnwinderError, match="cannot start"),
        Unwinder(tmp_path / "missing").rows(descriptor, frames),
    ):
        pass


def test_it_needs_no_library() -> None:
    listed = subprocess.run(["readelf", "-l", PROGRAM], capture_output=True, text=True, check=True).stdout
    assert "INTERP" not in listed and "DYNAMIC" not in listed
