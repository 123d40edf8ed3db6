"""Inputs that grow: what was appended is read once, wherever a rotation has put it."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest

from otelgpu.store import Store, StoreError, open_inputs
from otelgpu.store.followed import MARGIN_S, FollowedInputs
from tests.unit.store.otlp_spans import START, Rank
from tests.unit.store.parquet_files import ops, row

BEGIN_S = START * 1e-9 - 1


def line(first: int, end: int) -> bytes:
    """What a job of one rank did in these steps."""
    rank = Rank(0, ranks=1)
    for step in range(first, end):
        rank.step(step, host_overhead=0.02)
        rank.collective(step)
    return rank.line()


def steps(store: Store) -> list[int]:
    found = store.connection.sql("SELECT step FROM ops WHERE kind = 'step' ORDER BY ALL").fetchall()
    return [step for (step,) in found]


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "ranks.jsonl"
    path.write_bytes(line(0, 2))
    return path


@pytest.fixture
def followed(lines: Path) -> Iterator[FollowedInputs]:
    """A file that was looked at once."""
    with FollowedInputs([str(lines)]) as inputs:
        assert steps(inputs.look(BEGIN_S)) == [1, 2]
        yield inputs


def append(path: Path, content: bytes) -> None:
    with path.open("ab") as file:
        file.write(content)


def test_only_what_was_appended_is_read(followed: FollowedInputs, lines: Path) -> None:
    with lines.open("r+b") as file:
        file.seek(lines.read_bytes().index(b"host.name"))
        file.write(b"!" * 16)  # whoever reads it again has another host
    append(lines, line(2, 4))
    store = followed.look(BEGIN_S)
    assert steps(store) == [1, 2, 3, 4]
    assert store.connection.sql("SELECT DISTINCT host FROM ops").fetchall() == [("host-0",)]


def test_a_look_finds_what_reading_everything_does(followed: FollowedInputs, lines: Path) -> None:
    append(lines, line(2, 4))
    append(lines, b"no json\n")
    rows = "SELECT * FROM ops ORDER BY ALL"
    followed.look(BEGIN_S)
    store = followed.look(BEGIN_S)  # with nothing new
    with open_inputs([str(lines)]) as whole:
        assert store.connection.sql(rows).fetchall() == whole.connection.sql(rows).fetchall()
        assert (store.rejected, store.limits) == (whole.rejected, whole.limits)


def test_a_line_without_its_end_is_waited_for(followed: FollowedInputs, lines: Path) -> None:
    new = line(2, 3)
    append(lines, new[:100])
    store = followed.look(BEGIN_S)
    assert (steps(store), store.rejected) == ([1, 2], {})
    append(lines, new[100:])
    store = followed.look(BEGIN_S)
    assert (steps(store), store.rejected) == ([1, 2, 3], {})


@pytest.mark.parametrize("name", ["ranks.jsonl.1", "ranks-2026-05-01T12-30-00.000.jsonl"])
def test_the_end_of_a_file_is_read_where_it_was_rotated_to(
    followed: FollowedInputs, lines: Path, name: str
) -> None:
    append(lines, line(2, 3))
    lines.rename(lines.with_name(name))
    lines.write_bytes(line(3, 4))
    store = followed.look(BEGIN_S)
    assert (steps(store), store.rejected) == ([1, 2, 3, 4], {})


@pytest.mark.parametrize("first", [5, 2])
def test_a_file_that_was_cut_and_written_again_is_read_from_its_start(
    followed: FollowedInputs, lines: Path, first: int
) -> None:
    lines.write_bytes(line(first, 6))  # shorter than it was, and longer
    assert steps(followed.look(BEGIN_S)) == [1, 2, *range(first + 1, 7)]


def test_a_file_that_is_gone_within_its_writing_is_counted(followed: FollowedInputs, lines: Path) -> None:
    keeps_its_inode = lines.open("rb")
    lines.unlink()
    lines.write_bytes(line(2, 3))
    with keeps_its_inode:
        store = followed.look(BEGIN_S)
    assert (steps(store), store.rejected) == ([1, 2, 3], {"files_gone": 1})


def test_what_is_older_than_the_window_is_forgotten(followed: FollowedInputs, lines: Path) -> None:
    store = followed.look(BEGIN_S + 2 + MARGIN_S)
    kept = "SELECT (SELECT count(*) FROM otlp_steps) + (SELECT count(*) FROM otlp_calls)"
    assert store.connection.sql(kept).fetchall() == [(0,)]


def test_a_compressed_file_is_read_when_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "ranks.jsonl.gz"
    path.write_bytes(gzip.compress(line(0, 1)))
    with FollowedInputs([str(path)]) as inputs:
        assert steps(inputs.look(BEGIN_S)) == [1]
        path.write_bytes(gzip.compress(line(0, 1)) + gzip.compress(line(1, 2)))
        assert steps(inputs.look(BEGIN_S)) == [1, 2]


def test_files_that_are_written_once_are_there_at_each_look(tmp_path: Path) -> None:
    path = ops(tmp_path / "a.parquet", row(step=3, kind="step"))
    with FollowedInputs([path]) as inputs:
        for _ in range(2):
            store = inputs.look(0)
            assert steps(store) == [3]
        assert len(list(store.folder.glob("input-*"))) == 1


def test_an_input_that_is_not_there_yet_is_there_later(tmp_path: Path) -> None:
    path = tmp_path / "ranks.jsonl"
    with FollowedInputs([str(path)]) as inputs:
        with pytest.raises(StoreError, match="no such file"):
            inputs.look(BEGIN_S)
        path.write_bytes(line(0, 1))
        assert steps(inputs.look(BEGIN_S)) == [1]
