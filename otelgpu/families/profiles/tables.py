"""The tables of one batch of a profile: stacks, locations, functions and mappings, each distinct one once. Pure.

In: rows of one process and sample type, whose stacks are numbers; the book of named stacks. Out: the tables of
:class:`~otelgpu.model.profiles.ProfileColumns`, and a code for each row.

A row's stack is, from the leaf: what goes on top of it (``GPU: flash_fwd``), the stack itself, or, of a thread that was
woken, the waker's stack upside down, ``[woken by]``, and the stack that waited: so that in a flame graph the two
meet where the one waits for the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from otelgpu.families.profiles.gil import waits_for_gil
from otelgpu.families.profiles.names import GIL, NOT_KEPT, NOT_TAKEN, TOO_MANY, WOKEN_BY
from otelgpu.families.profiles.stacks import FrameIds, StackTable
from otelgpu.model.codes import Codes, combine, distinct, examples
from otelgpu.model.profiles import FrameType, Function, Line, Location, Mapping
from otelgpu.model.samples import Frame

BEYOND: Final = (1 << 64) - 1
"""In place of a stack's number: one of more than are held."""

_WHICH: Final = ("stack", "waker_stack", "waker_tgid", "leaf")

Leaves = Sequence[tuple[Frame, ...]]


class BatchTables:
    """The tables of one batch, which grow as stacks are added."""

    def __init__(
        self, book: StackTable, leaves: Leaves, *, python_only: bool = False, waits: bool = False
    ) -> None:
        """``leaves``: what a row's ``leaf`` counts from 1. ``python_only``: native and kernel frames are left out.

        ``waits``: stacks of threads that may have waited are reported by what for.
        """
        self._book, self._leaves = book, leaves
        self._python_only, self._waits = python_only, waits
        self._stacks: dict[tuple[int, ...], int] = {}
        self._location_of: dict[int, int] = {}  # by number of the frame in the book
        self._locations: list[Location] = []
        self._functions: dict[Function, int] = {}
        self._mappings: dict[Mapping, int] = {}
        self.lost = 0
        """Stacks of rows, and of who woke them, that were taken and are not known."""

    @property
    def stacks(self) -> tuple[tuple[int, ...], ...]:
        """Positions in ``locations``, the leaf first."""
        return tuple(self._stacks)

    @property
    def locations(self) -> tuple[Location, ...]:
        """Of all frames."""
        return tuple(self._locations)

    @property
    def functions(self) -> tuple[Function, ...]:
        """Of all locations."""
        return tuple(self._functions)

    @property
    def mappings(self) -> tuple[Mapping, ...]:
        """Files of native frames."""
        return tuple(self._mappings)

    def codes(self, tgid: int, rows: npt.NDArray[np.void]) -> Codes:
        """The position of each row's stack: shape (n,). All rows are of process ``tgid``.

        -1 of one without Python frames, where only those are asked for.
        """
        columns = [distinct(np.ascontiguousarray(rows[name])) for name in _WHICH]
        inverse, size = combine([(codes, len(values)) for values, codes in columns], len(rows))
        counts, which = np.bincount(inverse, minlength=size), examples(inverse, size)
        codes = np.empty(size, dtype=np.intp)
        for place, key in enumerate(zip(*(rows[name][which].tolist() for name in _WHICH), strict=True)):
            stack, waker, waker_tgid, leaf = key
            known = self._known(tgid, stack)
            if known is None:
                self.lost += int(counts[place])
                known = (self._book.frame(NOT_KEPT),)
            elif self._waits and waits_for_gil(map(self._book.gil_marks.__getitem__, known)):
                known = (self._book.frame(GIL), *known)
            if waker:
                woken = self._known(waker_tgid, waker)
                if woken is None:
                    self.lost += int(counts[place])
                    woken = (self._book.frame(NOT_KEPT),)
                known = (*reversed(woken), self._book.frame(WOKEN_BY), *known)
            if leaf:
                known = (*map(self._book.frame, self._leaves[leaf - 1]), *known)
            codes[place] = self._stack(known)
        return codes[inverse]

    def _known(self, tgid: int, stack: int) -> FrameIds | None:
        if stack == 0:
            return (self._book.frame(NOT_TAKEN),)
        if stack == BEYOND:
            return (self._book.frame(TOO_MANY),)
        return self._book.ids(tgid, stack)

    def _stack(self, frames: FrameIds) -> int:
        if self._python_only:
            if self._book.python.isdisjoint(frames):
                return -1
            frames = tuple(filter(self._book.shown.__contains__, frames))
        known = self._location_of
        if not known.keys() >= set(frames):
            for each in frames:
                if each not in known:
                    known[each] = self._location(self._book.frames[each])
        return self._stacks.setdefault(tuple(map(known.__getitem__, frames)), len(self._stacks))

    def _location(self, frame: Frame) -> int:
        is_python = frame.type is FrameType.PYTHON
        function = Function(
            name=frame.name, system_name=frame.system_name, file_name=frame.file if is_python else ""
        )
        number = self._functions.setdefault(function, len(self._functions))
        self._locations.append(
            Location(
                frame_type=frame.type,
                mapping=None if is_python else self._mapping(frame),
                address=frame.address,
                lines=(Line(function=number, line=frame.line),),
            )
        )
        return len(self._locations) - 1

    def _mapping(self, frame: Frame) -> int | None:
        """The file; addresses of its frames are offsets in it, so that its beginning is at 0."""
        if not frame.file and not frame.build_id:
            return None
        mapping = Mapping(
            file_name=frame.file,
            memory_start=0,
            memory_limit=0,
            file_offset=0,
            build_id_gnu=frame.build_id,
            build_id_htlhash="",
        )
        return self._mappings.setdefault(mapping, len(self._mappings))
