"""How versions of NCCL lay out ``struct ncclComm``, and how that is found for those that are not listed. No I/O.

In: a library's version text, its debugging information, or the memory of one communicator of which some words are
known. Out: :class:`CommunicatorLayout`. A layout that is not certain is none.

Source of the numbers: DWARF of ``libnccl.so.2`` in the packages nvidia-nccl-cu12, written by
``tools/nccl_layouts.py``. What the fields mean: src/include/comm.h of NCCL.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

MAGIC: Final = 0x0280028002800280
"""NCCL_MAGIC: the first word of a communicator, since 2.20, and the last."""

COUNTED_SINCE: Final = (2, 26)
"""From this version on ``seqNumber`` is advanced without a profiler plug-in too (src/plugin/profiler.cc)."""

_VERSION: Final = re.compile(rb"NCCL version (2\.\d{1,3}\.\d{1,3})\+cuda\d")
_WORD: Final = 8


class CommunicatorLayout(Struct, frozen=True, kw_only=True):
    """Offsets in bytes into ``struct ncclComm``.

    0 of those that may be missing: ``end_at``, ``sequences_at``, ``graphs_at``. ``sequences``: counts by function that
    are kept. ``begin_magic``: the first word is MAGIC.
    """

    hash_at: int
    rank_at: int
    ranks_at: int
    device_at: int
    end_at: int = 0
    sequences_at: int = 0
    sequences: int = 0
    graphs_at: int = 0
    begin_magic: bool = True


def _listed(hash_at: int, end_at: int, graphs_at: int, sequences_at: int = 0) -> CommunicatorLayout:
    return CommunicatorLayout(
        hash_at=hash_at,
        rank_at=hash_at + 8,
        ranks_at=hash_at + 12,
        device_at=hash_at + 16,
        end_at=end_at,
        sequences_at=sequences_at,
        sequences=5 if sequences_at else 0,
        graphs_at=graphs_at,
    )


LISTED: Final[Mapping[str, CommunicatorLayout]] = {
    "2.21.5": _listed(13528, 16280, 15432),
    "2.27.5": _listed(1066160, 1080312, 1068352, 1074512),
    "2.28.3": _listed(1066176, 1081808, 1069512, 1075720),
    "2.28.9": _listed(1066184, 1082960, 1069520, 1075728),
    "2.32.3": _listed(1181408, 1196528, 1185680, 1193800),
}
"""Version → layout. The same for CUDA 12 and 13; of another build of that version each communicator's first and last
word and its ranks say whether it is laid out so, and the unique id that one is made with."""


def version_in(constants: bytes | memoryview) -> str | None:
    """The version that a library says of itself (``NCCL version 2.27.5+cuda12.9``), from its ``.rodata``."""
    found = _VERSION.search(constants)
    return found[1].decode() if found else None


def layout_of_members(
    offsets: Mapping[str, tuple[int, int]], version: str | None
) -> CommunicatorLayout | None:
    """From the members of ``struct ncclComm``: name → (offset in bytes, elements). None when one is missing.

    ``version`` says whether the counts by function are kept: where it is not known they are not trusted.
    """
    try:
        hash_at, rank_at, ranks_at, device_at = (
            offsets[name][0] for name in ("commHash", "rank", "nRanks", "cudaDev")
        )
    except KeyError:
        return None
    numbers = tuple(map(int, version.split("."))) if version else ()
    sequences_at, sequences = offsets.get("seqNumber", (0, 0))
    if numbers < COUNTED_SINCE:
        sequences_at = sequences = 0
    graphs_at, _ = offsets.get("localPersistentRefs") or offsets.get("persistentRefs") or (0, 0)
    return CommunicatorLayout(
        hash_at=hash_at,
        rank_at=rank_at,
        ranks_at=ranks_at,
        device_at=device_at,
        end_at=offsets.get("endMagic", (0, 0))[0],
        sequences_at=sequences_at,
        sequences=sequences,
        graphs_at=graphs_at,
        begin_magic=offsets.get("startMagic", (-1, 0))[0] == 0,
    )


def magics_at(layout: CommunicatorLayout) -> tuple[int, ...]:
    """Where the first word of the unique id may lie: before the hash; in 2.24 to 2.26 a name is between them."""
    return tuple(layout.hash_at - distance for distance in (_WORD, 2 * _WORD) if layout.hash_at >= distance)


def calibrate(
    memory: bytes, *, rank: int, ranks: int, is_identity: Callable[[int], bool]
) -> CommunicatorLayout | None:
    """The layout of a communicator that has just been made, from its memory; None unless there is just one.

    ``is_identity`` says whether a word is the first of the unique id that it was made with. What is looked for is
    that word, then the hash, ``rank``, ``ranks`` and the device, one behind the other (src/include/comm.h of 2.18 to
    2.32). Counts are not found so.
    """
    words: npt.NDArray[np.uint64] = np.frombuffer(memory, "<u8", len(memory) // _WORD)
    both = np.uint64(rank & 0xFFFFFFFF | ranks << 32)
    found = []
    for at in np.flatnonzero(words == both).tolist():
        if at < 2 or at + 1 >= len(words) or not words[at - 1]:
            continue
        device = int(words[at + 1]) & 0xFFFFFFFF
        before = {int(words[at - 2]), int(words[at - 3]) if at >= 3 else 0} - {0}
        if device <= 0x7FFF and any(map(is_identity, before)):
            found.append(at * _WORD)
    if len(found) != 1:
        return None
    (rank_at,) = found
    begins = bool(words[0] == MAGIC)
    ends = np.flatnonzero(words[rank_at // _WORD :] == MAGIC) if begins else np.zeros(0, dtype=np.intp)
    return CommunicatorLayout(
        hash_at=rank_at - _WORD,
        rank_at=rank_at,
        ranks_at=rank_at + 4,
        device_at=rank_at + 8,
        end_at=rank_at + int(ends[0]) * _WORD if len(ends) else 0,
        begin_magic=begins,
    )


def siphash(key: tuple[int, int], word: int) -> int:
    """SipHash-2-4 of one 8-byte word, as ``digest`` of bpf/nccl/communicators.h (Aumasson and Bernstein, 2012)."""
    mask = (1 << 64) - 1
    v = [
        key[0] ^ 0x736F6D6570736575,
        key[1] ^ 0x646F72616E646F6D,
        key[0] ^ 0x6C7967656E657261,
        key[1] ^ 0x7465646279746573,
    ]

    def rotate(value: int, bits: int) -> int:
        return (value << bits | value >> (64 - bits)) & mask

    def rounds(count: int) -> None:
        for _ in range(count):
            v[0] = (v[0] + v[1]) & mask
            v[1] = rotate(v[1], 13) ^ v[0]
            v[0] = rotate(v[0], 32)
            v[2] = (v[2] + v[3]) & mask
            v[3] = rotate(v[3], 16) ^ v[2]
            v[0] = (v[0] + v[3]) & mask
            v[3] = rotate(v[3], 21) ^ v[0]
            v[2] = (v[2] + v[1]) & mask
            v[1] = rotate(v[1], 17) ^ v[2]
            v[2] = rotate(v[2], 32)

    for block in (word, 8 << 56):
        v[3] ^= block
        rounds(2)
        v[0] ^= block
    v[2] ^= 0xFF
    rounds(4)
    return v[0] ^ v[1] ^ v[2] ^ v[3]
