"""What the servers beside this file share: the GPU work of a request, and the truth of it.

A request has a number. Its work is CALLS times ``cudaMalloc(number)``, so that each call says whose it is; its truth
is a line of JSON in the file that ``JOBS_TRUTH`` names. ``JOBS_CUDART`` names the library.
"""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable, Iterator
from typing import Any

CALLS = 3
PAUSE_S = 0.002
"""Between two calls of a request, when others get their turn."""

_cudart = ctypes.CDLL(os.environ["JOBS_CUDART"])
_cudart.cudaMalloc.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t]
_cudart.cudaFree.argtypes = [ctypes.c_void_p]
_truth = os.open(os.environ["JOBS_TRUTH"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def call(number: int) -> None:
    """One call of a request's."""
    pointer = ctypes.c_void_p()
    assert _cudart.cudaMalloc(ctypes.byref(pointer), number) == 0
    assert _cudart.cudaFree(pointer) == 0


def work(number: int, sleep: Callable[[float], object]) -> None:
    """All calls of a request, on this thread."""
    for _ in range(CALLS):
        call(number)
        sleep(PAUSE_S)


async def work_async(number: int, sleep: Callable[[float], Any]) -> None:
    """All calls of a request, between which an event loop does other things."""
    for _ in range(CALLS):
        call(number)
        await sleep(PAUSE_S)


def report(number: int, **facts: object) -> None:
    """A line of the truth."""
    os.write(_truth, json.dumps({"number": number, "calls": CALLS, **facts}).encode() + b"\n")


def events(number: int) -> Iterator[str]:
    """The Server-Sent Events of a streamed chat completion: a call before each of its CALLS tokens.

    Its truth is reported before the last event: clients may hang up as soon as they have that.
    """
    yield _event(number, {"role": "assistant"})
    for token in range(CALLS):
        call(number)
        yield _event(number, {"content": f"word{token} "})
    yield _event(number, {}, "stop")
    report(number, stream=True)
    yield "data: [DONE]\n\n"


def completion(number: int) -> dict[str, Any]:
    """The same, in one piece and without the calls."""
    message = {"role": "assistant", "content": "word " * CALLS}
    return _body(number, "chat.completion", {"message": message, "finish_reason": "stop"}) | {
        "usage": {"prompt_tokens": 7, "completion_tokens": CALLS, "total_tokens": 7 + CALLS}
    }


def _event(number: int, delta: dict[str, str], finish: str | None = None) -> str:
    choice = {"delta": delta, "finish_reason": finish}
    return f"data: {json.dumps(_body(number, 'chat.completion.chunk', choice))}\n\n"


def _body(number: int, kind: str, choice: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{number}",
        "object": kind,
        "created": 1,
        "model": "fake",
        "choices": [{"index": 0, **choice}],
    }
