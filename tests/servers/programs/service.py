"""What every server here serves, and the truth of it; each server is the API below in the words of one framework.

A request has a number, in its header ``x-request-id``. The server makes calls of its own for it, whose URLs have that
number: ``UPSTREAM/call/NUMBER/N``. So whoever sees a call knows which request it must be under.

| request | calls | answer |
|---|---|---|
| POST /v1/chat/completions | 0, then 1 and 2 at the same time | a chat completion |
| the same, ``stream: true`` | the same, and 3 after the first token | its events, PAUSE_S apart |
| GET /items/NUMBER | the same as of a chat completion | JSON |
| GET /fail/NUMBER | 0 | 500 |
| GET /health | none | JSON |
| anything else | none | 404 |

The environment: ``SERVER_UPSTREAM`` is a URL, ``SERVER_TRUTH`` a file that gets a line of JSON for each stream's first
token, once it is about to be sent: its number, and the seconds since its handler was called.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

UPSTREAM = os.environ["SERVER_UPSTREAM"]
PAUSE_S = 0.002
WORD = "token "

_truth = os.open(os.environ["SERVER_TRUTH"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def call_url(number: str, call: int) -> str:
    """What a server asks its upstream."""
    return f"{UPSTREAM}/call/{number}/{call}"


def report_first_token(number: str, began_s: float) -> None:
    """A line of the truth; ``began_s``: of ``time.monotonic()``."""
    line = {"number": int(number), "ttft_s": time.monotonic() - began_s}
    os.write(_truth, json.dumps(line).encode() + b"\n")


def role_event(number: str) -> bytes:
    """The event before the first token's, which has no content."""
    return _event(number, {"role": "assistant", "content": ""})


def token_event(number: str) -> bytes:
    """The event of one token."""
    return _event(number, {"content": WORD})


def last_events(number: str, asked: dict[str, Any]) -> bytes:
    """How a stream ends: with the usage where that was asked for."""
    end = _event(number, {}, "stop")
    if (asked.get("stream_options") or {}).get("include_usage"):
        end += _sse(_body(number, "chat.completion.chunk") | {"choices": [], "usage": _usage(asked)})
    return end + b"data: [DONE]\n\n"


def completion(number: str, asked: dict[str, Any]) -> dict[str, Any]:
    """The answer in one piece."""
    message = {"role": "assistant", "content": WORD * asked["max_tokens"]}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return _body(number, "chat.completion") | {"choices": [choice], "usage": _usage(asked)}


def _event(number: str, delta: dict[str, str], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return _sse(_body(number, "chat.completion.chunk") | {"choices": [choice]})


def _sse(event: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(event).encode() + b"\n\n"


def _body(number: str, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{number}", "object": kind, "created": 1, "model": "tiny"}


def _usage(asked: dict[str, Any]) -> dict[str, int]:
    tokens = asked["max_tokens"]
    return {"prompt_tokens": 7, "completion_tokens": tokens, "total_tokens": 7 + tokens}
