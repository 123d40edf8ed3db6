"""W3C Trace Context, by the vectors of its specification and its test suite."""

from __future__ import annotations

import pytest

from otelgpu.families.http.trace_context import parse_trace_context
from otelgpu.model.exchange import TraceParent
from tests.unit.http.traffic import opened, response

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("header", "flags"),
    [
        (f"00-{TRACE}-{SPAN}-01", 1),
        (f"00-{TRACE}-{SPAN}-00", 0),
        (f"00-{TRACE}-{SPAN}-03", 3),
        (f" 00-{TRACE}-{SPAN}-01\t", 1),
        (f"cc-{TRACE}-{SPAN}-01", 1),
        (f"cc-{TRACE}-{SPAN}-03", 1),
        (f"01-{TRACE}-{SPAN}-01-what-the-future-will-be-like", 1),
        (f"fe-{TRACE}-{SPAN}-00-", 0),
    ],
)
def test_valid(header: str, flags: int) -> None:
    assert parse_trace_context([header.encode()], []) == TraceParent(
        trace_id=bytes.fromhex(TRACE), span_id=bytes.fromhex(SPAN), flags=flags
    )


@pytest.mark.parametrize(
    "header",
    [
        "",
        "00",
        TRACE,
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}-01.",
        f"cc-{TRACE}-{SPAN}-01.what",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-0g",
        f"00-{TRACE}-{SPAN}-.1",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN.upper()}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f"00-{TRACE}0-{SPAN}-01",
        f"00-{TRACE}-{SPAN}0-01",
        f"00_{TRACE}_{SPAN}_01",
        f".0-{TRACE}-{SPAN}-01",
        f"0-{TRACE}-{SPAN}-01",
        f"00-{TRACE[:-1]}.-{SPAN}-01",
        f"00 - {TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\n",
    ],
)
def test_invalid(header: str) -> None:
    assert parse_trace_context([header.encode()], [b"a=1"]) is None


def test_more_than_one_header_is_invalid() -> None:
    header = f"00-{TRACE}-{SPAN}-01".encode()
    assert parse_trace_context([header, header], []) is None


@pytest.mark.parametrize(
    ("values", "state"),
    [
        ([], ""),
        ([b"a=1,b=2"], "a=1,b=2"),
        ([b" a=1 ", b"b=2"], "a=1,b=2"),
        ([b"a=\xff"], ""),
        ([b"a=" + b"x" * 510], "a=" + "x" * 510),
        ([b"a=1,b=" + b"x" * 510], "a=1"),
        ([b"a=" + b"x" * 511], ""),
    ],
)
def test_tracestate_is_kept_verbatim_within_bounds(values: list[bytes], state: str) -> None:
    parent = parse_trace_context([f"00-{TRACE}-{SPAN}-01".encode()], values)
    assert parent is not None and parent.state == state


def test_the_parent_of_a_request() -> None:
    c, seen = opened()
    lines = (
        f"GET / HTTP/1.1\r\nTraceParent: 00-{TRACE}-{SPAN}-01\r\ntracestate: a=1\r\nTRACESTATE: b=2\r\n\r\n"
    )
    seen.feed(c.read(lines.encode())).feed(c.write(response()))
    parent = seen.exchanges[0].parent
    assert parent is not None
    assert (parent.trace_id.hex(), parent.span_id.hex(), parent.sampled, parent.state) == (
        TRACE,
        SPAN,
        True,
        "a=1,b=2",
    )


def test_an_unsampled_parent_stays_unsampled() -> None:
    parent = parse_trace_context([f"00-{TRACE}-{SPAN}-02".encode()], [])
    assert parent is not None and not parent.sampled
