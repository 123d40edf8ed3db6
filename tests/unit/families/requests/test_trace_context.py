"""W3C Trace Context, by the vectors of its specification and its test suite.

The vectors are the cases of https://github.com/w3c/trace-context (test/test.py at acab820b) that a reader of
requests can be judged by; those on what a service sends on (new parent ids, several calls) have nothing to ask here.
"""

from __future__ import annotations

import pytest

from otelgpu.families.requests.trace_context import parse_trace_context
from otelgpu.model.exchange import TraceParent
from tests.unit.families.requests.traffic import opened, response

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
        ([b"a=" + b"x" * 256], "a=" + "x" * 256),
        ([b"a=" + b"x" * 257], ""),
        ([b"a=" + b"x" * 250 + b",b=" + b"x" * 256], "a=" + "x" * 250 + ",b=" + "x" * 256),
        ([b"a=" + b"x" * 255 + b",b=" + b"x" * 256], "a=" + "x" * 255),
    ],
)
def test_tracestate_is_kept_within_bounds(values: list[bytes], state: str) -> None:
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


# -- Vectors of the test suite ---------------------------------------------------------------------------

T, P = "12345678901234567890123456789012", "1234567890123456"
VALID = f"00-{T}-{P}-00"
EVERY_CHARACTER = bytes(c for c in range(0x20, 0x7F) if c not in b",=").decode()
EVERY_KEY = "abcdefghijklmnopqrstuvwxyz0123456789_-*/"
Headers = list[tuple[str, str]]


def reported(headers: Headers) -> TraceParent | None:
    """The parent of a request with these headers."""
    c, seen = opened()
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
    seen.feed(c.read(f"GET / HTTP/1.1\r\n{lines}\r\n".encode())).feed(c.write(response()))
    (exchange,) = seen.exchanges
    return exchange.parent


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param([("traceparent", value)], id=name)
        for name, value in {
            "traceparent_included_tracestate_missing": f"00-{T}-{P}-01",
            "traceparent_version_0xcc": f"cc-{T}-{P}-01",
            "traceparent_version_0xcc_longer": f"cc-{T}-{P}-01-what-the-future-will-be-like",
            "traceparent_ows_handling_1": f" 00-{T}-{P}-01",
            "traceparent_ows_handling_2": f"\t00-{T}-{P}-01",
            "traceparent_ows_handling_3": f"00-{T}-{P}-01 ",
            "traceparent_ows_handling_4": f"00-{T}-{P}-01\t",
            "traceparent_ows_handling_5": f"\t 00-{T}-{P}-01 \t",
        }.items()
    ]
    + [
        pytest.param([(name, f"00-{T}-{P}-01")], id="traceparent_header_name_valid_casing")
        for name in ("TraceParent", "TrAcEpArEnT", "TRACEPARENT")
    ],
)
def test_suite_parents_that_are_continued(headers: Headers) -> None:
    parent = reported(headers)
    assert parent is not None
    assert (parent.trace_id.hex(), parent.span_id.hex(), parent.flags) == (T, P, 1)


