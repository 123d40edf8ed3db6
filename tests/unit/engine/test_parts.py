"""Operations in parts: all rows, each once, alike within a part."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.engine import operation_metrics as module
from otelgpu.engine.operation_metrics import Part, SmallParts, parts_of
from otelgpu.model.operations import OperationKind, Operations
from tests.unit.model.builders import any_calls, calls


def seen(rows: Operations) -> list[bytes]:
    return sorted(row.tobytes() for row in rows)


@given(any_calls(), st.data())
def test_every_row_is_in_the_one_part_that_it_is_like(rows: Operations, data: st.DataObject) -> None:
    rows["tgid"] = data.draw(st.lists(st.integers(1, 3), min_size=len(rows), max_size=len(rows)))
    rows["returned"] = data.draw(st.lists(st.integers(0, 1), min_size=len(rows), max_size=len(rows)))
    before = rows.tobytes()
    ordered, parts, order = parts_of(rows, 5)
    assert rows.tobytes() == before
    assert b"".join(part.rows.tobytes() for part in parts) == ordered.tobytes()
    rows["family"] = 5
    assert rows[order].tobytes() == ordered.tobytes()
    assert seen(ordered) == seen(rows)
    assert len({(part.tgid, part.kind, part.failed) for part in parts}) == len(parts)
    for part in parts:
        assert set(part.rows["tgid"].tolist()) == {part.tgid}
        assert set(part.rows["kind"].tolist()) == {part.kind}
        failed = (part.rows["status"] != 0) & (part.rows["returned"] == 1)
        assert set(failed.tolist()) == {part.failed}


def test_rows_of_a_part_are_in_the_order_of_arrival() -> None:
    _, (launches, waits), _ = parts_of(calls(6, kind=[6, 1, 6, 1, 1, 6]), 0)
    assert launches.rows["start_ns"].tolist() == sorted(launches.rows["start_ns"].tolist())
    assert waits.kind is OperationKind.SYNCHRONIZATION


def test_small_parts_wait_for_more_like_them() -> None:
    small = SmallParts()
    launches = calls(module.WORTH_MEASURING)
    (large,) = parts_of(launches, 0)[1]
    assert small.pass_on([large]) == [large]
    for _ in range(3):
        assert small.pass_on(parts_of(calls(4, kind=[1, 6, 6, 1]), 0)[1]) == []
    assert sorted((part.kind.name, len(part.rows)) for part in small.release()) == [
        ("LAUNCH", 6),
        ("SYNCHRONIZATION", 6),
    ]
    assert small.release() == []


def test_parts_of_different_processes_do_not_wait_together() -> None:
    small = SmallParts()
    small.pass_on(parts_of(calls(2, tgid=[1, 2]), 0)[1])
    found: list[Part] = small.release()
    assert sorted(part.tgid for part in found) == [1, 2]
    assert [len(np.unique(part.rows["tgid"])) for part in found] == [1, 1]
