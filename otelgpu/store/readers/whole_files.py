"""Files that are held in memory as a whole: traces and dumps, one for each rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TypeVar

from otelgpu.store.database import Store
from otelgpu.store.files import BrokenFile, content
from otelgpu.store.reasons import FILES_REPEATED, FILES_UNREADABLE

Decoded = TypeVar("Decoded")


def decoded_files(
    store: Store, paths: Sequence[Path], decode: Callable[[bytes], Decoded], *, most_bytes: int
) -> Iterator[tuple[Path, Decoded]]:
    """Each file that ``decode`` takes; it raises ValueError for others. Copies are there once, and all is counted."""
    seen: set[bytes] = set()
    for path in paths:
        try:
            raw = content(path, most_bytes)
            found = decode(raw)
        except (BrokenFile, ValueError):
            store.rejected[FILES_UNREADABLE] += 1
            continue
        digest = blake2b(raw).digest()
        if digest in seen:
            store.rejected[FILES_REPEATED] += 1
            continue
        seen.add(digest)
        yield path, found
