"""A real grpcio server and client through a recording proxy: what the parser says against what they know."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent import futures
from dataclasses import dataclass

import grpc
import pytest

from otelgpu.families.http import llm
from otelgpu.families.http.session import Session
from otelgpu.model.exchange import Exchange, Generation, Role
from tests.unit.http.http2_traffic import Observed
from tests.unit.http.recording_proxy import Proxy, Recording, replay

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
        context.abort(grpc.StatusCode[request[5:].decode()], "told to")
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


@dataclass
class Expected:
    method: str
    status: str
    requests: list[bytes]
    responses: list[bytes] | None  # None: how many depends on time


def _run(port: int, compression: grpc.Compression | None) -> list[Expected]:
    """Make every kind of call, one after the other, and say what came of each."""
    done: list[Expected] = []

    def note(name: str, status: str, requests: list[bytes], responses: list[bytes] | None) -> None:
        done.append(Expected(f"{SERVICE}/{name}", status, requests, responses))

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
        note("Expand", stream.code().name, [b"endless"], None)
        time.sleep(0.05)
        note("Unary", "OK", [b"last"], [unary(b"last")])
    return done


@pytest.fixture(scope="module", params=["identity", "gzip", "small reads"])
def call(request: pytest.FixtureRequest) -> Iterator[tuple[str, Recording, list[Expected]]]:
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
    yield request.param, recording, expected


def observe(
    recording: Recording, role: Role, monkeypatch: pytest.MonkeyPatch
) -> tuple[Observed, list[Exchange], list[Recorder]]:
    readers: list[Recorder] = []

    def grpc_reader(method: str, session: Session) -> Recorder:
        readers.append(Recorder())
        return readers[-1]

    monkeypatch.setattr(llm, "grpc_reader", grpc_reader)
    observed = replay(Observed(role=role), recording)
    return observed, sorted(observed.exchanges, key=lambda exchange: exchange.key), readers


@pytest.mark.parametrize("role", [Role.SERVER, Role.CLIENT])
def test_calls_are_what_their_ends_know(
    call: tuple[str, Recording, list[Expected]], role: Role, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, recording, expected = call
    observed, exchanges, readers = observe(recording, role, monkeypatch)
    assert len(exchanges) == len(readers) == len(expected)
    for exchange, reader, truth in zip(exchanges, readers, expected, strict=True):
        rpc = exchange.rpc
        assert rpc is not None and rpc.system == "grpc"
        assert (rpc.method, rpc.status) == (truth.method, truth.status)
        assert (exchange.path, exchange.method, exchange.error) == ("/" + truth.method, "POST", "")
        assert rpc.requests == len(truth.requests)
        assert truth.responses is None or rpc.responses == len(truth.responses)
        failed = role is Role.CLIENT and truth.status != "OK"
        if truth.status in ("INTERNAL", "UNAVAILABLE", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "DATA_LOSS"):
            failed = True
        assert rpc.failed is failed and exchange.error_type == (truth.status if failed else "")
        if kind != "gzip":
            assert reader.requests == truth.requests
            assert truth.responses is None or reader.responses == truth.responses
            assert (exchange.key in {named.key for named in observed.session.named}) is bool(reader.responses)
    if kind == "gzip":
        assert observed.counted.keys() == {"encoded_body"}
    else:
        assert not observed.counted
    assert observed.held_bytes == 0


def test_a_late_start_knows_the_methods_that_are_new(
    call: tuple[str, Recording, list[Expected]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """grpcio indexes every path: those of before are unknown, those that come after are known."""
    kind, recording, expected = call
    for skipped in range(10, len(recording.wire), max(7, len(recording.wire) // 12)):
        observed = replay(Observed(late=True), recording, skipped)
        for exchange in observed.exchanges:
            assert exchange.path in {"", *("/" + truth.method for truth in expected)}
            assert exchange.rpc is None or exchange.rpc.status in {"", *(truth.status for truth in expected)}
    if kind == "small reads":  # nearly every call is the middle of something
        return
    observed = replay(Observed(late=True), recording, len(recording.wire) // 3)
    assert "test.Service/Chat" in {e.rpc.method for e in observed.exchanges if e.rpc is not None}
