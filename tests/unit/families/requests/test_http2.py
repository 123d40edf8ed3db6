"""HTTP/2 connections, observed at either end: which exchanges and assignments come out of them."""

from __future__ import annotations

import pytest
from msgspec import structs

from otelgpu.families.requests.http2 import parser as http2
from otelgpu.families.requests.http2.frame_heads import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
)
from otelgpu.families.requests.open_exchange import OpenExchange
from otelgpu.families.requests.protocol import Recognition
from otelgpu.model.exchange import Role, StartSource, ThreadAssignment
from otelgpu.model.tasks import stream_task
from tests.unit.families.requests.http2_traffic import (
    MS,
    READER,
    TGID,
    WRITER,
    Observed,
    Pair,
    frame,
    request_fields,
)

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
GET = b"\x82\x86\x84"  # :method GET, :scheme http, :path /
OK = b"\x88"  # :status 200


def hello() -> Observed:
    """A server's connection of which the preface went by."""
    observed = Observed()
    observed.feed(True, PREFACE + frame(SETTINGS, 0, 0))
    observed.feed(False, frame(SETTINGS, 0, 0))
    return observed


@pytest.mark.parametrize("role", [Role.SERVER, Role.CLIENT])
def test_a_request_and_its_response(role: Role) -> None:
    pair = Pair()
    number = pair.request(
        request_fields("/v1/x?q=1", ("traceparent", TRACEPARENT), ("user-agent", "curl/8")), b"question"
    )
    pair.respond(number, 404, b"answer")
    (exchange,) = Observed(role=role).wire(pair.wire).exchanges
    assert (exchange.method, exchange.path, exchange.query_present) == ("POST", "/v1/x", True)
    assert (exchange.protocol_version, exchange.status_code, exchange.error) == ("2", 404, "")
    assert (exchange.user_agent, exchange.role, exchange.rpc) == ("curl/8", role, None)
    assert exchange.parent is not None and exchange.parent.span_id.hex() == "b7ad6b7169203331"
    assert exchange.error_type == ("404" if role is Role.CLIENT else "")
    assert exchange.request_bytes > 9 + 9 + 8 and exchange.response_bytes > 9 + 9 + 6


def test_both_ends_give_the_same_wire_id_and_another_for_each_request() -> None:
    pair = Pair()
    for _ in range(2):
        pair.respond(pair.request())
    at = {role: Observed(role=role).wire(pair.wire).exchanges for role in (Role.SERVER, Role.CLIENT)}
    ids = [exchange.wire_id for exchange in at[Role.SERVER]]
    assert ids == [exchange.wire_id for exchange in at[Role.CLIENT]]
    assert len(set(ids)) == 2 and all(ids)


def test_times_at_a_server() -> None:
    observed = hello()
    asked = observed.feed(True, frame(HEADERS, END_HEADERS, 1, GET))
    sent = observed.feed(True, frame(DATA, END_STREAM, 1, b"ab"))
    began = observed.feed(False, frame(HEADERS, END_HEADERS, 1, OK))
    ended = observed.feed(False, frame(DATA, END_STREAM, 1, b"cd"))
    (exchange,) = observed.exchanges
    assert (exchange.start_ns, exchange.start_source) == (asked.end_ns, StartSource.READ)
    assert (exchange.request_end_ns, exchange.first_byte_ns) == (sent.end_ns, began.begin_ns)
    assert exchange.end_ns == ended.end_ns


def test_arrival_is_the_start_where_it_is_known() -> None:
    observed = hello()
    call = observed.call(True, arrival_ns=77)
    observed.feed(True, frame(HEADERS, 5, 1, GET), call=call)
    observed.feed(False, frame(HEADERS, 5, 1, OK))
    assert (observed.exchanges[0].start_ns, observed.exchanges[0].start_source) == (77, StartSource.ARRIVAL)


@pytest.mark.parametrize("cut", [0, 4, 13, 17, 40])
def test_the_arrival_is_of_the_calls_first_byte_only(cut: int) -> None:
    """What came before may have waited for the server longer than the request: a PING, another stream's request."""
    observed = hello()
    data = frame(PING, 0, 0, b"12345678") + frame(HEADERS, 5, 1, GET) + frame(HEADERS, 5, 3, GET)
    call = observed.call(True, arrival_ns=77)
    observed.feed(True, data, call=call, cuts=[cut])
    for stream in (1, 3):
        observed.feed(False, frame(HEADERS, 5, stream, OK))
    assert {(e.start_ns, e.start_source) for e in observed.exchanges} == {(call.end_ns, StartSource.READ)}


