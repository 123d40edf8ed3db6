"""Who is the next owner of a process id is not taken for the one before. Pure.

In: the pipeline's inputs, with process ids. Out: the same with numbers (:mod:`otelgpu.model.process_numbers`), which
nobody else had for a while: what is held of a process that ended, and is reported later, is reported as its own.

Example: 7 is described, makes calls and ends; another 7 is described: it is 7 | 1 << 22 from then on. What comes of 7
between the two is the former's. An id that is its owner's alone is its number: then inputs are handed on as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cache
from inspect import get_annotations
from typing import Any, Final, cast

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from otelgpu.model.inputs import Batch, Input, ProcessGone, ProcessSeen, Records
from otelgpu.model.process_numbers import next_owner

REMEMBERED_NS: Final = 120_000_000_000
"""For so long after its end is something of a process kept, at most."""
REMEMBERED: Final = 65_536
"""Processes that ended: of more, the oldest are forgotten, and the next owners of their ids taken for them."""

_PROCESS_COLUMNS: Final = frozenset({"tgid"})
_PROCESS_FIELDS: Final = frozenset({"tgid", "parent"})


class Generations:
    """Those of one session."""

    def __init__(self) -> None:
        self._ended: dict[int, int] = {}  # id: when, the oldest first
        self.numbers: dict[int, int] = {}
        """Of ids that have had several owners. Without any, nothing but descriptions and ends need come here."""

    def renumber(self, item: Input) -> Input:
        """An input with the numbers of the processes that it is about; it is not changed itself."""
        if isinstance(item, ProcessSeen | ProcessGone):
            self._expire(item.time_ns)
        match item:
            case ProcessSeen(same_program=False) if item.tgid in self._ended:
                del self._ended[item.tgid]
                self.numbers[item.tgid] = next_owner(self.numbers.get(item.tgid, item.tgid))
            case ProcessGone():
                self._ended.pop(item.tgid, None)
                self._ended[item.tgid] = item.time_ns
                if len(self._ended) > REMEMBERED:
                    self._forget(next(iter(self._ended)))
        return self._renumbered(item) if self.numbers else item

    def _expire(self, now_ns: int) -> None:
        while self._ended:
            tgid, ended_ns = next(iter(self._ended.items()))
            if ended_ns > now_ns - REMEMBERED_NS:
                return
            self._forget(tgid)

    def _forget(self, tgid: int) -> None:
        del self._ended[tgid]
        self.numbers.pop(tgid, None)

    def _renumbered(self, item: Any) -> Any:
        if isinstance(item, Batch):
            return replace(item, records=self._renumbered_rows(item.records))
        changed = {}
        for field in _fields_of(cast(Hashable, type(item))):
            value = getattr(item, field)
            new = (
                self.numbers.get(value, value) if field in _PROCESS_FIELDS else self._renumbered_parts(value)
            )
            if new is not value and new != value:
                changed[field] = new
        return replace(item, **changed) if changed else item

    def _renumbered_parts(self, parts: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(self._renumbered(each) if isinstance(each, Struct) else each for each in parts)

    def _renumbered_rows(self, records: Records) -> Records:
        copied = False
        for column in _columns_of(records.dtype):
            found = np.isin(column(records), list(self.numbers))
            if not found.any():
                continue
            if not copied:
                records, copied = records.copy(), True
            mine = column(records)
            mine[found] = [self.numbers[tgid] for tgid in mine[found].tolist()]
        return records


@cache
def _fields_of(kind: Any) -> tuple[str, ...]:
    """Those with process ids, or with parts that may have some."""
    types = {name: form for base in reversed(kind.__mro__) for name, form in get_annotations(base).items()}
    return tuple(
        name
        for name in kind.__struct_fields__
        if name in _PROCESS_FIELDS or str(types[name]).startswith("tuple[")
    )


@cache
def _columns_of(dtype: np.dtype[Any]) -> tuple[Callable[[Records], Records], ...]:
    """How the columns of process ids are read, at any depth."""
    found: list[Callable[[Records], Records]] = []
    for name in dtype.names or ():
        if name in _PROCESS_COLUMNS:
            found.append(lambda records, name=name: records[name])  # type: ignore[misc]
        elif dtype[name].names:
            for inner in _columns_of(dtype[name]):
                found.append(lambda records, name=name, inner=inner: inner(records[name]))  # type: ignore[misc]
    return tuple(found)
