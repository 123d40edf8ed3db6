"""What the headers of a response report about the server and its work.

* TGI's (router/src/server.rs), on answers that are not streamed: ``x-queue-time`` and ``x-inference-time`` in
  milliseconds, ``x-prompt-tokens``, ``x-generated-tokens``. LoRAX, its fork, sends the same.
* ``server: llama.cpp`` (tools/server/server.cpp).
"""

from __future__ import annotations

from typing import Final

from otelgpu.families.requests.llm.api import MessageHead
from otelgpu.families.requests.llm.facts import Facts

HEADERS: Final = frozenset(
    (b"server", b"x-generated-tokens", b"x-inference-time", b"x-prompt-tokens", b"x-queue-time")
)
_MS_PER_S: Final = 1000
_MAX_DIGITS: Final = 12


def take_signs(facts: Facts, head: MessageHead) -> None:
    """Take what the head of a response reports."""
    queue_ms = _number(head.last(b"x-queue-time"))
    if queue_ms is not None and head.last(b"x-inference-time"):
        facts.provider = "tgi"
        facts.took(queue_s=queue_ms / _MS_PER_S)
        facts.used(_number(head.last(b"x-prompt-tokens")), _number(head.last(b"x-generated-tokens")))
    elif head.last(b"server") == b"llama.cpp":
        facts.provider = "llama.cpp"


def _number(value: bytes) -> int | None:
    return int(value) if value.isdigit() and len(value) <= _MAX_DIGITS else None