def test_of_bytes_behind_some_that_were_not_captured_no_arrival_is_known() -> None:
    observed = hello()
    observed.feed(True, frame(HEADERS, END_HEADERS, 1, GET) + frame(DATA, END_STREAM, 1, b"12345678")[:-8])
    call = observed.call(True, arrival_ns=77)
    observed.gap(True, 8, call=call)
    observed.feed(True, frame(HEADERS, 5, 3, GET), call=call)
    observed.feed(False, frame(HEADERS, 5, 3, OK))
    assert observed.exchanges[0].start_source is StartSource.READ


def test_an_arrival_after_the_call_returned_is_no_arrival() -> None:
    observed = hello()
    call = observed.call(True, arrival_ns=5000 * MS)
    observed.feed(True, frame(HEADERS, 5, 1, GET), call=call)
    observed.feed(False, frame(HEADERS, 5, 1, OK))
    assert (observed.exchanges[0].start_ns, observed.exchanges[0].start_source) == (
        call.end_ns,
        StartSource.READ,
    )


def test_a_request_whose_frame_head_is_cut_over_two_reads_has_the_firsts_arrival() -> None:
    observed = hello()
    head = frame(HEADERS, 5, 1, GET)
    for part, arrival_ns in ((head[:2], 77), (head[2:4], 78), (head[4:], 79)):
        observed.feed(True, part, call=observed.call(True, arrival_ns=arrival_ns))
    observed.feed(False, frame(HEADERS, 5, 1, OK))
    assert (observed.exchanges[0].start_ns, observed.exchanges[0].start_source) == (77, StartSource.ARRIVAL)


def test_a_request_cut_over_two_reads_starts_with_the_first() -> None:
    observed = hello()
    head = frame(HEADERS, 5, 1, GET)
    first = observed.feed(True, head[:4])
    observed.feed(True, head[4:])
    observed.feed(False, frame(HEADERS, 5, 1, OK))
    assert observed.exchanges[0].start_ns == first.end_ns


def test_times_at_a_client() -> None:
    observed = Observed(role=Role.CLIENT)
    observed.feed(True, PREFACE + frame(SETTINGS, 0, 0))
    asked = observed.feed(True, frame(HEADERS, END_HEADERS | END_STREAM, 1, GET))
    observed.feed(False, frame(SETTINGS, 0, 0))
    began = observed.feed(False, frame(HEADERS, END_HEADERS, 1, OK))
    ended = observed.feed(False, frame(DATA, END_STREAM, 1, b"cd"))
    (exchange,) = observed.exchanges
    assert (exchange.start_ns, exchange.start_source) == (asked.begin_ns, StartSource.WRITE)
    assert (exchange.first_byte_ns, exchange.end_ns) == (began.end_ns, ended.end_ns)
    assert not observed.output.assignments


def test_a_stream_is_a_task_of_its_own_by_who_read_it_and_its_number() -> None:
    """In Go one goroutine reads the frames of a connection, another writes them, and each stream has one."""
    observed = hello()
    read = structs.replace(observed.call(True), task=READER)
    observed.feed(True, frame(HEADERS, 5, 1, GET) + frame(HEADERS, 5, 3, GET), call=read)
    written = structs.replace(observed.call(False), task=WRITER)
    observed.feed(False, frame(HEADERS, 5, 3, OK) + frame(HEADERS, 5, 1, OK), call=written)
    tasks = {3: stream_task(READER, 3), 1: stream_task(READER, 1)}
    assert len({READER, WRITER, *tasks.values()}) == 4
    assert [
        (each.exchange, each.task, each.begin_ns, each.end_ns)
        for each in observed.output.tasks
        if each.task in tasks.values()
    ] == [(2, tasks[3], read.end_ns, written.end_ns), (1, tasks[1], read.end_ns, written.end_ns)]


def test_the_streams_of_a_reader_that_is_no_goroutine_are_no_tasks() -> None:
    observed = hello()
    read = structs.replace(observed.call(True), task=0x7F00_0000_1000)  # an asyncio task's context
    observed.feed(True, frame(HEADERS, 5, 1, GET), call=read)
    observed.feed(False, frame(HEADERS, 5, 1, OK))
    assert [each.task for each in observed.output.tasks] == [0, 0]


