"""What BPF reports of connections, of both endpoints: bytes, roles, TCP sequence numbers, arrivals; what it omits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate

import numpy as np
import pytest

from otelgpu.families.requests.http2.frame_heads import DATA, HEADERS, PREFACE, RST_STREAM, SETTINGS
from otelgpu.kernel import loader
from tests.kernel.captured_connections import (
    CLIENT,
    READ,
    SERVER,
    SOCKET,
    UNKNOWN,
    WRITE,
    captured_connections,
    client_and_server,
    traffic_program,
)
from tests.kernel.observing import Watch
from tests.rig.socket_traffic import READS, REQUEST, RESPONSE, WRITES
from tests.unit.families.requests.http2_traffic import frame

HELLO = PREFACE + frame(SETTINGS, 0, 0)
BUSY_S = 0.05
FRAMES_BYTES_PER_NS = 2**-6
ARRIVAL_NS = 1_000_000  # from send()'s beginning to a segment in the other end's queue, on this host


@pytest.fixture(scope="module")
def shared() -> Iterator[Watch]:
    with Watch(families=("http",)) as watch:
        yield watch


@pytest.mark.parametrize("family", ["tcp", "tcp6", "unix"])
@pytest.mark.parametrize(("read", "write"), [("read", "write"), ("recv", "send")])
def test_both_ends_are_reported_with_their_bytes(
    overheard: Watch, do: Callable[..., object], family: str, read: str, write: str
) -> None:
    do("talk", family, read, write)
    client, server = client_and_server(overheard)
    assert (client.role, server.role) == (CLIENT, SERVER)
    assert client.bytes_of(WRITE) == server.bytes_of(READ) == REQUEST
    assert client.bytes_of(READ) == server.bytes_of(WRITE) == RESPONSE
    for end in (client, server):
        assert end.opened is not None
        assert end.closed is not None
        assert end.layer == SOCKET
        assert not end.opened["late"]
        assert end.numbers() == list(range(int(end.closed["sequence"])))
    assert not overheard.losses()


@pytest.mark.parametrize("read", sorted(READS))
def test_every_way_to_read(overheard: Watch, do: Callable[..., object], read: str) -> None:
    do("talk", "tcp", read, "send")
    client, server = client_and_server(overheard)
    assert server.bytes_of(READ) == REQUEST
    assert client.bytes_of(READ) == RESPONSE


@pytest.mark.parametrize("write", sorted(WRITES.keys() - {"sendfile", "splice"}))
def test_every_way_to_write(overheard: Watch, do: Callable[..., object], write: str) -> None:
    do("talk", "tcp", "recv", write)
    client, server = client_and_server(overheard)
    assert client.bytes_of(WRITE) == REQUEST
    assert server.bytes_of(WRITE) == RESPONSE


@pytest.mark.parametrize("write", ["sendfile", "splice"])
def test_what_no_buffer_of_the_process_holds_is_an_offset_that_jumps(
    overheard: Watch, do: Callable[..., object], write: str
) -> None:
    do("talk", "tcp", "recv", write)
    client, server = client_and_server(overheard)
    for end, data in ((client, REQUEST), (server, RESPONSE)):
        assert end.bytes_of(WRITE).rstrip(b"\0") == data[:60]
        last = end.chunks[WRITE][-1]["chunk"]
        assert last["captured"] == 0
        assert int(last["stream_offset"]) + int(last["result"]) == len(data)
    assert overheard.losses() == {("http", "bytes_not_captured"): len(REQUEST) + len(RESPONSE) - 120}


def test_of_a_call_that_is_too_long_the_heads_of_frames_are_captured(
    overheard: Watch, do: Callable[..., object]
) -> None:
    """Of HTTP/2, without which all that follows would be lost; a read ends in a head, another begins there."""
    body, block = frame(DATA, 0, 1, b"x" * 16_384), frame(HEADERS, 4, 3, b"h" * 300)
    frames = [*[body] * 25, block, *[body] * 13, frame(RST_STREAM, 0, 3, b"code"), *[body] * 9]
    starts = list(accumulate(map(len, frames), initial=len(HELLO)))
    said = HELLO + b"".join(frames)
    reads = [len(HELLO), starts[24] + 4 - len(HELLO), len(said) - starts[24] - 4]
    do("move", [HELLO.hex(), b"".join(frames).hex()], reads)
    client, server = client_and_server(overheard)
    for captured, calls in ((client.bytes_of(WRITE), 1), (server.bytes_of(READ), 2)):
        assert len(captured) == len(said)
        for start in starts[:-1]:
            assert captured[start : start + 9] == said[start : start + 9]
        assert block in captured
        assert captured.count(b"x") <= len(frames) * 256 + calls * 2 * 4096
    assert set(overheard.losses()) == {("http", "bytes_not_captured")}


@pytest.mark.parametrize("family", ["tcp", "tcp6"])
@pytest.mark.parametrize("read", ["recv", "small"])
def test_a_byte_has_the_same_number_at_both_ends(
    overheard: Watch, do: Callable[..., object], family: str, read: str
) -> None:
    do("talk", family, read, "send")
    client, server = client_and_server(overheard)
    assert client.sequence[WRITE] == server.sequence[READ]
    assert client.sequence[READ] == server.sequence[WRITE]
    assert client.opened is not None
    assert server.opened is not None
    assert client.opened["local_port"] == server.opened["peer_port"]
    assert client.opened["peer_port"] == server.opened["local_port"]
    assert bytes(client.opened["local_address"]) == bytes(server.opened["peer_address"])


def test_the_ends_of_a_unix_connection_know_each_other(overheard: Watch, do: Callable[..., object]) -> None:
    do("talk", "unix", "recv", "send")
    client, server = client_and_server(overheard)
    assert client.opened is not None
    assert server.opened is not None
    assert client.opened["local_inode"] == server.opened["peer_inode"] != 0
    assert server.opened["local_inode"] == client.opened["peer_inode"] != 0
    assert not client.opened["sequences_known"]


@pytest.mark.parametrize("accepted_late", [False, True])
def test_a_request_arrives_when_it_is_sent_however_busy_the_server_is(
    overheard: Watch, do: Callable[..., object], accepted_late: bool
) -> None:
    reported = do("busy", "tcp", BUSY_S, accepted_late)
    assert isinstance(reported, dict)
    _, server = client_and_server(overheard)
    first, second = server.chunks[READ]
    for chunk, before, sent in (
        (first["chunk"], reported["before"], reported["sent"]),
        (second["chunk"], reported["second_before"], reported["second_sent"]),
    ):
        assert before <= chunk["arrival_ns"] <= sent + ARRIVAL_NS
        assert chunk["head"]["time_ns"] - chunk["arrival_ns"] > BUSY_S * 0.9e9


def test_bytes_left_unread_keep_their_arrival(overheard: Watch, do: Callable[..., object]) -> None:
    do("talk", "tcp", "small", "send")
    _, server = client_and_server(overheard)
    arrivals = {int(record["chunk"]["arrival_ns"]) for record in server.chunks[READ]}
    assert len(arrivals) == 1  # one segment, read by ten bytes
    assert min(arrivals) > 0


def test_of_many_unread_segments_the_first_are_known_and_none_is_wrong(
    overheard: Watch, do: Callable[..., object]
) -> None:
    count, pause_ns = 12, 5_000_000
    sent = do("busy_with_parts", count, pause_ns / 1e9)
    assert isinstance(sent, list)
    _, server = client_and_server(overheard)
    arrivals = [int(record["chunk"]["arrival_ns"]) for record in server.chunks[READ]]
    assert len(arrivals) == count
    assert all(arrivals[:4])  # SEGMENTS in arrival.h
    for arrival, began in zip(arrivals, sent, strict=True):
        assert not arrival or began <= arrival < began + pause_ns


def test_a_kernel_without_the_tracepoint_has_no_arrivals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "has_typed_tracepoint", lambda name: False)
    with Watch(families=("http",)) as watch, traffic_program() as started:
        watch.pump(0.3)
        watch.observe(started.pid)
        watch.start_anew()
        watch.during(lambda: started.do("talk", "tcp", "recv", "send"))
        client, server = client_and_server(watch)
    assert server.bytes_of(READ) == REQUEST
    for end in (client, server):
        assert {int(record["chunk"]["arrival_ns"]) for record in end.chunks[READ]} == {0}


def test_unix_sockets_have_no_arrival(overheard: Watch, do: Callable[..., object]) -> None:
    do("talk", "unix", "recv", "send")
    for end in client_and_server(overheard):
        assert {int(record["chunk"]["arrival_ns"]) for record in end.chunks[READ]} == {0}


POSTGRES = "0000000804d2162f"
REDIS = "2a310d0a24340d0a50494e470d0a"
MYSQL = "4a0000000a382e302e3336"


@pytest.mark.parametrize(
    ("first", "who"),
    [
        (POSTGRES, "client"),
        (REDIS, "client"),
        (MYSQL, "server"),
        (b"SSH-2.0-OpenSSH".hex(), "client"),
        (b"220 mail.example.com".hex(), "server"),
        (b"get key\r\n".hex(), "client"),
    ],
)
def test_other_protocols_are_dropped_at_the_first_bytes(
    overheard: Watch, do: Callable[..., object], first: str, who: str
) -> None:
    do("say", first, who)
    assert not captured_connections(overheard)
    assert overheard.losses() == {("http", "connection_not_http"): 2}


def test_tls_is_dropped_where_it_is_ciphertext(overheard: Watch, do: Callable[..., object]) -> None:
    do("say", "16030102000100", "client")
    assert not captured_connections(overheard)
    assert overheard.losses() == {("http", "connection_tls"): 2}


@pytest.mark.parametrize(
    ("first", "who"),
    [
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".hex() + "000000040000000000", "client"),
        ("000006040000000000000300000064", "server"),  # a server's settings before the preface came
        ("ff00000000000000017f03", "client"),
        ("ff00000000000000017f03", "server"),
        (b"PATCH /x HTTP/1.1\r\n\r\n".hex(), "client"),
    ],
)
def test_known_protocols_are_followed_whoever_sends_first(
    overheard: Watch, do: Callable[..., object], first: str, who: str
) -> None:
    do("say", first, who)
    client, server = client_and_server(overheard)
    assert client.bytes_of(WRITE) == server.bytes_of(READ)
    assert client.bytes_of(READ) == server.bytes_of(WRITE)
    speaker = client if who == "client" else server
    assert speaker.bytes_of(WRITE) == bytes.fromhex(first) * 3
    assert not overheard.losses()


def test_a_greeting_in_small_writes_is_followed(overheard: Watch, do: Callable[..., object]) -> None:
    parts = ["ff", "00000000000000017f", "03", "00" * 53]
    do("say_slowly", parts)
    client, server = client_and_server(overheard)
    assert client.bytes_of(WRITE) == server.bytes_of(READ) == bytes.fromhex("".join(parts))


def test_a_connection_that_is_refused_costs_nothing(overheard: Watch, do: Callable[..., object]) -> None:
    do("refused")
    assert not captured_connections(overheard)
    assert not overheard.losses()


@pytest.mark.parametrize("again", [False, True])
def test_a_client_that_does_not_wait_for_connect(
    overheard: Watch, do: Callable[..., object], again: bool
) -> None:
    do("connect_without_waiting", again)
    client, server = client_and_server(overheard)
    assert client.bytes_of(WRITE) == server.bytes_of(READ) == REQUEST
    assert client.sequence == server.sequence[::-1]


def test_a_descriptor_that_became_a_file_is_not_read(overheard: Watch, do: Callable[..., object]) -> None:
    do("reuse")
    client, server = client_and_server(overheard)
    assert server.bytes_of(READ) == REQUEST
    assert server.closed is not None
    assert client.closed is not None
    assert overheard.losses() == {("http", "close_unseen"): 1}


# -- Connections from before ---------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["tcp", "tcp6", "unix"])
def test_connections_from_before_are_found_with_their_roles(family: str) -> None:
    with traffic_program() as early:
        early.do("hold", family, 3)
        with Watch(families=("http",)) as late:
            late.observe(early.pid)
            late.start_anew()
            late.during(lambda: early.do("talk_on", 1))
            client, server = sorted(captured_connections(late).values(), key=lambda end: end.bytes_of(READ))[
                ::-1
            ]
    client, server = (client, server) if client.bytes_of(WRITE) == REQUEST else (server, client)
    assert client.bytes_of(WRITE) == server.bytes_of(READ) == REQUEST
    assert client.bytes_of(READ) == server.bytes_of(WRITE) == RESPONSE
    assert server.role == SERVER
    assert client.role == (UNKNOWN if family == "unix" else CLIENT)
    for end in (client, server):
        assert end.opened is not None
        assert end.opened["late"]
        assert end.opened["connection"] >= 1 << 62
    if family != "unix":
        assert client.sequence == server.sequence[::-1]


def held(watch: Watch) -> int:
    """Entries in the kernel's table of connections."""
    (loaded,) = (found for found in watch.source._loaded.values() if "connections" in found.object.maps)
    return len(loaded.map("connections").list_keys())


