"""Addresses of code that was made at run time → names, from the text that JIT compilers write for ``perf``.

In: the bytes of a ``perf-PID.map``, which the observed process wrote, so anything may be in it. Out: names. Pure.
Source: tools/perf/Documentation/jit-interface.txt: lines of ``START SIZE NAME``, both hexadecimal without a prefix;
the name goes to the end of the line. A later line for a place counts more: the compiler has used it again.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np

MAX_BYTES: Final = 32 << 20
"""Of the text, which is kept; the rest is not read."""

MAX_FUNCTIONS: Final = 400_000

MAX_DAMAGED: Final = 10_000
"""Lines, after which the rest is not read: a million line ends take more than a second."""

_LONGEST_NAME: Final = 1024
_LARGEST: Final = 64 << 20  # bytes of one function
_STEPS: Final = 16  # functions before an address that are looked at: one may lie in what was another's
_HIGHEST: Final = 1 << 63


class PerfMap:
    """The functions of one process, as of when the text was read."""

    def __init__(self, text: bytes) -> None:
        self.counters: Counter[str] = Counter()
        """Losses by reason: ``jit_lines_damaged``, ``jit_lines_cut``."""
        if len(text) > MAX_BYTES:
            text = text[:MAX_BYTES]
            text = text[: text.rfind(b"\n") + 1]
            self.counters["jit_lines_cut"] += 1
        self._text = text
        starts: list[int] = []
        ends: list[int] = []
        places: list[int] = []
        damaged = at = 0
        while at < len(text) and len(starts) < MAX_FUNCTIONS and damaged < MAX_DAMAGED:
            newline = text.find(b"\n", at)
            if newline < 0:
                break  # a line that is being written
            fields = text[at : min(newline, at + 64)].split(b" ", 2)
            try:
                start, size = int(fields[0], 16), int(fields[1], 16)
                if len(fields) < 3 or not (0 <= start < _HIGHEST and 0 < size <= _LARGEST):
                    raise ValueError
            except (ValueError, IndexError):
                damaged += 1
            else:
                starts.append(start)
                ends.append(start + size)
                places.append(at + len(fields[0]) + len(fields[1]) + 2)
            at = newline + 1
        if (len(starts) == MAX_FUNCTIONS or damaged == MAX_DAMAGED) and at < len(text):
            self.counters["jit_lines_cut"] += 1
        if damaged:
            self.counters["jit_lines_damaged"] += damaged
        first = np.array(starts, dtype=np.uint64)
        order = np.argsort(first, kind="stable")  # of lines with one start the last comes last
        self._starts = first[order]
        self._ends = np.array(ends, dtype=np.uint64)[order]
        self._places = np.array(places, dtype=np.uint32)[order]
        self._written = order.astype(np.uint32)

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def size_bytes(self) -> int:
        """What is kept."""
        return len(self._text) + 24 * len(self._starts)

    def name_at(self, address: int) -> str | None:
        """The function that holds ``address``: of several the one that was written last."""
        if not 0 <= address < _HIGHEST:
            return None
        row = int(np.searchsorted(self._starts, np.uint64(address), side="right")) - 1
        best = -1
        for each in range(row, max(row - _STEPS, -1), -1):
            if address < int(self._ends[each]) and (
                best < 0 or int(self._written[each]) > int(self._written[best])
            ):
                best = each
        if best < 0:
            return None
        place = int(self._places[best])
        name = self._text[place : min(self._text.index(b"\n", place), place + _LONGEST_NAME)]
        shown = name.decode("utf-8", "replace").strip()
        shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in shown)
        return shown or None
