"""What the process that observes reports to the one that draws, as JSON lines. Pure.

First a :class:`Setup`, then a :class:`Frame` after each interval; a :class:`Failure` ends it wherever it is. Both
processes are of one program; what is in the texts may be anybody's.
"""

from __future__ import annotations

import msgspec

from otelgpu.engine.presentation import TopView
from otelgpu.render.top.rows import Row

Tables = dict[str, list[Row]]
"""Rows by the names of a view's tables."""


class Setup(msgspec.Struct, frozen=True, kw_only=True, tag="setup"):
    """What there will be frames of. ``view``: the one to begin with, if one was asked for; ``sort``: a column."""

    views: tuple[TopView, ...]
    view: str | None
    sort: str


class Frame(msgspec.Struct, frozen=True, kw_only=True, tag="frame"):
    """Of the ``seconds`` before ``unix_s``. ``views``: by name."""

    seconds: float
    unix_s: float
    views: dict[str, Tables]

    def figure(self, view: str, table: str, key: str) -> float | None:
        """The sum of a column; None where no row has a value."""
        values = [row[key] for row in self.views.get(view, {}).get(table, ())]
        numbers = [value for value in values if isinstance(value, float | int)]
        return sum(numbers) if numbers else None


class Failure(msgspec.Struct, frozen=True, kw_only=True, tag="failure"):
    """Observing ended, or did not begin. ``text``: as it is written on standard error."""

    text: str
    exit_code: int


Report = Setup | Frame | Failure

_ENCODER = msgspec.json.Encoder()
_DECODER: msgspec.json.Decoder[Report] = msgspec.json.Decoder(Report)


def encoded(report: Report) -> bytes:
    """One line."""
    return _ENCODER.encode(report) + b"\n"


def decoded(line: bytes) -> Report:
    """See :func:`encoded`."""
    return _DECODER.decode(line)
