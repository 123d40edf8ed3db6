"""Header blocks: the same fields as the hpack package and the conformance stories give, and what is unknown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hpack import Decoder, Encoder
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.families.requests.http2.hpack_reader import (
    MAX_LIST_BYTES,
    MAX_TABLE_BYTES,
    Field,
    HpackError,
    HpackReader,
)
from tests.rig.examples import examples

STORIES = json.loads((Path(__file__).parent / "data" / "hpack_stories.json").read_text())["stories"]

NAMES = st.sampled_from([b":path", b":method", b"user-agent", b"x-a", b"x-b", b"grpc-status"])
VALUES = st.one_of(
    st.sampled_from([b"/", b"GET", b"a", b"0"]), st.binary(max_size=60), st.just(b"long" * 300)
)
BLOCKS = st.lists(
    st.tuples(
        st.lists(st.tuples(NAMES, VALUES, st.booleans()), max_size=8),
        st.booleans(),  # Huffman
        st.sampled_from([None, None, None, 0, 64, 256, 4096]),  # a change of the table's size
    ),
    min_size=1,
    max_size=12,
)


def encode(blocks: list[tuple[list[tuple[bytes, bytes, bool]], bool, int | None]]) -> list[bytes]:
    encoder, encoded = Encoder(), []
    for fields, huffman, size in blocks:
        if size is not None:
            encoder.header_table_size = size
        encoded.append(encoder.encode(fields, huffman=huffman))
    return encoded


def agrees(read: Field, truth: tuple[bytes, bytes]) -> bool:
    return all(part is None or part == whole for part, whole in zip(read, truth, strict=True))


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story["story"])
def test_conformance_stories(story: dict) -> None:
    reader = HpackReader()
    for wire, fields in story["cases"]:
        assert reader.read(bytes.fromhex(wire)) == [(name.encode(), value.encode()) for name, value in fields]
        assert not reader.unknown and not reader.truncated


@examples(50)
@given(BLOCKS)
def test_same_fields_as_the_hpack_package(blocks: list) -> None:
    decoder, reader = Decoder(), HpackReader()
    for block in encode(blocks):
        assert reader.read(block) == [tuple(field) for field in decoder.decode(block, raw=True)]


@examples(50)
@given(BLOCKS, st.integers(0, 11))
def test_late_reader_is_never_wrong_and_counts_what_it_does_not_know(blocks: list, missed: int) -> None:
    reader = HpackReader(late=True)
    for block, (fields, _, _) in list(zip(encode(blocks), blocks, strict=True))[missed:]:
        read = reader.read(block)
        assert len(read) == len(fields)
        assert all(agrees(got, field[:2]) for got, field in zip(read, fields, strict=True))
        assert reader.unknown == sum(None in field for field in read)


@examples(50)
@given(BLOCKS, st.integers(0, 11))
def test_late_reader_knows_every_block_that_was_added_by_its_own_time(blocks: list, missed: int) -> None:
    """Once the sender has emptied its table, nothing is unknown any more."""
    encoder = Encoder()
    for fields, huffman, _ in blocks[:missed]:
        encoder.encode(fields, huffman=huffman)
    encoder.header_table_size = 0
    encoder.encode([])
    encoder.header_table_size = 4096
    reader = HpackReader(late=True)
    for number, (fields, huffman, _) in enumerate(blocks[missed:]):
        block = encoder.encode(fields, huffman=huffman)
        if not number:
            block = b"\x20" + block
        assert reader.read(block) == [field[:2] for field in fields]


def test_newer_entries_are_known_on_a_connection_found_open() -> None:
    reader = HpackReader(late=True)
    assert reader.read(b"\xbe") == [(None, None)]
    assert reader.read(b"\x44\x02/a") == [(b":path", b"/a")]
    assert reader.read(b"\xbe\xbf\x7f\x00\x01b") == [(b":path", b"/a"), (None, None), (None, b"b")]
    assert reader.unknown == 2


def test_a_missed_block_leaves_only_what_comes_after_it() -> None:
    reader = HpackReader()
    reader.read(b"\x44\x02/a")
    reader.lose()
    assert reader.read(b"\xbe") == [(None, None)]
    assert reader.read(b"\x44\x02/b\xbe") == [(b":path", b"/b")] * 2


def test_evictions_heal_a_table_of_known_size() -> None:
    """What evicts known entries has evicted unknown ones before: an index beyond is an error again."""
    reader = HpackReader(late=True)
    reader.read(b"\x3f\x21")  # size 64: one entry of 34 bytes, not two
    reader.read(b"\x44\x02/a" * 2)
    with pytest.raises(HpackError):
        reader.read(b"\xbf")


def test_an_entry_larger_than_the_table_empties_it() -> None:
    decoder, reader = Decoder(), HpackReader()
    large = Encoder().encode([(b"x-large", b"\x00" * 5000)], huffman=False)
    for block in (b"\x44\x02/a", large):
        assert reader.read(block) == [tuple(field) for field in decoder.decode(block, raw=True)]
    with pytest.raises(HpackError):
        reader.read(b"\xbe")


def test_nobody_can_say_what_a_large_entry_does_to_a_table_of_unknown_size() -> None:
    reader = HpackReader(late=True)
    reader.read(b"\x44\x02/a" + Encoder().encode([(b"x-large", b"\x00" * 5000)], huffman=False))
    assert reader.read(b"\xbe\xbf") == [(None, None), (None, None)]


@pytest.mark.parametrize(
    "block",
    [
        b"\x80",  # index 0
        b"\xbe",  # of an empty table
        b"\x44\x05/a",  # string beyond the block
        b"\x44",
        b"\xff\xff\xff\xff\xff\xff\xff\x01",  # integer too long
        b"\x82\x20",  # size update behind a field
        b"\x44\x82\xff\xff",  # no Huffman code
        b"\x7f",
    ],
)
def test_what_no_encoder_writes(block: bytes) -> None:
    with pytest.raises(HpackError):
        HpackReader().read(block)


@given(st.lists(st.binary(max_size=200), max_size=8), st.booleans())
def test_any_bytes_give_fields_or_an_error(blocks: list[bytes], late: bool) -> None:
    reader = HpackReader(late=late)
    for block in blocks:
        try:
            reader.read(block)
        except HpackError:
            assert reader.read(b"\xbe") == [(None, None)]
        assert sum(32 + len(n or b"") + len(v or b"") for n, v in reader._entries) <= MAX_TABLE_BYTES


def test_a_bomb_of_references_is_bounded() -> None:
    """A 64 KiB block that names a 4 KB entry 60 000 times."""
    reader = HpackReader()
    reader.read(Encoder().encode([(b"x", b"\x00" * 4000)], huffman=False))
    fields = reader.read(b"\xbe" * 60_000)
    assert reader.truncated
    assert len(fields) == MAX_LIST_BYTES // 4033


def test_a_larger_table_than_is_kept_gives_unknown_not_wrong() -> None:
    reader = HpackReader()
    reader.read(b"\x3f\xe1\xff\x03")  # 65536
    entry = Encoder().encode([(b"x", b"\x00" * 1000)], huffman=False)
    for _ in range(40):
        reader.read(entry)
    assert reader.read(b"\xbe") == [(b"x", b"\x00" * 1000)]
    assert reader.read(b"\xdf") == [(None, None)]
