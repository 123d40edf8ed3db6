"""Operations under the spans that their processes published."""

from __future__ import annotations

import numpy as np

from otelgpu.engine.folding import Parents, unfolded
from otelgpu.engine.operation_spans import published_parents, under_published
from otelgpu.model.context_sources import IS_PUBLISHED, ContextSource
from tests.unit.model.builders import calls

ONE, TWO = (b"1" * 16, b"a" * 8), (b"1" * 16, b"b" * 8)


def published(*contexts: tuple[bytes, bytes] | None, flags: int = 1):  # type: ignore[no-untyped-def]
    rows = calls(len(contexts))
    for row, context in enumerate(contexts):
        if context is not None:
            rows["trace_id"][row] = np.frombuffer(context[0], np.uint8)
            rows["span_id"][row] = np.frombuffer(context[1], np.uint8)
            rows["trace_flags"][row] = flags
            rows["context_source"][row] = ContextSource.THREAD_CONTEXT
    return rows


def parents(count: int) -> Parents:
    return Parents(
        trace_id=np.full((count, 16), 9, np.uint8),
        span_id=np.arange(count * 8, dtype=np.uint8).reshape(count, 8),
        flags=np.ones(count, np.uint32),
    )


def test_each_goes_under_its_own() -> None:
    moved = under_published(unfolded(published(ONE, None, TWO, ONE), np.array([0, 1, 1, 0])), parents(2))
    work, joined = moved.folded, moved.parents
    spans = [joined.span_id[group].tobytes() for group in work.group.tolist()]
    assert spans == [ONE[1], parents(2).span_id[1].tobytes(), TWO[1], ONE[1]]
    assert [joined.trace_id[group].tobytes() for group in work.group[[0, 2]].tolist()] == [ONE[0], TWO[0]]
    assert moved.origin[work.group].tolist() == [0, 1, 1, 0]


def test_what_nobody_published_stays() -> None:
    given = unfolded(published(None, None), np.array([0, 1]))
    moved = under_published(given, before := parents(2))
    assert moved.folded is given and moved.parents is before


def test_an_unsampled_span_has_no_children() -> None:
    rows = published(ONE, TWO, None, flags=0)
    work = under_published(unfolded(rows, np.array([0, 0, 0])), parents(1)).folded
    assert len(work) == 1 and work.group.tolist() == [0]


def test_the_parents_are_as_many_as_the_spans() -> None:
    rows = published(*[ONE, TWO] * 50)
    found, group = published_parents(rows)
    assert len(found.flags) == 2
    assert [found.span_id[g].tobytes() for g in group.tolist()] == [ONE[1], TWO[1]] * 50
    assert IS_PUBLISHED[rows["context_source"]].all()


def test_a_span_of_another_trace_is_another_parent() -> None:
    other = (b"2" * 16, ONE[1])
    found, group = published_parents(published(ONE, other))
    assert len(set(group.tolist())) == 2
    assert {trace.tobytes() for trace in found.trace_id} == {ONE[0], other[0]}
