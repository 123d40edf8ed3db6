"""Trace and span ids: a pure function of the session's seed and of what they identify.

Replaying a capture thus gives the ids that the live session gave. The mixer is SplitMix64's finaliser
(Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014), which is a bijection
on 64 bits and runs on whole columns.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]

GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
"""2^64 divided by the golden ratio, odd: products with it spread (Knuth, TAOCP 3, 6.4)."""
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)
_MASK = (1 << 64) - 1


def mix(words: U64) -> U64:
    """SplitMix64's output function on each word; shape kept."""
    with np.errstate(over="ignore"):
        z = words + GOLDEN
        z = (z ^ (z >> np.uint64(30))) * _MIX1
        z = (z ^ (z >> np.uint64(27))) * _MIX2
        return np.asarray(z ^ (z >> np.uint64(31)), dtype=np.uint64)


def combine(seed: int, *columns: U64) -> U64:
    """One well-mixed word per row from a seed and any number of equally long columns."""
    state = np.full(len(columns[0]), seed & 0xFFFFFFFFFFFFFFFF, dtype=np.uint64)
    for column in columns:
        state = mix(state ^ column)
    return state


def span_ids(seed: int, *columns: U64) -> npt.NDArray[np.uint8]:
    """(n, 8) span ids; never all zero, which OTLP calls invalid."""
    words = combine(seed, *columns)
    words[words == 0] = 1
    return words.astype(">u8").view(np.uint8).reshape(-1, 8)


def trace_ids(seed: int, *columns: U64) -> npt.NDArray[np.uint8]:
    """(n, 16) trace ids; the low word is never zero."""
    low = combine(seed, *columns)
    low[low == 0] = 1
    high = mix(low ^ np.uint64(seed & 0xFFFFFFFFFFFFFFFF))
    return np.stack([high, low], axis=1).astype(">u8").view(np.uint8).reshape(-1, 16)


def request_ids(seed: int, key: int, start_ns: int) -> tuple[bytes, bytes]:
    """The trace and span id of one request: a row of :func:`trace_ids` and of :func:`span_ids` with slot 0.

    In Python's own integers: a column of one costs fifty times as much.
    """
    seed &= _MASK
    low = _mix_word(_mix_word(seed ^ (key & _MASK)) ^ (start_ns & _MASK))
    span = _mix_word(low) or 1
    low = low or 1
    return (_mix_word(low ^ seed) << 64 | low).to_bytes(16, "big"), span.to_bytes(8, "big")


def _mix_word(word: int) -> int:
    z = (word + 0x9E3779B97F4A7C15) & _MASK
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _MASK
    return z ^ (z >> 31)
