"""What one connection's traffic becomes: pairing, body delimiters, ends and errors."""

from __future__ import annotations

import errno

import pytest

from otelgpu.families.requests.open_exchange import path_of
from otelgpu.model.exchange import Endpoint
from tests.unit.families.requests.traffic import (
    LAST_CHUNK,
    MS,
    READ,
    WRITE,
    Connection,
    Seen,
    chunk,
    chunked,
    new_state,
    opened,
    request,
    response,
)


def statuses(seen: Seen) -> list[tuple[str, int, str]]:
    return [(exchange.path, exchange.status_code, exchange.error) for exchange in seen.exchanges]


def test_one_exchange_has_every_fact() -> None:
    c, seen = opened()
    head = request("GET", "/v2/x%20y?secret=1", user_agent="curl/8", host="h", authorization="Bearer s")
    answer = response(200, b"hello")
    seen.feed(c.read(head)).feed(c.write(answer))
    (exchange,) = seen.exchanges
    assert (exchange.method, exchange.path, exchange.query_present) == ("GET", "/v2/x%20y", True)
    assert (exchange.start_ns, exchange.request_end_ns) == (1011 * MS, 1011 * MS)
    assert (exchange.first_byte_ns, exchange.end_ns) == (1020 * MS, 1021 * MS)
    assert (exchange.request_bytes, exchange.response_bytes) == (len(head), len(answer))
    assert (exchange.tgid, exchange.tid, exchange.cgroup_id) == (100, 101, 7)
    assert (exchange.status_code, exchange.protocol_version, exchange.error) == (200, "1.1", "")
    assert exchange.server == Endpoint(address="127.0.0.1", port=8000)
    assert exchange.client == Endpoint(address="192.0.2.7", port=40000)
    assert (exchange.key, exchange.ordinal, exchange.user_agent) == (1, 0, "curl/8")
    assert seen.counts() == {}


def test_no_header_but_the_wanted_ones_is_kept() -> None:
    c, seen = opened()
    seen.feed(c.read(request("GET", "/", authorization="Bearer hush", cookie="hush")))
    seen.feed(c.write(response(200, b"hush", set_cookie="hush")))
    assert "hush" not in repr(seen.exchanges)


def test_keep_alive_gives_an_exchange_per_request() -> None:
    c, seen = opened()
    for path in ("/a", "/b", "/c"):
        seen.feed(c.read(request("GET", path))).feed(c.write(response(200, path.encode())))
    assert statuses(seen) == [("/a", 200, ""), ("/b", 200, ""), ("/c", 200, "")]
    assert [exchange.ordinal for exchange in seen.exchanges] == [0, 1, 2]


def test_pipelined_requests_are_answered_in_order() -> None:
    c, seen = opened()
    seen.feed(c.read(request("GET", "/a") + request("POST", "/b", b"body") + request("HEAD", "/c")))
    seen.feed(c.write(response(200, b"1") + response(404, b"22") + response(200, b"", content_length="9")))
    assert statuses(seen) == [("/a", 200, ""), ("/b", 404, ""), ("/c", 200, "")]


def test_chunked_bodies_with_trailer_and_extension_end_where_they_end() -> None:
    c, seen = opened()
    body = chunked(b"x" * 300, b"\r\n0\r\n\r\n", trailer=b"digest: 1\r\n", extension=b";a=b")
    upload = request("POST", "/up", transfer_encoding="chunked") + body
    seen.feed(c.read(upload + request("GET", "/next")))
    seen.feed(c.write(response(200, None, transfer_encoding="chunked") + body)).feed(c.write(response(204)))
    assert statuses(seen) == [("/up", 200, ""), ("/next", 204, "")]
    assert seen.exchanges[0].request_bytes == len(upload)