def test_each_stream_is_held_by_who_read_it_until_it_is_answered() -> None:
    observed = hello()
    read = observed.feed(True, frame(HEADERS, 5, 1, GET) + frame(HEADERS, 5, 3, GET))
    head = observed.feed(False, frame(HEADERS, 4, 3, OK))
    three = observed.feed(False, frame(DATA, 1, 3, b"x"))
    one = observed.feed(False, frame(HEADERS, 5, 1, OK))
    assert head.end_ns < three.end_ns
    assert observed.output.assignments == [
        ThreadAssignment(time_ns=time_ns, tgid=TGID, tid=READER, exchange=key, begins=begins)
        for time_ns, key, begins in (
            (read.end_ns, 1, True),
            (read.end_ns, 2, True),
            (three.end_ns, 2, False),
            (one.end_ns, 1, False),
        )
    ]
    assert [opened.key for opened in observed.output.opened] == [1, 2]
    assert [(exchange.key, exchange.ordinal) for exchange in observed.exchanges] == [(2, 1), (1, 0)]


def test_an_early_answer_ends_the_assignment_and_is_emitted_when_the_request_ends() -> None:
    observed = hello()
    observed.feed(True, frame(HEADERS, 4, 1, GET))
    answered = observed.feed(False, frame(HEADERS, 5, 1, OK))
    assert not observed.exchanges and not observed.output.assignments[-1].begins
    observed.feed(True, frame(DATA, 1, 1, b"late"))
    assert (observed.exchanges[0].end_ns, observed.exchanges[0].error) == (answered.end_ns, "")


def test_a_reset_after_the_answer_is_no_error() -> None:
    observed = hello()
    observed.feed(True, frame(HEADERS, 4, 1, GET))
    observed.feed(False, frame(HEADERS, 5, 1, OK) + frame(RST_STREAM, 0, 1, bytes(4)))
    assert [exchange.error for exchange in observed.exchanges] == [""]


@pytest.mark.parametrize(
    ("from_client", "code", "error"),
    [(True, 8, "CANCEL"), (False, 2, "INTERNAL_ERROR"), (False, 0xBEEF, "0xbeef"), (False, 0, "NO_ERROR")],
)
def test_a_reset_before_the_answer_is_its_error(from_client: bool, code: int, error: str) -> None:
    observed = hello()
    observed.feed(True, frame(HEADERS, 5, 1, GET))
    reset = observed.feed(from_client, frame(RST_STREAM, 0, 1, code.to_bytes(4, "big")))
    (exchange,) = observed.exchanges
    assert (exchange.error, exchange.end_ns) == (error, reset.end_ns)
    assert [assignment.begins for assignment in observed.output.assignments] == [True, False]


def test_goaway_gives_out_what_the_server_does_not_process() -> None:
    observed = hello()
    observed.feed(True, b"".join(frame(HEADERS, 5, number, GET) for number in (1, 3, 5)))
    observed.feed(False, frame(GOAWAY, 0, 0, (1).to_bytes(4, "big") + bytes(4) + b"debug data"))
    assert [exchange.error for exchange in observed.exchanges] == ["REFUSED_STREAM"] * 2
    observed.feed(False, frame(HEADERS, 5, 1, OK))
    assert observed.exchanges[-1].error == "" and not observed.parser.busy


def test_close_says_why_when_a_goaway_said_it() -> None:
    observed = hello()
    observed.feed(True, frame(HEADERS, 5, 1, GET))
    observed.feed(False, frame(GOAWAY, 0, 0, (1).to_bytes(4, "big") + (11).to_bytes(4, "big")))
    assert observed.close().exchanges[0].error == "ENHANCE_YOUR_CALM"


def test_close_gives_out_what_is_open() -> None:
    observed = hello()
    observed.feed(True, frame(HEADERS, 5, 1, GET) + frame(HEADERS, 4, 3, GET))
    observed.feed(False, frame(HEADERS, 5, 3, OK))
    observed.close()
    assert [(exchange.error, exchange.status_code) for exchange in observed.exchanges] == [
        ("connection_closed", 0),
        ("", 200),
    ]
    assert (
        not any(assignment.begins for assignment in observed.output.assignments[2:])
        and observed.parser.ignored
    )


def test_a_server_still_answers_a_client_that_ended() -> None:
    observed = hello()
    observed.feed(True, frame(HEADERS, 4, 1, GET))
    observed.parser.end(observed.call(True), from_client=True)
    observed.feed(False, frame(HEADERS, 5, 1, OK))
    assert [exchange.error for exchange in observed.exchanges] == [""]


