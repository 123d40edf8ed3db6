"""Streams completions whose events are tens of kilobytes: those of a server that was asked for probabilities.

In: a JSON line ``{"tokens": …, "event_bytes": …, "write": …, "read_bytes": …, "pause_s": …, "usage": …}`` on stdin for
each request, which a client in the same program makes. Out: a JSON line ``{"first_s": …, "last_s": …, "bytes": …}``:
from the request to the write of the first event, to the end of the last one, and how long the body was.

Events have the shape and the order of keys of llama.cpp's server (tools/server/server-task.cpp, ``n_probs``), and are
sent as cpp-httplib does: each a chunk, in one ``send``. Standard library only: it runs as a program of its own.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

HEAD: Final = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
PATH: Final = "/v1/chat/completions"


def _send(connection: socket.socket, size: bytes, event: bytes) -> None:
    connection.sendall(size + event + b"\r\n")


def _writev(connection: socket.socket, size: bytes, event: bytes) -> None:
    """As Node and nginx do; a socket that blocks takes all of it at once."""
    connection.sendmsg([size, event, b"\r\n"])


WRITES: Final[dict[str, Callable[[socket.socket, bytes, bytes], None]]] = {"send": _send, "writev": _writev}


def event(text: str, event_bytes: int, **beside: object) -> bytes:
    """A chunk of a chat completion with probabilities that make it so long."""
    choice: dict[str, object] = {"finish_reason": None, "index": 0, "delta": {"content": text}}
    probability = {"id": 1234, "token": " token", "bytes": [32, 116], "logprob": -12.345678901234567}
    one = len(json.dumps(probability)) + 2
    choice["logprobs"] = {"content": [probability] * (event_bytes // one)}
    made = {"choices": [choice], "created": 1, "id": "chatcmpl-large", "model": "m", **beside}
    return b"data: " + json.dumps(made).encode() + b"\n\n"


def serve(connection: socket.socket, asked: dict[str, Any], told: dict[str, float]) -> None:
    """Answer one request."""
    received = b""
    while b"\r\n\r\n{" not in received or not received.endswith(b"}"):
        received += connection.recv(65536)
    began = time.monotonic()
    write = WRITES[asked["write"]]
    connection.sendall(HEAD)
    for number in range(asked["tokens"]):
        time.sleep(asked["pause_s"])
        data = event(f"w{number}", asked["event_bytes"])
        told.setdefault("first_s", time.monotonic() - began)
        write(connection, b"%x\r\n" % len(data), data)
    last: dict[str, Any] = {"choices": [{"finish_reason": "stop", "index": 0, "delta": {}}]}
    if asked["usage"]:
        last["usage"] = {"prompt_tokens": 3, "completion_tokens": asked["tokens"]}
    for data in (b"data: " + json.dumps(last).encode() + b"\n\n", b"data: [DONE]\n\n"):
        write(connection, b"%x\r\n" % len(data), data)
    connection.sendall(b"0\r\n\r\n")
    told["last_s"] = time.monotonic() - began


def ask(asked: dict[str, Any]) -> dict[str, float]:
    """One request over a connection of its own."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
    told: dict[str, float] = {}
    serving = threading.Thread(target=serve, args=(server, asked, told))
    body = json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": "?"}]}).encode()
    with client, server:
        serving.start()
        client.sendall(
            f"POST {PATH} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
        )
        size, end = 0, b""
        while not end.endswith(b"\r\n0\r\n\r\n"):
            received = client.recv(asked["read_bytes"])
            size += len(received)
            end = (end + received)[-16:]
        serving.join()
    return told | {"bytes": size}


def main() -> None:
    """Make the requests that stdin asks for."""
    for line in sys.stdin:
        print(json.dumps(ask(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
