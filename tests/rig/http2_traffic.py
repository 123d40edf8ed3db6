"""Generations over one HTTP/2 connection that stays open: a server and its client, each a program of its own.

``http2_traffic.py serve h2|h2-tls|grpc [PEM]``: a line with its port; it then serves until it is killed, under TLS if
PEM names a certificate. ``http2_traffic.py ask h2|h2-tls|grpc PORT [READ_BYTES]``: for each line ``STREAMS AT_ONCE
[TOKENS CHUNK_BYTES PAUSE_MS]`` on stdin, so many generations over the connection that it opened at first, and a line of
JSON: for each, seconds from asking to the end of the first chunk. Each has TOKENS chunks of about CHUNK_BYTES, the
first after FIRST_S, the others after PAUSE_MS. h2: chat completions as server-sent events, by the h2 library;
grpc: Triton's ``ModelStreamInfer``, by grpcio.
"""

from __future__ import annotations

import json
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

TOKENS = 5
FIRST_S = 0.03
PAUSE_MS = 2
READ_BYTES = 1000  # at a client under load reads end anywhere in a frame
WINDOW_BYTES = 1 << 24
MODEL = "llama"
_METHOD = "inference.GRPCInferenceService/ModelStreamInfer"


Result = TypeVar("Result")


class _Asked(NamedTuple):
    """What one generation is to be made of."""

    tokens: int = TOKENS
    chunk_bytes: int = 0
    pause_ms: int = PAUSE_MS

    def pauses(self) -> Iterator[int]:
        """Wait before each chunk."""
        for number in range(self.tokens):
            time.sleep(self.pause_ms / 1000 if number else FIRST_S)
            yield number


def _chat(asked: _Asked) -> bytes:
    messages = [{"role": "user", "content": "hi"}]
    return json.dumps({"model": MODEL, "stream": True, "messages": messages, "asked": asked}).encode()


def _chunk(asked: _Asked) -> bytes:
    """An event with one token, and log probabilities that make it as long."""
    probability = {"token": "x", "logprob": -12.345678901234567}
    choice: dict[str, Any] = {"index": 0, "delta": {"content": "x"}}
    if many := asked.chunk_bytes // (len(json.dumps(probability)) + 2):
        choice["logprobs"] = {"content": [probability] * many}
    made = {"id": "chatcmpl-1", "model": MODEL, "choices": [choice]}
    return b"data: " + json.dumps(made).encode() + b"\n\n"


class _Tls:
    """A socket under TLS by memory buffers, as asyncio's are: one thread may read while another writes."""

    def __init__(self, connection: socket.socket, certificate: str, *, client: bool) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT if client else ssl.PROTOCOL_TLS_SERVER)
        context.set_alpn_protocols(["h2"])
        if client:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        else:
            context.load_cert_chain(certificate)
        self._socket, self._lock = connection, threading.Lock()
        self._received, self._to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._session = context.wrap_bio(self._received, self._to_send, server_side=not client)
        self._when_received(self._session.do_handshake)

    def recv(self, size: int) -> bytes:
        """What the other end sent; empty at its end."""
        return self._when_received(lambda: self._session.read(size)) or b""

    def sendall(self, data: bytes) -> None:
        """Send all of it."""
        with self._lock:
            self._session.write(data)
            self._flush()

    def _when_received(self, call: Callable[[], Result]) -> Result | None:
        """What a call returns as soon as what it needs was received; None at the end."""
        while True:
            with self._lock:
                try:
                    return call()
                except ssl.SSLWantReadError:
                    pass
                finally:
                    self._flush()
            if not (data := self._socket.recv(65_536)):
                return None
            with self._lock:
                self._received.write(data)

    def _flush(self) -> None:
        if data := self._to_send.read():
            self._socket.sendall(data)


class _H2End:
    """One end of a connection of the h2 library, whose state several threads change."""

    def __init__(self, connection: socket.socket, tls: str, *, client: bool) -> None:
        import h2.config
        import h2.connection
        from h2.settings import SettingCodes

        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = _Tls(connection, tls, client=client) if tls else connection
        self.lock = threading.Lock()
        self.state = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=client, header_encoding="utf-8")
        )
        self.state.initiate_connection()
        self.state.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: WINDOW_BYTES})
        self.state.increment_flow_control_window(WINDOW_BYTES)
        self.flush()

    def flush(self) -> None:
        """Write what the library has to send."""
        if data := self.state.data_to_send():
            self.socket.sendall(data)

    def send(self, stream: int, data: bytes, *, end: bool = False) -> None:
        """A part of a body, in as many frames as it needs and a call of its own."""
        with self.lock:
            most = self.state.max_outbound_frame_size
            for at in range(0, len(data), most):
                self.state.send_data(stream, data[at : at + most], end_stream=end and at + most >= len(data))
            self.flush()

    def events(self, read_bytes: int) -> Iterator[Any]:
        """What the other end sends, until it closes."""
        import h2.events

        while data := self.socket.recv(read_bytes):
            with self.lock:
                events = self.state.receive_data(data)
                for event in events:
                    if isinstance(event, h2.events.DataReceived) and event.flow_controlled_length:
                        self.state.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                self.flush()
            yield from events