def test_what_a_process_held_is_forgotten_when_it_ends(overheard: Watch) -> None:
    before = held(overheard)
    with traffic_program() as started:
        overheard.observe(started.pid)
        overheard.during(lambda: started.do("hold", "tcp", 50))
        assert held(overheard) == before + 100
    overheard.pump(0.5)
    assert held(overheard) == before


def test_a_full_table_is_counted_and_closing_makes_room(overheard: Watch, do: Callable[..., object]) -> None:
    before = held(overheard)
    do("hold", "unix", 400)
    assert held(overheard) == before + 800
    do("let_go")
    assert held(overheard) == before
    assert not captured_connections(overheard)


# -- Bounds --------------------------------------------------------------------------------------------


def test_an_unknown_protocol_is_followed_for_its_first_bytes_where_that_is_wanted() -> None:
    with (
        Watch(families=("http",), constants={"http_unknown_bytes": 20}) as watch,
        traffic_program() as started,
    ):
        watch.pump(0.3)
        watch.observe(started.pid)
        watch.start_anew()
        watch.during(lambda: started.do("say", POSTGRES, "client"))
        client, server = client_and_server(watch)
        assert watch.losses() == {("http", "connection_not_http"): 2}
    asked, answered = bytes.fromhex(POSTGRES), b"\0answer"
    assert client.bytes_of(WRITE) == server.bytes_of(READ) == asked * 2  # 8 + 7 + 8 reach the bound
    assert client.bytes_of(READ) == server.bytes_of(WRITE) == answered
    assert client.closed is not None
    assert server.closed is not None


