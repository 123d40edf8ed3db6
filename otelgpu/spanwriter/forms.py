"""Which rows look alike: the library's ``find_forms``. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from otelgpu.model.operations import Field, Operations
from otelgpu.spanwriter.library import MOST_KEYS, NO_CONDITION, FormKey, Place, library

ALL_KINDS: Final = (1 << 64) - 1


class Key(Struct, frozen=True):
    """What rows are told apart by: 0 in those that are not of ``kinds``, or whose ``condition`` is not 1."""

    field: Field
    kinds: Iterable[int] | None = None  # None: all
    condition: Field | None = None

    def encoded(self) -> FormKey:
        """As the library has it."""
        kinds = ALL_KINDS if self.kinds is None else sum(1 << kind for kind in self.kinds)
        condition = NO_CONDITION if self.condition is None else self.condition.place[1]
        return FormKey(value=Place.of(self.field), kinds=kinds, condition=condition)


class FormFinder:
    """Rows are of one form where all keys are equal."""

    def __init__(self, keys: Sequence[Key], kind: Field) -> None:
        """At most :data:`MOST_KEYS`. ``kind``: the column that :attr:`Key.kinds` is about."""
        if len(keys) > MOST_KEYS:
            raise ValueError(f"more than {MOST_KEYS} keys of forms")
        self._keys = (FormKey * len(keys))(*(key.encoded() for key in keys))
        self._kind_at = kind.place[1]

    def find(self, rows: Operations) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
        """The form of each of n rows, and the first row of each form, in the order in which they are met."""
        rows = np.ascontiguousarray(rows)
        forms, firsts = np.empty(len(rows), dtype=np.uint32), np.empty(len(rows), dtype=np.int64)
        found: Any = library()
        count = found.find_forms(
            *(rows.ctypes.data, len(rows), self._keys, len(self._keys), self._kind_at),
            *(forms.ctypes.data, firsts.ctypes.data),
        )
        if count < 0:
            raise MemoryError
        return forms, firsts[:count].copy()
