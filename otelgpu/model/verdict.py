"""A verdict: what is wrong, where, when, what it costs and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from otelgpu.model.resource import AttributeValue

BEGAN: Final = "began"
CHANGED: Final = "changed"
ENDED: Final = "ended"
"""States of a verdict that is followed."""


class Verdict(Struct, frozen=True, kw_only=True):
    """One finding.

    ``kind``: its class, ``slow_worker`` say. ``place``: attributes, by the names that spans and metrics have for them.
    ``cost_s``: seconds that mending it would save. ``confidence``: 0 to 1. ``text``: one sentence for a person.
    ``state``: one of the three above, of one that is followed. ``links``: trace id and span id, in hexadecimal, of
    spans that show it, the best first.
    """

    kind: str
    place: Mapping[str, AttributeValue]
    start_unix_ns: int
    end_unix_ns: int
    cost_s: float
    confidence: float
    text: str
    state: str = ""
    links: Sequence[tuple[str, str]] = ()
