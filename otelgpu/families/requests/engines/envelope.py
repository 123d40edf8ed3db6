"""What is known of a serving engine's message besides its bytes, and what all engines' messages have in common."""

from __future__ import annotations

from msgspec import Struct

from otelgpu.model.exchange import Published

MAX_REQUEST_ID = 512


class Envelope(Struct, frozen=True):
    """The call that moved a message. ``time_ns``: sent: its write began; received: its read returned."""

    connection: int
    time_ns: int
    tgid: int
    tid: int
    sent: bool
    published: Published | None


def is_request_id(text: str) -> bool:
    """Whether a string can be an engine's request id."""
    return 0 < len(text) <= MAX_REQUEST_ID and text.isprintable()
