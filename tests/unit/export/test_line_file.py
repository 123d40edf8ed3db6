"""A file of lines that is appended to and rotated: each line is there whole or not at all, and no more than may be."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.export.base import ExportError
from otelgpu.export.file import FileDestination
from otelgpu.export.file.exporter import FileExporter
from otelgpu.export.file.line_file import NO_ROTATION, LineFile, Rotation, rotated
from otelgpu.export.registry import parse_destination
from tests.rig.examples import examples
from tests.unit.export.builders import spans

SMALL = Rotation(max_bytes=100, max_files=3)
LINE = b"x" * 39 + b"\n"


def line(number: int) -> bytes:
    return f"{number:039}\n".encode()


def opened(folder: Path, rotation: Rotation = SMALL) -> LineFile:
    return LineFile(str(folder / "out"), 0o644, rotation)


def parts(folder: Path) -> list[bytes]:
    return [Path(name).read_bytes() for name in rotated(str(folder / "out"))]


def test_what_finds_no_room_begins_a_new_file_and_the_oldest_goes(tmp_path: Path) -> None:
    file = opened(tmp_path)
    for number in range(9):
        file.append(line(number))
    assert parts(tmp_path) == [line(4) + line(5), line(6) + line(7), line(8)]
    assert sorted(os.listdir(tmp_path)) == ["out", "out.1", "out.2"]


@examples(50)
@given(
    sizes=st.lists(st.integers(1, 60), max_size=40),
    max_bytes=st.integers(60, 200),
    max_files=st.integers(1, 4),
)
def test_the_newest_lines_are_there_whole_in_order_and_within_the_bound(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], max_bytes: int, max_files: int
) -> None:
    folder = tmp_path_factory.mktemp("lines")
    file = opened(folder, Rotation(max_bytes=max_bytes, max_files=max_files))
    lines = [bytes([65 + number % 26]) * (size - 1) + b"\n" for number, size in enumerate(sizes)]
    for each in lines:
        file.append(each)
    found = parts(folder)
    assert all(len(part) <= max_bytes for part in found) and len(found) <= max_files
    assert b"".join(lines).endswith(b"".join(found))
    assert not lines or found[-1].endswith(lines[-1])
    file.close()


def test_a_line_larger_than_a_file_is_refused_and_moves_nothing(tmp_path: Path) -> None:
    file = opened(tmp_path)
    file.append(LINE)
    with pytest.raises(OSError) as caught:
        file.append(b"x" * 100 + b"\n")
    assert caught.value.errno == errno.EFBIG
    assert parts(tmp_path) == [LINE]


def test_a_session_goes_on_where_the_one_before_ended(tmp_path: Path) -> None:
    for number in range(5):
        file = opened(tmp_path)
        file.append(line(number))
        file.close()
    assert parts(tmp_path) == [line(0) + line(1), line(2) + line(3), line(4)]


def test_of_a_rotation_of_more_files_the_oldest_are_removed_and_other_names_are_not(tmp_path: Path) -> None:
    others = {"out.20261129", "out.07", "out.gz", "out.1.gz", "output.3"}
    for name in ("out.2", "out.4", "out.9", *others):  # one that was cut short left a gap
        (tmp_path / name).write_bytes(b"old\n")
    file = opened(tmp_path)
    for number in range(3):
        file.append(line(number))
    assert set(os.listdir(tmp_path)) == {"out", "out.1", "out.2"} | others


def test_a_gap_is_no_end_for_who_reads(tmp_path: Path) -> None:
    for name in ("out", "out.2", "out.10"):
        (tmp_path / name).write_bytes(b"")
    assert [Path(name).name for name in rotated(str(tmp_path / "out"))] == ["out.10", "out.2", "out"]


@pytest.mark.parametrize("rotation", [NO_ROTATION, SMALL])
def test_a_file_that_was_removed_is_made_anew(tmp_path: Path, rotation: Rotation) -> None:
    file = opened(tmp_path, rotation)
    file.append(line(1))
    (tmp_path / "out").unlink()
    file.append(line(2))
    assert parts(tmp_path) == [line(2)]


def test_a_file_that_was_moved_away_keeps_what_it_had(tmp_path: Path) -> None:
    file = opened(tmp_path)
    file.append(line(1))
    (tmp_path / "out").rename(tmp_path / "kept")
    file.append(line(2))
    assert ((tmp_path / "kept").read_bytes(), parts(tmp_path)) == (line(1), [line(2)])


def test_two_that_write_one_file_follow_each_others_rotation(tmp_path: Path) -> None:
    one, other = opened(tmp_path), opened(tmp_path)
    for number in range(5):
        (one, other)[number % 2].append(line(number))
    assert parts(tmp_path) == [line(0) + line(1), line(2) + line(3), line(4)]


def test_what_is_written_where_nobody_will_see_it_is_lost_and_counted(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    exporter = FileExporter(str(folder / "out"))
    exporter.export_spans([spans(1)])
    (folder / "out").unlink()
    folder.rmdir()
    exporter.export_spans([spans(2)])
    folder.mkdir()
    exporter.export_spans([spans(3)])
    stats = exporter.stats()
    assert (stats["spans_accepted"], stats["spans_lost_write_failed"]) == (4, 2)
    assert len((folder / "out").read_bytes().splitlines()) == 1


def test_a_file_that_cannot_be_rotated_grows_no_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, rename = opened(tmp_path), os.rename
    file.append(line(0))
    file.append(line(1))

    def refused(source: Any, target: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "rename", refused)
    with pytest.raises(PermissionError):
        file.append(line(2))
    assert parts(tmp_path) == [line(0) + line(1)]
    monkeypatch.setattr(os, "rename", rename)
    file.append(line(3))
    assert parts(tmp_path) == [line(0) + line(1), line(3)]


def test_a_line_that_a_crash_left_unfinished_is_ended_before_the_next(tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(line(0) + b'{"resourceSpans": [{"resou')
    file = opened(tmp_path, NO_ROTATION)
    file.append(line(1))
    file.append(line(2))
    assert (tmp_path / "out").read_bytes().splitlines(keepends=True)[2:] == [line(1), line(2)]


_WRITER = """
import itertools, sys
from otelgpu.export.file.line_file import LineFile, Rotation
file = LineFile(sys.argv[1], 0o644, Rotation(max_bytes=1 << 16, max_files=4))
for number in itertools.count():
    file.append(b"%d:" % number + b"x" * (number % 900) + b"\\n")
    if number == 3000:
        print("ready", flush=True)
