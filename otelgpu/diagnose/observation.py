"""One row of the table ``evidence``, whoever looks at it. Pure."""

from __future__ import annotations

from msgspec import Struct


class Observation(Struct, frozen=True, kw_only=True):
    """Unix seconds of its host, from when until when. ``rank``: −1 for all of the host."""

    rank: int
    host: str
    begin_s: float
    end_s: float
    name: str
    value: float
    text: str
