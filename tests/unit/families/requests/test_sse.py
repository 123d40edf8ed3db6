"""Server-sent events, cut anywhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.families.requests.sse import CUT_BYTES, MAX_EVENT_BYTES, CutEvent, EventReader


def events(*parts: bytes) -> list[bytes]:
    reader = EventReader()
    return [event for part in parts for event in reader.feed(part)]


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"data: a\n\n", [b"a"]),
        (b"data:a\n\ndata:  b\n\n", [b"a", b" b"]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
        (b"data: a\r\rdata: b\r\rx", [b"a", b"b"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b"data: a\rdata: b\n\n", [b"a\nb"]),
        (b": comment\n\n: ping\ndata: a\n\n", [b"a"]),
        (b"event: x\nid: 1\nretry: 2\ndata: a\n\n", [b"a"]),
        (b"event: x\n\n", []),
        (b"data\n\n", [b""]),
        (b"database: a\n\n", []),
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        (b"\n\n\n\ndata: a\n\n\n\n\ndata: b\n\n", [b"a", b"b"]),
        (b"data: unfinished\n", []),
    ],
)
def test_events(stream: bytes, expected: list[bytes]) -> None:
    assert events(stream) == expected
    assert events(*(stream[i : i + 1] for i in range(len(stream)))) == expected


@given(
    st.lists(
        st.sampled_from([b"data: a", b"data:b", b": c", b"x", b"\n", b"\r\n", b"\r", b"\n\n", b"\r\n\r\n"])
    ),
    st.data(),
)
def test_cuts_change_nothing(parts: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(parts) + b"."
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)))))
    assert events(*(stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True))) == events(
        stream
    )


@pytest.mark.parametrize("step", [1000, 16384, 200_000])
def test_an_event_that_is_too_long_is_not_kept_and_counted(step: int) -> None:
    fits, long = b"data: " + b"x" * (MAX_EVENT_BYTES - 6), b"data: " + b"y" * (MAX_EVENT_BYTES - 5)
    stream = b"\n\n".join([b"data: a", fits, long, b"data: b", b""])
    reader = EventReader()
    got = [event for i in range(0, len(stream), step) for event in reader.feed(stream[i : i + step])]
    assert got == [b"a", fits[6:], b"b"]
    assert reader.too_long == 1


def test_memory_is_bounded() -> None:
    reader = EventReader()
    for _ in range(100):
        reader.feed(b"x" * 16384)
    assert len(reader._buffer) <= MAX_EVENT_BYTES + 1
    assert reader.feed(b"\n\ndata: a\n\n") == [b"a"]


def test_a_carriage_return_ends_a_line_between_whole_events_too() -> None:
    assert events(b"data: x\n\n", b"data: a\rdata: b\n\n") == [b"x", b"a\nb"]


def test_after_a_gap_between_events_the_next_may_be_a_tail() -> None:
    reader = EventReader()
    assert reader.feed(b"data: a\n\ndata: b\n\n") == [b"a", b"b"]
    reader.gap()
    assert reader.feed(b"data: c\n\n") == []
    assert reader.feed(b"data: d\n\n") == [b"d"]


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=8))
def test_of_pieces_of_one_event_each_is_whole_or_cut(sizes: list[tuple[int, int]]) -> None:
    """A gap that is in an event, wherever: the event is there, whole or in two parts, and none more."""
    reader, whole, ends = EventReader(), [], []
    for number, (before, after) in enumerate(sizes):
        event = b"data: " + b"x" * before + b"%d" % number + b"y" * after
        whole += reader.feed(event[: 6 + before])
        if number % 2:
            assert reader.gap()
            whole += reader.feed(event[len(event) - after :] + b"\n\n")
            ends.append(CutEvent(b"x" * before, b"y" * after))
        else:
            whole += reader.feed(event[6 + before :] + b"\n\n")
    assert len(whole) == (len(sizes) + 1) // 2
    assert reader.cut == ends
    assert not reader.is_in_cut


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"data: a\n\ndata: b", b"c\n\n"),  # it began behind another
        (b"data: a", b"b\n\ndata: c"),  # another follows
        (b"event: x\nid: 1\n", b"b\n\n"),  # its data is not known
    ],
)
def test_where_a_gap_may_hide_several_events_no_beginning_is_given(before: bytes, after: bytes) -> None:
    reader = EventReader()
    reader.feed(before)
    reader.gap()
    reader.feed(after)
    assert [event.beginning for event in reader.cut] in ([], [b""])


def test_after_a_gap_the_next_whole_event_counts() -> None:
    reader = EventReader()
    assert reader.feed(b"data: a\n\ndata: b") == [b"a"]
    reader.gap()
    assert reader.feed(b"tail of c\n\ndata: d\n\n") == [b"d"]


@pytest.mark.parametrize("step", [1000, 16_384, 70_000, 400_000])
def test_of_long_ones_the_beginnings_and_the_ends_are_kept(step: int) -> None:
    """They begin and end anywhere in the pieces: nothing is missing, so each is told from the next."""
    long = [b"data: " + letter * 99_994 + letter.upper() * 50_000 for letter in (b"b", b"c")]
    stream = b"\n\n".join([b"data: a", b"data: a", *long, b"data: d", b""])
    reader = EventReader()
    got = [event for at in range(0, len(stream), step) for event in reader.feed(stream[at : at + step])]
    assert got == [b"a", b"a", b"d"]
    assert reader.too_long == len(reader.cut) == 2
    for cut, letter in zip(reader.cut, (b"b", b"c"), strict=True):
        assert cut.beginning == letter * (CUT_BYTES - 6)
        assert cut.end.strip(letter.upper()) == b"" and len(cut.end) >= CUT_BYTES // 2
    assert not reader.is_in_cut


@pytest.mark.parametrize("beside", [b"", b"data: a\n\ndata: a\n\n"])
def test_a_gap_in_a_long_one_that_may_be_several_leaves_nothing_of_it(beside: bytes) -> None:
    reader = EventReader()
    reader.feed(beside)
    reader.feed(b"data: " + b"b" * 150_000)
    assert reader.gap() == (not beside)
    reader.feed(b"c" * 150_000)
    assert reader.gap() == (not beside)
    assert reader.feed(b"end\n\n") == []
    assert [(cut.beginning[:1], cut.end) for cut in reader.cut] == ([] if beside else [(b"b", b"end")])
    assert reader.feed(b"data: d\n\n") == [b"d"]
