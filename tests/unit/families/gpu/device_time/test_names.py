"""Kernel names put together from their pieces."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.families.gpu.device_time import names as activity_names
from otelgpu.families.gpu.device_time.names import ActivityNames
from otelgpu.model.inputs import Records

PIECE = 176
RECORD = np.dtype(
    [
        ("head", [("tgid", "<u4")]),
        ("name", "<u8"),
        ("offset", "<u2"),
        ("length", "<u2"),
        ("text", "u1", (PIECE,)),
    ]
)


def pieces(name: bytes, number: int = 1, tgid: int = 100) -> Records:
    rows = np.zeros(max(-(-len(name) // PIECE), 1), dtype=RECORD)
    rows["head"]["tgid"], rows["name"], rows["length"] = tgid, number, len(name)
    for i, row in enumerate(rows):
        text = name[i * PIECE : (i + 1) * PIECE]
        row["offset"], row["text"][: len(text)] = i * PIECE, np.frombuffer(text, np.uint8)
    return rows


@given(st.binary(min_size=1, max_size=1000).filter(lambda name: b"\0" not in name))
def test_a_name_of_any_length_comes_back_whole(name: bytes) -> None:
    names = ActivityNames()
    assert names.feed(pieces(name)) == [(100, 1, name.decode("utf-8", "backslashreplace"))]
    assert names.counters == {}


def test_pieces_of_several_processes_may_be_mixed() -> None:
    names = ActivityNames()
    one, two = pieces(b"a" * 300, 1), pieces(b"b" * 300, 1, tgid=200)
    mixed = np.concatenate([one[:1], two[:1], one[1:], two[1:]])
    assert names.feed(mixed) == [(100, 1, "a" * 300), (200, 1, "b" * 300)]


def test_a_gap_is_counted_and_the_next_reporting_is_whole() -> None:
    names = ActivityNames()
    reported = pieces(b"k" * 400)
    assert names.feed(reported[[0, 2]]) == []
    assert names.counters == {"activity_names_with_gaps": 1}
    assert names.feed(reported) == [(100, 1, "k" * 400)]


def test_what_a_hostile_process_says_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity_names, "UNDER_WAY", 4)
    names = ActivityNames()
    for number in range(50):
        row = pieces(b"x" * 300, number)[:1]
        row["length"] = 65535
        assert names.feed(row) == []
    assert names.counters == {"activity_names_given_up": 46}
    empty = pieces(b"")
    assert names.feed(empty) == []
    assert names.counters["activity_names_with_gaps"] == 1


def test_a_process_that_ended_leaves_nothing_for_the_next_of_its_number() -> None:
    names = ActivityNames()
    reported = pieces(b"k" * 300)
    names.feed(reported[:1])
    names.forget_process(100)
    assert names.feed(reported[1:]) == []
