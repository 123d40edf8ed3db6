"""HTTP/1 at a client, and the endpoints and times of an exchange."""

from __future__ import annotations

import json

import pytest

from otelgpu.model.exchange import Published, Role, StartSource, TraceParent
from tests.unit.families.requests.traffic import (
    MS,
    READ,
    Connection,
    Seen,
    chunk,
    new_state,
    opened,
    request,
    response,
)

TRACE, SPAN = bytes(range(16)), bytes(range(8))


def test_a_clients_exchange_is_timed_by_its_calls() -> None:
    c, seen = opened("CLIENT")
    asked = request("POST", "/a", b"x" * 10)
    seen.feed(c.write(asked[:30], tid=5)).feed(c.write(asked[30:], tid=6))
    answer = response(200, b"y" * 100)
    seen.feed(c.read(answer[:20], tid=7)).feed(c.read(answer[20:], tid=7))
    (exchange,) = seen.exchanges
    assert (exchange.role, exchange.start_source) == (Role.CLIENT, StartSource.WRITE)
    assert (exchange.start_ns // MS, exchange.request_end_ns // MS) == (1010, 1021)
    assert (exchange.first_byte_ns // MS, exchange.end_ns // MS) == (1031, 1041)
    assert (exchange.tid, exchange.method, exchange.path, exchange.status_code) == (6, "POST", "/a", 200)
    assert (exchange.request_bytes, exchange.response_bytes) == (len(asked), len(answer))
    assert (exchange.server.port, exchange.client.port) == (40000, 8000)
    assert (seen.assignments, seen.counts()) == ([], {})


def test_content_is_timed_by_the_read_that_brought_it() -> None:
    c, seen = opened("CLIENT")
    seen.feed(c.write(request("POST", "/v1/chat/completions", b'{"model":"m","stream":true}')))
    head = response(200, None, content_type="text/event-stream", transfer_encoding="chunked")
    event = json.dumps({"id": "r1", "choices": [{"delta": {"content": "hi"}}]})
    seen.feed(c.read(head)).feed(c.read(chunk(f"data: {event}\n\n".encode())))
    (named,) = seen.named
    assert (named.request_id, named.key, named.time_ns // MS) == ("r1", 1, 1031)
    seen.feed(c.read(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"))
    generation = seen.exchanges[0].generation
    assert generation is not None and generation.first_content_ns // MS == 1031
    assert len(seen.named) == 1


def test_at_a_server_content_is_timed_by_the_begin_of_its_write() -> None:
    c, seen = opened()
    seen.feed(c.read(request("POST", "/v1/chat/completions", b'{"model":"m","stream":true}')))
    head = response(200, None, content_type="text/event-stream", transfer_encoding="chunked")
    event = json.dumps({"id": "r1", "choices": [{"delta": {"content": "hi"}}]})
    seen.feed(c.write(head)).feed(c.write(chunk(f"data: {event}\n\n".encode()) + b"0\r\n\r\n"))
    generation = seen.exchanges[0].generation
    assert generation is not None and generation.first_content_ns // MS == 1030


def test_a_response_until_close_is_complete_when_the_client_reads_the_end() -> None:
    c, seen = opened("CLIENT")
    seen.feed(c.write(request())).feed(c.read(response(200, None) + b"some")).feed(c.read(b" more"))
    assert seen.exchanges == []
    seen.feed(c.result(READ, 0))
    (exchange,) = seen.exchanges
    assert (exchange.error, exchange.status_code, exchange.response_bytes) == ("", 200, c.offsets[READ])
    assert exchange.end_ns // MS == 1041


@pytest.mark.parametrize("answered", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nxx"])
def test_a_server_that_hangs_up_leaves_a_client_with_an_error(answered: bytes) -> None:
    c, seen = opened("CLIENT")
    seen.feed(c.write(request()))
    if answered:
        seen.feed(c.read(answered))
    seen.feed(c.result(READ, 0)).feed(c.close())
    assert [exchange.error for exchange in seen.exchanges] == ["connection_closed"]


def test_a_client_that_closes_in_the_middle_of_a_response_until_close() -> None:
    c, seen = opened("CLIENT")
    seen.feed(c.write(request())).feed(c.read(response(200, None) + b"some")).feed(c.close())
    assert [exchange.error for exchange in seen.exchanges] == ["connection_closed"]


def test_a_request_starts_when_its_first_byte_arrived_where_that_is_known() -> None:
    c, seen = opened()
    seen.feed(c.read(request("GET", "/a"), arrival_ns=1005 * MS)).feed(c.write(response()))
    seen.feed(c.read(request("GET", "/b"))).feed(c.write(response()))
    assert [(e.start_ns // MS, e.start_source) for e in seen.exchanges] == [
        (1005, StartSource.ARRIVAL),
        (1031, StartSource.READ),
    ]
    assert seen.assigned()[0] == (1011, 101, 1)  # nobody works for it before it was read


def test_the_arrival_is_of_the_calls_first_byte_only() -> None:
    c, seen = opened()
    seen.feed(c.read(request("GET", "/a") + request("GET", "/b"), arrival_ns=1005 * MS))
    seen.feed(c.write(response() + response()))
    assert [e.start_source for e in seen.exchanges] == [StartSource.ARRIVAL, StartSource.READ]


def test_an_arrival_after_the_call_returned_is_no_arrival() -> None:
    c, seen = opened()
    seen.feed(c.read(request(), arrival_ns=5000 * MS)).feed(c.write(response()))
    assert (seen.exchanges[0].start_source, seen.exchanges[0].start_ns // MS) == (StartSource.READ, 1011)


def test_what_the_process_worked_under_is_reported_by_the_call_that_writes_a_head() -> None:
    published = Published(trace_id=TRACE, span_id=SPAN, flags=1, source=1)
    for role in ("SERVER", "CLIENT"):
        c, seen = opened(role)
        first, second = (c.read, c.write) if role == "SERVER" else (c.write, c.read)
        if role == "CLIENT":
            c.published = (TRACE, SPAN, 1, 1)
        seen.feed(first(request()))
        c.published = (TRACE, SPAN, 1, 1) if role == "SERVER" else None
        seen.feed(second(response(200, b"xy")[:-1]))
        c.published = None
        seen.feed(second(b"y"))
        assert seen.exchanges[0].published == published


def test_an_opened_request_reports_what_its_span_is_made_of() -> None:
    c, seen = opened()
    opening = c.open()
    opening.records["sequence"], opening.records["sequences_known"] = (1000, 2000), 3
    head = request("GET", "/a", traceparent=f"00-{TRACE.hex()}-{SPAN.hex()}-01")
    seen.feed(opening).feed(c.read(head[:-2]))
    assert seen.opened == []
    seen.feed(c.read(head[-2:] + request("GET", "/b")))
    parent = TraceParent(trace_id=TRACE, span_id=SPAN, flags=1)
    assert [(o.key, o.tgid, o.tid, o.start_ns // MS, o.role, o.parent) for o in seen.opened] == [
        (1, 100, 101, 1011, Role.SERVER, parent),
        (2, 100, 101, 1021, Role.SERVER, None),
    ]
    assert [o.wire_id[-4:] for o in seen.opened] == [
        (1000).to_bytes(4, "big"),
        (1000 + len(head)).to_bytes(4, "big"),
    ]
    seen.feed(c.write(response() + response()))
    assert [e.wire_id for e in seen.exchanges] == [o.wire_id for o in seen.opened]


def test_both_ends_give_the_same_requests_the_same_wire_ids() -> None:
    ids = []
    for role in ("SERVER", "CLIENT"):
        c = Connection()
        opening = c.open(role=role)
        record = opening.records
        sequences = (1000, 2000)
        record["sequence"] = sequences if role == "SERVER" else sequences[::-1]
        record["sequences_known"] = 3
        if role == "CLIENT":
            for a, b in (("local_port", "peer_port"), ("local_address", "peer_address")):
                record[a], record[b] = record[b].copy(), record[a].copy()
        seen = Seen(new_state()).feed(opening)
        ask, answer = (c.read, c.write) if role == "SERVER" else (c.write, c.read)
        for path in ("/a", "/b"):
            seen.feed(ask(request("GET", path))).feed(answer(response()))
        ids.append([exchange.wire_id for exchange in seen.exchanges])
    assert ids[0] == ids[1] and len(set(ids[0])) == 2 and all(ids[0])


def test_an_http2_upgrade_hands_the_request_to_http2() -> None:
    c, seen = opened()
    seen.feed(c.read(request("GET", "/a", upgrade="websocket, h2c", connection="Upgrade, HTTP2-Settings")))
    seen.feed(c.write(response(101, None, upgrade="h2c", connection="Upgrade")))
    assert (seen.exchanges, [o.key for o in seen.opened]) == ([], [1])
    holds = [assignment.begins for assignment in seen.assignments]
    assert holds == [True, False, True][: len(holds)] and len(holds) >= 2
    seen.feed(c.close())
    assert [(e.key, e.path, e.error) for e in seen.exchanges] == [(1, "/a", "connection_closed")]
    assert seen.assignments[-1].begins is False


def test_http2_by_prior_knowledge_is_no_http1() -> None:
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    for cut in (1, 3, 24):
        c, seen = opened()
        settings = b"\0\0\0\x04\0\0\0\0\0"
        seen.feed(c.read(preface[:cut])).feed(c.read(preface[cut:] + settings)).feed(c.write(settings))
        seen.feed(c.close())
        assert (seen.exchanges, seen.counts()) == ([], {})


def test_a_switch_that_leaves_its_headers_away_is_a_switch() -> None:
    c, seen = opened()
    seen.feed(c.read(request("GET", "/ws", upgrade="websocket"))).feed(
        c.write(b"HTTP/1.1 101 x\r\n\r\n\x81\x00")
    )
    assert [e.status_code for e in seen.exchanges] == [101]
    assert seen.counts() == {"websocket_messages": 1}
