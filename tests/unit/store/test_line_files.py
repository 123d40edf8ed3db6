"""Lines are whole however their bytes come in, and none is longer than what may be held."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.store.files import BrokenFile, content, pieces
from otelgpu.store.line_files import split_lines


@given(st.lists(st.text(alphabet="ab\n", max_size=12).map(str.encode)), st.integers(1, 30))
def test_lines_do_not_depend_on_the_pieces_that_they_come_in(parts: list[bytes], limit: int) -> None:
    lines = b"".join(parts).split(b"\n")
    wanted = [None if len(line) > limit else line for line in lines]
    assert list(split_lines(parts, limit)) == (wanted if lines[-1] else wanted[:-1])


def test_what_was_compressed_and_cut_off_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "cut.gz"
    whole = b"".join(b"%d\n" % number for number in range(200_000))
    packed = gzip.compress(whole)
    path.write_bytes(packed[: len(packed) // 2])
    read: list[bytes] = []
    with pytest.raises(BrokenFile):
        read.extend(pieces(path, 1 << 16))
    assert read
    assert whole.startswith(b"".join(read))


def test_a_file_that_is_larger_than_what_may_be_held_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(bytes(20 << 20)))
    with pytest.raises(BrokenFile, match="longer than 4194304 bytes"):
        content(path, 4 << 20)
