"""Folded stacks are lines that every flame graph tool reads, whatever frames are called; and are read again."""

from __future__ import annotations

import re

import pytest

from otelgpu.model.profiles import FrameType
from otelgpu.render.folded import folded, read_folded
from tests.unit.render.profile_columns import GPU, HOSTILE, profile


def test_each_stack_is_a_line_root_first() -> None:
    batch = profile({("main", "py:generate:42", "k:vfs_write"): 17, ("main",): 2})
    assert folded([batch]).decode().splitlines() == ["main 2", "main;generate (model.py:42);vfs_write_[k] 17"]


def test_equal_stacks_of_all_intervals_are_one_line() -> None:
    assert folded([profile({("a",): 1}), profile({("a",): 2})]) == b"a 3\n"


def test_several_types_are_reported_apart_by_a_first_frame() -> None:
    lines = folded([profile({("a",): 1}), profile({("a", "gpu:k"): 2}, type_=GPU)]).decode().splitlines()
    assert lines == ["cpu (nanoseconds);a 1", "gpu_kernel_time (nanoseconds);a;GPU: k 2"]


@pytest.mark.parametrize("hostile", [*HOSTILE, "a\nb 5\nc", "x;y", " ", "\x85"])
def test_a_name_ends_no_frame_and_no_line(hostile: str) -> None:
    text = folded([profile({("main", hostile, "leaf"): 5})]).decode()
    assert re.fullmatch(r"main;[^;\n\r]+;leaf 5\n", text)
    assert len(text.splitlines()) == 1


def test_what_was_written_is_read_as_the_same_stacks() -> None:
    batch = profile({("main", "py:generate:42", "k:vfs_write"): 17, ("main", "gpu:flash"): 2})
    [read], unreadable = read_folded(folded([batch]))
    assert unreadable == 0
    assert folded([read]) == folded([batch])
    kinds = {read.functions[each.lines[0].function].name: each.frame_type for each in read.locations}
    assert kinds == {
        "main": FrameType.NATIVE,
        "generate": FrameType.PYTHON,
        "vfs_write": FrameType.KERNEL,
        "flash": FrameType.GPU,
    }


def test_several_types_are_read_as_such() -> None:
    batches = [profile({("a",): 1}), profile({("a", "gpu:k"): 2}, type_=GPU)]
    read, _ = read_folded(folded(batches))
    assert [batch.sample_type for batch in read] == [batch.sample_type for batch in batches]
    assert folded(read) == folded(batches)


def test_lines_of_which_some_say_no_type_are_of_one() -> None:
    [read], _ = read_folded(b"cpu (nanoseconds);a 1\nb 2\n")
    assert (read.sample_type.type, read.value.tolist()) == ("samples", [1, 2])


def test_lines_that_are_none_are_counted() -> None:
    read, unreadable = read_folded(
        b"a;b 1\nno number\n\n# comment\na -3\na 99999999999999999999\n\xff 2\n 7\n"
    )
    assert unreadable == 4
    assert [batch.value.tolist() for batch in read] == [[1, 2]]


def test_an_empty_file_holds_nothing() -> None:
    assert read_folded(b"") == ([], 0)
    assert folded([]) == b""
