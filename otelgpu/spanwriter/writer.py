"""Spans of rows, written as far as there is room: the library's ``write_spans``. Pure."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from otelgpu.model.codes import bounds
from otelgpu.model.operations import OPERATION, Field
from otelgpu.spanwriter.library import LEAD_ROOM, NUMBER_ROOM, SPAN_ROOM, Number, Place, Spans, library

_WORD: Final = (1 << 64) - 1
LONGEST_LEAD: Final = 110
"""Bytes before a number's value: so that both lengths in its field are of one."""


_COLUMNS: Final[Mapping[str, Any]] = {
    "rows": OPERATION,
    **dict.fromkeys(("group", "chosen", "count"), np.int64),
    **dict.fromkeys(("form", "flags"), np.uint32),
    **dict.fromkeys(("trace_ids", "span_ids"), np.uint8),
    **dict.fromkeys(("text_ends", "end_ns", "least_ns", "most_ns"), np.uint64),
    "merged": np.bool_,
}
"""The columns of ``struct spans``, and what the library takes them for."""


class OfRun(IntEnum):
    """``enum number_type``, of a run of calls: how many, seconds of all, of the shortest and of the longest."""

    COUNT = 1
    SUM_S = 2
    LEAST_S = 3
    MOST_S = 4
    MERGED = 5


class Holds(IntEnum):
    """``enum number_holds``: of which rows a number is reported."""

    NOT_MERGED = 0
    SINGLE = 1
    ALWAYS = 2
    SEVERAL = 3
    MERGED = 4


class RowValue(Struct, frozen=True, cache_hash=True):
    """A number of each row. ``lead``: its field up to the value's tag, with zeros for both lengths."""

    lead: bytes
    value: Field | OfRun
    holds: Holds = Holds.ALWAYS
    absent: int | None = None  # the value that says nothing

    def encoded(self) -> Number:
        """As the library has it. Raises ValueError for a lead that is too long."""
        if len(self.lead) > LONGEST_LEAD:
            raise ValueError(f"a key of more than {LONGEST_LEAD} bytes: {self.lead!r}")
        number = Number(
            lead=self.lead.ljust(LEAD_ROOM, b"\0"),
            lead_bytes=len(self.lead),
            type=self.value if isinstance(self.value, OfRun) else 0,
            holds=self.holds,
            has_absent=self.absent is not None,
            absent=(self.absent or 0) & _WORD,
        )
        if isinstance(self.value, Field):
            number.value = Place.of(self.value)
        return number


@lru_cache(maxsize=256)
def _encoded(values: tuple[RowValue, ...]) -> Any:
    """An array of them, which keeps what it points at."""
    return (Number * len(values))(*(value.encoded() for value in values))


class RowWriter:
    """n spans, in the order of their rows."""

    def __init__(
        self,
        columns: Mapping[str, npt.NDArray[Any] | None],
        forms: Sequence[tuple[int, bytes]],
        values: Sequence[RowValue],
        *,
        seed: int,
        unix_offset_ns: int,
    ) -> None:
        """``columns``: by their names in ``struct spans``; None: it has none.

        ``forms``: those that rows are of, ascending, and what spans of each have in common. Raises ValueError where
        ``group`` has a place outside of ``flags``.
        """
        group, flags = columns["group"], columns["flags"]
        assert group is not None and flags is not None
        low, high = bounds(group)
        if low < 0 or high >= len(flags):
            raise ValueError(f"a parent outside of {len(flags)}")
        sizes = np.zeros(forms[-1][0] + 1, dtype=np.uint64)
        sizes[[form for form, _ in forms]] = [len(text) for _, text in forms]
        numbers = _encoded(tuple(values))
        self._spans = Spans(
            texts=b"".join(text for _, text in forms),
            numbers=numbers,
            number_count=len(numbers),
            seed=seed & _WORD,
            unix_offset_ns=unix_offset_ns & _WORD,
        )
        self._kept: list[Any] = []  # what is pointed at
        for name, column in {**columns, "text_ends": np.cumsum(sizes)}.items():
            if column is not None:
                contiguous = np.ascontiguousarray(column, dtype=_COLUMNS[name])
                self._kept.append(contiguous)
                setattr(self._spans, name, contiguous.ctypes.data)
        chosen = columns.get("chosen")
        self._count = len(group) if chosen is None else len(chosen)
        self._largest = SPAN_ROOM + int(sizes.max()) + len(numbers) * NUMBER_ROOM
        self._library: Any = library()

    def __len__(self) -> int:
        return self._count

    def size_of(self, span: int) -> int:
        """Bytes that one of them takes, at most."""
        return self._largest

    def write(self, out: npt.NDArray[np.uint8], first: int) -> tuple[int, int]:
        """As many as surely fit in ``out``, from span ``first`` on: the first one not written, and the bytes."""
        written = ctypes.c_uint64()
        last = self._library.write_spans(
            *(ctypes.byref(self._spans), first, self._count, out.ctypes.data, len(out), ctypes.byref(written))
        )
        return last, written.value
