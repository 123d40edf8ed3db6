"""Which kernels have a metric series of their own: at most N names, everything else is ``other``.

In: the kernel name index of each launch. Out: the code of its series. A series of a cumulative counter can
neither be taken back nor be reported under another name later; hence a name that has a seat keeps it, and what was
counted as ``other`` before stays there. Pure, deterministic, memory bounded by the session's kernel names.

A seat is given to a name whose launches are at least one in 2N of all so far, most launched first: what runs
in the steady state gets one soon, what ran once at start-up does not keep others out, and a program with
fewer than N kernels soon has all of them reported.

>>> top = TopKernels(2, ["unknown", "gemm", "init", "softmax"])
>>> top.codes(np.array([1, 1, 1, 1, 2, 3, 3])).tolist()  # 2 has less than a quarter; 3 has
[1, 1, 1, 1, 0, 2, 2]
>>> [top.label(code) for code in (0, 1, 2)]
['other', 'gemm', 'softmax']
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

OTHER: Final = "other"
"""Launches of the kernels that have no series of their own."""


class TopKernels:
    """``seats`` names of ``kernels``, which grows while the session runs; index 0 is the unknown kernel."""

    def __init__(self, seats: int, kernels: Sequence[str]) -> None:
        self._seats = seats
        self._kernels = kernels
        self._labels = [OTHER]
        self._launches = np.zeros(0, dtype=np.int64)  # by name index, while there are seats to give
        self._code = np.zeros(0, dtype=np.intp)  # by name index; 0: other

    def codes(self, indices: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
        """The series of each launch, by its kernel name index; seats are given first. Shape (n,)."""
        self._grow()
        if len(self._labels) <= self._seats:
            self._seat(np.bincount(indices, minlength=len(self._kernels)))
        codes: npt.NDArray[np.intp] = self._code[indices]
        return codes

    def label(self, code: int) -> str:
        """The kernel name of a series."""
        return self._labels[code]

    def _grow(self) -> None:
        new = len(self._kernels) - len(self._code)
        if new:
            self._launches = np.pad(self._launches, (0, new))
            self._code = np.pad(self._code, (0, new))

    def _seat(self, launches: npt.NDArray[np.int64]) -> None:
        self._launches += launches
        unseated = np.where(self._code == 0, self._launches, 0)
        frequent = np.flatnonzero((unseated > 0) & (unseated * 2 * self._seats >= self._launches.sum()))
        free = self._seats + 1 - len(self._labels)
        for index in frequent[np.argsort(-unseated[frequent], kind="stable")][:free].tolist():
            self._code[index] = len(self._labels)
            self._labels.append(self._kernels[index])
