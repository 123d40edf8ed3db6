"""What open requests have caused: handed over whole, bounded, and counted where not kept."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.engine.attribution import pending as requests
from otelgpu.engine.attribution.pending import PendingOperations
from otelgpu.model.operations import Operations
from otelgpu.model.shares import Headroom
from tests.unit.model.builders import calls


def put(book: PendingOperations[str], *owners: int, tgid: int = 1) -> None:
    """One call per owner."""
    rows = calls(len(owners), size_bytes=np.array(owners, dtype=np.uint64), tgid=tgid)
    book.add(rows, np.array(owners, dtype=np.int64))


def sums(rows: Operations, group: npt.NDArray[np.int64], groups: int) -> npt.NDArray[np.int64]:
    """Totals that count calls, and a weight of ten times the owner."""
    found = np.zeros((groups, 2), dtype=np.int64)
    np.add.at(found, group, np.stack([np.ones(len(rows)), 10 * rows["size_bytes"]], axis=1).astype(np.int64))
    return found


@pytest.fixture
def book() -> PendingOperations[str]:
    return PendingOperations(sums, 2, remembered=3)


def test_a_requests_calls_are_handed_over_once(book: PendingOperations[str]) -> None:
    put(book, 5, 6, 5)
    served = book.take([5])
    assert (served.operations["size_bytes"].tolist(), served.request.tolist()) == ([5, 5], [0, 0])
    assert (served.beyond.tolist(), served.dropped.tolist()) == ([[0, 0]], [0])
    assert (len(book.take([5]).operations), book.held_rows) == (0, 1)


def test_several_requests_are_reported_apart(book: PendingOperations[str]) -> None:
    put(book, 5, 6, 5)
    put(book, 6)
    served = book.take([6, 4, 5])
    reported = sorted(zip(served.operations["size_bytes"].tolist(), served.request.tolist(), strict=True))
    assert reported == [(5, 2), (5, 2), (6, 0), (6, 0)]


def test_nothing_can_be_added_and_taken(book: PendingOperations[str]) -> None:
    put(book)
    served = book.take([])
    assert (len(served.operations), served.beyond.shape, book.held_rows) == (0, (0, 2), 0)


def test_beyond_its_bound_a_requests_calls_are_summed_and_counted(
    book: PendingOperations[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "OPERATIONS_PER_REQUEST", 3)
    put(book, 7, 7)
    put(book, 7, 7, 7, 8)
    served = book.take([7, 8])
    assert (served.request.tolist(), served.dropped.tolist()) == ([0, 0, 0, 1], [2, 0])
    assert served.beyond.tolist() == [[2, 140], [0, 0]]


def test_the_bound_of_all_requests_together(
    book: PendingOperations[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "OPERATIONS_HELD", 8)
    put(book, 1, 1, 1, 2, 2, 2)
    assert book.held_rows == 4
    served = book.take([1, 2])
    assert served.dropped.tolist() == [0, 2]
    put(book, 3, 3)
    assert book.take([3]).dropped.tolist() == [0]


def test_a_process_leaves_as_much_as_it_has_for_others(
    book: PendingOperations[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "OPERATIONS_HELD", 800)
    for key in range(1, 100):
        put(book, *[key] * 10, tgid=1)
    assert book.held_rows == 400
    put(book, *[101] * 150, tgid=2)
    assert book.take([101]).dropped.tolist() == [0]
    put(book, *[102] * 250, tgid=2)
    assert book.take([102]).dropped.tolist() == [50]
    book.take(list(range(1, 100)))
    put(book, *[103] * 300, tgid=1)
    assert book.take([103]).dropped.tolist() == [0]
    assert not book._of_process


def test_while_memory_is_short_there_is_less_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "OPERATIONS_HELD", 800)
    headroom = Headroom()
    book: PendingOperations[str] = PendingOperations(sums, 2, headroom=headroom)
    headroom.steps = 3
    put(book, *[1] * 100)
    assert book.take([1]).dropped.tolist() == [50]


def test_finished_requests_are_remembered_and_the_oldest_forgotten(book: PendingOperations[str]) -> None:
    for key in (1, 2, 3, 4):
        book.remember(key, f"parent {key}" if key != 3 else None)
    assert book.is_finished(np.array([1, 2, 3, 4, 9, 2])).tolist() == [False, True, True, True, False, True]
    assert (book.finished(2), book.finished(3), book.finished(1)) == ("parent 2", None, None)


def test_no_key_is_finished_when_none_is_asked(book: PendingOperations[str]) -> None:
    assert book.is_finished(np.zeros(0, np.int64)).tolist() == []


def test_many_small_chunks_are_joined(book: PendingOperations[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "_CHUNKS", 4)
    for _ in range(20):
        put(book, 5, 6)
        book.take([6])
    assert len(book._chunks) <= 5
    assert book.take([5]).operations["size_bytes"].tolist() == [5] * 20


@given(
    st.lists(
        st.one_of(st.lists(st.integers(1, 4), max_size=8), st.sets(st.integers(1, 5)).map(frozenset)),
        max_size=20,
    )
)
def test_what_went_in_comes_out_or_is_counted(steps: list[list[int] | frozenset[int]]) -> None:
    """Bounds of 5 and 8: kept + dropped, and every sum, are what was added since the last taking."""
    book: PendingOperations[str] = PendingOperations(sums, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(requests, "OPERATIONS_PER_REQUEST", 5)
        patch.setattr(requests, "OPERATIONS_HELD", 8)
        added = dict.fromkeys(range(1, 6), 0)
        for step in steps:
            if isinstance(step, list):
                put(book, *step)
                for owner in step:
                    added[owner] += 1
            else:
                keys = sorted(step)
                served = book.take(keys)
                kept = np.bincount(served.request, minlength=len(keys))
                for i, key in enumerate(keys):
                    assert kept[i] <= 5
                    assert (served.operations["size_bytes"][served.request == i] == key).all()
                    assert kept[i] + served.dropped[i] == added[key]
                    assert served.beyond[i].tolist() == [served.dropped[i], 10 * key * served.dropped[i]]
                    added[key] = 0
            assert 0 <= book.held_rows <= 8
            assert sum(len(chunk.owners) for chunk in book._chunks) <= 2 * book.held_rows
