"""Rows and ranks that cannot be are left out and counted, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from otelgpu.store import open_inputs
from otelgpu.store.reasons import CALLS_PENDING
from otelgpu.store.row_checks import CHECKS
from tests.unit.store.parquet_files import ops, row, rows

WRONG: dict[str, list[dict[str, Any]]] = {
    "rows_incomplete": [{"step": None}, {"rank": None}, {"kind": None}, {"t0": None}, {"t1": None}],
    "ranks_invalid": [{"rank": -1}],
    "steps_invalid": [{"step": -2}],
    "kinds_unknown": [{"kind": "gpu"}, {"kind": "COMPUTE"}, {"kind": ""}],
    "times_invalid": [{"t0": "nan"}, {"t1": "inf"}, {"t0": "-inf"}],
    "times_reversed": [{"t0": 2, "t1": 1.999999}],
    "times_not_in_seconds": [
        {"t0": 1_700_000_000_000, "t1": 1_700_000_000_001},  # milliseconds
        {"t0": 1_700_000_000_000_000_000, "t1": 1_700_000_000_001_000_000},  # nanoseconds
        {"t0": 0, "t1": 8_000_000},  # nanoseconds from 0
    ],
    "sizes_invalid": [{"bytes": -1}, {"n": -1}, {"unit": -1}, {"seq": -2}],
}


def test_every_check_has_an_example() -> None:
    assert WRONG.keys() == CHECKS.keys() - {CALLS_PENDING}  # which files may have: test_parquet.py


@pytest.mark.parametrize(
    ("reason", "wrong"), [(reason, each) for reason in WRONG for each in WRONG[reason]], ids=str
)
def test_a_row_that_cannot_be_is_counted(tmp_path: Path, reason: str, wrong: dict[str, Any]) -> None:
    with open_inputs([ops(tmp_path / "a.parquet", row(**wrong), row(rank=7))]) as store:
        assert [each[2] for each in rows(store)] == [7]
        assert store.rejected == {reason: 1}
        assert store.limits == ["rows whose times are not in seconds: 1"] * (reason == "times_not_in_seconds")


def steps(
    length: float, *, rank: int = 0, host: str = "h", begin: float = 0.0, count: int = 10
) -> Iterator[str]:
    """Steps of a rank, each with a kernel that takes a hundredth of it."""
    for step in range(count):
        t0 = begin + step * length
        common = {"rank": rank, "host": host, "step": step, "t0": t0}
        yield row(kind="step", t1=t0 + length, **common)
        yield row(t1=t0 + length / 100, **common)


def test_a_rank_whose_steps_take_hours_is_not_in_seconds(tmp_path: Path) -> None:
    path = ops(tmp_path / "a.parquet", *steps(0.5), *steps(0.5e5, rank=1))  # rank 1 in units of 10 µs
    with open_inputs([path]) as store:
        assert {each[2] for each in rows(store)} == {0}
        assert store.rejected == {"times_not_in_seconds": 20}
        assert store.limits == [
            "the times of rank 1 of j are not in seconds: the median step would take more than an hour"
        ]


def test_a_rank_that_waits_for_hours_once_stays(tmp_path: Path) -> None:
    hang = row(rank=1, step=9, kind="coll", t0=4.6, t1=80_000)
    with open_inputs([ops(tmp_path / "a.parquet", *steps(0.5), *steps(0.5, rank=1), hang)]) as store:
        assert len(rows(store)) == 41
        assert not store.rejected


def test_two_jobs_that_share_a_name_are_not_added_up(tmp_path: Path) -> None:
    path = ops(tmp_path / "a.parquet", *steps(0.5), *steps(0.5, host="other"), *steps(0.5, rank=1))
    with open_inputs([path]) as store:
        assert {each[2] for each in rows(store)} == {1}
        assert store.rejected == {"ranks_on_two_hosts": 40}
        assert store.limits == ["rank 0 of j had two hosts in one step: two jobs share the name"]


def test_a_rank_that_was_moved_to_another_host_stays(tmp_path: Path) -> None:
    moved = (row(host="other", step=step, t0=step * 0.5, t1=step * 0.5 + 0.1) for step in range(10, 20))
    back = (row(host="h", step=step, t0=step * 0.5, t1=step * 0.5 + 0.1) for step in range(20, 30))
    with open_inputs([ops(tmp_path / "a.parquet", *steps(0.5), *moved, *back)]) as store:
        assert len(rows(store)) == 40
        assert not store.rejected
