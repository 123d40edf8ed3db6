"""Links of spans as the protobuf fields ``Span.links`` and ``Span.dropped_links_count``. Pure.

In: :class:`~otelgpu.model.spans.Links` of a batch. Out: for each span that has any, the bytes of those fields
(opentelemetry/proto/trace/v1/trace.proto, message Span.Link). Only steps and requests have links: they are few, and
each is put together by itself.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np

from otelgpu.export.protobuf import any_value, delimited, key_value, varint
from otelgpu.model.spans import Attribute, Links

# Tag bytes: field number << 3 | wire type (0 varint, 2 bytes, 5 fixed32).
_LINKS: Final = b"\x6a"
_DROPPED: Final = b"\x70"
_TRACE_ID, _SPAN_ID, _ATTRIBUTE, _FLAGS = b"\x0a\x10", b"\x12\x08", b"\x22", b"\x35"


def link_fields(links: Links, rows: int) -> dict[int, bytes]:
    """By position in the batch of ``rows`` spans: the links of each span that has some, and how many it lacks.

    Raises :class:`ValueError` when columns differ in length, or links are not in the order of their spans.
    """
    count = len(links.span)
    for what in ("trace_id", "span_id", "flags"):
        _check(len(getattr(links, what)) == count, what, f"not {count} rows")
    steps = np.diff(links.span, prepend=0, append=max(rows - 1, 0))
    _check(not count or bool((steps >= 0).all()), "span", f"a position out of order, or outside {rows} spans")
    fixed = _fixed(links)
    width = len(fixed) // count if count else 0
    bodies = [fixed[at : at + width] for at in range(0, len(fixed), max(width, 1))]
    for attribute in links.attributes:
        bodies = [body + more for body, more in zip(bodies, _attributes(attribute, count), strict=True)]
    found: dict[int, bytes] = {}
    bounds = [0, *(np.flatnonzero(np.diff(links.span)) + 1).tolist(), count] if count else [0]
    for begin, end in pairwise(bounds):
        found[int(links.span[begin])] = b"".join(delimited(_LINKS, body) for body in bodies[begin:end])
    if links.dropped is not None:
        _check(len(links.dropped) == rows, "dropped", f"not {rows} rows")
        for row in np.flatnonzero(links.dropped).tolist():
            found[row] = found.get(row, b"") + _DROPPED + varint(int(links.dropped[row]))
    return found


def _fixed(links: Links) -> bytes:
    """Ids and flags of all links, each as long as the other."""
    count = len(links.span)
    parts = [
        np.broadcast_to(np.frombuffer(_TRACE_ID, dtype=np.uint8), (count, len(_TRACE_ID))),
        links.trace_id,
        np.broadcast_to(np.frombuffer(_SPAN_ID, dtype=np.uint8), (count, len(_SPAN_ID))),
        links.span_id,
        np.broadcast_to(np.frombuffer(_FLAGS, dtype=np.uint8), (count, len(_FLAGS))),
        np.ascontiguousarray(links.flags, dtype="<u4").view(np.uint8).reshape(count, 4),
    ]
    return np.concatenate(parts, axis=1).tobytes()


def _attributes(attribute: Attribute, count: int) -> list[bytes]:
    """An attribute of each link; nothing where it is absent."""
    values = attribute.rows(count)
    return [
        b"" if value is None else delimited(_ATTRIBUTE, key_value(attribute.key, any_value(value)))
        for value in values
    ]


def _check(holds: bool, what: str, fault: str) -> None:
    """Raise ValueError on a column that breaks the contract of ``Links``."""
    if not holds:
        raise ValueError(f"link column {what!r} has {fault}")
