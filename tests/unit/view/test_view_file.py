"""Files are read in pieces of bounded memory, and what is not read is reported."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.cli.view_file import Follower, Limits, batches
from otelgpu.store.line_files import read_piece, whole_rotations
from tests.rig.examples import examples
from tests.unit.view.otlp_lines import span, traces
from tests.unit.view.page_program import PageProgram

SMALL = Limits(piece=4096, newest=1 << 20)


def spans_of(reported: dict[str, Any]) -> int:
    return int(len(reported["spans"]["start"]) > 1)


def counters(columns: list[dict[str, Any]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for each in columns:
        total.update(each["counters"])
    return total


def names(program: PageProgram, columns: list[dict[str, Any]]) -> list[str]:
    found: list[str] = program.ask("model.ids.map((_, row) => model.name(row))", columns)
    return found


def test_of_a_file_that_was_rotated_all_parts_are_read_and_the_newest_first_where_not_all_fit(
    tmp_path: Path,
) -> None:
    path, each = tmp_path / "out.jsonl", traces(span(1))
    for name, count in (("out.jsonl.2", 3), ("out.jsonl.1", 5), ("out.jsonl", 2)):
        (tmp_path / name).write_bytes(each * count)
    assert counters([*batches(path, SMALL)])["lines"] == 10
    fits = Limits(piece=4096, newest=len(each) * 6)
    found = counters([*batches(path, fits)])
    assert (found["lines"], found["bytes_before"]) == (6, len(each) * 4)
    least = counters([*batches(path, Limits(piece=4096, newest=len(each)))])
    assert (least["lines"], least["bytes_before"]) == (1, len(each) * 9)


def test_parts_of_a_rotation_that_are_named_too_are_read_once(tmp_path: Path) -> None:
    for name in ("a", "a.1", "a.2", "b"):
        (tmp_path / name).touch()
    named = [tmp_path / name for name in ("a", "a.1", "b")]
    assert [each.name for each in whole_rotations(named)] == ["a.2", "a.1", "a", "b"]


@examples(100)
@given(
    lines=st.lists(st.binary(max_size=20).map(lambda line: line.replace(b"\n", b"")), max_size=12),
    limit=st.integers(21, 60),
    ends=st.booleans(),
)
def test_pieces_hold_every_line_once(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], limit: int, ends: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "lines"
    path.write_bytes(b"\n".join(lines) + (b"\n" if ends else b""))
    found, at = [], 0
    with path.open("rb") as file:
        while True:
            piece = read_piece(file, at, limit)
            found += piece.lines
            assert not piece.cut
            if piece.rest or piece.next == at:
                found += [piece.rest] if piece.rest else []
                break
            at = piece.next
    assert [line for line in found if line] == [line for line in lines if line]


def test_a_line_longer_than_a_piece_is_passed_over_and_reported(program: PageProgram, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(traces(span(1, "first")) + traces(span(2, "x" * 9000)) + traces(span(3, "last")))
    columns = list(batches(path, SMALL))
    assert names(program, columns) == ["first", "last"]
    assert counters(columns)["lines_cut"] == 1


def test_the_newest_part_of_a_long_file_is_read_and_the_rest_reported(
    program: PageProgram, tmp_path: Path
) -> None:
    path = tmp_path / "x.jsonl"
    lines = [traces(span(number, f"span {number}")) for number in range(1, 200)]
    path.write_bytes(b"".join(lines))
    columns = list(batches(path, Limits(piece=4096, newest=sum(map(len, lines[-50:])))))
    assert names(program, columns) == [f"span {number}" for number in range(150, 200)]
    assert counters(columns)["bytes_before"] == sum(map(len, lines[:-50]))


@pytest.mark.parametrize(
    ("end", "unfinished", "read"),
    [(b"", 0, 1), (b'{"resourceSpans": [', 1, 1), (traces(span(2)).rstrip(), 0, 2)],
)
def test_a_last_line_that_is_not_finished_is_reported(
    tmp_path: Path, end: bytes, unfinished: int, read: int
) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(traces(span(1)) + end)
    reported = counters(list(batches(path, Limits())))
    assert (reported["line_unfinished"], reported["lines"], reported["lines_unreadable"]) == (
        unfinished,
        read,
        0,
    )


def test_memory_is_that_of_a_piece_not_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    line = traces(*(span(number) for number in range(1, 20)))

    def peak(times: int) -> int:
        path.write_bytes(line * times)
        tracemalloc.start()
        for _ in batches(path, Limits(piece=1 << 16)):
            pass
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    assert peak(400) < 1.5 * peak(50)  # 2 MB of file against 16


# -- a file that grows -----------------------------------------------------------------------------------


def test_a_follower_gives_each_line_once(program: PageProgram, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    follower = Follower(path, SMALL)
    assert follower.answer("") == {"at": "", "waiting": True}
    path.write_bytes(traces(span(1, "a")) + traces(span(2, "b"))[:30])
    first = follower.answer("")
    assert (names(program, [first["batch"]]), first["restart"], first["more"]) == (["a"], False, False)
    assert "batch" not in follower.answer(first["at"])
    with path.open("ab") as file:
        file.write(traces(span(2, "b"))[30:] + traces(span(3, "c")))
    second = follower.answer(first["at"])
    assert names(program, [second["batch"]]) == ["b", "c"]
    assert "batch" not in follower.answer(second["at"])


def test_a_follower_says_when_there_is_more_at_once(program: PageProgram, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"".join(traces(span(number, str(number))) for number in range(1, 60)))
    follower, place, reported, answers = Follower(path, SMALL), "", [], 0
    more = True
    while more:
        answer = follower.answer(place)
        reported.append(answer["batch"])
        place, more, answers = answer["at"], answer["more"], answers + 1
    assert answers > 2
    assert names(program, reported) == [str(number) for number in range(1, 60)]


@pytest.mark.parametrize("how", ["replaced", "cut short"])
def test_a_file_that_is_another_is_begun_anew(program: PageProgram, tmp_path: Path, how: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(traces(span(1, "old"), span(2, "old")))
    follower = Follower(path, SMALL)
    place = follower.answer("")["at"]
    if how == "replaced":
        (tmp_path / "new").write_bytes(traces(span(3, "new"), span(4, "new"), span(5, "new")))
        (tmp_path / "new").replace(path)
    else:
        path.write_bytes(traces(span(3, "new")))
    answer = follower.answer(place)
    assert answer["restart"]
    assert set(names(program, [answer["batch"]])) == {"new"}


@pytest.mark.parametrize("place", ["x", "1:2:-5", "1:2:99999999999999999999", "::", "٣:٣:٣", "0:0:0"])
def test_a_place_that_nobody_gave_begins_anew(tmp_path: Path, place: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(traces(span(1)))
    answer = Follower(path, SMALL).answer(place)
    assert answer["restart"]
    assert answer["batch"]["counters"] == {"lines": 1}
