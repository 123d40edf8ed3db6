"""The library folds to what numpy does: the same rows, in the same order, whatever the rows."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.engine import folding
from otelgpu.engine.folding import RUNS, Folded, Runs, concatenate, fold, unfolded
from otelgpu.model.ids import mix
from otelgpu.model.operations import OPERATION
from otelgpu.spanwriter.library import library
from tests.rig.examples import examples
from tests.unit.model.builders import calls

LARGEST = {"<u8": (1 << 64) - 1, "<u4": (1 << 32) - 1}
FEW: dict[str, list[int]] = {
    "tid": [101, 101, 102],
    "kind": [0, 1, 1, 1, 3, 4, 18, 19, 20, 64, 67, 65_535],
    "family": [0, 1],
    "api": [0, 1],
    "status": [0, 0, -1],
    "context_source": [0, 3],
    "device": [-1, 0],
    "stream": [0, 1 << 63],
    "name": [0, 1],
    "direction": [0, 1],
    "memory": [0, 1],
    "size_bytes": [0, 48, LARGEST["<u8"]],
    "start_ns": [0, 10, 11, 12, LARGEST["<u8"]],
    "duration_ns": [0, 1, 100, LARGEST["<u8"]],
}
"""Of few values each, so that rows are equal, alike, or differ in one column."""


@pytest.fixture(autouse=True, scope="module")
def built() -> None:
    assert library() is not None, "make bpf builds it"


def some_rows(random: np.random.Generator, count: int, fixed: list[str]) -> Folded:
    """Each of its columns is ``fixed``, or of few values, or in what is compared of no kind, of any."""
    rows = np.frombuffer(random.bytes(count * OPERATION.itemsize), dtype=OPERATION).copy()
    for name in ("grid", "block"):
        rows[name] = random.integers(1, 3, (count, 3)) if name not in fixed else 1
    for name, values in FEW.items():
        rows[name] = values[0] if name in fixed else random.choice(np.array(values, OPERATION[name]), count)
    return unfolded(rows, random.integers(0, 4, count) * random.choice([1, 1000, 1 << 40]))


def folded_before(random: np.random.Generator, rows: Folded) -> Folded:
    """As if each row were of several calls already."""

    def numbers() -> Any:
        return random.choice(np.array([0, 1, 7, LARGEST["<u8"]], dtype=np.uint64), len(rows))

    runs = Runs(
        count=random.integers(1, 5, len(rows)),
        end_ns=numbers(),
        least_ns=numbers(),
        most_ns=numbers(),
        merged=random.integers(0, 2, len(rows)).astype(np.bool_),
    )
    return Folded(operations=rows.operations, group=rows.group, runs=runs)


@st.composite
def works(draw: st.DrawFn) -> Folded:
    random = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    fixed = draw(st.lists(st.sampled_from([*FEW, "grid", "block"]), unique=True))
    rows = some_rows(random, draw(st.integers(1, 300)), fixed)
    return folded_before(random, rows) if draw(st.booleans()) else rows


def by_numpy(work: Folded, **how: Any) -> Folded:
    with patch.object(folding, "library", lambda: None):
        return fold(work, **how)


def told(folded: Folded) -> dict[str, Any]:
    runs = folded.as_runs()
    columns = {name: getattr(runs, name).tolist() for name in Runs.__struct_fields__}
    return {"rows": folded.operations.tobytes(), "group": folded.group.tolist(), **columns}


@examples(150)
@given(works(), st.integers(0, 40), st.booleans(), st.sampled_from([0, 1, 3, RUNS]))
def test_the_library_folds_as_numpy_does(work: Folded, limit: int, runs: bool, many: int) -> None:
    before = told(work)
    with patch.object(folding, "RUNS", many):
        by_library, expected = (how(work, limit=limit, runs=runs) for how in (fold, by_numpy))
        assert told(by_library) == told(expected)
        again = concatenate([by_library, work])
        assert told(fold(again, limit=limit, runs=runs)) == told(by_numpy(again, limit=limit, runs=runs))
    assert told(work) == before


@pytest.mark.parametrize("column", [*FEW, "grid", "block"])
def test_each_column_is_compared_as_numpy_does(column: str) -> None:
    for kind in range(25):
        rows = calls(2, kind=kind)
        rows[column][1] = rows[column][1] + 1
        work = unfolded(rows, np.zeros(2, dtype=np.int64))
        for limit in (0, 10):
            assert told(fold(work, limit=limit)) == told(by_numpy(work, limit=limit)), kind


@pytest.mark.parametrize("stretches", [1, 2, 3, 7, 5000])
def test_many_rows_come_in_the_order_of_time(stretches: int) -> None:
    """Of several stretches that are in order, as decoded; of as many as rows: backwards."""
    starts = np.concatenate([np.arange(5000)[part::stretches] for part in reversed(range(stretches))])
    rows = calls(5000, name=1 + np.arange(5000) % 2, start_ns=starts, tid=starts % 3)
    work = unfolded(rows, np.arange(5000) % 2)
    for limit in (100, 5000):
        assert told(fold(work, limit=limit)) == told(by_numpy(work, limit=limit))
        assert told(fold(work, limit=limit, runs=False)) == told(by_numpy(work, limit=limit, runs=False))


def test_calls_of_as_many_threads_as_there_are_calls() -> None:
    rows = calls(3000, tid=np.arange(3000) * 64 % 2999, start_ns=np.arange(3000) % 7)
    work = unfolded(rows, np.zeros(3000, dtype=np.int64))
    assert told(fold(work, limit=512)) == told(by_numpy(work, limit=512))


def test_calls_of_other_threads_do_not_break_a_run() -> None:
    """Of so many threads that some share a place in the table."""
    groups, threads = 10, RUNS // 2  # torn to pieces they would still be few
    random = np.random.default_rng(1)
    tids = np.concatenate([np.tile(random.permutation(10_000)[:threads], 2) for _ in range(groups)])
    work = unfolded(calls(len(tids), tid=tids), np.arange(groups).repeat(2 * threads))
    assert fold(work, limit=512).count.tolist() == [2] * (groups * threads)


def test_calls_that_differ_are_apart_though_their_hashes_are_equal() -> None:
    """Of so many some have the same 32 bits."""
    rows = np.zeros(400_000, dtype=OPERATION)
    rows["stream"] = mix(np.arange(len(rows), dtype=np.uint64))
    assert len(fold(unfolded(rows, np.zeros(len(rows), dtype=np.int64)), limit=len(rows))) == len(rows)


def test_a_group_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="a group below 0"):
        fold(unfolded(calls(2), np.array([-1, 0])), limit=1)
