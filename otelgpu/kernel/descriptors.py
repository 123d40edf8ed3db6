"""What a forked child keeps open of what its parent had."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import pairwise


def close_all_but(kept: Iterable[int]) -> None:
    """Close every descriptor of this process that is not among ``kept``."""
    for last, following in pairwise([-1, *sorted(set(kept)), os.sysconf("SC_OPEN_MAX")]):
        if last + 1 < following:  # for CPython 3.11 an empty range from 0 on is everything
            os.closerange(last + 1, following)
