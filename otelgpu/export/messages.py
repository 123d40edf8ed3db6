"""Columns to repeated protobuf messages of one type, with no Python statement per message. Pure.

In: a message's fields as matrices of bytes (*cells*), and how many of them each message has. Out: how long the
messages are, and their bytes. It must not know what the messages mean.

How. A cell is a field, or one item of a packed field, of a fixed width; numbers are over-long varints of one
width per column (:func:`~otelgpu.export.protobuf.varint_words`). Lengths are the shortest varints, so that a
message's size does not depend on its neighbours'. All sizes are known first; each column is then stored at
the places where its messages have it.

Example: stacks (7, 9) and (300,) are the cells of 7, 9, 300 in two bytes each, with counts 2 and 1, packed
behind ``0a``: ``3a 06 0a 04 87 00 89 00`` and so on, with a continuation bit in each number's first byte.
Invariant: with fewer messages, or smaller numbers in them, no message grows. Sizes may thus be planned on all
rows, and some of them written.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from otelgpu.export.protobuf import AnyArray, varint_width, varint_words, word_formats
from otelgpu.model.codes import Codes, all_of

Bytes = npt.NDArray[np.uint8]  # of one dimension
Cells = npt.NDArray[np.uint8]  # (n, width)


def constant(data: bytes, rows: int) -> Cells:
    """The same bytes in every row."""
    return np.broadcast_to(np.frombuffer(data, dtype=np.uint8), (rows, len(data)))


def integers(tag: bytes, column: AnyArray) -> Cells:
    """A varint field; an item of a packed one when ``tag`` is empty."""
    width = varint_width(column)
    words = [
        np.ascontiguousarray(word, dtype=form).view(np.uint8).reshape(len(column), np.dtype(form).itemsize)
        for word, form in zip(varint_words(column, width), word_formats(width), strict=True)
    ]
    return beside(constant(tag, len(column)), *words)


def fixed64(column: npt.NDArray[np.uint64]) -> Cells:
    """Items of a packed fixed64 field."""
    return np.ascontiguousarray(column, dtype="<u8").view(np.uint8).reshape(len(column), 8)


def beside(*parts: Cells) -> Cells:
    """Cells whose bytes follow one another in every row."""
    return np.concatenate(parts, axis=1)


class Part(Struct, frozen=True):
    """Cells of every message, in order.

    ``counts``: shape (n,), how many cells each message has; None: one. With ``lead``, the cells of a message
    stand behind it and their length: a packed or embedded field, left out where it has no cells.
    """

    cells: Cells
    counts: Codes | None = None
    lead: bytes = b""

    def content(self, messages: int) -> Codes:
        """Bytes of the cells of each message."""
        counts = np.ones(messages, dtype=np.intp) if self.counts is None else self.counts
        width: int = self.cells.shape[1]
        return counts * width

    def sizes(self, messages: int) -> Codes:
        """Bytes of each message's share, with the lead and the length."""
        content = self.content(messages)
        if not self.lead:
            return content
        return content + np.where(content > 0, len(self.lead) + _length_widths(content), 0)


def sizes(parts: Sequence[Part], messages: int) -> Codes:
    """The bytes of each message, with a tag of one byte and its length."""
    body = _bodies(parts, messages)
    whole: Codes = 1 + _length_widths(body) + body
    return whole


def written(tag: bytes, parts: Sequence[Part], messages: int) -> Bytes:
    """The messages one after the other, each behind ``tag`` and its length."""
    body = _bodies(parts, messages)
    total = 1 + _length_widths(body) + body
    ends = np.cumsum(total)
    out = np.empty(int(ends[-1]) if messages else 0, dtype=np.uint8)
    at = _put_header(out, ends - total, tag, body)
    for part in parts:
        content = part.content(messages)
        if part.lead:
            some = np.flatnonzero(content)
            at[some] = _put_header(out, at[some], part.lead, content[some])
        width = part.cells.shape[1]
        places = at if part.counts is None else spread(at, part.counts, width)
        scatter(out, places, np.ascontiguousarray(part.cells).view(f"V{width}").reshape(-1))
        at = at + content
    return out


def spread(starts: Codes, counts: Codes, step: int = 1) -> Codes:
    """``starts[i]``, ``starts[i] + step``, …: ``counts[i]`` of them for every i."""
    before = np.cumsum(counts) - counts
    places = np.arange(int(counts.sum()), dtype=np.intp) * step
    places += np.repeat(starts - before * step, counts)
    return places


def scatter(out: Bytes, positions: Codes, words: AnyArray) -> None:
    """Store ``words[i]`` at byte ``positions[i]`` of ``out``, through a view that starts at every byte."""
    if not len(words):
        return
    room = (len(out) - words.dtype.itemsize + 1,)
    view: AnyArray = np.ndarray(room, dtype=words.dtype, buffer=out, strides=(1,))
    view[positions] = words


def _bodies(parts: Sequence[Part], messages: int) -> Codes:
    return sum((part.sizes(messages) for part in parts), start=np.zeros(messages, dtype=np.intp))


def _length_widths(lengths: Codes) -> Codes:
    """Bytes of the shortest varint of each length."""
    widths = np.ones(len(lengths), dtype=np.intp)
    for bits in range(7, max(int(lengths.max(initial=0)).bit_length(), 1), 7):
        widths += lengths >= 1 << bits
    return widths


def _put_header(out: Bytes, at: Codes, lead: bytes, lengths: Codes) -> Codes:
    """Write ``lead`` and the shortest varint of a length at each place; where those end."""
    for i, byte in enumerate(lead):
        out[at + i] = byte
    at = at + len(lead)
    widths = _length_widths(lengths)
    if all_of(widths == 1):
        out[at] = lengths
        return at + 1
    for i in range(int(widths.max())):
        rows = widths > i
        more = np.where(widths[rows] > i + 1, 0x80, 0)
        out[at[rows] + i] = (lengths[rows] >> 7 * i) & 0x7F | more
    return at + widths
