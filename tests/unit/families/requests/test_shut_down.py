"""shutdown(2): who says that he sends no more answers nothing that he reads from then on."""

from __future__ import annotations

from tests.unit.families.requests.traffic import MS, Seen, opened, request, response


def seen_of(seen: Seen) -> list[tuple[str, int, str]]:
    return [(exchange.path, exchange.status_code, exchange.error_type) for exchange in seen.exchanges]


def test_what_a_server_reads_after_its_own_shutdown_is_no_request() -> None:
    """cpp-httplib drains what the client had sent, so that closing the socket resets nothing."""
    c, seen = opened()
    seen.feed(c.read(request("GET", "/answered"))).feed(c.write(response())).feed(c.shut_down())
    seen.feed(c.read(request("GET", "/drained") * 3)).feed(
        c.read(request("POST", "/drained", b"x" * 100)[:60])
    )
    seen.feed(c.read(b"")).feed(c.close())
    assert seen_of(seen) == [("/answered", 200, "")]
    assert seen.counts() == {}
    begun = [assignment.exchange for assignment in seen.assignments if assignment.begins]
    assert len(begun) == 1


def test_what_it_had_read_and_not_answered_failed() -> None:
    c, seen = opened()
    seen.feed(c.read(request("GET", "/a") + request("GET", "/b"))).feed(c.write(response()))
    seen.feed(c.shut_down())
    assert seen_of(seen) == [("/a", 200, ""), ("/b", 0, "connection_closed")]
    seen.feed(c.read(request("GET", "/drained"))).feed(c.close())
    assert len(seen.exchanges) == 2


def test_a_body_that_the_end_delimits_ends_with_it() -> None:
    c, seen = opened()
    seen.feed(c.read(request("GET", "/a"))).feed(c.write(b"HTTP/1.1 200 OK\r\n\r\nsome")).feed(
        c.write(b"more")
    )
    seen.feed(c.shut_down())
    (exchange,) = seen.exchanges
    assert (exchange.status_code, exchange.error_type, exchange.answered) == (200, "", True)
    assert exchange.response_bytes == len(b"HTTP/1.1 200 OK\r\n\r\nsomemore")


def test_a_client_that_sends_no_more_still_has_its_answer() -> None:
    c, seen = opened(role="CLIENT")
    seen.feed(c.write(request("POST", "/a", b"body"))).feed(c.shut_down()).feed(c.read(response(201)))
    assert seen_of(seen) == [("/a", 201, "")]


def test_a_shutdown_that_comes_before_the_chunks_it_followed_waits_for_them() -> None:
    c, seen = opened()
    asked, answered, end = c.read(request("GET", "/a")), c.write(response()), c.shut_down()
    drained = c.read(request("GET", "/drained"))
    seen.feed([*end, *drained, *answered, *asked]).feed(c.close())
    assert seen_of(seen) == [("/a", 200, "")]


def test_on_a_connection_of_no_known_protocol_it_is_nothing() -> None:
    c, seen = opened()
    seen.feed(c.shut_down()).feed(c.read(request("GET", "/a"))).feed(c.write(response()))
    seen.take(seen.state.expire(c.now_ns + 1000 * MS))
    assert seen_of(seen) == [("/a", 200, "")]
