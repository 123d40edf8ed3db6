"""Valid records of the real layouts (BTF of the built objects), and a served process made of them.

:class:`Host` writes what the rings would hold, in the order of submission: each call moves its clock on.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from otelgpu.elf.btf import Btf
from otelgpu.kernel.loader import read_image
from otelgpu.model.inputs import Batch, ClockAnchor, FunctionNamed, Input, ProcessGone, ProcessSeen, Tick
from otelgpu.model.resource import resource

MS = 1_000_000
UNIX_OFFSET_NS = 1_700_000_000_000_000_000
CUDA_STRUCTS = ("cuda_name", "cuda_activity", "cuda_activity_name")  # kinds that are structs of their own


@cache
def btf(family: str) -> Btf:
    """The types of a family's built object."""
    return read_image(family).btf


def record(family: str, kind: str, head: dict[str, Any], **fields: Any) -> Batch:
    """A batch of one record; ``chunk``'s fields are found wherever they are.

    Every kind of call of family cuda is one struct: ``cuda_launch`` is a ``struct cuda_call``.
    """
    struct = "cuda_call" if family == "cuda" and kind not in CUDA_STRUCTS else kind
    row = np.zeros(1, dtype=btf(family).dtype(struct))
    batch = Batch(family=family, kind=struct, records=row)
    numbers = btf(family).enumerators(f"{family}_kind")
    for name, value in (head | {"kind": numbers[kind.upper()]}).items():
        batch.heads[name] = value
    for name, value in fields.items():
        row[name] = value
    return batch


@dataclass(frozen=True)
class Sent:
    """A record and when the kernel submitted it."""

    submitted_ns: int
    batch: Batch


@dataclass
class Host:
    """A process that serves HTTP and calls CUDA. Times are CLOCK_MONOTONIC."""

    tgid: int = 100
    now_ns: int = 1_000 * MS
    sent: list[Sent] = field(default_factory=list)
    _offsets: dict[tuple[int, str], int] = field(default_factory=dict)
    _sequences: dict[int, int] = field(default_factory=dict)

    # -- sockets ----------------------------------------------------------------------------------

    def accept(self, connection: int = 1, *, tid: int = 101) -> None:
        self._submit(
            record(
                "http",
                "http_open",
                self._head(tid, 0),
                connection=connection,
                fd=9,
                role=btf("http").enumerators("http_role")["HTTP_ROLE_SERVER"],
                address_family=2,
                local_port=8000,
                peer_port=40000 + connection,
                local_address=np.frombuffer(bytes((127, 0, 0, 1)).ljust(16, b"\0"), "u1"),
                peer_address=np.frombuffer(bytes((192, 0, 2, 7)).ljust(16, b"\0"), "u1"),
            )
        )

    def read(self, data: bytes, *, connection: int = 1, tid: int = 101, took_ns: int = MS) -> None:
        self._move("HTTP_DIRECTION_READ", data, connection, tid, took_ns)

    def write(self, data: bytes, *, connection: int = 1, tid: int = 101, took_ns: int = MS) -> None:
        self._move("HTTP_DIRECTION_WRITE", data, connection, tid, took_ns)

    def close(self, connection: int = 1, *, tid: int = 101) -> None:
        sequence = self._sequences.get(connection, 0)
        head = self._head(tid, 0)
        self._submit(record("http", "http_close", head, connection=connection, fd=9, sequence=sequence))

    def _move(self, direction: str, data: bytes, connection: int, tid: int, took_ns: int) -> None:
        assert len(data) <= 4096
        kind, room = ("http_data_256", 256) if len(data) <= 256 else ("http_data_4k", 4096)
        batch = record("http", kind, self._head(tid, took_ns))
        chunk = batch.records["chunk"]
        chunk["connection"], chunk["result"], chunk["captured"] = connection, len(data), len(data)
        chunk["stream_offset"] = self._offsets.get((connection, direction), 0)
        chunk["sequence"] = self._sequences.get(connection, 0)
        chunk["direction"] = btf("http").enumerators("http_direction")[direction]
        batch.records["data"][0] = np.frombuffer(data.ljust(room, b"\0"), "u1")
        self._offsets[connection, direction] = int(chunk["stream_offset"][0]) + len(data)
        self._sequences[connection] = int(chunk["sequence"][0]) + 1
        self._submit(batch)

    # -- CUDA -------------------------------------------------------------------------------------

    def cuda(self, kind: str, api: str, *, tid: int = 101, took_ns: int = MS, **fields: Any) -> None:
        """One call of the runtime, successful unless ``status`` says otherwise."""
        number = btf("cuda").enumerators("cuda_api")[f"API_{api}"]
        self._submit(record("cuda", kind, self._head(tid, took_ns), api=number, **fields))

    def launch(self, function: int = 0x1000, times: int = 1, **fields: Any) -> None:
        given = {"grid": (8, 1, 1), "block": (128, 1, 1), "function": function} | fields
        for _ in range(times):
            self.cuda("cuda_launch", "cudaLaunchKernel", **given)

    def copy(self, size: int = 4096, **fields: Any) -> None:
        self.cuda("cuda_copy", "cudaMemcpyAsync", **({"bytes": size, "detail": 1} | fields))

    def synchronize(self, **fields: Any) -> None:
        self.cuda("cuda_synchronization", "cudaStreamSynchronize", **fields)

    # -- both -------------------------------------------------------------------------------------

    def ask(self, *, connection: int = 1, tid: int = 101, stream: bool = True, **headers: str) -> None:
        """A client's chat completion arrives."""
        self.read(chat_request(stream=stream, **headers), connection=connection, tid=tid)

    def serve(self, *, connection: int = 1, tid: int = 101, tokens: int = 3, **headers: str) -> None:
        """A streamed completion: two launches for prefill, then each token's launch, wait and event."""
        self.ask(connection=connection, tid=tid, **headers)
        self.copy(tid=tid)
        self.launch(0x1000, times=2, tid=tid)
        self.synchronize(tid=tid)
        self.write(stream_head(), connection=connection, tid=tid)
        for token in range(tokens):
            if token:
                self.launch(0x2000, tid=tid)
                self.synchronize(tid=tid)
            self.write(stream_event(f"t{token}"), connection=connection, tid=tid)
        self.write(stream_end(), connection=connection, tid=tid)

    def inputs(self) -> list[Input]:
        """All of it fed one by one, with a tick at the end."""
        return [*self.preamble(), *(s.batch for s in self.sent), Tick(time_ns=self.now_ns + MS)]

    def preamble(self) -> list[Input]:
        """What is known before the first record: the clock, the process, its kernels' names."""
        return [
            ClockAnchor(monotonic_ns=5, unix_ns=5 + UNIX_OFFSET_NS),
            ProcessSeen(
                tgid=self.tgid,
                time_ns=0,
                resource=resource({"service.name": "llm", "process.pid": self.tgid}),
            ),
            FunctionNamed(tgid=self.tgid, address=0x1000, name="void prefill<float>(int)", known=True),
            FunctionNamed(tgid=self.tgid, address=0x2000, name="decode(int)", known=True),
        ]

    def gone(self) -> ProcessGone:
        self.now_ns += MS
        return ProcessGone(tgid=self.tgid, time_ns=self.now_ns)

    def _head(self, tid: int, took_ns: int) -> dict[str, Any]:
        """The call begins 1 ms after the last one was over, and its record is submitted when it ends."""
        self.now_ns += MS
        begin, self.now_ns = self.now_ns, self.now_ns + took_ns
        return {
            "time_ns": begin,
            "duration_ns": took_ns,
            "tgid": self.tgid,
            "tid": tid,
            "cgroup_id": 7,
            "returned": 1,
        }

    def _submit(self, batch: Batch) -> None:
        self.sent.append(Sent(self.now_ns, batch))


