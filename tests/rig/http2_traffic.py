"""Generations over one HTTP/2 connection that stays open: a server and its client, each a program of its own.

``http2_traffic.py serve h2|grpc``: a line with its port; it then serves until it is killed. ``http2_traffic.py ask
h2|grpc PORT``: for each line ``STREAMS AT_ONCE`` on stdin, so many generations over the connection that it opened at
first, and a line of JSON: for each, seconds from asking to the first chunk. Each has TOKENS chunks, the first after
FIRST_S. h2: chat completions as server-sent events, by the h2 library; grpc: Triton's ``ModelStreamInfer``, by grpcio.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

TOKENS = 5
FIRST_S = 0.03
PAUSE_S = 0.002
READ_BYTES = 1000  # at a client under load reads end anywhere in a frame
MODEL = "llama"
_CHAT = {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": "hi"}]}
_CHUNK = {"id": "chatcmpl-1", "model": MODEL, "choices": [{"index": 0, "delta": {"content": "x"}}]}
_METHOD = "inference.GRPCInferenceService/ModelStreamInfer"


def _pauses() -> Iterator[int]:
    for number in range(TOKENS):
        time.sleep(PAUSE_S if number else FIRST_S)
        yield number


class _H2End:
    """One end of a connection of the h2 library, whose state several threads change."""

    def __init__(self, connection: socket.socket, *, client: bool) -> None:
        import h2.config
        import h2.connection

        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = connection
        self.lock = threading.Lock()
        self.state = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=client, header_encoding="utf-8")
        )
        self.state.initiate_connection()
        self.flush()

    def flush(self) -> None:
        """Write what the library has to send."""
        if data := self.state.data_to_send():
            self.socket.sendall(data)

    def send(self, stream: int, data: bytes, *, end: bool = False) -> None:
        """One frame of a body, in a call of its own."""
        with self.lock:
            self.state.send_data(stream, data, end_stream=end)
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


def _serve_h2() -> None:
    import h2.events

    def answer(end: _H2End, stream: int) -> None:
        with end.lock:
            end.state.send_headers(stream, [(":status", "200"), ("content-type", "text/event-stream")])
            end.flush()
        for _ in _pauses():
            end.send(stream, b"data: " + json.dumps(_CHUNK).encode() + b"\n\n")
        end.send(stream, b"data: [DONE]\n\n", end=True)

    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    with ThreadPoolExecutor(32) as pool:
        while True:
            end = _H2End(listener.accept()[0], client=False)
            for event in end.events(65_536):
                if isinstance(event, h2.events.StreamEnded):
                    pool.submit(answer, end, event.stream_id)


class _H2Client:
    def __init__(self, port: int) -> None:
        self._end = _H2End(socket.create_connection(("127.0.0.1", port)), client=True)
        self._first: dict[int, float] = {}
        self._ended: dict[int, threading.Event] = {}
        threading.Thread(target=self._read, daemon=True).start()

    def ask(self, _: int) -> float:
        """One generation."""
        body, end, ended = json.dumps(_CHAT).encode(), self._end, threading.Event()
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

    def _read(self) -> None:
        import h2.events

        for event in self._end.events(READ_BYTES):
            if isinstance(event, h2.events.DataReceived):
                self._first.setdefault(event.stream_id, time.monotonic())
            elif isinstance(event, h2.events.StreamEnded):
                self._ended[event.stream_id].set()


def _field(number: int, value: bytes) -> bytes:
    """A protobuf field with a length."""
    return bytes((number << 3 | 2, len(value))) + value


def _infer(tensor: bytes, text: bytes) -> bytes:
    """A ModelInferRequest, or a ModelInferResponse."""
    contents = _field(5, _field(8, text))
    return _field(1, MODEL.encode()) + _field(5, _field(1, tensor) + _field(2, b"BYTES") + contents)


def _serve_grpc() -> None:
    import grpc

    def infer(requests: Iterator[bytes], _: Any) -> Iterator[bytes]:
        for _ in requests:
            for _ in _pauses():
                yield _field(2, _infer(b"text_output", b"x"))

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

    def ask(self, _: int) -> float:
        """One generation."""
        began = time.monotonic()
        answers = self._infer(iter((_infer(b"text_input", b"hi"),)))
        next(answers)
        first = time.monotonic()
        assert sum(1 for _ in answers) == TOKENS - 1
        return first - began


def _ask(client: _H2Client | _GrpcClient) -> None:
    for line in sys.stdin:
        streams, at_once = map(int, line.split())
        with ThreadPoolExecutor(at_once) as pool:
            print(json.dumps(list(pool.map(client.ask, range(streams)))), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        (_serve_h2 if sys.argv[2] == "h2" else _serve_grpc)()
    elif sys.argv[2] == "h2":
        _ask(_H2Client(int(sys.argv[3])))
    else:
        _ask(_GrpcClient(int(sys.argv[3])))
