"""What a session's functions are called: one index per distinct name, and each process' addresses. Pure.

In: answers (process, address → name); columns of addresses. Out: indices of names; 0 is "[unknown]". Names are kept
for the whole session, at most :data:`NAMES` of them; addresses as long as their process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from otelgpu.model.codes import distinct
from otelgpu.model.ids import GOLDEN
from otelgpu.model.inputs import FunctionNamed
from otelgpu.model.losses import Reasons

REASONS: Final = Reasons(
    "symbols",
    {
        "kernel_names_full": "more than 65,536 kernel names, or 1,024 places without one; where the kernel lies "
        "is not reported then",
    },
)
"""What one count of (``symbols``, reason) means."""

NAMES: Final = 65_536
"""Distinct names remembered; later ones are called "[unknown]", and counted."""

PLACES: Final = 1024
"""Of those, names that are none: places in a file or, of a process that was gone, addresses that no other will have."""

UNKNOWN: Final = "[unknown]"
"""What a kernel without a name is called: a name with an address in it would be another one in each process."""

_SPARSE: Final = 16
_LEAST_BITS: Final = 8


class AddressCodes:
    """Codes of the addresses of one process, asked for a column at a time: 0 where one is not known.

    A process has some hundred kernels and asks millions of times, so the answer is one multiplicative hash into a
    table that is sixteen times too large (Knuth, TAOCP 3, 6.4): the few addresses whose place is taken are looked up
    one by one. Example: of 200 addresses in a table of 4,096 some five share a place with another; a column of 8,192
    rows is answered by two takes and a comparison, and those five by a dict.
    Invariant: the answer is ``known.get(address, 0)``.
    """

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
            places: npt.NDArray[np.uint64] = (addresses * GOLDEN) >> self._shift
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


class FunctionNames:
    """Names of one session. ``shorten`` makes the short form of a name that is one.

    By index: ``full`` and ``short`` are of kernels; ``places`` has those of kernels without a name.
    """

    def __init__(self, shorten: Callable[[str], str]) -> None:
        self.full = [UNKNOWN]
        self.short = [UNKNOWN]
        self.places: dict[int, FunctionNamed] = {}
        self._shown = [UNKNOWN]
        self._shorten = shorten
        self._index: dict[tuple[str, str], int] = {}
        self._places = 0
        self._functions: dict[int, AddressCodes] = {}  # by tgid

    def learn(self, answer: FunctionNamed) -> bool:
        """Take an answer. False: there is no room for another name."""
        key = answer.name, answer.build_id
        index = self._index.get(key)
        kept = index is not None or (len(self.full) < NAMES and (answer.known or self._places < PLACES))
        if index is None and kept:
            self._places += not answer.known
            index = self._index[key] = len(self.full)
            self._shown.append(answer.name)
            self.full.append(answer.name if answer.known else UNKNOWN)
            self.short.append(self._shorten(answer.name) if answer.known else UNKNOWN)
            if answer.module:
                self.places[index] = answer
        self._functions.setdefault(answer.tgid, AddressCodes())[answer.address] = index or 0
        return kept

    def index(self, tgid: int, address: int) -> int:
        """The index of one function's name."""
        known = self._functions.get(tgid)
        return 0 if known is None else known.get(address)

    def indices(self, tgid: int, addresses: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint32]:
        """Those of a column of functions of one process: shape (n,)."""
        known = self._functions.get(tgid)
        return np.zeros(len(addresses), dtype=np.uint32) if known is None else known.codes(addresses)

    def name(self, tgid: int, address: int) -> str:
        """What one function, or place in one, is called: ``load_weights()+0x1f``, ``libmodel.so+0x1a2b``."""
        return self._shown[self.index(tgid, address)]

    def forget(self, tgid: int) -> None:
        """A process ended, or became another program: its addresses mean nothing any more."""
        self._functions.pop(tgid, None)
