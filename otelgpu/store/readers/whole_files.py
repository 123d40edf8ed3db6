"""Files that are held in memory as a whole: traces and dumps, one for each rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TypeVar

from otelgpu.store.database import Store
from otelgpu.store.files import BrokenFile, content
from otelgpu.store.reasons import FILES_REPEATED, FILES_UNREADABLE, FILES_WITHOUT_RANK

Decoded = TypeVar("Decoded")


def decoded_files(
    store: Store,
    paths: Sequence[Path],
    decode: Callable[[bytes], Decoded],
    rank_of: Callable[[Path, Decoded], int | None],
    *,
    most_bytes: int,
) -> Iterator[tuple[Path, int, Decoded]]:
    """Each file with its rank. Others are counted: those that ``decode`` raises ValueError for, copies of a rank's."""
    seen: set[tuple[int, bytes]] = set()
    for path in paths:
        try:
            raw = content(path, most_bytes)
            found = decode(raw)
        except (BrokenFile, ValueError):
            store.rejected[FILES_UNREADABLE] += 1
            continue
        rank = rank_of(path, found)
        if rank is None:
            store.rejected[FILES_WITHOUT_RANK] += 1
            continue
        key = rank, blake2b(raw).digest()
        if key in seen:
            store.rejected[FILES_REPEATED] += 1
            continue
        seen.add(key)
        yield path, rank, found
