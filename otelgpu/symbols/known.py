"""Which (process, address) pairs have been dealt with, asked at kernel rate.

In: columns of pairs. Out: those that are new. Pure. Nearly every row of a batch is known, so the common
answer must cost a few nanoseconds a row: pairs lie in a table of two places each, and only rows that are in
neither are looked at one by one.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.intp]

MAX_PAIRS: Final = 1 << 18
"""More and all are forgotten, to be dealt with again: about 30 MB of Python objects."""

_SMALLEST_BITS: Final = 12
_LARGEST_BITS: Final = 18
_SPARSE: Final = 8  # places per pair, up to the largest table
# Odd numbers without a pattern: multiplication brings all bits of a pair into the highest ones.
_MIX: Final = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))
_MIX_PROCESS: Final = np.uint64(0xD6E8FEB86659FD93)
_MIX_NUMBERS: Final = tuple(int(mix) for mix in _MIX)
_MIX_PROCESS_NUMBER: Final = int(_MIX_PROCESS)
_MASK: Final = (1 << 64) - 1


class KnownPairs:
    """A set of (tgid, address). Exact: two pairs that fall on the same place are distinguished."""

    def __init__(self) -> None:
        self._addresses: dict[int, set[int]] = {}
        self._count = 0
        self._resize(_SMALLEST_BITS)

    def __len__(self) -> int:
        return self._count

    def add_new(self, tgids: U32, addresses: U64, *, limit: int) -> tuple[list[tuple[int, int]], int]:
        """The distinct pairs of two columns that were not in the set, and now are; ``limit`` of them at most.

        The second of the answer says how many more there are: they stay out.
        """
        rows = self._not_in_table(tgids, addresses)
        if not len(rows):
            return [], 0
        new: list[tuple[int, int]] = []
        left_out = 0
        for tgid, address in dict.fromkeys(zip(tgids[rows].tolist(), addresses[rows].tolist(), strict=True)):
            known = self._addresses.setdefault(tgid, set())
            if address not in known:
                if len(new) >= limit:
                    left_out += 1
                    continue
                if self._count >= MAX_PAIRS:
                    self.clear()
                    known = self._addresses.setdefault(tgid, set())
                known.add(address)
                self._count += 1
                new.append((tgid, address))
            self._place(tgid, address)
        if self._count * _SPARSE > len(self._table_addresses) and self._bits < _LARGEST_BITS:
            self._resize(min((self._count * _SPARSE * 2).bit_length(), _LARGEST_BITS))
            for tgid, held in self._addresses.items():
                for address in held:
                    self._place(tgid, address)
        return new, left_out

    def discard(self, tgid: int, addresses: list[int]) -> None:
        """These pairs are to be dealt with again."""
        known = self._addresses.get(tgid)
        for address in known.intersection(addresses) if known else ():
            self._remove(tgid, address)

    def discard_range(self, tgid: int, start: int, end: int) -> None:
        """Those of a process from ``start`` to before ``end`` are to be dealt with again."""
        known = self._addresses.get(tgid, set())
        for address in [address for address in known if start <= address < end]:
            self._remove(tgid, address)

    def forget(self, tgid: int) -> None:
        """Drop a process."""
        self._count -= len(self._addresses.pop(tgid, ()))
        self._table_tgids[self._table_tgids == tgid] = 0

    def clear(self) -> None:
        """Drop everything."""
        self._addresses.clear()
        self._count = 0
        self._table_tgids[:] = 0

    def _remove(self, tgid: int, address: int) -> None:
        self._addresses[tgid].discard(address)
        self._count -= 1
        for place in self._places(tgid, address):
            if int(self._table_addresses[place]) == address and int(self._table_tgids[place]) == tgid:
                self._table_tgids[place] = 0

    # -- The table -------------------------------------------------------------------------------------

    def _resize(self, bits: int) -> None:
        self._bits = bits
        self._shift = np.uint64(64 - bits)
        self._table_tgids = np.zeros(1 << bits, np.uint32)  # 0: nothing there
        self._table_addresses = np.zeros(1 << bits, np.uint64)

    def _not_in_table(self, tgids: U32, addresses: U64) -> Rows:
        rows: Rows | None = None
        for mix in _MIX:
            if rows is None:
                places = self._hash(tgids, addresses, mix)
                missed = np.flatnonzero(
                    (self._table_addresses.take(places) != addresses)
                    | (self._table_tgids.take(places) != tgids)
                )
            else:
                some_tgids, some = tgids.take(rows), addresses.take(rows)
                places = self._hash(some_tgids, some, mix)
                missed = rows[
                    (self._table_addresses.take(places) != some)
                    | (self._table_tgids.take(places) != some_tgids)
                ]
            rows = missed
            if not len(rows):
                break
        assert rows is not None
        return rows

    def _hash(self, tgids: U32, addresses: U64, mix: np.uint64) -> npt.NDArray[np.int64]:
        mixed = tgids.astype(np.uint64)
        mixed *= _MIX_PROCESS
        mixed += addresses
        mixed *= mix
        mixed >>= self._shift
        return mixed.view(np.int64)

    def _places(self, tgid: int, address: int) -> tuple[int, int]:
        """As :meth:`_hash` with either mix, for one pair."""
        mixed = tgid * _MIX_PROCESS_NUMBER + address
        first, second = (((mixed * number) & _MASK) >> (64 - self._bits) for number in _MIX_NUMBERS)
        return first, second

    def _place(self, tgid: int, address: int) -> None:
        """Put a pair where it is free, else where it displaces another: that one is found the slow way."""
        first, second = self._places(tgid, address)
        for place in (first, second):
            if int(self._table_addresses[place]) == address and int(self._table_tgids[place]) == tgid:
                return
        place = second if self._table_tgids[first] and not self._table_tgids[second] else first
        self._table_tgids[place], self._table_addresses[place] = tgid, address
