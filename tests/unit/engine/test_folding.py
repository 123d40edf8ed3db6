"""Runs of equal calls: exact sums, bounded rows, folded again or not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.engine import folding
from otelgpu.engine.folding import ALIKE, RUNS, SAME, SIZED, Folded, concatenate, fold, take, unfolded
from otelgpu.model.operations import OPERATION, OperationKind, Operations
from tests.unit.model.builders import any_calls, calls


@pytest.fixture(autouse=True, scope="module", params=["library", "numpy"])
def folding_by(request: pytest.FixtureRequest) -> Iterator[None]:
    """Both, one after the other: that they give the same is another test's."""
    found = folding.library() if request.param == "library" else None
    with patch.object(folding, "library", lambda: found):
        yield


LOOPS = st.sampled_from((1, 3, RUNS))
"""So many runs of a group are kept."""


def in_groups(rows: Operations, groups: Iterable[int] | int = 0) -> Folded:
    group = np.broadcast_to(np.asarray(groups, dtype=np.int64), len(rows)).copy()
    return unfolded(rows, group)


def compared(row: np.void, columns: Mapping[str, tuple[OperationKind, ...]]) -> object:
    """What is compared of a call, as its kind has it."""
    return repr([row[name].tolist() for name, kinds in columns.items() if not kinds or row["kind"] in kinds])


def equal_calls(row: np.void) -> object:
    return compared(row, SAME)


def alike_calls(row: np.void) -> object:
    return compared(row, ALIKE)


