"""The library reads heads as llhttp does, whatever they are, or leaves them to it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from otelgpu.families.requests.http1 import framing
from otelgpu.spanwriter import library
from otelgpu.spanwriter.heads import HeadReader
from tests.rig.examples import examples
from tests.unit.spanwriter.heads_read import NAMES, read, reads_alike

CURL = b"GET /v1/models?x=1&y=%20 HTTP/1.1\r\nHost: 127.0.0.1:8000\r\nUser-Agent: curl/8.5.0\r\nAccept: */*\r\n\r\n"
OPENAI = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept-Encoding: gzip, deflate\r\n"
    b"Connection: keep-alive\r\nAccept: application/json\r\nContent-Type: application/json\r\n"
    b"User-Agent: OpenAI/Python 1.51.0\r\nX-Stainless-Lang: python\r\nAuthorization: Bearer sk-secret\r\n"
    b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\nContent-Length: 2\r\n\r\n{}"
)
UVICORN = (
    b"HTTP/1.1 200 OK\r\ndate: Mon, 30 Nov 2026 03:00:00 GMT\r\nserver: uvicorn\r\ncontent-length: 2\r\n"
    b"content-type: application/json\r\n\r\n{}"
)
STREAM = (
    b"HTTP/1.1 200 OK\r\nServer: uvicorn\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Transfer-Encoding: Chunked\r\n\r\n2\r\nab\r\n"
)
NO_REASON = b"HTTP/1.0 404\r\ncontent-length: 0\r\n\r\n"
PLAIN = [(CURL, True), (OPENAI, True), (UVICORN, False), (STREAM, False), (NO_REASON, False)]


@pytest.fixture(autouse=True, scope="module")
def built() -> None:
    assert library.library() is not None, "make bpf builds it"


def found(data: bytes, is_request: bool, position: int = 0) -> int:
    """How many bytes of a plain head there are."""
    places = HeadReader(NAMES).read(data, position, is_request)
    return 0 if places is None else places[0]


@pytest.mark.parametrize(("data", "is_request"), PLAIN)
def test_what_clients_and_servers_send_is_plain(data: bytes, is_request: bool) -> None:
    whole = data.index(b"\r\n\r\n") + 4
    assert found(data, is_request) == whole
    assert found(b"\r\n" + data, is_request, 2) == whole
    assert found(data[: whole - 1], is_request) == 0
    assert reads_alike(data, is_request=is_request)


@pytest.mark.parametrize(
    ("data", "is_request"),
    [
        (CURL.replace(b"GET", b"get"), True),
        (CURL.replace(b"/v1", b"http://host/v1"), True),
        (CURL.replace(b"x=1", b"x=1#y"), True),
        (CURL.replace(b"\r\nAccept", b"\r\n Accept"), True),
        (CURL.replace(b"*/*", b""), True),
        (CURL.replace(b"*/*", b"*\0*"), True),
        (CURL.replace(b"Accept", b"Upgrade"), True),
        (CURL.replace(b"\r\n", b"\n"), True),
        (OPENAI.replace(b"\r\n\r\n", b"\r\ncontent-length: 2\r\n\r\n"), True),
        (OPENAI.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n"), True),
        (OPENAI.replace(b"Length: 2", b"Length: +2"), True),
        (OPENAI.replace(b"Length: 2", b"Length: " + b"0" * 18 + b"2"), True),
        (UVICORN.replace(b"200 OK", b"100 Continue"), False),
        (UVICORN.replace(b"200 OK", b"101 Other"), False),
        (STREAM.replace(b"Chunked", b"gzip, chunked"), False),
        (STREAM.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n", 1), False),
        (STREAM.replace(b"\r\n\r\n", b"\r\nContent-Length: 2\r\n\r\n", 1), False),
        (STREAM.replace(b"/1.1", b"/1.2"), False),
    ],
)
def test_what_is_not_plain_is_left_to_llhttp(data: bytes, is_request: bool) -> None:
    assert found(data, is_request) == 0
    assert reads_alike(data, is_request=is_request)


@pytest.mark.parametrize(("data", "is_request"), PLAIN)
def test_every_byte_at_every_place(data: bytes, is_request: bool) -> None:
    """In place of the one that is there."""
    head = data.index(b"\r\n\r\n") + 4
    for place in range(head):
        for byte in {
            0,
            9,
            10,
            13,
            31,
            32,
            34,
            35,
            48,
            58,
            127,
            128,
            255,
            data[place] ^ 0x20,
            data[place] + 1 & 255,
        }:
            changed = data[:place] + bytes([byte]) + data[place + 1 :]
            assert reads_alike(changed, is_request=is_request), changed


@pytest.mark.parametrize(
    "form",
    [
        (b"GET /a%sb HTTP/1.1\r\na: b\r\n\r\n", True),
        (b"GET / HTTP/1.1\r\na%sb: b\r\n\r\n", True),
        (b"GET / HTTP/1.1\r\nserver: a%sb\r\n\r\n", True),
        (b"HTTP/1.1 200 a%sb\r\na: b\r\n\r\n", False),
        (b"HTTP/1.1 200%s\r\na: b\r\n\r\n", False),
    ],
)
def test_every_byte_of_a_kind_of_place(form: tuple[bytes, bool]) -> None:
    text, is_request = form
    for byte in range(256):
        assert reads_alike(text % bytes([byte]), is_request=is_request), byte


PIECES = st.sampled_from(
    [
        *(
            b"\r\n",
            b"\n",
            b"\r",
            b" ",
            b"\t",
            b":",
            b"\0",
            b"\x80",
            b"a",
            b"0",
            b"/",
            b"HTTP/1.1",
            b"\r\n\r\n",
        ),
        *(b"content-length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"connection: upgrade, close\r\n"),
        *(b"upgrade: h2c\r\n", b"transfer-encoding: gzip\r\n", b"Content-Length: 99999999999999999999\r\n"),
        b"proxy-connection: close\r\n",
    ]
)
FIELD_NAMES = st.sampled_from(
    [*NAMES, b"host", b"X-Other", b"Content-Length", b"Transfer-Encoding", b"CONNECTION"]
)
VALUES = st.one_of(
    st.sampled_from(
        [b"chunked", b"Chunked ", b"close", b"keep-alive", b"0", b"12", b"12 ", b"1, 2", b"a:b", b"gzip"]
    ),
    st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=20).map(
        lambda text: text.encode("latin-1")
    ),
)
FIELDS = st.lists(
    st.tuples(FIELD_NAMES, st.sampled_from([b": ", b":", b":\t  "]), VALUES).map(b"".join), max_size=6
).map(lambda fields: b"".join(field + b"\r\n" for field in fields))
REQUESTS = st.tuples(
    st.sampled_from(
        [b"GET", b"POST", b"HEAD", b"CONNECT", b"PROPFIND", b"ABC", b"PRI", b"M-SEARCH", b"SOURCE"]
    ),
    st.sampled_from([b" / ", b" /v1/a?b=c ", b" * ", b" http://a/b ", b" /a ", b" "]),
    st.sampled_from([b"HTTP/1.1\r\n", b"HTTP/1.0\r\n", b"HTTP/1.2\r\n", b"HTTP/2.0\r\n", b"\r\n"]),
).map(b"".join)
RESPONSES = st.tuples(
    st.sampled_from([b"HTTP/1.1 ", b"HTTP/1.0 ", b"HTTP/0.9 "]),
    st.sampled_from([b"200", b"204", b"100", b"101", b"304", b"503", b"099", b"20", b"2000"]),
    st.sampled_from([b" OK\r\n", b" \r\n", b"\r\n", b" Not Found\r\n"]),
).map(b"".join)
BODIES = st.sampled_from([b"", b"ab", b"0\r\n\r\n", b"2\r\nab\r\n0\r\n\r\n"])


def changed(data: bytes, changes: list[tuple[int, int, bytes]]) -> bytes:
    """Some bytes in the places of others."""
    for at, size, piece in changes:
        at %= len(data) + 1
        data = data[:at] + piece + data[at + size :]
    return data


CHANGES = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 3), PIECES), max_size=3)


@examples(400)
@given(st.booleans(), st.data(), CHANGES)
def test_heads_are_read_alike(
    is_request: bool, drawn: st.DataObject, changes: list[tuple[int, int, bytes]]
) -> None:
    """Also where several messages follow each other."""
    first = REQUESTS if is_request else RESPONSES
    message = st.tuples(first, FIELDS, st.just(b"\r\n"), BODIES).map(b"".join)
    data = changed(b"".join(drawn.draw(st.lists(message, min_size=1, max_size=2))), changes)
    assert reads_alike(data, is_request=is_request), data


@examples(300)
@given(st.sampled_from(PLAIN), CHANGES)
@example((OPENAI, True), [(OPENAI.index(b"keep-alive"), 10, b"close, upgrade")])
def test_what_clients_and_servers_send_is_read_alike_when_changed(
    message: tuple[bytes, bool], changes: list[tuple[int, int, bytes]]
) -> None:
    data, is_request = message
    assert reads_alike(changed(data, changes), is_request=is_request)


@pytest.mark.parametrize("size", [1, 1022, 1023, 1024, 1025, 1026, 5000])
@pytest.mark.parametrize("tail", [b"", b" ", b"\t x", b"   "])
def test_long_values_are_cut_alike(size: int, tail: bytes) -> None:
    data = b"GET / HTTP/1.1\r\nuser-agent:  " + b"u" * size + tail + b"\r\n\r\n"
    assert found(data, True) == len(data)
    assert reads_alike(data, is_request=True)


@pytest.mark.parametrize("beyond", [-1, 0, 1, 2, 70_000])
def test_heads_are_bounded_alike(beyond: int) -> None:
    data = b"GET / HTTP/1.1\r\na: \r\n\r\n"
    data = data.replace(b"a: ", b"a: " + b"x" * (65536 + beyond - len(data)))
    assert (found(data, True) == len(data)) is (beyond <= 0)
    assert (read(data, is_request=True, compiled=True).state is None) is (beyond > 0)
    assert reads_alike(data, is_request=True)


@pytest.mark.parametrize("count", [31, 32, 33, 100])
def test_many_fields_are_kept_alike(count: int) -> None:
    data = b"GET / HTTP/1.1\r\n" + b"traceparent: a\r\nx: y\r\n" * count + b"\r\n"
    assert (found(data, True) > 0) is (count <= 32)
    assert reads_alike(data, is_request=True)


def test_without_the_library_llhttp_reads_all(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as without:
        without.setattr(library, "_LIBRARY", Path("/nowhere"))
        library.library.cache_clear()
        framing._plain_heads.cache_clear()
        assert found(OPENAI, True) == 0
        assert reads_alike(OPENAI, is_request=True)
    library.library.cache_clear()
    framing._plain_heads.cache_clear()
    assert found(OPENAI, True)
