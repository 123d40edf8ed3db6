"""Bytes that were not captured, and records that were lost."""

from __future__ import annotations

import time

import pytest

from otelgpu.model.inputs import Batch
from tests.unit.families.requests.traffic import (
    LAST_CHUNK,
    MS,
    READ,
    WRITE,
    Connection,
    Seen,
    chunk,
    new_state,
    opened,
    request,
    response,
)

BIG = 100_000
LATER = 10_000 * MS


def facts(seen: Seen) -> list[tuple[str, int, str]]:
    return [(exchange.path, exchange.status_code, exchange.error) for exchange in seen.exchanges]


@pytest.mark.parametrize("tail", [0, 512])
def test_a_large_body_with_a_length_is_followed_by_the_next_message(tail: int) -> None:
    c, seen = opened()
    upload, answer = request("POST", "/a", b"u" * BIG), response(200, b"d" * BIG)
    seen.feed(c.read(upload, captured=16384, tail=tail)).feed(c.write(answer, captured=16384, tail=tail))
    seen.feed(c.read(request("GET", "/b"))).feed(c.write(response()))
    assert facts(seen) == [("/a", 200, ""), ("/b", 200, "")]
    assert (seen.exchanges[0].request_bytes, seen.exchanges[0].response_bytes) == (len(upload), len(answer))
    assert seen.counts() == {}


