"""Rows of structured arrays, moved as the bytes that they are: numpy copies such rows field by field. Pure.

To choose some, ``compress`` and ``take`` do the same by themselves: a sixth to a tenth of what ``rows[mask]`` takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


def joined(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """One after the other: shape (sum of n,). All have one dtype; there is one part at least."""
    if len(parts) == 1:
        return parts[0]
    of_bytes = [np.ascontiguousarray(part).view(np.uint8) for part in parts]
    return np.concatenate(of_bytes).view(parts[0].dtype)


def copied(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Rows that nobody else has."""
    return np.ascontiguousarray(rows).view(np.uint8).copy().view(rows.dtype)