"""


def test_killed_at_any_moment_no_line_is_in_pieces_and_none_is_missing_between(tmp_path: Path) -> None:
    path = str(tmp_path / "out")
    with subprocess.Popen([sys.executable, "-c", _WRITER, path], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None and writer.stdout.readline() == b"ready\n"
        writer.kill()
    content = b"".join(Path(name).read_bytes() for name in rotated(path) if os.path.exists(name))
    *whole, _ = content.split(b"\n")
    numbers = [int(each.partition(b":")[0]) for each in whole]
    assert numbers[-1] >= 3000
    assert numbers == list(range(numbers[0], numbers[-1] + 1))
    assert all(
        len(each.partition(b":")[2]) == number % 900 for number, each in zip(numbers, whole, strict=True)
    )
    after = LineFile(path, 0o644, Rotation(max_bytes=1 << 16, max_files=4))
    after.append(b"after\n")
    assert Path(path).read_bytes().splitlines()[-1] == b"after"


def test_a_full_disk_leaves_whole_lines_in_a_rotation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter = FileExporter(str(tmp_path / "out"), rotation=Rotation(max_bytes=2000, max_files=2))
    write, calls = os.write, iter(range(1000))

    def now_and_then(fd: int, data: Any) -> int:
        number = next(calls)
        if number % 3 == 1:
            return write(fd, bytes(data)[:20])  # then the rest of it:
        if number % 3 == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data)

    monkeypatch.setattr(os, "write", now_and_then)
    for _ in range(20):
        exporter.export_spans([spans(1)])
    found = b"".join(parts(tmp_path)).splitlines()
    assert all(each.startswith(b'{"resourceSpans"') and each.endswith(b"}") for each in found)
    stats = exporter.stats()
    assert (stats["spans_accepted"], stats["spans_lost_write_failed"]) == (10, 10)


@pytest.mark.parametrize(
    ("text", "destination"),
    [
        ("file:a?b", FileDestination("a?b")),
        ("file:a?b?max_bytes=64MiB", FileDestination("a?b", max_bytes=64 << 20)),
        ("file:a?max_bytes=4194304&max_files=2", FileDestination("a", max_bytes=4 << 20, max_files=2)),
        ("file:a?max_files=1&max_bytes=1GiB", FileDestination("a", max_bytes=1 << 30, max_files=1)),
    ],
)
def test_a_rotation_is_written_behind_the_path(text: str, destination: FileDestination) -> None:
    assert parse_destination(text) == destination


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("file:a?max_byte=64MiB", "did you mean 'max_bytes'"),
        ("file:a?max_files=3", "no max_bytes"),
        ("file:a?max_bytes=64MiB&max_file=3", "did you mean 'max_files'"),
        ("file:a?max_bytes=lots", "64MiB"),
        ("file:a?max_bytes=64MiB&max_files=2GiB", "where a number belongs"),
        ("file:a?max_bytes=1KiB", "at least"),
        ("file:a?max_bytes=64MiB&max_files=0", "at least"),
        ("file:a?max_bytes=", "where a number belongs"),
    ],
)
def test_a_rotation_with_a_mistake_is_refused(text: str, says: str) -> None:
    with pytest.raises(ExportError, match=says):
        parse_destination(text)
