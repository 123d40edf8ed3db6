"""Which reader takes a file: by how it begins, never by its name."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from otelgpu.store.database import Store
from otelgpu.store.files import beginning
from otelgpu.store.readers import flight_recorder, kineto, nccl_inspector, otlp, parquet
from otelgpu.store.reasons import FILES_EMPTY, FILES_UNRECOGNISED

Reader = Callable[[Store, Sequence[Path]], None]

_LOOKED_AT: Final = 1 << 16  # bytes
_MARKS: Final[tuple[tuple[re.Pattern[bytes], Reader], ...]] = (
    (re.compile(rb"PAR1"), parquet.read),
    (re.compile(rb'\s*\{\s*"resource(?:Spans|Metrics|Profiles|Logs)"'), otlp.read),
    (re.compile(rb'\s*\{\s*"header"\s*:.*?"coll_perf"', re.DOTALL), nccl_inspector.read),
    (re.compile(rb'\s*\{.*?"(?:schemaVersion|traceEvents|deviceProperties)"', re.DOTALL), kineto.read),
    (re.compile(rb"\x80[\x02-\x05]"), flight_recorder.read),
    (re.compile(rb'\s*\{.*?"(?:pg_config|pg_status|entries)"', re.DOTALL), flight_recorder.read),
)


def reader_of(path: Path) -> Reader:
    """The reader; of what nobody knows one that counts it."""
    begun = beginning(path, _LOOKED_AT)
    if not begun:
        return _count_empty
    return next((reader for mark, reader in _MARKS if mark.match(begun)), _count_unknown)


def _count_empty(store: Store, paths: Sequence[Path]) -> None:
    store.rejected[FILES_EMPTY] += len(paths)


def _count_unknown(store: Store, paths: Sequence[Path]) -> None:
    store.rejected[FILES_UNRECOGNISED] += len(paths)
