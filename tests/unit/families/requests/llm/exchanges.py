"""Drives a reader as a connection does: a transcript in, the generation and what was counted out."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from otelgpu.families.requests.llm.reader import GenerationReader, http_reader
from otelgpu.families.requests.parser_output import ParserOutput
from otelgpu.model.exchange import Generation
from tests.unit.families.requests.llm.transcripts import EVENTS, JSON, Transcript

BUDGET = 1 << 24


@dataclass
class Head:
    """The head of a message."""

    values: dict[bytes, bytes] = field(default_factory=dict)
    status: int = 200

    def last(self, name: bytes) -> bytes:
        return self.values.get(name, b"")

    def all(self, name: bytes) -> list[bytes]:
        return [self.values[name]] if name in self.values else []


@dataclass
class Done:
    """What came of an exchange."""

    generation: Generation | None
    reader: GenerationReader
    output: ParserOutput

    @property
    def counts(self) -> dict[str, int]:
        return {name: count for name, count in self.output.counters.items() if count}

    @property
    def reported(self) -> Generation:
        assert self.generation is not None
        return self.generation


def ask(
    path: str, request: Any, output: ParserOutput | None = None, headers: dict[bytes, bytes] | None = None
) -> Done:
    """A reader that was given a whole request."""
    output = output or ParserOutput(BUDGET)
    reader = http_reader("POST", path, output)
    assert reader is not None
    if reader.request_head(Head({b"content-type": JSON, **(headers or {})})):
        reader.request_body(request if isinstance(request, bytes) else json.dumps(request).encode())
    reader.request_ended()
    return Done(None, reader, output)


def answer(
    done: Done,
    writes: Iterable[bytes | int],
    content_type: bytes = EVENTS,
    headers: dict[bytes, bytes] | None = None,
    status: int = 200,
    times: Iterable[int] = range(10, 1 << 30, 10),
) -> Done:
    """Give it a response, a write at each time; a number is the size of a gap."""
    reader = done.reader
    wanted = reader.response_head(Head({b"content-type": content_type, **(headers or {})}, status))
    for write, time_ns in zip(writes, times, strict=False):
        if isinstance(write, int):
            reader.response_gap(write)
        elif wanted:
            reader.response_body(write, time_ns)
    reader.response_ended()
    done.generation = reader.generation()
    return done


def play(transcript: Transcript, output: ParserOutput | None = None) -> Done:
    done = ask(transcript.path, transcript.request, output)
    return answer(done, transcript.writes, transcript.content_type, transcript.headers)