def test_suite_propagates_random_flag() -> None:
    parent = reported([("traceparent", f"00-{T}-{P}-02")])
    assert parent is not None and parent.flags == 2


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param([], id="both_traceparent_and_tracestate_missing"),
        pytest.param([("tracestate", "foo=1")], id="tracestate_included_traceparent_missing"),
        pytest.param(
            [("traceparent", f"00-{T[:-1]}1-{P}-01"), ("traceparent", f"00-{T}-{P}-01")],
            id="traceparent_duplicated",
        ),
        pytest.param([("trace-parent", f"00-{T}-{P}-01")], id="traceparent_header_name_1"),
        pytest.param([("trace.parent", f"00-{T}-{P}-01")], id="traceparent_header_name_2"),
    ]
    + [
        pytest.param([("traceparent", value)], id=name)
        for name, value in {
            "traceparent_version_0x00_1": f"00-{T}-{P}-01.",
            "traceparent_version_0x00_2": f"00-{T}-{P}-01-what-the-future-will-be-like",
            "traceparent_version_0xcc": f"cc-{T}-{P}-01.what-the-future-will-be-like",
            "traceparent_version_0xff": f"ff-{T}-{P}-01",
            "traceparent_version_illegal_characters_1": f".0-{T}-{P}-01",
            "traceparent_version_illegal_characters_2": f"0.-{T}-{P}-01",
            "traceparent_version_too_long_1": f"000-{T}-{P}-01",
            "traceparent_version_too_long_2": f"0000-{T}-{P}-01",
            "traceparent_version_too_short": f"0-{T}-{P}-01",
            "traceparent_trace_id_all_zero": f"00-{'0' * 32}-{P}-01",
            "traceparent_trace_id_illegal_characters_1": f"00-.{T[1:]}-{P}-01",
            "traceparent_trace_id_illegal_characters_2": f"00-{T[:-1]}.-{P}-01",
            "traceparent_trace_id_too_long": f"00-{T}3-{P}-01",
            "traceparent_trace_id_too_short": f"00-{T[:-1]}-{P}-01",
            "traceparent_parent_id_all_zero": f"00-{T}-{'0' * 16}-01",
            "traceparent_parent_id_illegal_characters_1": f"00-{T}-.{P[1:]}-01",
            "traceparent_parent_id_illegal_characters_2": f"00-{T}-{P[:-1]}.-01",
            "traceparent_parent_id_too_long": f"00-{T}-{P}7-01",
            "traceparent_parent_id_too_short": f"00-{T}-{P[:-1]}-01",
            "traceparent_trace_flags_illegal_characters_1": f"00-{T}-{P}-.0",
            "traceparent_trace_flags_illegal_characters_2": f"00-{T}-{P}-0.",
            "traceparent_trace_flags_too_long": f"00-{T}-{P}-001",
            "traceparent_trace_flags_too_short": f"00-{T}-{P}-1",
            "multiple_requests_with_illegal_traceparent": f"00-{'0' * 32}-{P}-01",
        }.items()
    ],
)
def test_suite_parents_that_are_not(headers: Headers) -> None:
    assert reported(headers) is None


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param(values, expected, id=name)
        for name, values, expected in (
            ("tracestate_included_traceparent_included", ["foo=1,bar=2"], "foo=1,bar=2"),
            ("tracestate_empty_header_1", [""], ""),
            ("tracestate_empty_header_2", ["foo=1", ""], "foo=1"),
            ("tracestate_empty_header_3", ["", "foo=1"], "foo=1"),
            (
                "tracestate_multiple_headers_different_keys",
                ["foo=1,bar=2", "rojo=1,congo=2", "baz=3"],
                "foo=1,bar=2,rojo=1,congo=2,baz=3",
            ),
            ("tracestate_duplicated_keys_1", ["foo=1,foo=1"], "foo=1,foo=1"),
            ("tracestate_duplicated_keys_2", ["foo=1", "foo=2"], "foo=1,foo=2"),
            (
                "tracestate_all_allowed_characters_1",
                [f"{EVERY_KEY}={EVERY_CHARACTER}"],
                f"{EVERY_KEY}={EVERY_CHARACTER}",
            ),
            (
                "tracestate_all_allowed_characters_2",
                [f"{EVERY_KEY}@a-z0-9_-*/={EVERY_CHARACTER}"],
                f"{EVERY_KEY}@a-z0-9_-*/={EVERY_CHARACTER}",
            ),
            ("tracestate_ows_handling_1", ["foo=1 \t , \t bar=2, \t baz=3"], "foo=1,bar=2,baz=3"),
            ("tracestate_ows_handling_2", ["foo=1\t \t,\t \tbar=2,\t \tbaz=3"], "foo=1,bar=2,baz=3"),
            ("tracestate_ows_handling_3", [" foo=1"], "foo=1"),
            ("tracestate_ows_handling_4", ["\t foo=1 \t"], "foo=1"),
            ("tracestate_key_illegal_characters_1", ["foo =1"], ""),
            ("tracestate_key_illegal_characters_2", ["FOO=1"], ""),
            ("tracestate_key_illegal_characters_3", ["foo.bar=1"], ""),
            ("tracestate_key_illegal_vendor_format_1", ["foo@=1,bar=2"], "foo@=1,bar=2"),
            ("tracestate_key_illegal_vendor_format_2", ["@foo=1,bar=2"], ""),
            ("tracestate_key_illegal_vendor_format_3", ["foo@@bar=1,bar=2"], "foo@@bar=1,bar=2"),
            ("tracestate_key_illegal_vendor_format_4", ["foo@bar@baz=1,bar=2"], "foo@bar@baz=1,bar=2"),
            (
                "tracestate_member_count_limit_1",
                [",".join(f"bar{n:02}={n:02}" for n in range(1, 33))],
                ",".join(f"bar{n:02}={n:02}" for n in range(1, 33)),
            ),
            ("tracestate_member_count_limit_2", [",".join(f"bar{n:02}={n:02}" for n in range(1, 34))], ""),
            ("tracestate_key_length_limit_1", ["foo=1", "z" * 256 + "=1"], f"foo=1,{'z' * 256}=1"),
            ("tracestate_key_length_limit_2", ["foo=1", "z" * 257 + "=1"], ""),
            (
                "tracestate_key_length_limit_3",
                ["foo=1", f"{'t' * 241}@{'v' * 14}=1"],
                f"foo=1,{'t' * 241}@{'v' * 14}=1",
            ),
            ("tracestate_key_length_limit_4", ["foo=1", f"{'t' * 242}@v=1"], f"foo=1,{'t' * 242}@v=1"),
            ("tracestate_key_length_limit_5", ["foo=1", f"t@{'v' * 15}=1"], f"foo=1,t@{'v' * 15}=1"),
            ("tracestate_value_illegal_characters_1", ["foo=bar=baz"], ""),
            ("tracestate_value_illegal_characters_2", ["foo=,bar=3"], ""),
        )
    ],
)
def test_suite_tracestate(values: list[str], expected: str) -> None:
    parent = reported([("traceparent", VALID), *(("tracestate", value) for value in values)])
    assert parent is not None
    assert (parent.trace_id.hex(), parent.state) == (T, expected)


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("trace-state", ""),
        ("trace.state", ""),
        ("TraceState", "foo=1"),
        ("TrAcEsTaTe", "foo=1"),
        ("TRACESTATE", "foo=1"),
    ],
)
def test_suite_tracestate_header_name(name: str, state: str) -> None:
    parent = reported([("traceparent", VALID), (name, "foo=1")])
    assert parent is not None and parent.state == state
