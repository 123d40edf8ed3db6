"""A real grpcio server and client through a recording proxy: what the parser reports against what they know."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent import futures
from dataclasses import dataclass

import grpc
import pytest

from otelgpu.families.requests.llm import reader as llm
from otelgpu.families.requests.parser_output import ParserOutput
from otelgpu.model.exchange import Exchange, Generation, Role
from tests.unit.families.requests.http2_traffic import Observed
from tests.unit.families.requests.recording_proxy import Proxy, Recording, replay

SERVICE = "test.Service"
DEADLINE_S = 0.2
LARGE = b"\0" * 100_000


class Recorder:
    """A reader of messages."""

    error = request_id = ""

    def __init__(self) -> None:
        self.requests: list[bytes] = []
        self.responses: list[bytes] = []

    def request_message(self, data: bytes, time_ns: int) -> None:
        self.requests.append(data)

    def response_message(self, data: bytes, time_ns: int) -> None:
        self.responses.append(data)
        self.request_id = "rpc-id"

    def request_ended(self, complete: bool = True) -> None: ...

    def response_ended(self, complete: bool = True) -> None: ...

    def generation(self) -> Generation | None:
        return None

    def drop(self) -> None: ...


def _unary(request: bytes, context: grpc.ServicerContext) -> bytes:
    if request.startswith(b"fail"):
        context.abort(grpc.StatusCode[request[5:].decode()], "reported to")
    if request == b"slow":
        time.sleep(2 * DEADLINE_S)
    return request * 2


def _collect(requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
    return b"".join(requests)


def _expand(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
    if request == b"endless":
        while context.is_active():
            yield b"more"
            time.sleep(0.005)
        return
    for number in range(int(request)):
        yield b"%d" % number
    if request == b"3":
        context.abort(grpc.StatusCode.DATA_LOSS, "after three")


def _chat(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
    for request in requests:
        yield request
        yield request


FAILURES_OF_SERVERS = ("INTERNAL", "UNAVAILABLE", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "DATA_LOSS")
"""Of the statuses here, those for which the conventions have a server's span in error; a client's is for all but OK."""


@dataclass
class Expected:
    method: str
    status: str
    requests: list[bytes]
    responses: list[bytes]
    endless: bool = False  # how many responses there are depends on time: all are as these

    def error_type(self, role: Role) -> str:
        """What a span of this endpoint reports."""
        failed = self.status != "OK" if role is Role.CLIENT else self.status in FAILURES_OF_SERVERS
        return self.status if failed else ""


def _run(port: int, compression: grpc.Compression | None) -> list[Expected]:
    """Make every kind of call, one after the other, and say what came of each."""
    done: list[Expected] = []

    def note(name: str, status: str, requests: list[bytes], responses: list[bytes], **more: bool) -> None:
        done.append(Expected(f"{SERVICE}/{name}", status, requests, responses, **more))

    with grpc.insecure_channel(f"127.0.0.1:{port}", compression=compression) as channel:
        path = f"/{SERVICE}/"
        unary = channel.unary_unary(path + "Unary")
        for request in (b"", b"hello", b"hello", LARGE):
            note("Unary", "OK", [request], [unary(request, timeout=20)])
        for status in ("INVALID_ARGUMENT", "INTERNAL", "NOT_FOUND", "UNAVAILABLE"):
            with pytest.raises(grpc.RpcError) as error:
                unary(f"fail {status}".encode())
            note("Unary", error.value.code().name, [f"fail {status}".encode()], [])
        with pytest.raises(grpc.RpcError) as error:
            unary(b"slow", timeout=DEADLINE_S)
        note("Unary", error.value.code().name, [b"slow"], [])
        with pytest.raises(grpc.RpcError) as error:
            channel.unary_unary(path + "Missing")(b"x")
        note("Missing", error.value.code().name, [b"x"], [])
        parts = [b"a" * 10, b"", b"c" * 70_000]
        note("Collect", "OK", parts, [channel.stream_unary(path + "Collect")(iter(parts))])
        expand = channel.unary_stream(path + "Expand")
        note("Expand", "OK", [b"20"], list(expand(b"20")))
        with pytest.raises(grpc.RpcError) as error:
            list(expand(b"3"))
        note("Expand", error.value.code().name, [b"3"], [b"0", b"1", b"2"])
        note("Chat", "OK", parts, list(channel.stream_stream(path + "Chat")(iter(parts))))
        stream = expand(b"endless")
        next(stream)
        stream.cancel()
        note("Expand", stream.code().name, [b"endless"], [b"more"], endless=True)
        time.sleep(0.05)
        note("Unary", "OK", [b"last"], [unary(b"last")])
    return done


Recorded = tuple[Recording, list[Expected]]
PLAIN = pytest.mark.parametrize("call", ["identity", "small reads"], indirect=True)
COMPRESSED = pytest.mark.parametrize("call", ["gzip"], indirect=True)
IN_WHOLE_READS = pytest.mark.parametrize("call", ["identity", "gzip"], indirect=True)
BOTH_ENDS = pytest.mark.parametrize("role", [Role.SERVER, Role.CLIENT])


@pytest.fixture(scope="module", params=["identity", "gzip", "small reads"])
def call(request: pytest.FixtureRequest) -> Iterator[Recorded]:
    server = grpc.server(futures.ThreadPoolExecutor(4))
    handlers = {
        "Unary": grpc.unary_unary_rpc_method_handler(_unary),
        "Collect": grpc.stream_unary_rpc_method_handler(_collect),
        "Expand": grpc.unary_stream_rpc_method_handler(_expand),
        "Chat": grpc.stream_stream_rpc_method_handler(_chat),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    proxy = Proxy(port, 100 if request.param == "small reads" else 1 << 16)
    expected = _run(proxy.port, grpc.Compression.Gzip if request.param == "gzip" else None)
    recording = proxy.finish()
    server.stop(0)
    yield recording, expected


def observe(
    recording: Recording, role: Role, monkeypatch: pytest.MonkeyPatch
) -> tuple[Observed, list[Exchange], list[Recorder]]:
    readers: list[Recorder] = []

    def grpc_reader(method: str, output: ParserOutput) -> Recorder:
        readers.append(Recorder())
        return readers[-1]

    monkeypatch.setattr(llm, "grpc_reader", grpc_reader)
    observed = replay(Observed(role=role), recording)
    return observed, sorted(observed.exchanges, key=lambda exchange: exchange.key), readers


@BOTH_ENDS
def test_calls_are_what_their_ends_know(call: Recorded, role: Role, monkeypatch: pytest.MonkeyPatch) -> None:
    recording, expected = call
    observed, exchanges, readers = observe(recording, role, monkeypatch)
    assert len(exchanges) == len(readers) == len(expected)
    for exchange, truth in zip(exchanges, expected, strict=True):
        rpc = exchange.rpc
        assert rpc is not None
        error_type = truth.error_type(role)
        assert (rpc.system, rpc.method, rpc.status) == ("grpc", truth.method, truth.status)
        assert (exchange.path, exchange.method, exchange.error) == ("/" + truth.method, "POST", "")
        assert (rpc.failed, exchange.error_type) == (bool(error_type), error_type)
        assert rpc.requests == len(truth.requests)
    assert observed.held_bytes == 0


@BOTH_ENDS
def test_the_messages_of_a_call_are_counted(
    call: Recorded, role: Role, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording, expected = call
    _, exchanges, _ = observe(recording, role, monkeypatch)
    counts = [exchange.rpc.responses for exchange in exchanges if exchange.rpc is not None]
    ended = [count for count, truth in zip(counts, expected, strict=True) if not truth.endless]
    assert ended == [len(truth.responses) for truth in expected if not truth.endless]
    (until_cancelled,) = (count for count, truth in zip(counts, expected, strict=True) if truth.endless)
    assert until_cancelled >= 1


@PLAIN
@BOTH_ENDS
def test_messages_are_read(call: Recorded, role: Role, monkeypatch: pytest.MonkeyPatch) -> None:
    recording, expected = call
    observed, exchanges, readers = observe(recording, role, monkeypatch)
    assert [reader.requests for reader in readers] == [truth.requests for truth in expected]
    ended = [reader.responses for reader, truth in zip(readers, expected, strict=True) if not truth.endless]
    assert ended == [truth.responses for truth in expected if not truth.endless]
    (endless,) = (reader.responses for reader, truth in zip(readers, expected, strict=True) if truth.endless)
    assert set(endless) == {b"more"}
    answered = {exchange.key for exchange, truth in zip(exchanges, expected, strict=True) if truth.responses}
    assert {named.key for named in observed.output.named} == answered
    assert not observed.counted


@COMPRESSED
@BOTH_ENDS
def test_messages_that_are_compressed_are_counted_as_unread(
    call: Recorded, role: Role, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording, _ = call
    observed, _, _ = observe(recording, role, monkeypatch)
    assert observed.counted.keys() == {"encoded_body"}


def late(recording: Recording, skipped: int) -> list[Exchange]:
    """What is known of the calls by who begins to listen after so many reads and writes."""
    return list(replay(Observed(late=True), recording, skipped).exchanges)


def test_a_late_start_makes_nothing_up(call: Recorded) -> None:
    """grpcio indexes every path: those of before are unknown."""
    recording, expected = call
    starts = range(10, len(recording.wire), max(7, len(recording.wire) // 12))
    found = [exchange for skipped in starts for exchange in late(recording, skipped)]
    assert len(found) > len(starts)
    assert {exchange.path for exchange in found} <= {"", *("/" + truth.method for truth in expected)}
    statuses = {exchange.rpc.status for exchange in found if exchange.rpc is not None}
    assert len(statuses) > 2  # OK is a number in a table that was sent before
    assert statuses <= {"", *(truth.status for truth in expected)}


@IN_WHOLE_READS  # of small ones nearly every one is the middle of something
def test_a_late_start_knows_the_methods_that_are_new(call: Recorded) -> None:
    recording, _ = call
    found = late(recording, len(recording.wire) // 3)
    assert "test.Service/Chat" in {exchange.rpc.method for exchange in found if exchange.rpc is not None}