def _serve_h2(certificate: str) -> None:
    import h2.events

    def answer(end: _H2End, stream: int, request: bytes) -> None:
        asked = _Asked(*json.loads(request)["asked"])
        with end.lock:
            end.state.send_headers(stream, [(":status", "200"), ("content-type", "text/event-stream")])
            end.flush()
        for _ in asked.pauses():
            end.send(stream, _chunk(asked))
        end.send(stream, b"data: [DONE]\n\n", end=True)

    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    with ThreadPoolExecutor(32) as pool:
        while True:
            end = _H2End(listener.accept()[0], certificate, client=False)
            bodies: dict[int, bytes] = {}
            for event in end.events(65_536):
                if isinstance(event, h2.events.DataReceived):
                    bodies[event.stream_id] = bodies.get(event.stream_id, b"") + event.data
                elif isinstance(event, h2.events.StreamEnded):
                    pool.submit(answer, end, event.stream_id, bodies.pop(event.stream_id))


class _H2Client:
    def __init__(self, tls: str, port: int, read_bytes: int = READ_BYTES) -> None:
        self._end = _H2End(socket.create_connection(("127.0.0.1", port)), tls, client=True)
        self._first: dict[int, float] = {}
        self._ended: dict[int, threading.Event] = {}
        threading.Thread(target=self._read, args=(read_bytes,), daemon=True).start()

    def ask(self, asked: _Asked) -> float:
        """One generation."""
        body, end, ended = _chat(asked), self._end, threading.Event()
        with end.lock:
            stream = end.state.get_next_available_stream_id()
            self._ended[stream] = ended
            began = time.monotonic()
            end.state.send_headers(
                stream,
                [
                    (":method", "POST"),
                    (":scheme", "http"),
                    (":authority", "llm"),
                    (":path", "/v1/chat/completions"),
                    ("content-type", "application/json"),
                ],
            )
            end.state.send_data(stream, body, end_stream=True)
            end.flush()
        assert ended.wait(30)
        return self._first[stream] - began

    def _read(self, read_bytes: int) -> None:
        import h2.events

        for event in self._end.events(read_bytes):
            if isinstance(event, h2.events.DataReceived) and event.data.endswith(b"\n\n"):
                self._first.setdefault(event.stream_id, time.monotonic())
            elif isinstance(event, h2.events.StreamEnded):
                self._ended[event.stream_id].set()


def _field(number: int, value: bytes) -> bytes:
    """A protobuf field with a length."""
    return bytes((number << 3 | 2,)) + _varint(len(value)) + value


def _varint(number: int) -> bytes:
    low, high = number & 0x7F, number >> 7
    return bytes((low | 0x80,)) + _varint(high) if high else bytes((low,))


def _infer(tensor: bytes, text: bytes) -> bytes:
    """A ModelInferRequest, or a ModelInferResponse."""
    contents = _field(5, _field(8, text))
    return _field(1, MODEL.encode()) + _field(5, _field(1, tensor) + _field(2, b"BYTES") + contents)


def _serve_grpc() -> None:
    import grpc

    def infer(requests: Iterator[bytes], _: Any) -> Iterator[bytes]:
        for request in requests:
            asked = _Asked(*json.loads(request[request.index(b"[") : request.index(b"]") + 1]))
            for _ in asked.pauses():
                yield _field(2, _infer(b"text_output", b"x" * max(asked.chunk_bytes, 1)))

    server = grpc.server(ThreadPoolExecutor(32))
    service, method = _METHOD.split("/")
    handler = grpc.stream_stream_rpc_method_handler(infer)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    server.wait_for_termination()


class _GrpcClient:
    def __init__(self, port: int) -> None:
        import grpc

        self._infer = grpc.insecure_channel(f"127.0.0.1:{port}").stream_stream(f"/{_METHOD}")

    def ask(self, asked: _Asked) -> float:
        """One generation."""
        began = time.monotonic()
        answers = self._infer(iter((_infer(b"text_input", json.dumps(asked).encode()),)))
        next(answers)
        first = time.monotonic()
        assert sum(1 for _ in answers) == asked.tokens - 1
        return first - began


def _ask(client: _H2Client | _GrpcClient) -> None:
    for line in sys.stdin:
        streams, at_once, *asked = map(int, line.split())
        with ThreadPoolExecutor(at_once) as pool:
            print(json.dumps(list(pool.map(client.ask, [_Asked(*asked)] * streams))), flush=True)


if __name__ == "__main__":
    role, protocol, *rest = sys.argv[1:]
    if role == "serve":
        _serve_grpc() if protocol == "grpc" else _serve_h2(*rest or [""])
    elif protocol == "grpc":
        _ask(_GrpcClient(int(rest[0])))
    else:
        _ask(_H2Client("tls" if protocol == "h2-tls" else "", *map(int, rest)))
