"""Our framing of bodies against llhttp's, on whole streams."""

from __future__ import annotations

import contextlib

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.families.requests.http1.framing import (
    Framing,
    Head,
    Http1MessageReader,
    InvalidHttp,
    State,
    request_framing,
)
from tests.unit.families.requests.traffic import chunk, chunked, request

START = request("POST", "/", transfer_encoding="chunked")


class Recorder:
    """A sink that records what it is given."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.sizes: list[int] = []
        self.gaps: list[int] = []
        self.reader = Http1MessageReader(request=True, sink=self)

    def started(self) -> None:
        self.bodies.append(b"")

    def head(self, head: Head) -> Framing:
        self.reader.wants_body = True
        return request_framing(head)

    def body(self, data: bytes) -> None:
        self.bodies[-1] += data

    def body_gap(self, size: int) -> None:
        self.gaps.append(size)

    def ended(self, size: int) -> None:
        self.sizes.append(size)


class Llhttp:
    """What llhttp finds in the same bytes."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.ended = 0

    def on_message_begin(self) -> None:
        self.bodies.append(b"")

    def on_body(self, data: bytes) -> None:
        self.bodies[-1] += data

    def on_message_complete(self) -> None:
        self.ended += 1


def both(stream: bytes) -> tuple[Recorder, bool, Llhttp, bool]:
    ours, theirs = Recorder(), Llhttp()
    valid, agreed = True, True
    try:
        ours.reader.feed(stream)
    except InvalidHttp:
        valid = False
    try:
        httptools.HttpRequestParser(theirs).feed_data(stream)
    except httptools.HttpParserError:
        agreed = False
    return ours, valid, theirs, agreed


BODIES = st.lists(st.binary(min_size=1, max_size=40), max_size=4)
MESSAGES = st.one_of(
    st.binary(max_size=40).map(lambda body: request("POST", "/l", body)),
    BODIES.map(lambda chunks: START + chunked(*chunks)),
    BODIES.map(lambda chunks: START + chunked(*chunks, trailer=b"a: b\r\nc: d\r\n", extension=b";e=f")),
)


@given(st.lists(MESSAGES, max_size=5))
def test_valid_streams_are_framed_as_llhttp_frames_them(messages: list[bytes]) -> None:
    ours, valid, theirs, agreed = both(b"".join(messages))
    assert valid and agreed
    assert ours.bodies == theirs.bodies
    assert ours.sizes == [len(message) for message in messages]
    assert theirs.ended == len(messages)


@given(BODIES, st.integers(0, 200), st.binary(min_size=1, max_size=3))
def test_what_llhttp_accepts_of_a_damaged_chunked_body_we_accept(
    chunks: list[bytes], position: int, damage: bytes
) -> None:
    stream = bytearray(START + chunked(*chunks))
    at = len(START) + position % (len(stream) - len(START))
    stream[at : at + len(damage)] = damage
    ours, valid, theirs, agreed = both(bytes(stream))
    if agreed:  # the other way round we may be more lenient, as servers are
        assert valid
        assert len(ours.sizes) == theirs.ended


@pytest.mark.parametrize(
    "line",
    [
        b"g\r\n",
        b"-1\r\n",
        b"+1\r\n",
        b"0x1\r\n",
        b"1_0\r\n",
        b"\r\n",
        b" 1\r\n",
        b"11111111111111111\r\n",
        b"z" * 5000,
    ],
)
def test_a_chunk_size_that_is_none(line: bytes) -> None:
    recorder = Recorder()
    recorder.reader.feed(START)
    with pytest.raises(InvalidHttp):
        for byte in line:
            recorder.reader.feed(bytes([byte]))


def test_a_chunk_size_near_the_bound() -> None:
    recorder = Recorder()
    recorder.reader.feed(START + b"ffffffffffffffff\r\nabc")
    assert recorder.reader.gap(1 << 63) is True
    assert recorder.reader.state is State.CHUNK_DATA


@pytest.mark.parametrize("value", ["-1", "+1", "1e3", "1,1", "0x1", "99999999999999999999", ""])
def test_a_length_that_is_none(value: str) -> None:
    recorder = Recorder()
    with pytest.raises(InvalidHttp):
        recorder.reader.feed(request("POST", "/", content_length=value) + b"x")


def test_the_worked_example() -> None:
    recorder = Recorder()
    recorder.reader.feed(b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nab")
    assert recorder.reader.gap(5)
    recorder.reader.feed(b"yzGET")
    assert (recorder.bodies, recorder.gaps, recorder.sizes) == ([b"abyz", b""], [5], [47])
    assert recorder.reader.state is State.HEAD


def test_a_trailer_without_end_is_given_up() -> None:
    recorder = Recorder()
    recorder.reader.feed(START + b"0\r\n")
    with pytest.raises(InvalidHttp):
        for _ in range(10_000):
            recorder.reader.feed(b"name: value\r\n")


@given(st.binary(max_size=200), st.integers(1, 10))
def test_gaps_in_a_chunk_cost_nothing(data: bytes, gap: int) -> None:
    whole = chunk(data + b"x" * gap)
    recorder = Recorder()
    recorder.reader.feed(START + whole[: -gap - 2])
    assert recorder.reader.gap(gap)
    with contextlib.suppress(InvalidHttp):
        recorder.reader.feed(b"\r\n0\r\n\r\n")
    assert recorder.sizes == [len(START) + len(whole) + 5]