def sums(folded: Folded) -> dict[object, tuple[int, int, int, int]]:
    """Per (group, alike calls): calls, bytes, host time, last end."""
    found: dict[object, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for i, row in enumerate(folded.operations):
        entry = found[int(folded.group[i]), alike_calls(row)]
        entry[0] += int(folded.count[i])
        entry[1] += int(row["size_bytes"]) if row["kind"] in SIZED else 0
        entry[2] += int(row["duration_ns"])
        entry[3] = max(entry[3], int(folded.end_ns[i]))
    return {key: tuple(entry) for key, entry in found.items()}  # type: ignore[misc]


def naive_runs(rows: Operations, groups: list[int]) -> list[tuple[int, int, int]]:
    """(group, start of the first call, calls) of each run, found by walking each thread of each group."""
    found = []
    threads = defaultdict(list)
    for i in np.argsort(rows["start_ns"], kind="stable"):
        threads[groups[i], int(rows["tid"][i])].append(i)
    for (group, _), members in threads.items():
        last = None
        for i in members:
            if last is not None and equal_calls(rows[i]) == equal_calls(rows[last]):
                found[-1][2] += 1
            else:
                found.append([group, int(rows["start_ns"][i]), 1])
            last = i
    return sorted(tuple(run) for run in found)  # type: ignore[misc]


def test_equal_calls_in_a_row_become_one() -> None:
    folded = fold(in_groups(calls(5, kind=OperationKind.COPY, size_bytes=3)), limit=10)
    assert (len(folded), folded.count.tolist(), folded.merged.tolist()) == (1, [5], [False])
    first = folded.operations[0]
    assert (first["start_ns"], first["duration_ns"], first["size_bytes"]) == (10_000_000, 5_000_000, 15)
    assert folded.end_ns.tolist() == [51_000_000]


def test_another_call_in_between_makes_two_runs() -> None:
    folded = fold(in_groups(calls(5, name=[1, 1, 2, 1, 1])), limit=10)
    assert folded.count.tolist() == [2, 1, 2]


def test_calls_of_another_thread_do_not_break_a_run() -> None:
    folded = fold(in_groups(calls(5, tid=[1, 2, 1, 2, 1])), limit=10)
    assert sorted(zip(folded.operations["tid"].tolist(), folded.count.tolist(), strict=True)) == [
        (1, 3),
        (2, 2),
    ]


def test_runs_do_not_cross_groups() -> None:
    folded = fold(in_groups(calls(4), [0, 0, 1, 1]), limit=10)
    assert (folded.group.tolist(), folded.count.tolist()) == ([0, 1], [2, 2])


@pytest.mark.parametrize("column", SAME)
def test_calls_that_differ_in_any_column_are_apart(column: str) -> None:
    rows = calls(2, kind=(SAME[column] or (OperationKind.LAUNCH,))[0])
    changed = rows[column][1]
    rows[column][1] = changed + 1
    assert len(fold(in_groups(rows), limit=10)) == 2


@pytest.mark.parametrize("column", ["handle", "other", "extra", "caller", "size_bytes"])
def test_what_a_kind_has_in_place_of_a_launchs_columns_does_not_keep_calls_apart(column: str) -> None:
    rows = calls(2, kind=OperationKind.COPY, **{column: [1, 2]})
    assert len(fold(in_groups(rows), limit=10)) == 1


def test_the_shared_memory_of_equal_launches_is_not_added_up() -> None:
    folded = fold(in_groups(calls(3, shared_bytes=48)), limit=10)
    assert folded.operations["shared_bytes"].tolist() == [48]


def test_calls_that_differ_in_one_dimension_only_are_apart() -> None:
    assert len(fold(in_groups(calls(2, grid=[(4, 2, 1), (4, 2, 9)])), limit=10)) == 2


def test_a_long_call_that_began_first_ends_the_run() -> None:
    folded = fold(in_groups(calls(2, start_ns=[10, 20], duration_ns=[100, 1])), limit=10)
    assert folded.end_ns.tolist() == [110]


def test_a_loop_is_a_row_for_each_of_its_calls() -> None:
    layers, kernels = 40, 12
    rows = calls(layers * kernels, name=[1 + number % kernels for number in range(layers * kernels)])
    rows["duration_ns"] = np.arange(len(rows)) + 1
    folded = fold(in_groups(rows), limit=512)
    assert folded.count.tolist() == [layers] * kernels
    assert folded.operations["name"].tolist() == list(range(1, kernels + 1))
    assert folded.operations["start_ns"].tolist() == rows["start_ns"][:kernels].tolist()
    assert folded.end_ns.tolist() == (rows["start_ns"] + rows["duration_ns"])[-kernels:].tolist()
    of_each = rows["duration_ns"].reshape(layers, kernels)
    assert folded.operations["duration_ns"].tolist() == of_each.sum(axis=0).tolist()
    runs = folded.as_runs()
    assert (runs.least_ns.tolist(), runs.most_ns.tolist()) == (of_each[0].tolist(), of_each[-1].tolist())
    assert not folded.merged.any()


def test_in_a_loop_too_calls_of_other_threads_and_with_other_grids_are_apart() -> None:
    rows = calls(4 * RUNS, tid=[1, 1, 2, 2] * RUNS, name=[1, 2] * 2 * RUNS)
    rows["grid"][::8, 0] = 7
    folded = fold(in_groups(rows), limit=512)
    found = sorted(
        zip(*(folded.operations[key].tolist() for key in ("tid", "name")), folded.count.tolist(), strict=True)
    )
    assert found == [(1, 1, RUNS // 2), (1, 1, RUNS // 2), (1, 2, RUNS), (2, 1, RUNS), (2, 2, RUNS)]


def test_a_group_of_few_runs_keeps_them_beside_a_loop() -> None:
    rows = calls(2 * RUNS + 2, name=[1, 2] * (RUNS + 1))
    folded = fold(in_groups(rows, [0] * RUNS + [1] * (RUNS + 2)), limit=512)
    assert np.bincount(folded.group).tolist() == [RUNS, 2]


def test_a_loop_that_goes_on_is_folded_on() -> None:
    parts = [in_groups(calls(2 * RUNS, name=[1, 2] * RUNS)) for _ in range(3)]
    folded = unfolded(calls(0), np.zeros(0, dtype=np.int64))
    for part in parts:
        folded = fold(concatenate([folded, part]), limit=512)
    assert sorted(folded.count.tolist())[-2:] == [3 * RUNS, 3 * RUNS]


def test_beyond_the_limit_equal_calls_are_merged_whatever_lies_between() -> None:
    folded = fold(in_groups(calls(9, name=[1, 2, 3, 1, 2, 1, 2, 1, 2])), limit=3)
    assert folded.count.tolist() == [1, 1, 1, 3, 3]
    assert folded.merged.tolist() == [False, False, False, True, True]


def test_the_earliest_calls_keep_their_detail_whatever_their_thread() -> None:
    rows = calls(6, name=[1, 2, 3, 4, 5, 6], tid=[9, 1, 9, 1, 9, 1])
    folded = fold(in_groups(rows), limit=2)
    assert sorted(folded.operations["name"][~folded.merged].tolist()) == [1, 2]


def test_without_runs_every_call_stays() -> None:
    folded = fold(in_groups(calls(5)), limit=10, runs=False)
    assert folded.count.tolist() == [1] * 5


def test_without_runs_the_limit_holds_too() -> None:
    folded = fold(in_groups(calls(20)), limit=4, runs=False)
    assert (folded.count.tolist(), int(folded.merged.sum())) == ([1, 1, 1, 1, 16], 1)


def test_nothing_folds_to_nothing() -> None:
    assert len(fold(in_groups(calls(0)), limit=3)) == 0


def test_the_limit_is_each_groups_own() -> None:
    rows = calls(8, name=[1, 2, 3, 4, 1, 2, 3, 4])
    folded = fold(in_groups(rows, [0] * 4 + [1] * 4), limit=3)
    for group in (0, 1):
        assert int((~folded.merged[folded.group == group]).sum()) == 3


def groups_for(rows: Operations) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, 2), min_size=len(rows), max_size=len(rows))


@given(st.data(), st.integers(1, 12), st.booleans(), LOOPS)
def test_every_sum_is_exact(data: st.DataObject, limit: int, runs: bool, many: int) -> None:
    rows = data.draw(any_calls())
    work = in_groups(rows, data.draw(groups_for(rows)))
    before = sums(work)
    with patch.object(folding, "RUNS", many):
        folded = fold(work, limit=limit, runs=runs)
    assert sums(folded) == before
    shown = folded.as_runs()
    assert (shown.least_ns * shown.count <= folded.operations["duration_ns"]).all()
    assert (folded.operations["duration_ns"] <= shown.most_ns * shown.count).all()


@given(st.data(), LOOPS)
def test_of_a_loop_no_two_rows_are_of_equal_calls(data: st.DataObject, many: int) -> None:
    rows = data.draw(any_calls())
    groups = data.draw(groups_for(rows))
    with patch.object(folding, "RUNS", many):
        folded = fold(in_groups(rows, groups), limit=1000)
    for group in set(groups):
        mine = [equal_calls(row) for row in folded.operations[folded.group == group]]
        assert len(mine) <= many or len(mine) == len(set(mine))


@given(st.data(), st.integers(1, 12), st.booleans())
def test_folding_in_parts_and_again_keeps_every_sum(data: st.DataObject, limit: int, runs: bool) -> None:
    rows = data.draw(any_calls())
    work = in_groups(rows, data.draw(groups_for(rows)))
    cut = data.draw(st.integers(0, len(rows)))
    parts = [
        fold(take(work, np.arange(*ends)), limit=limit, runs=runs) for ends in ((0, cut), (cut, len(rows)))
    ]
    again = fold(concatenate(parts), limit=limit, runs=runs)
    assert sums(again) == sums(fold(again, limit=limit, runs=runs)) == sums(work)


@given(st.data(), st.integers(1, 12), st.booleans())
def test_at_most_the_limit_and_one_row_for_calls_that_are_alike(
    data: st.DataObject, limit: int, runs: bool
) -> None:
    rows = data.draw(any_calls())
    groups = data.draw(groups_for(rows))
    folded = fold(in_groups(rows, groups), limit=limit, runs=runs)
    for group in set(groups):
        mine = folded.group == group
        assert int((mine & ~folded.merged).sum()) <= limit
        beyond = [alike_calls(row) for row in folded.operations[mine & folded.merged]]
        assert len(beyond) == len(set(beyond))


@given(st.data())
def test_runs_are_those_of_each_thread_in_time(data: st.DataObject) -> None:
    rows = data.draw(any_calls())
    rows["start_ns"] = data.draw(st.permutations(range(len(rows))))  # two calls cannot begin at once
    groups = data.draw(groups_for(rows))
    folded = fold(in_groups(rows, groups), limit=1000)
    starts, counts = folded.operations["start_ns"].tolist(), folded.count.tolist()
    assert sorted(zip(folded.group.tolist(), starts, counts, strict=True)) == naive_runs(rows, groups)


@given(st.data(), st.integers(1, 8))
def test_the_order_of_the_calls_does_not_matter(data: st.DataObject, limit: int) -> None:
    rows = data.draw(any_calls())
    rows["start_ns"] = data.draw(st.permutations(range(len(rows))))
    work = in_groups(rows, data.draw(groups_for(rows)))
    shuffled = take(work, np.array(data.draw(st.permutations(range(len(rows)))), dtype=np.intp))

    def reported(folded: Folded) -> list[tuple[object, ...]]:
        columns = (folded.group, folded.count, folded.end_ns, folded.merged, folded.operations)
        return sorted(tuple(np.asarray(part).tobytes() for part in row) for row in zip(*columns, strict=True))

    assert reported(fold(work, limit=limit)) == reported(fold(shuffled, limit=limit))


def test_the_calls_that_went_in_are_left_as_they_were() -> None:
    rows = calls(6, name=[1, 1, 2, 2, 1, 1])
    before = rows.copy()
    fold(in_groups(rows), limit=1)
    assert rows.tobytes() == before.tobytes()
    assert rows.dtype == OPERATION