@pytest.mark.parametrize("interim", [100, 102, 103])
def test_interim_responses_are_not_the_response(interim: int) -> None:
    c, seen = opened()
    body = b"b" * 10
    head = request("POST", "/", body, expect="100-continue")[: -len(body)]
    seen.feed(c.read(head)).feed(c.write(response(interim, None))).feed(c.read(body))
    seen.feed(c.write(response(200, b"ok")))
    (exchange,) = seen.exchanges
    assert (exchange.status_code, exchange.first_byte_ns // MS) == (200, 1040)
    assert exchange.request_end_ns // MS == 1031


def test_interim_and_final_response_in_one_write() -> None:
    c, seen = opened()
    seen.feed(c.read(request())).feed(c.write(response(103, None, link="</a>") + response(200, b"ok")))
    assert statuses(seen) == [("/", 200, "")]


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("HEAD", response(200, None, content_length="1000")),
        ("HEAD", response(200, None, transfer_encoding="chunked")),
        ("HEAD", response(200, None)),
        ("GET", response(204, None)),
        ("GET", response(304, None, content_length="1000")),
        ("GET", response(200, b"")),
    ],
)
def test_responses_without_a_body_end_with_their_head(method: str, answer: bytes) -> None:
    c, seen = opened()
    seen.feed(c.read(request(method, "/a"))).feed(c.write(answer))
    seen.feed(c.read(request("GET", "/b"))).feed(c.write(response(200, b"x")))
    assert [path for path, _, _ in statuses(seen)] == ["/a", "/b"]


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_response_of_unknown_length_ends_with_the_connection(version: str) -> None:
    c, seen = opened()
    seen.feed(c.read(request(version=version)))
    seen.feed(c.write(response(200, None, version=version, connection="close") + b"some"))
    seen.feed(c.write(b" more"))
    assert seen.exchanges == []
    seen.feed(c.close())
    (exchange,) = seen.exchanges
    assert (exchange.error, exchange.end_ns // MS, exchange.protocol_version) == ("", 1031, version)
    assert exchange.response_bytes == c.offsets[WRITE]


def test_bytes_after_the_last_request_are_not_a_request() -> None:
    c, seen = opened()
    seen.feed(c.read(request("GET", "/a", connection="close") + request("GET", "/b")))
    seen.feed(c.write(response(200, b"x", connection="close"))).feed(c.close())
    assert statuses(seen) == [("/a", 200, "")]


def test_http_1_0_keep_alive() -> None:
    c, seen = opened()
    for _ in range(2):
        seen.feed(c.read(request(version="1.0", connection="keep-alive")))
        seen.feed(c.write(response(200, b"x", version="1.0", connection="keep-alive")))
    assert len(seen.exchanges) == 2


def test_empty_lines_before_a_request_are_skipped() -> None:
    c, seen = opened()
    seen.feed(c.read(b"\r\n\r\n" + request())).feed(c.write(response())).feed(c.read(b"\r\n"))
    assert statuses(seen) == [("/", 200, "")]
    assert seen.exchanges[0].request_bytes == len(request())
    assert not seen.state.counters["not_http"]


def test_an_upgrade_that_the_server_ignores_is_a_plain_request() -> None:
    c, seen = opened()
    seen.feed(c.read(request("GET", "/a", upgrade="h2c", connection="Upgrade, HTTP2-Settings")))
    seen.feed(c.write(response(200, b"x"))).feed(c.read(request("GET", "/b"))).feed(c.write(response(200)))
    assert statuses(seen) == [("/a", 200, ""), ("/b", 200, "")]


def test_a_tunnel_is_given_up_after_connect() -> None:
    c, seen = opened()
    seen.feed(c.read(request("CONNECT", "db:5432"))).feed(c.write(response(200, None)))
    seen.feed(c.read(b"\x00\x00tunnel"))
    assert statuses(seen) == [("db:5432", 200, "")]
    assert seen.counts() == {"upgraded": 1}


@pytest.mark.parametrize(
    "garbage", [b"\x16\x03\x01\x02\x00\x01", b"SSH-2.0-x\r\n", b"*1\r\n$4\r\nPING\r\n", b"\0"]
)
def test_other_protocols_are_counted_once_and_ignored(garbage: bytes) -> None:
    c, seen = opened()
    for _ in range(5):
        seen.feed(c.read(garbage)).feed(c.write(response(400, b"what?")))
    assert (seen.exchanges, seen.assignments, seen.counts()) == ([], [], {"protocol_unknown": 1})


def test_a_server_that_sends_first_in_an_unknown_protocol_is_ignored() -> None:
    c, seen = opened()
    seen.feed(c.write(b"220 smtp ready\r\n")).feed(c.read(request()))
    assert (seen.exchanges, seen.counts()) == ([], {"protocol_unknown": 1})


def test_a_malformed_request_keeps_the_answer_it_got() -> None:
    c, seen = opened()
    seen.feed(c.read(b"GET /x HTTP/1.1\r\nbad\x01header\r\n\r\n")).feed(c.write(response(400, b"no")))
    assert statuses(seen) == [("/x", 400, "invalid_http")]
    assert seen.assigned() == [(1011, 101, 1), (1021, 101, -1)]


def test_garbage_after_a_request_spoils_nothing_before_it() -> None:
    c, seen = opened()
    seen.feed(c.read(request("GET", "/a") + b"\x00\x01\x02")).feed(c.write(response(200, b"x")))
    assert statuses(seen) == [("/a", 200, "")]
    assert seen.counts() == {"not_http": 1}


def test_a_response_that_is_not_http_ends_the_exchange() -> None:
    c, seen = opened()
    seen.feed(c.read(request())).feed(c.write(b"garbage"))
    assert statuses(seen) == [("/", 0, "invalid_http")]
    assert [assignment.begins for assignment in seen.assignments] == [True, False]


def test_a_head_without_end_is_given_up() -> None:
    c, seen = opened()
    seen.feed(c.read(b"GET / HTTP/1.1\r\nx: " + b"y" * 70_000)).feed(c.write(response(431, b"")))
    assert statuses(seen) == [("/", 431, "invalid_http")]


def test_a_half_closed_connection_is_still_answered() -> None:
    c, seen = opened()
    seen.feed(c.read(request("POST", "/", b"x"))).feed(c.result(READ, 0))
    seen.feed(c.write(response(200, None, transfer_encoding="chunked") + chunk(b"a")))
    seen.feed(c.result(READ, 0)).feed(c.write(chunk(b"b") + LAST_CHUNK))
    assert statuses(seen) == [("/", 200, "")]


def test_a_request_cut_short_by_its_client_is_over_when_answered() -> None:
    c, seen = opened()
    part = request("POST", "/", b"x" * 100)[:-50]
    seen.feed(c.read(part)).feed(c.result(READ, 0)).feed(c.write(response(400, b"")))
    assert statuses(seen) == [("/", 400, "")]
    assert seen.exchanges[0].request_bytes == len(part)


def test_an_early_response_waits_for_its_request_but_not_for_the_thread() -> None:
    c, seen = opened()
    whole = request("POST", "/", b"x" * 100)
    seen.feed(c.read(whole[:-50])).feed(c.write(response(413, b"too much")))
    assert (seen.exchanges, seen.assigned()) == ([], [(1011, 101, 1), (1021, 101, -1)])
    seen.feed(c.read(whole[-50:] + request("GET", "/next")))
    assert statuses(seen) == [("/", 413, "")]
    assert seen.exchanges[0].request_bytes == len(whole)
    seen.feed(c.write(response()))
    assert [exchange.path for exchange in seen.exchanges] == ["/", "/next"]


def test_closing_without_an_answer() -> None:
    c, seen = opened()
    seen.feed(c.read(request("GET", "/a") + request("GET", "/b"))).feed(c.close())
    assert statuses(seen) == [("/a", 0, "connection_closed"), ("/b", 0, "connection_closed")]
    assert {(e.first_byte_ns, e.end_ns // MS) for e in seen.exchanges} == {(0, 1020)}


def test_closing_in_the_middle_of_the_answer() -> None:
    c, seen = opened()
    seen.feed(c.read(request())).feed(c.write(response(200, b"x" * 100)[:-1])).feed(c.close())
    assert statuses(seen) == [("/", 200, "connection_closed")]
    assert seen.exchanges[0].end_ns // MS == 1021
    assert seen.assigned() == [(1011, 101, 1), (1030, 101, -1)]


@pytest.mark.parametrize("direction", [READ, WRITE])
@pytest.mark.parametrize("error", [errno.ECONNRESET, errno.EPIPE])
def test_a_reset_ends_what_is_open_even_a_body_until_close(direction: str, error: int) -> None:
    c, seen = opened()
    seen.feed(c.read(request())).feed(c.write(response(200, None) + b"part")).feed(
        c.result(direction, -error)
    )
    assert statuses(seen) == [("/", 200, "connection_closed")]
    seen.feed(c.close())
    assert (len(seen.exchanges), seen.counts(), seen.state.connection_count) == (1, {"socket_errors": 1}, 0)


@pytest.mark.parametrize("error", [errno.EAGAIN, errno.EINTR])
def test_having_to_wait_is_no_error(error: int) -> None:
    c, seen = opened()
    seen.feed(c.result(READ, -error)).feed(c.read(request())).feed(c.result(WRITE, -error))
    seen.feed(c.write(response()))
    assert (statuses(seen), seen.counts()) == ([("/", 200, "")], {})


def test_a_client_that_sent_half_a_head_is_no_exchange() -> None:
    c, seen = opened()
    seen.feed(c.read(b"GET /x HT")).feed(c.close())
    assert (seen.exchanges, seen.counts()) == ([], {"requests_incomplete": 1})
    assert [assignment.begins for assignment in seen.assignments] == [True, False]


def test_a_timed_out_head_is_answered_with_408() -> None:
    c, seen = opened()
    seen.feed(c.read(b"GET /x HT")).feed(c.write(response(408, b"", connection="close"))).feed(c.close())
    assert statuses(seen) == [("", 408, "")]


def test_a_response_that_nobody_asked_for_is_counted() -> None:
    c, seen = opened()
    seen.feed(c.write(response(408, b"bye"))).feed(c.read(request())).feed(c.write(response(200)))
    assert (statuses(seen), seen.counts()) == ([("/", 200, "")], {"unsolicited_responses": 1})


def test_long_paths_and_agents_are_cut() -> None:
    c, seen = opened()
    seen.feed(c.read(request("GET", "/" + "p" * 5000 + "?q", user_agent="u" * 5000)))
    seen.feed(c.write(response()))
    (exchange,) = seen.exchanges
    assert (len(exchange.path), len(exchange.user_agent), exchange.query_present) == (1024, 256, True)


def test_an_absolute_target_gives_its_path() -> None:
    c, seen = opened()
    for target in ("http://host:1/a/b?c", "http://host", "https://host/"):
        seen.feed(c.read(request("GET", target))).feed(c.write(response()))
    assert [exchange.path for exchange in seen.exchanges] == ["/a/b", "/", "/"]


@pytest.mark.parametrize(
    ("target", "path", "query_present"),
    [
        ("/shop;jsessionid=5AF/cart;v=2?id=7", "/shop/cart", True),
        ("/a#access_token=5AF", "/a", False),
        ("/a#b?c", "/a", False),
        ("HTTPS://me:secret@host:1/a;b", "/a", False),
        ("ws://me:secret@host?c", "/", True),
        ("me:secret@host:443", "host:443", False),
        ("host:443", "host:443", False),
        ("/users/me@host", "/users/me@host", False),
        ("*", "*", False),
    ],
)
def test_a_path_holds_nothing_secret(target: str, path: str, query_present: bool) -> None:
    assert path_of(target.encode()) == (path.encode(), query_present)


def test_a_unix_socket_has_no_address() -> None:
    c = Connection()
    batch = c.open()
    batch.records["address_family"] = 1
    seen = Seen(new_state()).feed(batch).feed(c.read(request())).feed(c.write(response()))
    assert seen.exchanges[0].client == Endpoint(address="", port=0)


def test_ipv6_and_mapped_ipv4_addresses() -> None:
    c = Connection()
    batch = c.open()
    batch.records["address_family"] = 10
    batch.records["local_address"][0] = [0x20, 0x01, 0x0D, 0xB8, *[0] * 11, 1]
    batch.records["peer_address"][0] = [*[0] * 10, 255, 255, 192, 0, 2, 1]
    seen = Seen(new_state()).feed(batch).feed(c.read(request())).feed(c.write(response()))
    assert (seen.exchanges[0].server.address, seen.exchanges[0].client.address) == (
        "2001:db8::1",
        "192.0.2.1",
    )


def test_requests_whose_responses_are_never_seen_do_not_pile_up() -> None:
    c, seen = opened()
    for i in range(1100):
        seen.feed(c.read(request("GET", f"/{i}")))
    assert len(seen.exchanges) == 1024
    assert {exchange.error for exchange in seen.exchanges} == {"response_not_seen"}
    assert seen.counts() == {"responses_not_seen": 1024}
