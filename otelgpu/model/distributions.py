"""What measurements add up to."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from msgspec import Struct


class Distribution(Struct, frozen=True, kw_only=True):
    """Some measurements: how many, their sum, the least and the greatest, and how many lie in each bucket.

    A histogram's bound belongs to the bucket below it: (previous, bound].
    """

    count: int
    total: float
    least: float
    most: float
    buckets: npt.NDArray[np.int64]  # (bounds + 1,)
