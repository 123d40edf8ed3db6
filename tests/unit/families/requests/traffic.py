"""Valid records of family http in one line: a socket's system calls in, batches out.

The dtypes are read from ``bpf/http/http.h`` and ``bpf/lib/record.h``, as BTF would give them, so that nothing
of the layout is written twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from otelgpu.families.requests.decode import HttpState
from otelgpu.model.context_sources import ContextSource
from otelgpu.model.exchange import Exchange, Named, Opened, ThreadAssignment
from otelgpu.model.inputs import Batch
from otelgpu.model.tasks import TaskService

BPF = Path(__file__).parents[4] / "bpf"
SOURCE = "".join((BPF / name).read_text() for name in ("lib/record.h", "http/http.h"))
TYPES = {"__u8": "u1", "__u16": "<u2", "__u32": "<u4", "__u64": "<u8", "__s32": "<i4", "__s64": "<i8"}

MS = 1_000_000
READ, WRITE = "read", "write"
CLASSES = ((256, "http_data_256"), (1024, "http_data_1k"), (4096, "http_data_4k"), (16384, "http_data_16k"))


def struct_dtypes(source: str) -> dict[str, np.dtype]:
    """Every ``struct name { … };`` of a header as an aligned numpy dtype."""
    source = re.sub(r"/\*.*?\*/", "", source, flags=re.DOTALL)
    dtypes: dict[str, np.dtype] = {}
    for name, body in re.findall(r"struct (\w+) \{(.*?)\n\};", source, flags=re.DOTALL):
        fields = []
        for type_name, member, length in re.findall(r"((?:struct )?\w+)\s+(\w+)(?:\[(\d+)\])?;", body):
            dtype = dtypes[type_name[7:]] if type_name.startswith("struct ") else np.dtype(TYPES[type_name])
            fields.append((member, dtype, (int(length),)) if length else (member, dtype))
        dtypes[name] = np.dtype(fields, align=True)
    return dtypes


DTYPES = struct_dtypes(SOURCE)
ENUMERATORS = {name: int(value) for name, value in re.findall(r"\b([A-Z][A-Z0-9_]+)\s*=\s*(\d+)", SOURCE)}


@dataclass
class Connection:
    """A process's connection: each method is a system call, at ``now_ns``, and returns its records as batches.

    ``captured``: keep only this many bytes of the call, and with ``tail`` so many of its end.
    """

    identity: int = 1
    tgid: int = 100
    tid: int = 101
    cgroup_id: int = 7
    now_ns: int = 1000 * MS
    took_ns: int = 1 * MS
    gap_ns: int = 10 * MS
    fd: int = 9
    sequence: int = 0
    offsets: dict[str, int] = field(default_factory=lambda: {READ: 0, WRITE: 0})
    published: tuple[bytes, bytes, int, int] | None = None  # trace id, span id, flags, source of each call

    def open(
        self,
        *,
        late: bool = False,
        role: str = "SERVER",
        peer: str = "192.0.2.7",
        port: int = 40000,
        nonblocking: bool = False,
    ) -> Batch:
        """The process accepted the connection, or, by its ``role``, made it, or its role is unknown."""
        record = np.zeros(1, DTYPES["http_open"])
        self._head(record["head"], "HTTP_OPEN", self.tid, 0)
        record["connection"] = self.identity
        record["fd"] = self.fd
        record["nonblocking"] = nonblocking
        record["late"], record["role"] = late, ENUMERATORS[f"HTTP_ROLE_{role}"]
        record["address_family"], record["local_port"], record["peer_port"] = 2, 8000, port
        record["local_address"][0, :4] = (127, 0, 0, 1)
        record["peer_address"][0, :4] = [int(part) for part in peer.split(".")]
        return Batch(family="http", kind="http_open", records=record)

    def read(self, data: bytes, **options: int | None) -> list[Batch]:
        return self._call(READ, data, **options)

    def write(self, data: bytes, **options: int | None) -> list[Batch]:
        return self._call(WRITE, data, **options)

    def moved(self, direction: str, *parts: bytes) -> list[Batch]:
        """A call that moved several buffers, readv or writev: a chunk of each."""
        self.now_ns += self.gap_ns
        total, chunks = sum(len(part) for part in parts), []
        for part in parts:
            chunks.append(self._chunk(direction, part, self.offsets[direction], total, self.tid))
            self.offsets[direction] += len(part)
        return chunks

    def result(self, direction: str, result: int, *, tid: int | None = None) -> list[Batch]:
        """A call that moved nothing."""
        self.now_ns += self.gap_ns
        return [self._chunk(direction, b"", self.offsets[direction], result, tid or self.tid)]

    def run_task(self, task: int) -> None:
        """From now on the thread runs this one."""
        self.published = (bytes(16), task.to_bytes(8, "little"), 0, ContextSource.TASK)

    def shut_down(self) -> list[Batch]:
        """The process calls shutdown(2): it sends no more."""
        self.now_ns += self.gap_ns
        chunk = self._chunk(WRITE, b"", self.offsets[WRITE], 0, self.tid)
        chunk.records["chunk"]["direction"] = ENUMERATORS["HTTP_DIRECTION_ENDED"]
        return [chunk]

    def skip(self, direction: str, size: int) -> list[Batch]:
        """Bytes that move without any record."""
        self.offsets[direction] += size
        return []

    def close(self) -> list[Batch]:
        self.now_ns += self.gap_ns
        record = np.zeros(1, DTYPES["http_close"])
        self._head(record["head"], "HTTP_CLOSE", self.tid, 0)
        record["connection"], record["fd"], record["sequence"] = self.identity, self.fd, self.sequence
        return [Batch(family="http", kind="http_close", records=record)]

    def _call(
        self,
        direction: str,
        data: bytes,
        *,
        tid: int | None = None,
        captured: int | None = None,
        tail: int = 0,
        arrival_ns: int = 0,
    ) -> list[Batch]:
        self.now_ns += self.gap_ns
        start = self.offsets[direction]
        thread = tid or self.tid
        kept = len(data) if captured is None else captured
        chunks = [
            self._chunk(direction, data[i : min(kept, i + 16384)], start + i, len(data), thread)
            for i in range(0, kept, 16384)
        ]
        if tail:
            chunks.append(self._chunk(direction, data[-tail:], start + len(data) - tail, len(data), thread))
        self.offsets[direction] += len(data)
        for chunk in chunks:
            chunk.records["chunk"]["arrival_ns"] = arrival_ns
        return chunks

    def _chunk(self, direction: str, data: bytes, offset: int, result: int, tid: int) -> Batch:
        capacity, kind = next(entry for entry in CLASSES if len(data) <= entry[0])
        record = np.zeros(1, DTYPES[kind])
        chunk = record["chunk"]
        self._head(chunk["head"], kind.upper(), tid, self.took_ns)
        chunk["connection"], chunk["stream_offset"], chunk["result"] = self.identity, offset, result
        chunk["sequence"], chunk["fd"], chunk["captured"] = self.sequence, self.fd, len(data)
        chunk["direction"] = ENUMERATORS[
            "HTTP_DIRECTION_WRITE" if direction == WRITE else "HTTP_DIRECTION_READ"
        ]
        record["data"][0] = np.frombuffer(data.ljust(capacity, b"\0"), dtype="u1")
        self.sequence += 1
        return Batch(family="http", kind=kind, records=record)

    def _head(self, head: np.ndarray, kind: str, tid: int, took_ns: int) -> None:
        head["time_ns"], head["duration_ns"] = self.now_ns, took_ns
        head["tgid"], head["tid"], head["cgroup_id"] = self.tgid, tid, self.cgroup_id
        head["kind"], head["returned"] = ENUMERATORS[kind], 1
        if self.published is not None:
            trace_id, span_id, head["trace_flags"], head["context_source"] = self.published
            head["trace_id"], head["span_id"] = np.frombuffer(trace_id, "u1"), np.frombuffer(span_id, "u1")


@dataclass
class Seen:
    """All that a state gave out."""

    state: HttpState
    assignments: list[ThreadAssignment] = field(default_factory=list)
    exchanges: list[Exchange] = field(default_factory=list)
    opened: list[Opened] = field(default_factory=list)
    shed: list[int] = field(default_factory=list)
    named: list[Named] = field(default_factory=list)
    tasks: list[TaskService] = field(default_factory=list)

    def take(self, activity: object) -> Seen:
        self.assignments += activity.assignments  # type: ignore[attr-defined]
        self.exchanges += activity.exchanges  # type: ignore[attr-defined]
        self.opened += activity.opened  # type: ignore[attr-defined]
        self.shed += activity.shed  # type: ignore[attr-defined]
        self.named += activity.named  # type: ignore[attr-defined]
        self.tasks += activity.tasks  # type: ignore[attr-defined]
        return self

    def feed(self, batches: Iterable[Batch] | Batch) -> Seen:
        for batch in [batches] if isinstance(batches, Batch) else batches:
            self.take(self.state.feed(batch))
        return self

    def counts(self) -> dict[str, int]:
        """Counters that are not zero."""
        return {name: count for name, count in self.state.counters.items() if count}

    def assigned(self) -> list[tuple[int, int, int]]:
        """(time in ms, tid, +key or -key) of each assignment."""
        return [(c.time_ns // MS, c.tid, c.exchange if c.begins else -c.exchange) for c in self.assignments]


def new_state(**options: Any) -> HttpState:
    """A state that reads records of this header."""
    return HttpState(
        write_direction=ENUMERATORS["HTTP_DIRECTION_WRITE"],
        ended_direction=ENUMERATORS["HTTP_DIRECTION_ENDED"],
        **options,
    )


def opened(role: str = "SERVER", **options: int) -> tuple[Connection, Seen]:
    """A connection that was accepted (made, or neither) in sight, and the state that saw it."""
    connection = Connection(**options)  # type: ignore[arg-type]
    return connection, Seen(new_state()).feed(connection.open(role=role))


def joined(batches: Iterable[Batch]) -> list[Batch]:
    """Neighbouring batches of one kind as one, as the ring drains them."""
    runs: list[list[Batch]] = []
    for batch in batches:
        if runs and runs[-1][0].kind == batch.kind:
            runs[-1].append(batch)
        else:
            runs.append([batch])
    return [replace(run[0], records=np.concatenate([batch.records for batch in run])) for run in runs]


def request(
    method: str = "GET", target: str = "/", body: bytes = b"", *, version: str = "1.1", **headers: str
) -> bytes:
    """A request; a keyword is a header, with _ for -. A body brings its content-length, unless chunked."""
    return _message(f"{method} {target} HTTP/{version}", body, headers)


def response(status: int = 200, body: bytes | None = b"", *, version: str = "1.1", **headers: str) -> bytes:
    """A response; ``body`` None leaves the content-length away."""
    return _message(f"HTTP/{version} {status} Reason", body, headers, always=status >= 200 and status != 204)


def _message(start: str, body: bytes | None, headers: dict[str, str], *, always: bool = False) -> bytes:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    if "transfer-encoding" not in names and body is not None and (body or always):
        names.setdefault("content-length", str(len(body)))
    lines = [start, *(f"{name}: {value}" for name, value in names.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1") + (body or b"")


def chunked(*chunks: bytes, trailer: bytes = b"", extension: bytes = b"") -> bytes:
    """Body bytes in chunked transfer coding, the last chunk included."""
    parts = [b"%x%s\r\n%s\r\n" % (len(chunk), extension, chunk) for chunk in chunks]
    return b"".join(parts) + b"0\r\n" + trailer + b"\r\n"


def chunk(data: bytes) -> bytes:
    """One chunk."""
    return b"%x\r\n%s\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"