def test_interim_responses_are_passed_over() -> None:
    observed = hello()
    observed.feed(True, frame(HEADERS, 5, 1, GET))
    observed.feed(False, frame(HEADERS, 4, 1, b"\x08\x03103"))
    final = observed.feed(False, frame(HEADERS, 5, 1, OK))
    assert (observed.exchanges[0].status_code, observed.exchanges[0].first_byte_ns) == (200, final.begin_ns)


def test_padding_and_priority_are_no_content() -> None:
    observed = hello()
    observed.feed(True, frame(HEADERS, 0x2D, 1, b"\x02" + bytes(5) + GET + b"\x82\x82"))
    observed.feed(False, frame(HEADERS, 5, 1, OK))
    assert (observed.exchanges[0].method, observed.exchanges[0].path) == ("GET", "/")


def test_a_header_block_over_many_frames() -> None:
    observed = hello()
    data = frame(HEADERS, END_STREAM, 1, GET[:1]) + frame(CONTINUATION, 0, 1, GET[1:2])
    observed.feed(True, data + frame(CONTINUATION, END_HEADERS, 1, GET[2:]), cuts=range(100))
    observed.feed(False, frame(HEADERS, 5, 1, OK))
    assert (observed.exchanges[0].method, observed.exchanges[0].path) == ("GET", "/")
    assert observed.held_bytes == 0


def test_pushed_responses_keep_the_table_right_and_are_counted() -> None:
    observed = hello()
    observed.feed(True, frame(HEADERS, 5, 1, GET))
    observed.feed(
        False,
        frame(PUSH_PROMISE, END_HEADERS, 1, (2).to_bytes(4, "big") + b"\x44\x02/p")
        + frame(HEADERS, 5, 2, OK)
        + frame(HEADERS, 5, 1, b"\x48\x03200\xbf\xbe"),
    )
    assert [exchange.status_code for exchange in observed.exchanges] == [200]
    assert observed.counted == {"http2_pushes": 1}


def test_h2c_upgrade_answers_the_request_of_http1_on_stream_1() -> None:
    observed = Observed()
    call = observed.call(True)
    exchange = OpenExchange.begin(
        key=9, ordinal=0, call=call, start_ns=call.end_ns, start_source=StartSource.READ
    )
    exchange.method, exchange.path, exchange.head_seen, exchange.request_done = "GET", "/u", True, True
    exchange.status_code = 101
    observed.parser = http2.upgraded(observed.facts, observed.output, exchange)
    observed.offsets = {True: 200, False: 80}
    observed.feed(False, frame(SETTINGS, 0, 0))
    observed.feed(True, PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, 5, 3, GET))
    observed.feed(False, frame(HEADERS, 5, 1, OK) + frame(HEADERS, 5, 3, OK))
    assert [(e.key, e.ordinal, e.path, e.status_code, e.protocol_version) for e in observed.exchanges] == [
        (9, 0, "/u", 200, "2"),
        (1, 1, "/", 200, "2"),
    ]
    assert [assignment.exchange for assignment in observed.output.assignments] == [9, 1, 9, 1]
    assert [opened.key for opened in observed.output.opened] == [1]


# Recognition


@pytest.mark.parametrize(
    ("data", "from_client", "late", "expected"),
    [
        (PREFACE, True, False, Recognition.YES),
        (PREFACE[:5], True, False, Recognition.MORE),
        (b"", True, False, Recognition.MORE),
        (b"POST / HTTP/1.1\r\n", True, False, Recognition.NO),
        (frame(SETTINGS, 0, 0, bytes(6)), False, False, Recognition.YES),
        (frame(SETTINGS, 0, 0)[:5], False, False, Recognition.MORE),
        (frame(PING, 0, 0, bytes(8)), False, False, Recognition.NO),
        (b"HTTP/1.1 200 OK\r\n", False, False, Recognition.NO),
        (b"HTT", False, False, Recognition.NO),
        (PREFACE, True, True, Recognition.YES),
        (frame(PING, 0, 0, bytes(8)), False, True, Recognition.YES),
        (frame(DATA, 1, 5, b"x" * 100)[:30], True, True, Recognition.YES),
        (frame(DATA, 1, 4, b"x" * 100), True, True, Recognition.NO),
        (frame(HEADERS, 5, 1, GET) + b"GET / HTTP/1.1\r\n\r\n", True, True, Recognition.NO),
        (bytes(64), True, True, Recognition.NO),
        (b'data: {"a": 1}\n\n', False, True, Recognition.NO),
        (b"\0\0\x08", False, True, Recognition.MORE),
    ],
)
def test_recognition(data: bytes, from_client: bool, late: bool, expected: Recognition) -> None:
    assert http2.SPEC.recognise(data, from_client, late) is expected


