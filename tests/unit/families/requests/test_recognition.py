"""Which protocol a connection has, which role the process has, and what happens before that is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.families.requests.connection import MAX_UNDECIDED_BYTES, MAX_UNDECIDED_CALLS
from otelgpu.families.requests.parser_output import ParserOutput
from otelgpu.families.requests.protocol import Call, ConnectionFacts, ProtocolSpec, Recognition
from otelgpu.model.exchange import Endpoint, Role
from tests.rig.examples import examples
from tests.unit.families.requests.traffic import (
    READ,
    WRITE,
    Connection,
    Seen,
    new_state,
    opened,
    request,
    response,
)


@dataclass
class Recorder:
    """A parser that records what it is given."""

    facts: ConnectionFacts
    reported: list[tuple[object, ...]]
    busy: bool = False
    ignored: bool = False
    successor: object = None
    calls: list[Call] = field(default_factory=list)

    def feed(self, call: Call, data: bytes, offset: int, *, from_client: bool) -> None:
        self.calls.append(call)
        self.reported.append(("feed", data, offset, from_client))

    def gap(self, call: Call, size: int, offset: int, *, from_client: bool) -> None:
        self.reported.append(("gap", size, offset, from_client))

    def end(self, call: Call, *, from_client: bool) -> None:
        self.reported.append(("end", from_client))

    def close(self, time_ns: int) -> None:
        self.reported.append(("close",))

    def abort(self, time_ns: int, error: str) -> None:
        self.reported.append(("abort", error))


@dataclass
class Protocol:
    """A protocol whose client begins with ``hello`` and whose server with ``welcome``; its parser records."""

    client: bytes = b"hello"
    server: bytes = b"welcome"
    asked: int = 0
    reported: list[tuple[object, ...]] = field(default_factory=list)
    parsers: list[Recorder] = field(default_factory=list)

    def recognise(self, data: bytes, from_client: bool, late: bool) -> Recognition:
        self.asked += 1
        start = self.client if from_client else self.server
        if data.startswith(start):
            return Recognition.YES
        return Recognition.MORE if start.startswith(data) else Recognition.NO

    def open(self, facts: ConnectionFacts, output: ParserOutput) -> Recorder:
        self.parsers.append(Recorder(facts, self.reported))
        return self.parsers[-1]

    @property
    def spec(self) -> ProtocolSpec:
        return ProtocolSpec(name="greeting", recognise=self.recognise, open=self.open)  # type: ignore[arg-type]


def greeting(
    role: str = "SERVER", *, late: bool = False, **kinds: bytes
) -> tuple[Connection, Seen, Protocol]:
    protocol, c = Protocol(**kinds), Connection()
    seen = Seen(new_state(protocols=(protocol.spec,))).feed(c.open(role=role, late=late))
    return c, seen, protocol


def test_what_came_before_a_protocol_was_known_is_reported_to_its_parser() -> None:
    c, seen, protocol = greeting()
    seen.feed(c.read(b"he")).feed(c.write(b"wel")).feed(c.read(b"llo, you")).feed(c.write(b"come"))
    assert protocol.reported == [
        ("feed", b"he", 0, True),
        ("feed", b"wel", 0, False),
        ("feed", b"llo, you", 2, True),
        ("feed", b"come", 3, False),
    ]
    times = [call.begin_ns for call in protocol.parsers[0].calls]
    assert times == sorted(set(times))


def test_a_gap_is_reported_with_its_place() -> None:
    c, seen, protocol = greeting()
    seen.feed(c.read(b"hello"))
    c.skip(READ, 7)
    seen.feed(c.read(b"again")).feed(c.write(b"w" * 20, captured=5, tail=3)).feed(c.close())
    assert protocol.reported[1:] == [
        ("gap", 7, 5, True),
        ("feed", b"again", 12, True),
        ("feed", b"wwwww", 0, False),
        ("gap", 12, 5, False),
        ("feed", b"www", 17, False),
        ("close",),
    ]


@pytest.mark.parametrize("first", [READ, WRITE])
def test_a_role_nobody_knows_is_reported_by_who_says_what(first: str) -> None:
    c, seen, protocol = greeting("UNKNOWN")
    seen.feed(c.read(b"hello") if first == READ else c.write(b"hello"))
    (parser,) = protocol.parsers
    assert parser.facts.role is (Role.SERVER if first == READ else Role.CLIENT)
    assert protocol.reported == [("feed", b"hello", 0, True)]
    local, peer = Endpoint(address="127.0.0.1", port=8000), Endpoint(address="192.0.2.7", port=40000)
    assert (parser.facts.server, parser.facts.client) == ((local, peer) if first == READ else (peer, local))


def test_a_server_that_sends_first_is_known_by_its_bytes() -> None:
    c, seen, protocol = greeting("UNKNOWN")
    seen.feed(c.write(b"welcome")).feed(c.read(b"hello"))
    assert protocol.parsers[0].facts.role is Role.SERVER
    assert protocol.reported == [("feed", b"welcome", 0, False), ("feed", b"hello", 0, True)]


@pytest.mark.parametrize("first", [READ, WRITE])
def test_where_both_endpoints_begin_alike_the_first_to_send_is_the_client(first: str) -> None:
    c, seen, protocol = greeting("UNKNOWN", client=b"hello", server=b"hello")
    calls = [c.read, c.write] if first == READ else [c.write, c.read]
    seen.feed(calls[0](b"he")).feed(calls[1](b"hel")).feed(calls[1](b"lo"))
    assert protocol.parsers[0].facts.role is (Role.SERVER if first == READ else Role.CLIENT)
    assert protocol.reported[0] == ("feed", b"he", 0, True)


def test_a_known_role_is_not_asked_the_other_way() -> None:
    c, seen, protocol = greeting("CLIENT")
    seen.feed(c.read(b"hello"))  # of a server: nobody's beginning
    assert (protocol.parsers, seen.counts()) == ([], {"protocol_unknown": 1})


def test_bytes_that_stay_undecided_are_bounded() -> None:
    c, seen, protocol = greeting(client=b"h" * 1000)
    for _ in range(MAX_UNDECIDED_BYTES + 10):
        seen.feed(c.read(b"h"))
    assert seen.counts() == {"protocol_unknown": 1}
    assert protocol.asked == MAX_UNDECIDED_BYTES


def test_a_gap_before_a_protocol_is_known_makes_it_a_connection_found_open() -> None:
    c, seen, protocol = greeting()
    seen.feed(c.read(b"he"))
    c.skip(READ, 10)
    seen.feed(c.read(b"middle")).feed(c.read(b"hello"))
    assert protocol.reported == [("feed", b"hello", 18, True)]
    assert protocol.parsers[0].facts.late
    assert seen.counts() == {"late_bytes_skipped": 18}


def test_on_a_connection_found_open_only_the_start_of_a_call_is_a_beginning() -> None:
    c, seen, protocol = greeting(late=True)
    c.offsets = {READ: 500, WRITE: 700}
    seen.feed(c.write(b"middle")).feed(c.read(b"x" * 16384 + b"hello"))
    assert protocol.reported == []
    seen.feed(c.write(b"welcome"))
    assert protocol.reported == [("feed", b"welcome", 706, False)]


def test_a_connection_found_open_that_nobody_ever_knows_is_given_up() -> None:
    c, seen, protocol = greeting(late=True)
    for _ in range(MAX_UNDECIDED_CALLS):
        assert "protocol_unknown" not in seen.counts()
        seen.feed(c.read(b"?")).feed(c.write(b"?"))
    seen.feed(c.read(b"hello"))
    assert (protocol.parsers, seen.counts()["protocol_unknown"]) == ([], 1)


def test_the_first_protocol_that_is_sure_has_the_connection() -> None:
    sure, unsure = Protocol(), Protocol(client=b"hello, world")
    c = Connection()
    seen = Seen(new_state(protocols=(unsure.spec, sure.spec))).feed(c.open()).feed(c.read(b"hello"))
    assert (len(sure.parsers), len(unsure.parsers)) == (1, 0)
    assert seen.counts() == {}


def test_a_parser_that_has_enough_is_reported_nothing_more() -> None:
    c, seen, protocol = greeting()
    seen.feed(c.read(b"hello"))
    protocol.parsers[0].ignored = True
    seen.feed(c.read(b"1")).feed(c.read(b"2")).feed(c.close())
    assert protocol.reported == [("feed", b"hello", 0, True), ("feed", b"1", 5, True)]


def test_a_successor_reads_on() -> None:
    c, seen, protocol = greeting()
    seen.feed(c.read(b"hello"))
    reported: list[tuple[object, ...]] = []
    protocol.parsers[0].successor = Recorder(protocol.parsers[0].facts, reported)
    seen.feed(c.read(b"1")).feed(c.read(b"2")).feed(c.result(READ, 0))
    assert (protocol.reported[1:], reported) == (
        [("feed", b"1", 5, True)],
        [("feed", b"2", 6, True), ("end", True)],
    )


def test_end_of_file_is_of_the_direction_that_is_read() -> None:
    for role, start, from_client in (("SERVER", READ, True), ("CLIENT", WRITE, False)):
        c, seen, protocol = greeting(role)
        seen.feed(c.read(b"hello") if start == READ else c.write(b"hello")).feed(c.result(READ, 0))
        assert protocol.reported[-1] == ("end", from_client)


@examples(60)
@given(st.lists(st.integers(0, 200), max_size=20), st.sampled_from(["SERVER", "UNKNOWN"]))
def test_cuts_before_recognition_change_nothing(cuts: list[int], role: str) -> None:
    asked, answered = request("GET", "/a", host="h"), response(200, b"x")
    whole = Seen(new_state())
    c = Connection()
    whole.feed(c.open()).feed(c.read(asked)).feed(c.write(answered))
    c = Connection()
    seen = Seen(new_state()).feed(c.open(role=role))
    for a, b in pairwise(sorted({0, len(asked), *(cut % len(asked) for cut in cuts)})):
        seen.feed(c.read(asked[a:b]))
    seen.feed(c.write(answered))
    facts = [(e.method, e.path, e.status_code, e.role, e.request_bytes, e.server) for e in seen.exchanges]
    assert facts == [
        (e.method, e.path, e.status_code, e.role, e.request_bytes, e.server) for e in whole.exchanges
    ]
    assert seen.counts() == {}


# What both endpoints derive alike


def ends(
    change: Callable[[np.ndarray], None] = lambda record: None, *, family: int = 2
) -> list[tuple[bytes, bytes]]:
    """(wire key, wire id at 100) of a server and of its client on one connection."""
    seen = []
    addresses = {
        2: ((10, 0, 0, 1), (10, 0, 0, 2)),
        10: ((*[0] * 10, 255, 255, 10, 0, 0, 1), (*[0] * 10, 255, 255, 10, 0, 0, 2)),
        1: ((), ()),
    }[family]
    for role in ("SERVER", "CLIENT"):
        c, state, protocol = greeting(role)
        opening = c.open(role=role)
        record = opening.records
        record["address_family"] = family
        server = role == "SERVER"
        for name, address in zip(
            ("local_address", "peer_address"), addresses if server else addresses[::-1], strict=True
        ):
            record[name] = 0
            record[name][0, : len(address)] = address
        record["local_port"], record["peer_port"] = (80, 4000) if server else (4000, 80)
        record["sequence"] = (7000, 9000) if server else (9000, 7000)  # by direction: read, write
        record["sequences_known"] = 3
        record["local_inode"], record["peer_inode"] = (5, 6) if server else (6, 5)
        change(record)
        state.feed(opening).feed(c.read(b"hello") if server else c.write(b"hello"))
        facts = protocol.parsers[0].facts
        seen.append((facts.wire_key, facts.wire_id(100)))
    return seen


def test_both_ends_of_a_tcp_connection_see_the_same() -> None:
    server, client = ends()
    assert server == client
    assert server[1] == server[0] + (7100).to_bytes(4, "big")
    assert len(server[0]) == 36


def test_a_mapped_address_is_the_same_address() -> None:
    assert ends(family=10) == ends()


def test_sequence_numbers_that_nobody_knows_make_no_wire_id() -> None:
    def unknown(record: np.ndarray) -> None:
        record["sequences_known"] = 0

    assert [wire_id for _, wire_id in ends(unknown)] == [b"", b""]


def test_a_pair_of_unix_sockets_is_named_by_its_inodes() -> None:
    server, client = ends(family=1)
    assert server == client
    assert server[1] == (5).to_bytes(8, "big") + (6).to_bytes(8, "big") + (100).to_bytes(4, "big")


def test_a_unix_socket_found_open_has_no_wire_id() -> None:
    c, seen, protocol = greeting(late=True)
    opening = c.open(late=True)
    opening.records["address_family"], opening.records["local_inode"] = 1, 5
    opening.records["peer_inode"] = 6
    seen.feed(opening).feed(c.read(b"hello"))
    assert protocol.parsers[0].facts.wire_id(0) == b""


def test_a_tls_session_says_so() -> None:
    c, seen = opened()
    opening = c.open()
    opening.records["layer"] = 1
    seen.feed(opening).feed(c.read(request())).feed(c.write(response()))
    assert seen.exchanges[0].tls
