"""How slowly this machine computes, beside those that bounds of time are chosen on.

An emulated machine is twenty times slower: what a good file takes there is longer than a bad one may take elsewhere.
"""

from __future__ import annotations

import time
from functools import cache
from typing import Final

MOST: Final = 20.0
"""No bound becomes longer than so many times what it was chosen as: what is bounded is what strangers wrote."""

_ROUNDS: Final = 2000
_TRIES: Final = 3
_USUAL_S: Final = 0.0003
"""CPU time of the rounds on a machine on which nothing is stretched: twice that of a server of 2023."""


@cache
def slowness() -> float:
    """By which bounds of time are multiplied here, 1 to :data:`MOST`: tried once, for a millisecond.

    By the CPU time of the calling thread, which is the same however many others want the processor.
    """
    return slowness_of(min(_tried_s() for _ in range(_TRIES)))


def slowness_of(tried_s: float) -> float:
    """The same of a machine that takes so long for the rounds.

    >>> slowness_of(0.0001), slowness_of(0.0012), slowness_of(1.0)
    (1.0, 4.0, 20.0)
    """
    return min(max(tried_s / _USUAL_S, 1.0), MOST)


def _tried_s() -> float:
    began, number = time.thread_time(), 0
    for each in range(_ROUNDS):
        number = (number * 31 + each) & 0xFFFF
    return time.thread_time() - began
