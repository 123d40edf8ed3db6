"""What a process's function addresses are called, asked for a column at a time. Pure.

In: (address, code) pairs, code 0 meaning unknown; columns of addresses. Out: the code of each. A process has
some hundred kernels and asks millions of times, so the answer is one multiplicative hash into a table that is
sixteen times too large (Knuth, TAOCP 3, 6.4): the few addresses whose place is taken are looked up one by one.

Example: of 200 addresses in a table of 4,096 some five share a place with another; a column of 8,192 rows is
answered by two takes and a comparison, and those five by a dict.
Invariant: the answer is ``known.get(address, 0)``.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from otelgpu.model.codes import distinct

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)  # 2^64 divided by the golden ratio, odd
_SPARSE: Final = 16
_LEAST_BITS: Final = 8


class AddressCodes:
    """Codes of the addresses of one process."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}
        self._stale = True

    def __setitem__(self, address: int, code: int) -> None:
        self._known[address] = code
        self._stale = True

    def get(self, address: int) -> int:
        """The code of one address."""
        return self._known.get(address, 0)

    def codes(self, addresses: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint32]:
        """The code of each address: shape (n,)."""
        if self._stale:
            self._fill()
        places = self._places(addresses)
        found = self._codes[places]
        elsewhere = np.flatnonzero(self._addresses[places] != addresses)
        if len(elsewhere):
            values, which = distinct(addresses[elsewhere])
            answers = [self._known.get(address, 0) for address in values.tolist()]
            found[elsewhere] = np.array(answers, dtype=np.uint32)[which]
        return found

    def _places(self, addresses: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        with np.errstate(over="ignore"):
            places: npt.NDArray[np.uint64] = (addresses * _GOLDEN) >> self._shift
        return places

    def _fill(self) -> None:
        bits = max(_LEAST_BITS, (len(self._known) * _SPARSE).bit_length())
        self._shift = np.uint64(64 - bits)
        self._addresses = np.zeros(1 << bits, dtype=np.uint64)
        self._codes = np.zeros(1 << bits, dtype=np.uint32)
        known = np.array(list(self._known), dtype=np.uint64)
        places = self._places(known)
        self._addresses[places] = known
        self._codes[places] = np.array(list(self._known.values()), dtype=np.uint32)
        self._stale = False
