"""Family file on the live kernel: every call on a file, with its bytes and outcome, and none on anything else."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from otelgpu.families.profiles.storage.decode import FileDecoder
from otelgpu.model.files import FileCall
from otelgpu.model.inputs import Batch
from otelgpu.sources.capture import CaptureReader
from tests.kernel.observing import run_otelgpu

PROGRAM = """
import os, socket, sys
folder = sys.argv[1]
name = os.path.join(folder, "mine." + "x" * 80)
fd = os.open(name, os.O_RDWR | os.O_CREAT)
for _ in range(7):
    os.write(fd, bytes(1000))
os.pwrite(fd, bytes(10), 3)
os.writev(fd, [bytes(5), bytes(6)])
os.fsync(fd)
os.fdatasync(fd)
os.lseek(fd, 0, os.SEEK_SET)
for _ in range(5):
    os.read(fd, 100)
os.pread(fd, 50, 0)
os.preadv(fd, [bytearray(20), bytearray(20)], 0)
only = os.open(name, os.O_RDONLY)
try:
    os.write(only, b"refused")
except OSError:
    pass
ends = os.pipe()
here, there = socket.socketpair()
for _ in range(3):
    os.write(ends[1], b"no file")
    os.read(ends[0], 7)
    os.write(here.fileno(), b"no file")
    os.read(there.fileno(), 7)
"""


def calls_of(
    tmp_path: Path, slow_ms: str, monkeypatch: pytest.MonkeyPatch
) -> Counter[tuple[str, str, int, int]]:
    """(file, call, bytes, status) of a run of the program → how often."""
    monkeypatch.setenv("OTELGPU_FILE_SLOW_MS", slow_ms)
    capture = tmp_path / f"{slow_ms}.capture"
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    ended = run_otelgpu("record", "--families=file", f"-o{capture}", "--", *command)
    assert ended.returncode == 0, ended.stderr
    decoder, found = FileDecoder(), Counter[tuple[str, str, int, int]]()
    for item in CaptureReader(capture):
        if isinstance(item, Batch) and item.family == "file":
            calls = decoder.files(item)
            for row in calls.rows:
                name = calls.names[int(row["handle"])]
                found[name, FileCall(row["api"]).name, int(row["size_bytes"]), int(row["status"])] += 1
    return found


def test_each_call_on_a_file_is_reported_and_no_other(
    kernel: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = calls_of(tmp_path, "0", monkeypatch)
    name = ("mine." + "x" * 80)[:63]
    assert {call[1:]: count for call, count in found.items() if call[0] == name} == {
        ("WRITE", 1000, 0): 7,
        ("WRITE", 10, 0): 1,
        ("WRITE", 11, 0): 1,
        ("WRITE", 0, -9): 1,  # EBADF
        ("SYNC", 0, 0): 2,
        ("READ", 100, 0): 5,
        ("READ", 50, 0): 1,
        ("READ", 40, 0): 1,
    }
    assert 7 not in {size for _, _, size, _ in found}


def test_what_is_quicker_than_asked_for_is_not_reported(
    kernel: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not calls_of(tmp_path, "60000", monkeypatch)