# Connections found open, and gaps


def test_late_attach_knows_what_is_new_and_leaves_the_rest_empty() -> None:
    pair = Pair()
    for path in ("/old", "/new"):
        pair.respond(pair.request(request_fields(path)))
    seen = len(pair.wire)
    for path in ("/old", "/fresh", "/fresh", "/new"):
        pair.respond(pair.request(request_fields(path)))
    observed = Observed(late=True).wire(pair.wire[seen:])
    assert [exchange.path for exchange in observed.exchanges] == ["", "/fresh", "/fresh", ""]
    assert [exchange.status_code for exchange in observed.exchanges] == [200] * 4
    assert {exchange.method for exchange in observed.exchanges} == {"POST"}
    assert observed.counted["hpack_unknown"] > 0


def test_late_attach_begins_where_a_call_begins_with_frames() -> None:
    observed = Observed(late=True)
    observed.feed(True, b"the end of a body" + frame(HEADERS, 5, 7, GET))
    observed.feed(True, frame(HEADERS, 5, 9, GET))
    observed.feed(False, frame(HEADERS, 5, 5, OK) + frame(HEADERS, 5, 9, OK))
    assert [exchange.path for exchange in observed.exchanges] == ["/"]
    assert observed.counted == {"late_bytes_skipped": 17 + 12}


def test_late_trailers_are_no_request() -> None:
    observed = Observed(late=True)
    observed.feed(True, frame(HEADERS, 5, 7, b"\x00\x01a\x01b"))
    assert not observed.parser.busy


def test_a_gap_in_a_body_only_counts() -> None:
    observed = hello()
    observed.feed(True, frame(HEADERS, 4, 1, GET) + frame(DATA, 1, 1, bytes(100))[:29])
    observed.gap(True, 60)
    observed.feed(True, bytes(20) + frame(HEADERS, 5, 3, GET))
    observed.feed(False, frame(HEADERS, 5, 3, OK) + frame(HEADERS, 5, 1, OK))
    assert [exchange.error for exchange in observed.exchanges] == ["", ""]
    assert observed.exchanges[1].request_bytes == 12 + 109
    assert observed.counted == {}


def test_a_gap_in_the_padding_is_none_in_the_body(monkeypatch: pytest.MonkeyPatch) -> None:
    observed = hello()
    observed.feed(True, frame(HEADERS, 4, 1, GET))
    gaps: list[int] = []
    monkeypatch.setattr(
        "otelgpu.families.requests.http2.stream.Stream.request_gap", lambda stream, size: gaps.append(size)
    )
    padded = frame(DATA, PADDED | END_STREAM, 1, b"\x0a" + b"body" + bytes(10))
    observed.feed(True, padded[:12])
    observed.gap(True, 5)
    observed.feed(True, padded[17:])
    assert gaps == [2]


def test_a_gap_in_a_header_block_costs_the_table_and_that_head() -> None:
    observed = hello()
    observed.feed(True, frame(HEADERS, 5, 1, GET + b"\x44\x02/a")[:11])
    observed.gap(True, 5)
    observed.feed(True, frame(HEADERS, 5, 3, b"\x83\xbe") + frame(HEADERS, 5, 5, b"\x83\x44\x02/b"))
    for number in (1, 3, 5):
        observed.feed(False, frame(HEADERS, 5, number, OK))
    assert [(e.path, e.method, e.error) for e in observed.exchanges] == [
        ("", "", "capture_gap"),
        ("", "POST", ""),
        ("/b", "POST", ""),
    ]
    assert observed.counted == {"capture_gaps": 1, "hpack_lost": 1, "hpack_unknown": 1}


