"""Raw records of family http, assembled into what each endpoint of each connection read and wrote.

In: a `Watch` of family http. Out: `CapturedConnection`s. Independent of the family's decoder.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from tests.kernel.observing import Watch
from tests.rig import ROOT

READ, WRITE = 0, 1  # enum http_direction
UNKNOWN, SERVER, CLIENT = 0, 1, 2  # enum http_role
SOCKET, TLS = 0, 1  # enum http_layer
_DATA: Final = ("http_data_256", "http_data_1k", "http_data_4k", "http_data_16k")
_SETTLE_S: Final = 0.3


class TrafficProgram:
    """The program of tests/rig/socket_traffic.py; its results by name of the scenario."""

    def __init__(self, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests/rig/socket_traffic.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
        )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def do(self, name: str, *arguments: object) -> Any:
        """Run a scenario and return its result."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([name, *arguments]) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


@contextmanager
def traffic_program(**environment: str) -> Iterator[TrafficProgram]:
    """One, until the end of the block."""
    started = TrafficProgram(**environment)
    try:
        yield started
    finally:
        started.process.kill()
        started.process.wait()


@dataclass(kw_only=True)
class CapturedConnection:
    """One endpoint of a connection. ``chunks``: by direction, in the order of their numbers."""

    opened: np.void | None = None
    closed: np.void | None = None
    chunks: tuple[list[np.void], list[np.void]] = field(default_factory=lambda: ([], []))

    @property
    def role(self) -> int:
        """As http_open has it."""
        assert self.opened is not None
        return int(self.opened["role"])

    @property
    def layer(self) -> int:
        """As http_open has it."""
        assert self.opened is not None
        return int(self.opened["layer"])

    def bytes_of(self, direction: int) -> bytes:
        """What was captured, each byte at its offset; what was not is zero."""
        data = bytearray()
        for record in self.chunks[direction]:
            chunk = record["chunk"]
            start, size = int(chunk["stream_offset"]), int(chunk["captured"])
            data.extend(bytes(max(start + size - len(data), 0)))
            data[start : start + size] = bytes(record["data"][:size])
        return bytes(data)

    def numbers(self) -> list[int]:
        """The chunks' numbers, of both directions."""
        return sorted(int(r["chunk"]["sequence"]) for chunks in self.chunks for r in chunks)

    @property
    def sequence(self) -> tuple[int, int]:
        """TCP's number of the first byte read, and written."""
        assert self.opened is not None
        assert self.opened["sequences_known"] == 3
        read, write = self.opened["sequence"]
        return int(read), int(write)


def captured_connections(watch: Watch, settle_s: float = _SETTLE_S) -> dict[int, CapturedConnection]:
    """All that were seen since the watch was started anew, by number."""
    watch.pump(settle_s)
    found: dict[int, CapturedConnection] = {}
    for record in watch.records("http_open"):
        captured = found.setdefault(int(record["connection"]), CapturedConnection())
        assert captured.opened is None, "a connection begins once"
        captured.opened = record
    for kind in _DATA:
        for record in watch.records(kind):
            captured = found.setdefault(int(record["chunk"]["connection"]), CapturedConnection())
            captured.chunks[int(record["chunk"]["direction"])].append(record)
    for record in watch.records("http_close"):
        captured = found.setdefault(int(record["connection"]), CapturedConnection())
        assert captured.closed is None, "a connection ends once"
        captured.closed = record
    for captured in found.values():
        for chunks in captured.chunks:
            chunks.sort(key=lambda r: int(r["chunk"]["sequence"]))
    return found


def client_and_server(watch: Watch) -> tuple[CapturedConnection, CapturedConnection]:
    """(client, server) of the one connection that was seen."""
    found = captured_connections(watch)
    assert len(found) == 2, found
    first, second = found.values()
    return (first, second) if first.role == CLIENT else (second, first)


def wait_for(condition: Any, limit_s: float = 10) -> None:
    """Until it holds."""
    until = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)