def joined(batches: Sequence[Input]) -> list[Input]:
    """Neighbouring batches of one kind as one, as a drain gives them."""
    made: list[Input] = []
    for item in batches:
        last = made[-1] if made else None
        if isinstance(item, Batch) and isinstance(last, Batch) and item.kind == last.kind:
            made[-1] = together(last, item)
        else:
            made.append(item)
    return made


def together(*batches: Batch) -> Batch:
    """Batches of one kind as one, byte by byte: numpy would give fields that share bytes bytes of their own."""
    layout = batches[0].records.dtype
    data = b"".join(batch.records.tobytes() for batch in batches)
    return Batch(family=batches[0].family, kind=batches[0].kind, records=np.frombuffer(data, layout).copy())


def chat_request(*, stream: bool = True, **headers: str) -> bytes:
    messages = [{"role": "user", "content": "hi"}]
    body = json.dumps({"model": "tiny", "stream": stream, "messages": messages}).encode()
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    head = ["POST /v1/chat/completions HTTP/1.1", "host: llm", f"content-length: {len(body)}", *lines]
    return "\r\n".join([*head, "", ""]).encode() + body


def stream_head() -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def stream_event(content: str) -> bytes:
    delta = {"id": "chatcmpl-1", "model": "tiny-1", "choices": [{"index": 0, "delta": {"content": content}}]}
    return _chunk(b"data: " + json.dumps(delta).encode() + b"\n\n")


def stream_end() -> bytes:
    last = {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    return _chunk(b"data: " + json.dumps(last).encode() + b"\n\ndata: [DONE]\n\n") + b"0\r\n\r\n"


def completion(**usage: int) -> bytes:
    """An answer that was not streamed."""
    choice = {"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}
    body = json.dumps({"id": "chatcmpl-2", "model": "tiny-1", "choices": [choice], "usage": usage}).encode()
    return plain_answer(200, body, "application/json")


def plain_answer(status: int = 200, body: bytes = b"ok", kind: str = "text/plain") -> bytes:
    head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)
