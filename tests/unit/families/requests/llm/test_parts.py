"""The parts of readers by themselves: lines, and compressed bodies."""

from __future__ import annotations

import gzip
import json
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.families.requests.llm.cut_json import MAX_BYTES, closed
from otelgpu.families.requests.llm.inflate import FREE_BYTES, MAX_CHUNK_BYTES, MAX_RATIO, BodyInflater
from otelgpu.families.requests.llm.lines import MAX_LINE_BYTES, LineReader
from otelgpu.families.requests.sse import CUT_BYTES, CutEvent
from tests.rig.examples import examples


def cut(data: bytes, places: set[int]) -> list[bytes]:
    cuts = sorted(places)
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b'{"a":1}\n{"b":2}\n', [b'{"a":1}', b'{"b":2}']),
        (b"a\r\nb\r\n", [b"a", b"b"]),
        (b"\n\n \na\n\n", [b"a"]),
        (b"a\nunfinished", [b"a", b"unfinished"]),
        (b"", []),
    ],
)
def test_lines(stream: bytes, expected: list[bytes]) -> None:
    for parts in ([stream], [stream[i : i + 1] for i in range(len(stream))]):
        reader = LineReader()
        assert [line for part in parts for line in reader.feed(part)] + reader.ended() == expected


@examples(50)
@given(
    st.lists(st.sampled_from([b"a", b"\n", b"\r\n", b" ", b"x" * (MAX_LINE_BYTES - 1), b"x" * 3])),
    st.data(),
)
def test_cuts_change_no_line(parts: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(parts)
    whole, chunks = LineReader(), LineReader()
    expected = whole.feed(stream) + whole.ended()
    places = data.draw(st.sets(st.integers(0, len(stream)), max_size=20))
    got = [line for chunk in cut(stream, places) for line in chunks.feed(chunk)] + chunks.ended()
    assert (got, chunks.too_long) == (expected, whole.too_long)


def test_a_line_that_is_too_long_is_counted_and_not_kept() -> None:
    reader = LineReader()
    for _ in range(100):
        assert reader.feed(b"x" * 16384) == []
        assert len(reader._buffer) <= MAX_LINE_BYTES + 1
    assert reader.feed(b"\nb\n") == [b"b"]
    assert reader.too_long == 1


@pytest.mark.parametrize("step", [1000, 16_384, 200_000])
def test_of_long_lines_the_beginnings_and_the_ends_are_kept(step: int) -> None:
    long = [letter * 99_994 + letter.upper() * 50_000 for letter in (b"b", b"c")]
    stream, reader = b"\n".join([b"a", *long, b"d", b""]), LineReader()
    assert [line for at in range(0, len(stream), step) for line in reader.feed(stream[at : at + step])] == [
        b"a",
        b"d",
    ]
    assert reader.cut == [CutEvent(letter * CUT_BYTES, letter.upper() * CUT_BYTES) for letter in (b"b", b"c")]
    reader.feed(b"e" * 100_000)
    assert reader.is_in_cut
    reader.gap()
    assert reader.feed(b"e\n") == [] and len(reader.cut) == 2 and not reader.is_in_cut


def test_after_a_gap_the_next_whole_line_counts() -> None:
    reader = LineReader()
    assert reader.feed(b'a\n{"b":') == [b"a"]
    reader.gap()
    assert reader.feed(b'1}\n{"c":1}\n') == [b'{"c":1}']


def encoded(encoding: bytes, data: bytes) -> bytes:
    if encoding == b"gzip":
        return gzip.compress(data)
    compressor = zlib.compressobj(wbits=-15 if encoding == b"raw" else 15)
    return compressor.compress(data) + compressor.flush()


@pytest.mark.parametrize("encoding", [b"gzip", b"deflate", b"raw"])
@examples(50)
@given(text=st.binary(max_size=300), data=st.data())
def test_inflated_bytes_do_not_depend_on_cuts(encoding: bytes, text: bytes, data: st.DataObject) -> None:
    body = encoded(encoding, text)
    inflater = BodyInflater(b"gzip" if encoding == b"gzip" else b"deflate")
    places = data.draw(st.sets(st.integers(0, len(body)), max_size=10))
    assert b"".join(chunk for part in cut(body, places) for chunk in inflater.feed(part)) == text
    inflater.ended()
    assert inflater.failure == ""


def test_members_of_a_gzip_body_follow_each_other() -> None:
    inflater = BodyInflater(b"gzip")
    assert b"".join(inflater.feed(gzip.compress(b"ab") + gzip.compress(b"cd"))) == b"abcd"
    inflater.ended()
    assert inflater.failure == ""


def test_a_bomb_ends_early_in_small_chunks() -> None:
    bomb = zlib.compress(bytes(1 << 26))
    inflater = BodyInflater(b"deflate")
    sizes = [len(chunk) for chunk in inflater.feed(bomb)]
    assert max(sizes) <= MAX_CHUNK_BYTES
    assert sum(sizes) <= FREE_BYTES + MAX_RATIO * len(bomb) < 1 << 26
    assert inflater.failure == "inflate_too_large"
    assert list(inflater.feed(bomb)) == []


@examples(50)
@given(st.binary(max_size=200), st.sampled_from([b"gzip", b"deflate"]))
def test_garbage_never_raises(data: bytes, encoding: bytes) -> None:
    inflater = BodyInflater(encoding)
    for part in (data[:7], data[7:]):
        list(inflater.feed(part))
    inflater.gap()
    inflater.ended()
    assert inflater.failure in ("inflate_failed", "inflate_too_large")


JSON_TEXTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def is_part(part: object, whole: object) -> bool:
    """Whether nothing but ends of lists and members of objects are missing."""
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(key in whole and is_part(value, whole[key]) for key, value in part.items())
    if isinstance(part, list) and isinstance(whole, list):
        return len(part) <= len(whole) and all(map(is_part, part, whole))
    return part == whole


@examples(100)
@given(st.dictionaries(st.text(max_size=4), JSON_TEXTS, max_size=4), st.data(), st.booleans())
def test_the_beginning_of_a_json_text_is_closed_into_a_part_of_it(
    value: dict[str, object], data: st.DataObject, escaped: bool
) -> None:
    text = json.dumps(value, ensure_ascii=escaped).encode()
    made = closed(text[: data.draw(st.integers(1, len(text)))])
    assert made is not None
    assert is_part(json.loads(made), value)
    assert closed(text) == text


@examples(300)
@given(st.binary(max_size=64) | st.text('{}[]",:\\a1', max_size=40).map(str.encode))
def test_what_is_no_json_is_closed_into_something_no_longer_than_it_may_be(text: bytes) -> None:
    made = closed(text)
    assert made is None or len(made) <= 2 * len(text)


@pytest.mark.parametrize("text", [b"", b'"a', b"12", b"]", b'{"a":1]', b"x"])
def test_what_has_no_complete_part_is_none(text: bytes) -> None:
    assert closed(text) is None


def test_a_json_text_is_closed_within_bounds() -> None:
    made = closed(b'{"a":[' + b"1," * MAX_BYTES)
    assert made is not None
    assert len(made) <= MAX_BYTES + 2
    assert closed(b"[" * MAX_BYTES) == b"[" * 32 + b"]" * 32
