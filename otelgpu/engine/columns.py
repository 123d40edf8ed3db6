"""Small builders of :class:`~otelgpu.model.spans.SpanColumns` parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from otelgpu.model.codes import distinct
from otelgpu.model.operations import Operations
from otelgpu.model.spans import Attribute, Text


def constant_text(value: str, rows: int) -> Text:
    """The same value in every row."""
    return Text(codes=np.zeros(rows, dtype=np.intp), table=(value,))


def text_of_codes(codes: npt.NDArray[Any], label: Callable[[int], str]) -> Text:
    """Text from integer codes through ``label``, called once per distinct code."""
    values, dense = distinct(codes)
    return Text(codes=dense, table=tuple(map(label, values.tolist())))


def results(rows: Operations) -> npt.NDArray[np.int64]:
    """What each call returned as one number, for what a status means depends on the function: shape (n,)."""
    return (rows["api"].astype(np.int64) << 32) | rows["status"].astype(np.uint32)


def api_and_status(result: int) -> tuple[int, int]:
    """The two halves of a number of :func:`results`."""
    return result >> 32, ((result & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000


def attributes_of_rows(rows: Sequence[dict[str, Any]]) -> tuple[Attribute, ...]:
    """Attributes in columns from one mapping per span; a key that a row lacks is absent there.

    Values of one key have one type: str, tuple of str, bool, int or float. For low-rate spans only.
    """
    keys = dict.fromkeys(key for row in rows for key in row)
    return tuple(Attribute.of(key, [row.get(key) for row in rows]) for key in keys)


def merged(first: Sequence[Attribute], then: Sequence[Attribute]) -> list[Attribute]:
    """Attributes of the same spans from two hands: where both report one, the second is believed.

    Values of one key have one type in both, and are no text.
    """
    found = {attribute.key: attribute for attribute in first}
    for attribute in then:
        before = found.get(attribute.key)
        if before is not None and attribute.present is not None:
            assert not isinstance(before.values, Text) and not isinstance(attribute.values, Text)
            values = np.where(attribute.present, attribute.values, before.values)
            present = None if before.present is None else before.present | attribute.present
            attribute = Attribute(key=attribute.key, values=values, present=present)
        found[attribute.key] = attribute
    return list(found.values())
