"""Rows of a profile that are equal but for their time, summed. Pure.

Example: at 99 Hz a thread was 40 times under one stack: 40 rows of 10.1 ms each are one of 404 ms, at the first's time.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from otelgpu.families.profiles.span_links import LinkedRows, LinkState
from otelgpu.model.codes import codes_of_bytes, combine, distinct, examples

_IDENTITY: Final = (
    *("tgid", "tid", "stack", "waker_stack", "waker_tgid", "leaf", "label", "state"),
    *("resource", "series"),
)
_IDENTITY_BYTES: Final = ("trace_id", "span_id", "name")
"""Columns that distinguish rows which may not be summed: of integers, and of whole words of bytes."""


def summed(rows: LinkedRows, start_ns: int, length_ns: int) -> LinkedRows:
    """Rows of the same interval that are equal but for their times are one, with the first of their times."""
    columns = [codes_of_bytes(rows[name]) for name in _IDENTITY_BYTES]
    intervals = (rows["time_ns"].astype(np.int64) - start_ns) // length_ns
    for numbers in (*(np.ascontiguousarray(rows[name]) for name in _IDENTITY), intervals):
        values, codes = distinct(numbers)
        columns.append((codes, len(values)))
    codes, size = combine(columns, len(rows))
    out: LinkedRows = rows.take(examples(codes, size))
    sums = np.zeros(size, dtype=np.int64)
    np.add.at(sums, codes, rows["value"])
    out["value"] = sums
    first = np.full(size, np.iinfo(np.uint64).max, dtype=np.uint64)
    np.minimum.at(first, codes, rows["time_ns"])
    out["time_ns"] = first
    out["link"] = LinkState.SETTLED
    return out