@pytest.mark.parametrize("sizes", [[60_000], [16_384, 20_481, 40_000]])
def test_long_frames_are_captured_further_than_bodies(
    overheard: Watch, do: Callable[..., object], sizes: list[int]
) -> None:
    """All of a call that moves frames; of any other 16 KiB, and its last 4 KiB."""
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    do("say_slowly", [preface.hex(), *("11" * size for size in sizes)])
    client, _ = client_and_server(overheard)
    assert client.bytes_of(WRITE) == preface + b"\x11" * sum(sizes)
    overheard.start_anew()
    do("say_slowly", [b"POST /x HTTP/1.1\r\n\r\n".hex(), "11" * 60_000])
    client, _ = client_and_server(overheard)
    last = client.chunks[WRITE][-1]["chunk"]
    assert [int(record["chunk"]["captured"]) for record in client.chunks[WRITE]] == [20, 16_384, 4096]
    assert int(last["stream_offset"]) + 4096 == 60_020


def test_frames_that_go_one_way_for_ever_are_captured_within_a_bound_that_grows_with_time() -> None:
    """ZMTP's PUSH and PULL never turn round: a bound in all would end what is seen of an engine for good."""
    preface, burst, bound = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", ["22" * (3 << 14)] * 36, 1 << 20
    with (
        Watch(families=("http",), constants={"http_stream_bytes": 2 * bound}) as watch,
        traffic_program() as program,
    ):
        watch.observe(program.pid)
        watch.during(lambda: program.do("say_slowly", [preface.hex(), *burst, "", *burst], 0.2))
        client, _ = client_and_server(watch)
    chunks = [record["chunk"] for record in client.chunks[WRITE]]
    captured = np.cumsum([int(chunk["captured"]) for chunk in chunks])
    heads = [chunk["head"] for chunk in chunks]
    ended_ns = np.array([int(head["time_ns"]) + int(head["duration_ns"]) for head in heads])
    assert (captured <= bound + (3 << 14) + (ended_ns - ended_ns[0]) * FRAMES_BYTES_PER_NS).all()
    assert captured[-1] > 2 * bound
