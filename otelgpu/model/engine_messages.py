"""What the processes of a serving engine say to each other on local sockets: requests in, tokens out.

Times are CLOCK_MONOTONIC nanoseconds. Prompts and tokens are counted, never held.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

from otelgpu.model.exchange import Published, TraceParent


class EngineRequest(Struct, frozen=True, kw_only=True):
    """A request was handed to an engine (vLLM: ADD; SGLang: a tokenized request)."""

    time_ns: int  # sent: the write began; received: the read returned
    tgid: int
    tid: int
    sent: bool
    engine: str  # "vllm", "sglang", "tgi"
    request_id: str
    parent: TraceParent | None = None
    published: Published | None = None  # what the calling thread worked under
    prompt_tokens: int | None = None


class EngineItem(NamedTuple):
    """What one step gave one request."""

    request_id: str
    new_tokens: int
    finished: bool = False


class EngineOutput(Struct, frozen=True, kw_only=True):
    """What an engine step gave: one message (vLLM: EngineCoreOutputs of one client)."""

    time_ns: int
    tgid: int
    tid: int
    sent: bool
    connection: int  # an engine with several clients sends each its part of a step
    engine: str
    items: tuple[EngineItem, ...]
    waiting: int | None = None  # requests in the queue, where the engine reports
    running: int | None = None


EngineMessage = EngineRequest | EngineOutput
