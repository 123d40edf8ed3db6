"""Raw records of family http, put together to what each end of each connection read and wrote.

In: a `Watch` of family http. Out: `Conversation`s. Independent of the family's decoder.
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
_DATA: Final = ("http_data_256", "http_data_4k", "http_data_16k")
_SETTLE_S: Final = 0.3


class Talker:
    """The program of tests/rig/conversations.py; its results by name of the conversation."""

    def __init__(self, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests/rig/conversations.py")],
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
        """Hold a conversation; its result."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([name, *arguments]) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


@contextmanager
def talker(**environment: str) -> Iterator[Talker]:
    """One, until the end of the block."""
    started = Talker(**environment)
    try:
        yield started
    finally:
        started.process.kill()
        started.process.wait()


@dataclass(kw_only=True)
class Conversation:
    """One end of a connection. ``pieces``: by direction, in the order of their numbers."""

    opened: np.void | None = None
    closed: np.void | None = None
    pieces: tuple[list[np.void], list[np.void]] = field(default_factory=lambda: ([], []))

    @property
    def role(self) -> int:
        """As http_open says it."""
        assert self.opened is not None
        return int(self.opened["role"])

    @property
    def layer(self) -> int:
        """As http_open says it."""
        assert self.opened is not None
        return int(self.opened["layer"])

    def bytes_of(self, direction: int) -> bytes:
        """What was captured, each byte at its offset; what was not is zero."""
        data = bytearray()
        for record in self.pieces[direction]:
            piece = record["piece"]
            start, size = int(piece["stream_offset"]), int(piece["captured"])
            data.extend(bytes(max(start + size - len(data), 0)))
            data[start : start + size] = bytes(record["data"][:size])
        return bytes(data)

    def numbers(self) -> list[int]:
        """The pieces' numbers, of both directions."""
        return sorted(int(r["piece"]["sequence"]) for pieces in self.pieces for r in pieces)

    @property
    def sequence(self) -> tuple[int, int]:
        """TCP's number of the first byte read, and written."""
        assert self.opened is not None
        assert self.opened["sequences_known"] == 3
        read, write = self.opened["sequence"]
        return int(read), int(write)


def conversations(watch: Watch, settle_s: float = _SETTLE_S) -> dict[int, Conversation]:
    """All that were seen since the watch was started anew, by number."""
    watch.pump(settle_s)
    found: dict[int, Conversation] = {}
    for record in watch.records("http_open"):
        conversation = found.setdefault(int(record["connection"]), Conversation())
        assert conversation.opened is None, "a connection begins once"
        conversation.opened = record
    for kind in _DATA:
        for record in watch.records(kind):
            conversation = found.setdefault(int(record["piece"]["connection"]), Conversation())
            conversation.pieces[int(record["piece"]["direction"])].append(record)
    for record in watch.records("http_close"):
        conversation = found.setdefault(int(record["connection"]), Conversation())
        assert conversation.closed is None, "a connection ends once"
        conversation.closed = record
    for conversation in found.values():
        for pieces in conversation.pieces:
            pieces.sort(key=lambda r: int(r["piece"]["sequence"]))
    return found


def both_ends(watch: Watch) -> tuple[Conversation, Conversation]:
    """(client, server) of the one connection that was seen."""
    found = conversations(watch)
    assert len(found) == 2, found
    first, second = found.values()
    return (first, second) if first.role == CLIENT else (second, first)


def wait_for(condition: Any, limit_s: float = 10) -> None:
    """Until it holds."""
    until = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)
