"""``open_inputs``: what a command line names becomes tables."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from otelgpu.store import Store, StoreError, open_inputs
from tests.unit.store.otlp_spans import job
from tests.unit.store.parquet_files import ops, row, rows


def test_columns_that_a_file_lacks_have_their_defaults(tmp_path: Path) -> None:
    path = ops(tmp_path / "a.parquet", "SELECT 1 AS step, 0 AS rank, 'compute' AS kind, 1.0 AS t0, 2.0 AS t1")
    with open_inputs([path]) as store:
        assert rows(store) == [("", 1, 0, "", "", "", 0, "compute", "", "", -1, 0, 1.0, 2.0, 0)]
        assert not store.rejected


def test_files_folders_and_globs_are_read_once_each(tmp_path: Path) -> None:
    nested = tmp_path / "job" / "host-1"
    nested.mkdir(parents=True)
    one = ops(nested / "it's [1]*.parquet", row(rank=1))
    two = ops(tmp_path / "job" / "b.parquet", row(rank=2))
    for inputs in (
        [one, two],
        [str(tmp_path / "job")],
        [str(tmp_path / "*")],
        [one, str(tmp_path / "j*"), two],
    ):
        with open_inputs(inputs) as store:
            assert [each[2] for each in rows(store)] == [1, 2]


def test_a_file_is_read_with_those_that_it_was_rotated_to(tmp_path: Path) -> None:
    newest = tmp_path / "ranks.jsonl"
    for path, rank in zip(
        (newest, tmp_path / "ranks.jsonl.1", tmp_path / "ranks.jsonl.2"), job(3), strict=True
    ):
        path.write_bytes(rank.line())
    with open_inputs([str(newest)]) as store:
        assert {each[2] for each in rows(store)} == {0, 1, 2}


def test_an_input_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no such file"):
        open_inputs([str(tmp_path / "none")])


def test_a_pipe_is_an_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StoreError, match="no file or folder"):
        open_inputs([str(tmp_path / "pipe")])


def test_what_is_no_input_is_counted(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "notes.txt").write_text("the loss went up")
    (tmp_path / "cut.parquet").write_bytes(b"PAR1 and no more")
    ops(tmp_path / "other.parquet", "SELECT 1 AS a")
    with open_inputs([str(tmp_path)]) as store:
        assert rows(store) == []
        assert store.rejected == {
            "files_empty": 1,
            "files_unrecognised": 1,
            "files_unreadable": 1,
            "files_of_other_columns": 1,
        }


def test_one_job_and_a_part_of_its_time_are_chosen(tmp_path: Path) -> None:
    path = ops(
        tmp_path / "a.parquet", *(row(job=job, t0=t0, t1=t0 + 9) for job in ("x", "it's") for t0 in (1, 2, 3))
    )
    with open_inputs([path], job="it's", begin_s=2, end_s=3) as store:
        assert [(each[0], each[12]) for each in rows(store)] == [("it's", 2.0)]


def test_what_was_made_is_removed(tmp_path: Path) -> None:
    with open_inputs([ops(tmp_path / "a.parquet", row())]) as store:
        assert store.folder.is_dir()
    assert not store.folder.exists()


def test_without_duckdb_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(StoreError, match=r"pip install 'otelgpu\[diagnose\]'"):
        Store()
