"""Where equal neighbours begin and end in a sorted column."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def runs(column: npt.NDArray[Any]) -> list[tuple[int, int]]:
    """``[begin, end)`` of each run of equal values in ``column``, shape (n,); empty for n = 0."""
    if not len(column):
        return []
    begins = [0, *(np.flatnonzero(column[1:] != column[:-1]) + 1).tolist()]
    return list(zip(begins, [*begins[1:], len(column)], strict=True))