def test_an_answer_whose_end_was_not_captured_ends_with_its_call() -> None:
    c, seen = opened()
    seen.feed(c.read(request())).feed(c.write(response(200, b"d" * BIG), captured=16384))
    assert seen.exchanges == []
    seen.take(seen.state.expire(LATER))
    (exchange,) = seen.exchanges
    assert (exchange.error, exchange.end_ns // MS, seen.assigned()[-1]) == ("", 1021, (1021, 101, -1))


def test_closing_settles_what_was_not_captured() -> None:
    c, seen = opened()
    seen.feed(c.read(request())).feed(c.write(response(200, b"d" * BIG), captured=16384)).feed(c.close())
    assert facts(seen) == [("/", 200, "")]


def test_a_chunk_with_a_gap_keeps_its_framing() -> None:
    c, seen = opened()
    seen.feed(c.read(request())).feed(c.write(response(200, None, transfer_encoding="chunked")))
    seen.feed(c.write(chunk(b"x" * BIG), captured=16384, tail=300)).feed(c.write(chunk(b"y") + LAST_CHUNK))
    assert (facts(seen), seen.counts()) == ([("/", 200, "")], {})


def test_a_gigabyte_costs_nothing() -> None:
    c, seen = opened()
    size = 1 << 30
    head = f"POST /big HTTP/1.1\r\ncontent-length: {size}\r\n\r\n".encode()
    seen.feed(c.read(head))
    c.skip(READ, size - 10)
    batches = [*c.read(b"x" * 10), *c.write(response())]
    start = time.perf_counter()
    seen.feed(batches)
    assert time.perf_counter() - start < 0.05
    assert seen.exchanges[0].request_bytes == size + len(head)


def test_a_gap_in_chunk_framing_marks_the_exchange_and_the_next_one_is_whole() -> None:
    c, seen = opened()
    seen.feed(c.read(request("GET", "/a")))
    seen.feed(c.write(response(200, None, transfer_encoding="chunked") + chunk(b"x")))
    c.skip(WRITE, 50)
    seen.feed(c.write(chunk(b"y"))).feed(c.write(LAST_CHUNK))
    seen.feed(c.read(request("GET", "/b"))).feed(c.write(response(200, b"z")))
    assert facts(seen) == [("/a", 200, "capture_gap"), ("/b", 200, "")]
    assert seen.assigned() == [(1011, 101, 1), (1051, 101, -1), (1051, 101, 2), (1061, 101, -2)]
    assert seen.exchanges[0].end_ns // MS == 1041


def test_a_gap_in_a_request_head_marks_the_exchange_and_resynchronises() -> None:
    c, seen = opened()
    seen.feed(c.read(b"GET /a HTTP/1.1\r\nx: "))
    c.skip(READ, 100)
    seen.feed(c.read(b"rest\r\n\r\n")).feed(c.write(response(200)))
    seen.feed(c.read(request("GET", "/b"))).feed(c.write(response(201)))
    assert facts(seen) == [("/a", 200, "capture_gap"), ("/b", 201, "")]
    assert seen.counts() == {"capture_gaps": 1, "resync_bytes_skipped": 8}


def test_a_gap_in_a_chunked_request_keeps_its_answer() -> None:
    c, seen = opened()
    seen.feed(c.read(request("POST", "/a", transfer_encoding="chunked") + chunk(b"x")))
    c.skip(READ, 100)
    seen.feed(c.read(LAST_CHUNK)).feed(c.write(response(200)))
    seen.feed(c.read(request("GET", "/b"))).feed(c.write(response(201)))
    assert facts(seen) == [("/a", 200, "capture_gap"), ("/b", 201, "")]


def test_pipelined_answers_after_a_gap_are_marked() -> None:
    c, seen = opened()
    seen.feed(c.read(request("GET", "/a") + request("GET", "/b")))
    seen.feed(c.write(response(200, None, transfer_encoding="chunked")))
    c.skip(WRITE, 50)
    seen.feed(c.write(response(201))).feed(c.close())
    assert facts(seen) == [("/a", 200, "capture_gap"), ("/b", 201, "capture_gap")]


def test_the_answer_to_a_request_that_was_not_seen_is_not_that_of_the_one_before() -> None:
    """The first one's answer is lost as a whole, and so is the second one's head."""
    c, seen = opened()
    seen.feed(c.read(request("GET", "/first")))
    c.skip(WRITE, len(response()))
    c.skip(READ, len(request("GET", "/second")))
    seen.feed(c.write(response(status=503)))
    seen.feed(c.read(request("GET", "/third"))).feed(c.write(response(status=404)))
    found = {exchange.path: (exchange.status_code, exchange.error) for exchange in seen.exchanges}
    assert found["/first"] == (0, "capture_gap")
    assert found["/third"] == (404, "")


@pytest.mark.parametrize("pipelined", [False, True])
def test_where_an_answer_may_be_missing_no_exchange_with_another_one_s_is_unmarked(pipelined: bool) -> None:
    """The end of a stream is lost, then an answer as a whole: each that follows may be taken for the one before it."""
    c, seen = opened()
    if pipelined:
        seen.feed(c.read(request(target="/0") + request(target="/00"))).feed(c.write(response() + response()))
    seen.feed(c.read(request(target="/200"))).feed(c.write(response(200, None, transfer_encoding="chunked")))
    c.skip(WRITE, 50)
    seen.feed(c.write(LAST_CHUNK)).feed(c.read(request(target="/201")))
    c.skip(WRITE, len(response(201)))
    for status in range(202, 210):
        seen.feed(c.read(request(target=f"/{status}"))).feed(c.write(response(status)))
    seen.feed(c.close())
    known = [(path, status) for path, status, error in facts(seen) if not error]
    assert [(path, status) for path, status in known if int(path[1:]) not in (0, status)] == []
    assert len(seen.exchanges) == 10 + 2 * pipelined


def test_an_answer_with_a_lost_start_is_marked() -> None:
    c, seen = opened()
    seen.feed(c.read(request("GET", "/a")))
    c.skip(WRITE, 30)
    seen.feed(c.write(b"rest of it")).feed(c.read(request("GET", "/b"))).feed(c.write(response(204)))
    assert facts(seen) == [("/a", 0, "capture_gap"), ("/b", 204, "")]


def test_an_answer_that_was_lost_with_the_last_records_is_no_connection_closed_without_one() -> None:
    c, seen = opened()
    seen.feed(c.read(request()))
    c.write(response())
    seen.feed(c.close())
    seen.take(seen.state.expire(LATER))
    (exchange,) = seen.exchanges
    assert (exchange.error_type, exchange.incomplete) == ("", "capture_gap")
    assert seen.counts() == {"chunks_lost": 1, "capture_gaps": 1}


def test_a_body_sent_by_sendfile_ends_when_the_next_answer_starts() -> None:
    c, seen = opened()
    seen.feed(c.read(request("GET", "/file"))).feed(c.write(response(200, None, content_length="5000")))
    seen.feed(c.read(request("GET", "/b"))).feed(c.write(response(204)))
    assert facts(seen) == [("/file", 200, ""), ("/b", 204, "")]
    assert seen.counts() == {"bodies_unseen": 1}


def test_a_body_that_looks_like_a_response_stays_a_body() -> None:
    c, seen = opened()
    seen.feed(c.read(request("GET", "/a"))).feed(c.write(response(200, None, content_length="40")))
    seen.feed(c.write(b"HTTP/1.1 200 OK\r\n\r\n".ljust(40))).feed(c.read(request("GET", "/b"))).feed(
        c.write(response())
    )
    assert (facts(seen), seen.counts()) == ([("/a", 200, ""), ("/b", 200, "")], {})


def test_a_lost_record_is_counted_and_waited_for_no_longer_than_needed() -> None:
    c, seen = opened()
    seen.feed(c.read(request("GET", "/a")))
    c.write(response(200, b"lost"))
    seen.feed(c.read(request("GET", "/b"))).feed(c.write(response(204)))
    assert seen.exchanges == []
    seen.take(seen.state.expire(LATER))
    assert seen.counts() == {"chunks_lost": 1, "capture_gaps": 2}
    assert [(path, error) for path, _, error in facts(seen)] == [("/a", "capture_gap"), ("/b", "capture_gap")]
    seen.feed(c.read(request("GET", "/c"))).feed(c.write(response()))
    assert facts(seen)[-1] == ("/c", 200, "")


def test_a_lost_chunk_of_a_body_harms_nothing() -> None:
    c, seen = opened()
    seen.feed(c.read(request())).feed(c.write(response(200, None, content_length="30")))
    c.write(b"x" * 10)
    seen.feed(c.write(b"x" * 20)).take(seen.state.expire(LATER))
    assert (facts(seen), seen.counts()) == ([("/", 200, "")], {"chunks_lost": 1})


def test_chunks_out_of_order_are_put_back() -> None:
    c, seen = opened()
    chunks = [
        *c.read(request("GET", "/a")),
        *c.write(response()),
        *c.read(request("GET", "/b")),
        *c.write(response()),
    ]
    closing = c.close()
    seen.feed([chunks[2], chunks[0], chunks[3]]).feed(closing).feed(chunks[1])
    assert (facts(seen), seen.counts()) == ([("/a", 200, ""), ("/b", 200, "")], {})
    assert seen.state.connection_count == 0


def test_held_back_chunks_are_bounded() -> None:
    c, seen = opened()
    c.read(b"")
    c.sequence += 1
    for _ in range(2000):
        seen.feed(c.read(request())).feed(c.write(response()))
    assert len(seen.exchanges) > 900
    assert seen.counts() == {"chunks_lost": 1}


def test_a_chunk_that_comes_after_it_was_given_up_is_dropped() -> None:
    c, seen = opened()
    lost = c.read(request("GET", "/lost"))
    seen.feed(c.write(response())).take(seen.state.expire(LATER)).feed(lost)
    assert seen.counts()["chunks_late"] == 1


def test_repeated_bytes_are_dropped() -> None:
    c, seen = opened()
    data = request("POST", "/", b"0123456789")
    seen.feed(c.read(data[:-4]))
    c.offsets[READ] -= 3
    seen.feed(c.read(data[-7:])).feed(c.write(response()))
    assert facts(seen) == [("/", 200, "")]
    assert seen.exchanges[0].request_bytes == len(data)
    assert seen.counts() == {"bytes_repeated": 3}


def test_a_connection_found_open_starts_with_its_next_request() -> None:
    c = Connection()
    seen = Seen(new_state()).feed(c.open(late=True))
    c.offsets = {READ: 900, WRITE: 5000}
    seen.feed(c.write(b"tail of an answer")).feed(c.read(b"rest of an upload"))
    seen.feed(c.read(request("GET", "/a"))).feed(c.write(response(200, b"x")))
    seen.feed(c.read(request("GET", "/b"))).feed(c.write(response(204)))
    assert facts(seen) == [("/a", 200, ""), ("/b", 204, "")]
    assert seen.counts() == {"late_bytes_skipped": 34}


def test_a_connection_never_seen_to_open_has_no_endpoints() -> None:
    c = Connection(sequence=50)
    seen = Seen(new_state()).feed(c.read(request())).take(new_state().expire(0))
    seen.take(seen.state.expire(LATER)).feed(c.write(response()))
    assert (facts(seen), seen.exchanges[0].client.port) == ([("/", 200, "")], 0)
    assert seen.counts() == {"connections_not_opened": 1}


def test_a_body_whose_bytes_were_not_captured_ends_before_the_next_request_is_taken_up() -> None:
    c, seen = opened()
    seen.feed(c.read(request("GET", "/file"), tid=7)).feed(
        c.write(response(200, None, content_length="5000"), tid=7)
    )
    seen.feed(uncaptured(c, 5000, tid=7))  # sendfile
    seen.feed(c.read(request("GET", "/b"), tid=8))
    assert facts(seen) == [("/file", 200, "")]
    assert seen.assigned() == [(1011, 7, 1), (1031, 7, -1), (1041, 8, 2)]
    assert seen.exchanges[0].end_ns // MS == 1031


def test_the_end_of_a_call_may_come_after_a_chunk_of_the_other_direction() -> None:
    c, seen = opened()
    seen.feed(c.read(request("GET", "/a"), tid=7))
    head, tail = c.write(response(200, b"x" * BIG), captured=16384, tail=512, tid=7)
    now = c.now_ns
    c.now_ns += c.took_ns + 1000 - c.gap_ns
    (following,) = c.read(request("GET", "/b"), tid=8)
    following.records["chunk"]["sequence"], tail.records["chunk"]["sequence"] = 2, 3
    seen.feed(head).feed(following).feed(tail)
    assert now < c.now_ns and facts(seen) == [("/a", 200, "")]
    assert seen.counts() == {}


def uncaptured(c: Connection, size: int, *, tid: int) -> list[Batch]:
    """A call that moved bytes of which none were captured."""
    (batch,) = c.result(WRITE, size, tid=tid)
    c.offsets[WRITE] += size
    return [batch]


def test_a_threads_next_call_shows_that_its_last_one_has_no_more_chunks() -> None:
    c, seen = opened()
    seen.feed(c.read(request("GET", "/a"), tid=7)).feed(
        c.write(response(200, b"x" * BIG), captured=16384, tid=7)
    )
    c.now_ns += c.took_ns + 1000 - c.gap_ns  # sooner than another thread's chunk could still come
    seen.feed(c.read(request("GET", "/b"), tid=7))
    assert facts(seen) == [("/a", 200, "")]


def test_a_head_of_which_the_end_was_not_captured_keeps_its_request_line() -> None:
    c, seen = opened()
    head = b"POST /v1/chat/completions?key=1 HTTP/1.1\r\nHost: a\r\nUser-Agent: u\r\nX-Long: " + b"x" * 20_000
    body = b'{"model":"asked","messages":[]}'
    head += b"\r\nContent-Length: %d\r\n\r\n" % len(body)
    seen.feed(c.read(head + body, captured=16384, tail=256))
    answer = b'{"model":"given","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":7}}'
    seen.feed(c.write(response(200, answer, content_type="application/json")))
    seen.feed(c.read(request("GET", "/b"))).feed(c.write(response()))
    first, second = seen.exchanges
    assert (first.method, first.path, first.user_agent) == ("POST", "/v1/chat/completions", "u")
    assert (first.status_code, first.error_type, first.incomplete) == (200, "", "capture_gap")
    assert first.generation is not None
    assert (first.generation.response_model, first.generation.output_tokens) == ("given", 7)
    assert (second.path, second.error) == ("/b", "")
    assert [each.key for each in seen.opened] == [first.key, second.key]


def test_a_request_line_that_was_cut_is_not_taken_for_whole() -> None:
    c, seen = opened()
    seen.feed(c.read(request("GET", "/" + "long" * 5000), captured=16384, tail=64)).feed(c.write(response()))
    (exchange,) = seen.exchanges
    assert (exchange.method, exchange.path, exchange.incomplete) == ("", "", "capture_gap")


@pytest.mark.parametrize("late", [False, True])
def test_empty_lines_before_a_request_are_ignored(late: bool) -> None:
    """RFC 9112, section 2.2."""
    c = Connection()
    seen = Seen(new_state()).feed(c.open(late=late))
    for path in ("/a", "/b"):
        seen.feed(c.read(b"\r\n" + request("GET", path))).feed(c.write(response()))
    assert facts(seen) == [("/a", 200, ""), ("/b", 200, "")]
    assert {exchange.request_bytes for exchange in seen.exchanges} == {len(request("GET", "/a"))}