def test_a_gap_in_a_frame_head_ends_assignments_and_is_healed_by_the_next_call() -> None:
    observed = hello()
    observed.feed(True, frame(HEADERS, 5, 1, GET) + frame(HEADERS, 5, 3, GET))
    observed.feed(False, frame(HEADERS, 4, 1, OK))
    observed.gap(False, 300)
    assert [assignment.begins for assignment in observed.output.assignments] == [True, True, False, False]
    observed.feed(False, frame(DATA, 1, 1, b"end"))
    observed.close()
    assert [(exchange.status_code, exchange.error) for exchange in observed.exchanges] == [
        (200, "capture_gap"),
        (0, "capture_gap"),
    ]


def test_frames_are_looked_for_only_where_a_call_begins() -> None:
    observed = hello()
    call = observed.call(True)
    observed.gap(True, 300, call=call)
    observed.feed(True, frame(HEADERS, 5, 1, GET), call=call)
    assert not observed.parser.busy and observed.counted == {"resync_bytes_skipped": 12}


def test_what_ended_in_a_gap_is_emitted_once_it_was_silent() -> None:
    observed = hello()
    observed.feed(True, frame(HEADERS, 5, 1, GET))
    observed.gap(False, 300)
    observed.now_ns += 31_000 * MS
    observed.feed(True, frame(HEADERS, 5, 3, GET))
    assert [exchange.error for exchange in observed.exchanges] == ["capture_gap"]


def test_a_gap_in_the_requests_ends_those_under_way() -> None:
    observed = hello()
    observed.feed(True, frame(HEADERS, 4, 1, GET))
    observed.gap(True, 300)
    observed.feed(False, frame(HEADERS, 5, 1, OK))
    assert [exchange.error for exchange in observed.exchanges] == ["capture_gap"]


# Bytes that nobody should send


@pytest.mark.parametrize(
    "data",
    [
        frame(DATA, 0, 0, b"x"),
        frame(HEADERS, 4, 0, GET),
        frame(HEADERS, 4, 2, GET),
        frame(SETTINGS, 0, 0, b"x"),
        frame(SETTINGS, 0, 1),
        frame(PING, 0, 0, b"x"),
        frame(RST_STREAM, 0, 3, b"x"),
        frame(GOAWAY, 0, 0, b"x"),
        frame(CONTINUATION, 4, 1, GET),
        frame(PUSH_PROMISE, 4, 1, bytes(4) + GET),
        frame(HEADERS, 0, 3, GET) + frame(DATA, 0, 1, b"x"),
        frame(HEADERS, 0, 3, GET) + frame(PING, 0, 0, bytes(8)),
        frame(DATA, PADDED, 1, b"\x09x"),
        frame(DATA, PADDED, 1),
        frame(HEADERS, 4 | PADDED, 3, b"\x09" + GET),
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    ],
)
def test_bytes_that_are_not_http2_end_the_connection_aloud(data: bytes) -> None:
    observed = hello()
    observed.feed(True, frame(HEADERS, 4, 1, GET))
    observed.feed(True, data)
    assert observed.parser.ignored and not observed.parser.busy
    assert observed.counted["http2_invalid"] == 1
    assert next(exchange.error for exchange in observed.exchanges if exchange.path == "/") == "invalid_http"
    assert observed.held_bytes == 0


def test_a_gap_can_end_what_is_not_http2() -> None:
    observed = hello()
    observed.feed(True, frame(HEADERS, END_HEADERS, 2, GET)[:10])
    observed.gap(True, 2)
    assert observed.parser.ignored and observed.counted == {"http2_invalid": 1, "hpack_lost": 1}


def test_a_malformed_header_block_costs_only_its_fields() -> None:
    observed = hello()
    observed.feed(True, frame(HEADERS, 5, 1, b"\x80") + frame(HEADERS, 5, 3, GET))
    observed.feed(False, frame(HEADERS, 5, 1, OK) + frame(HEADERS, 5, 3, OK))
    assert [exchange.path for exchange in observed.exchanges] == ["", "/"]
    assert observed.counted["hpack_malformed"] == 1


def test_a_continuation_flood_is_cut_off() -> None:
    observed = hello()
    observed.feed(True, frame(HEADERS, 0, 1, GET))
    for _ in range(200):
        observed.feed(True, frame(CONTINUATION, 0, 1, b"\x00\x01a\x01b"))
    assert observed.parser.ignored and observed.counted["http2_invalid"] == 1
    assert observed.held_bytes == 0


