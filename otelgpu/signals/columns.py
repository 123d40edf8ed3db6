"""Small builders of :class:`~otelgpu.model.spans.SpanColumns` parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from otelgpu.model.spans import Attribute, Text


def text(values: Sequence[str | tuple[str, ...]]) -> Text:
    """Dictionary-code a sequence."""
    table: dict[str | tuple[str, ...], int] = {}
    codes = np.fromiter((table.setdefault(v, len(table)) for v in values), dtype=np.intp, count=len(values))
    return Text(codes=codes, table=tuple(table))


def constant_text(value: str, rows: int) -> Text:
    """The same value in every row."""
    return Text(codes=np.zeros(rows, dtype=np.intp), table=(value,))


def text_of_codes(codes: npt.NDArray[Any], label: Any) -> Text:
    """Text from integer codes through ``label(code) -> str``, called once per distinct code."""
    distinct, inverse = np.unique(codes, return_inverse=True)
    return Text(codes=inverse.astype(np.intp), table=tuple(label(int(code)) for code in distinct))


def attributes_of_rows(rows: Sequence[dict[str, Any]]) -> tuple[Attribute, ...]:
    """Attributes in columns from one mapping per span; a key that a row lacks is absent there.

    Values of one key have one type: str, tuple of str, bool, int or float. For low-rate spans only.
    """
    keys = dict.fromkeys(key for row in rows for key in row)
    return tuple(_attribute(key, rows) for key in keys)


def _attribute(key: str, rows: Sequence[dict[str, Any]]) -> Attribute:
    present = np.fromiter((key in row for row in rows), dtype=np.bool_, count=len(rows))
    sample = next(row[key] for row in rows if key in row)
    if isinstance(sample, str | tuple):
        values: Any = text([row.get(key, type(sample)()) for row in rows])
    else:
        dtype = {bool: np.bool_, int: np.int64, float: np.float64}[type(sample)]
        values = np.fromiter((row.get(key, 0) for row in rows), dtype=dtype, count=len(rows))
    return Attribute(key=key, values=values, present=None if present.all() else present)
