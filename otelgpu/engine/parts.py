"""Operations in parts of one process, family, kind and outcome, which is how they are measured. Pure.

In: operations of one family, in any order. Out: the same rows, copied once, part after part, and in the order
of arrival within each. Rules of what is counted name a kind and whether the call failed, so each rule reads
whole parts instead of searching all rows.

Example: 8,192 rows of one process make some seven parts: one for each kind, and one for the launches that
failed. Invariant: every row is in exactly one part.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from otelgpu.model.codes import Codes, distinct, mix, order_of
from otelgpu.model.operations import OperationKind, Operations, concatenate

_KINDS: Final = max(OperationKind) + 1

WORTH_MEASURING: Final = 2048
"""Rows of a part that are measured at once; smaller ones wait for more, for a measurement has fixed costs."""


@dataclass(frozen=True, slots=True)
class Part:
    """Rows that are alike in what they are. ``failed``: their result is known, and an error."""

    tgid: int
    family: int
    kind: OperationKind
    failed: bool
    rows: Operations


def parts_of(rows: Operations, family: int) -> tuple[Operations, list[Part], Codes]:
    """The rows in a new array; its parts, which are views of it, by process, kind and outcome; its order."""
    kinds = rows["kind"].astype(np.intp)
    failed = (rows["status"] != 0) & (rows["returned"] == 1)
    tgids, processes = distinct(np.ascontiguousarray(rows["tgid"]))
    codes, size = mix([(processes, len(tgids)), (kinds, _KINDS), (failed, 2)], len(rows))
    order = order_of(codes, size)
    ordered = rows.take(order)
    ordered["family"] = family
    counts = np.bincount(codes, minlength=size)
    found, begin = [], 0
    for code in np.flatnonzero(counts).tolist():
        end = begin + int(counts[code])
        part = ordered[begin:end]
        kind = OperationKind(int(part["kind"][0]))
        found.append(Part(int(part["tgid"][0]), family, kind, bool(code % 2), part))
        begin = end
    return ordered, found, order


class SmallParts:
    """Parts too small to be worth measuring, until there is more of them or somebody wants to know."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[int, int, OperationKind, bool], list[Part]] = {}

    def pass_on(self, parts: Iterable[Part]) -> list[Part]:
        """Those that are large enough; the others wait."""
        large = []
        for part in parts:
            if len(part.rows) >= WORTH_MEASURING:
                large.append(part)
            else:
                key = (part.tgid, part.family, part.kind, part.failed)
                self._waiting.setdefault(key, []).append(part)
        return large

    def release(self) -> list[Part]:
        """All that wait, those that are alike together."""
        found = [
            parts[0]
            if len(parts) == 1
            else replace(parts[0], rows=concatenate([part.rows for part in parts]))
            for parts in self._waiting.values()
        ]
        self._waiting.clear()
        return found