def test_a_huge_header_list_is_bounded_and_the_framing_survives() -> None:
    observed = hello()
    block = GET + b"\x00\x01a\x7f\x81\x7f" + bytes(16384)
    observed.feed(True, frame(HEADERS, 1, 1, block[:16384]))
    for _ in range(4):
        observed.feed(True, frame(CONTINUATION, 0, 1, block))
        assert observed.held_bytes <= 65536
    observed.feed(True, frame(CONTINUATION, END_HEADERS, 1) + frame(HEADERS, 5, 3, GET))
    observed.feed(False, frame(HEADERS, 5, 3, OK))
    assert [exchange.path for exchange in observed.exchanges] == ["/"]
    assert observed.counted == {"http2_headers_too_large": 1, "hpack_lost": 1}


def test_header_blocks_wait_only_within_the_budget() -> None:
    observed = Observed(budget=100)
    observed.feed(True, PREFACE + frame(HEADERS, 5, 1, GET + b"\x00\x01a\x70" + bytes(112))[:-1])
    observed.feed(True, bytes(1))
    assert observed.counted == {"http2_headers_too_large": 1, "hpack_lost": 1}
    assert observed.held_bytes == 0


def test_a_rapid_reset_is_given_up_aloud() -> None:
    observed = hello()
    reset = (8).to_bytes(4, "big")
    for number in range(1, 5001, 2):
        observed.feed(True, frame(HEADERS, 5, number, GET) + frame(RST_STREAM, 0, number, reset), call=None)
        observed.now_ns -= 10 * MS
    assert observed.parser.ignored and observed.counted["http2_floods"] == 1
    assert 1000 <= len(observed.exchanges) <= 1010


def test_nothing_opens_behind_the_reset_that_is_one_too_many() -> None:
    observed = hello()
    pairs = (frame(HEADERS, 5, n, GET) + frame(RST_STREAM, 0, n, bytes(4)) for n in range(1, 5001, 2))
    observed.feed(True, b"".join(pairs))
    assert observed.parser.ignored and not observed.parser.busy
    assert len(observed.exchanges) == len(observed.output.opened) == 1001


def test_a_client_that_cancels_now_and_then_is_no_flood() -> None:
    observed = hello()
    for number in range(1, 5001, 2):
        observed.feed(True, frame(HEADERS, 5, number, GET) + frame(RST_STREAM, 0, number, bytes(4)))
        observed.now_ns += 30 * MS
    assert len(observed.exchanges) == 2500 and not observed.counted


@pytest.mark.parametrize(
    "data",
    [
        frame(PING, 0, 0, bytes(8)),
        frame(SETTINGS, 0, 0, bytes(6)),
        frame(WINDOW_UPDATE, 0, 0, bytes(4)),
        frame(DATA, 0, 1),
        frame(RST_STREAM, 0, 1, bytes(4)),
        frame(0x77, 0, 0, b"x"),
    ],
    ids=["ping", "settings", "window", "empty data", "reset", "unknown"],
)
def test_a_flood_of_frames_that_bear_nothing_is_given_up_aloud(data: bytes) -> None:
    observed = hello()
    for _ in range(200):
        observed.feed(True, data * 100)
        observed.now_ns -= 10 * MS
    assert observed.parser.ignored and observed.counted == {"http2_floods": 1}


def test_window_updates_beside_data_are_no_flood() -> None:
    observed = hello()
    observed.feed(True, frame(HEADERS, 4, 1, GET))
    for _ in range(3000):
        observed.feed(True, frame(DATA, 0, 1, b"x"))
        observed.feed(False, frame(WINDOW_UPDATE, 0, 0, bytes(4)) + frame(WINDOW_UPDATE, 0, 1, bytes(4)))
        observed.now_ns -= 20 * MS
    assert not observed.parser.ignored


def test_open_streams_are_bounded_and_the_oldest_is_emitted() -> None:
    observed = hello()
    for number in range(1, 2 * 1100, 2):
        observed.feed(True, frame(HEADERS, 5, number, GET))
    assert len(observed.parser.streams) == http2.MAX_OPEN
    assert {exchange.error for exchange in observed.exchanges} == {"response_not_seen"}
    assert observed.counted == {"responses_not_seen": 1099 - http2.MAX_OPEN + 1}


def test_threads_of_the_reader_and_writer_are_reported_apart() -> None:
    pair = Pair()
    pair.respond(pair.request())
    server = Observed().wire(pair.wire).exchanges[0]
    client = Observed(role=Role.CLIENT).wire(pair.wire).exchanges[0]
    assert (server.tid, client.tid) == (READER, WRITER)
