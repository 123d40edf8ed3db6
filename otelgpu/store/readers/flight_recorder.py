"""Dumps of PyTorch's Flight Recorder, one for each rank: pickles, read without any class, or JSON.

The rank is the number that ends the file's name (``nccl_trace_rank_3``). Steps are not in it. A collective that has not
ended ends, in ``ops``, with the newest time of its dump, and is evidence ``collective_pending``. Device time is there
where the job was started with ``TORCH_NCCL_ENABLE_TIMING=1``; else an end is when the watchdog saw it.

Source: PyTorch 2.9, ``torch/csrc/distributed/c10d/FlightRecorder.hpp``, version 2.10 of the dump.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import msgspec

from otelgpu.store.batches import Batches, text
from otelgpu.store.database import Store
from otelgpu.store.limits import ranks_of
from otelgpu.store.readers.process_groups import ELEMENT_BYTES, group_of, members
from otelgpu.store.readers.whole_files import decoded_files
from otelgpu.store.reasons import ENTRIES_UNREADABLE
from otelgpu.store.tables import COLLECTIVE_PENDING, SEQUENCE_UNKNOWN, STEP_UNKNOWN

MOST_BYTES: Final = 256 << 20
"""Evidence. Its value is the number of the collective in its group."""

_DUMPED: Final = {
    "rank": "INTEGER",
    "kind": "VARCHAR",
    "name": "VARCHAR",
    "grp": "VARCHAR",
    "seq": "BIGINT",
    "n": "INTEGER",
    "t0": "DOUBLE",
    "t1": "DOUBLE",
    "bytes": "BIGINT",
    "pending": "BIGINT",
    "said": "VARCHAR",
}
_ONCE: Final = """
    SELECT rank, kind, name, grp, seq, t0, arg_min(t1, pending) AS t1, min(pending) AS pending,
        max(n) AS n, max(bytes) AS bytes, arg_min(said, pending) AS said
    FROM dumped GROUP BY rank, kind, name, grp, seq, t0
"""
"""A rank may have left several dumps: what one shows as pending may have ended in a later one."""

_COMPLETED: Final = "completed"
_RANK: Final = re.compile(r".*?(\d{1,9})(?:\.[A-Za-z]\w*)*")
_MEMO: Final = ("PUT", "BINPUT", "LONG_BINPUT")
_NO_DEVICE: Final = (
    "no device time of collectives in the dumps of {ranks}: TORCH_NCCL_ENABLE_TIMING was not set"
)
_NO_STEPS: Final = "Flight Recorder dumps do not say in which step a collective was"

_Time = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]


class _Group(msgspec.Struct):
    ranks: str | list[int] = ""


class _Entry(msgspec.Struct):
    process_group: tuple[str, str]
    profiling_name: str
    state: str
    time_created_ns: _Time
    collective_seq_id: _Number = 0
    p2p_seq_id: _Number = 0
    is_p2p: bool = False
    time_discovered_completed_ns: _Time | None = None
    duration_ms: Annotated[float, msgspec.Meta(ge=0)] | None = None
    input_sizes: list[Annotated[list[_Number], msgspec.Meta(max_length=64)]] = []
    input_dtypes: list[str] = []


class _Dump(msgspec.Struct):
    entries: list[Any]
    pg_config: dict[str, _Group] = {}


class _Classless(pickle.Unpickler):
    """Lists, dictionaries, texts and numbers are all that a dump has."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"{module}.{name}: a dump has no classes")


def read(store: Store, paths: Sequence[Path]) -> None:
    """See the module."""
    ranks, untimed = [], []
    with store.staging("dumped", _DUMPED) as rows:
        for _, rank, dump in decoded_files(store, paths, decoded, _rank_of, most_bytes=MOST_BYTES):
            ranks.append(rank)
            if not _take(store, rows, dump, rank):
                untimed.append(rank)
    store.insert(
        f"""
        SELECT '' AS job, {STEP_UNKNOWN} AS step, rank, '' AS host, '' AS role, '' AS lane, 0 AS unit, kind, name, grp,
            seq, n, t0, t1, bytes
        FROM ({_ONCE})
        """
    )
    store.connection.execute(
        f"INSERT INTO evidence SELECT '', rank, '', t0, t1, '{COLLECTIVE_PENDING}', seq, said "
        f"FROM ({_ONCE}) WHERE pending = 1"
    )
    store.drop("dumped")
    if ranks:
        store.limits.append(_NO_STEPS)
    if untimed:
        store.limits.append(_NO_DEVICE.format(ranks=ranks_of("", sorted(set(untimed)))))


def _rank_of(path: Path, _: _Dump) -> int | None:
    named = _RANK.fullmatch(path.name)
    return int(named[1]) if named else None


def decoded(raw: bytes) -> _Dump:
    """A dump. Raises ValueError for what is none."""
    try:
        if raw[:1] == b"\x80":
            return msgspec.convert(_unpickled(raw), _Dump)
        return msgspec.json.decode(raw, type=_Dump)
    except (msgspec.MsgspecError, pickle.UnpicklingError, RecursionError, MemoryError) as error:
        raise ValueError(str(error)) from error


def _unpickled(raw: bytes) -> object:
    """Raises ValueError, pickle.UnpicklingError. No opcode makes the unpickler take more memory than the file has."""
    try:
        for opcode, argument, _ in pickletools.genops(raw):
            if opcode.name in _MEMO and int(argument or 0) > len(raw):
                raise pickle.UnpicklingError("a memo beyond the file's length")
        return _Classless(io.BytesIO(raw), encoding="utf-8", errors="replace").load()
    except (EOFError, IndexError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise pickle.UnpicklingError(str(error)) from error


def _take(store: Store, rows: Batches, dump: _Dump, rank: int) -> bool:
    """Whether there is device time, of any collective."""
    entries = list(_entries(store, dump))
    newest = max((time for each in entries for time in _times(each)), default=0)
    for entry in entries:
        name, _ = entry.process_group
        ranks = members(dump.pg_config.get(name, _Group()).ranks)
        group, operation = text(group_of(name, ranks)), text(entry.profiling_name)
        number = (entry.p2p_seq_id if entry.is_p2p else entry.collective_seq_id) or SEQUENCE_UNKNOWN
        rows.add(
            *(rank, "p2p" if entry.is_p2p else "coll", operation, group, number, len(ranks)),
            *(*_bounds(entry, newest), _bytes(entry), entry.state != _COMPLETED),
            text(f"{operation} {number} of group {group}: {entry.state}"),
        )
    return any(each.duration_ms is not None for each in entries)


def _entries(store: Store, dump: _Dump) -> Iterator[_Entry]:
    for each in dump.entries:
        try:
            yield msgspec.convert(each, _Entry)
        except (msgspec.MsgspecError, RecursionError):
            store.rejected[ENTRIES_UNREADABLE] += 1


def _times(entry: _Entry) -> tuple[int, int]:
    return entry.time_created_ns, entry.time_discovered_completed_ns or 0


def _bounds(entry: _Entry, newest_ns: int) -> tuple[float, float]:
    """When it was called, in seconds, and when it ended, as far as that is known."""
    begin = entry.time_created_ns * 1e-9
    if entry.state == _COMPLETED and entry.duration_ms is not None:
        return begin, begin + entry.duration_ms * 1e-3
    ended_ns = entry.time_discovered_completed_ns or newest_ns
    return begin, max(begin, ended_ns * 1e-9)


def _bytes(entry: _Entry) -> int:
    """Of what went in; 0: not known."""
    sizes = zip(entry.input_sizes, entry.input_dtypes, strict=False)
    total = sum(math.prod(shape) * ELEMENT_BYTES.get(dtype, 0) for shape, dtype in sizes)
    return min(total, (1 << 63) - 1)
