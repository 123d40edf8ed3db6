"""Lines of JSON by NCCL's Inspector plug-in: a finished collective of a rank each, with its time on the device.

Times are when a line was written, less the collective's duration: durations are right, places in time roughly so. Which
step it was in no line says. Ranks are those of the communicator; the global one is that in the largest, as with OTLP.

Source: NVIDIA/nccl, ``ext-profiler/inspector/README.md`` and ``inspector_json.cc``, format v4.0 and v5.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec

from otelgpu.otlp_json.reader import LINES
from otelgpu.store.batches import Batches, text
from otelgpu.store.database import Store
from otelgpu.store.files import BrokenFile, pieces
from otelgpu.store.line_files import split_lines
from otelgpu.store.places import MEMBERS, Member, Process, jobs_of, places
from otelgpu.store.reasons import FILES_UNREADABLE, LINES_REPEATED
from otelgpu.store.sequences import sequence_of
from otelgpu.store.tables import STEP_UNKNOWN

_CALLS: Final = {
    "process": "INTEGER",
    "hash": "VARCHAR",
    "rank": "INTEGER",
    "ranks": "INTEGER",
    "operation": "VARCHAR",
    "seq": "BIGINT",
    "t1": "DOUBLE",
    "seconds": "DOUBLE",
    "bytes": "BIGINT",
}
_PLACES: Final = {"process": "INTEGER", "job": "VARCHAR", "rank": "INTEGER", "host": "VARCHAR"}
_NO_STEPS: Final = "NCCL Inspector's lines do not say in which step a collective was"
_P2P: Final = b'"p2p_perf"'

_Rank = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
_Whole = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class _Header(msgspec.Struct):
    id: str
    rank: _Rank
    n_ranks: _Rank


class _Metadata(msgspec.Struct):
    dump_timestamp_us: _Whole
    hostname: str = ""
    pid: _Whole = 0


class _Collective(msgspec.Struct):
    coll: str
    coll_sn: _Whole
    coll_exec_time_us: Annotated[float, msgspec.Meta(ge=0)]
    coll_msg_size_bytes: _Whole = 0


class _Line(msgspec.Struct):
    header: _Header
    metadata: _Metadata
    coll_perf: _Collective


_DECODER: Final = msgspec.json.Decoder(_Line)


def read(store: Store, paths: Sequence[Path]) -> None:
    """See the module."""
    processes: dict[tuple[str, int], int] = {}
    with store.staging("inspector_calls", _CALLS) as calls:
        for path in paths:
            try:
                for line in split_lines(pieces(path)):
                    _take(store, calls, processes, line)
            except BrokenFile:
                store.rejected[FILES_UNREADABLE] += 1
    members = store.connection.execute(MEMBERS.format(calls="inspector_calls")).fetchall()
    found = places(Member(*row) for row in members)
    owners = [Process(host, "") for host, _ in processes]
    jobs = jobs_of(store.limits, owners, found)
    with store.staging("inspector_places", _PLACES) as rows:
        for process, place in found.items():
            rows.add(process, jobs[process], place.rank, owners[process].host)
    _insert(store)
    store.drop("inspector_calls", "inspector_places")
    store.limits.append(_NO_STEPS)


def _take(store: Store, calls: Batches, processes: dict[tuple[str, int], int], line: bytes | None) -> None:
    if line is not None and (not line.strip() or _P2P in line):
        return  # sends and receives say no peer
    try:
        read = _DECODER.decode(line or b"")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        store.rejected[LINES] += 1
        return
    header, metadata, done = read.header, read.metadata, read.coll_perf
    process = processes.setdefault((text(metadata.hostname), metadata.pid), len(processes))
    operation = text(done.coll)
    calls.add(
        *(process, text(header.id), header.rank, header.n_ranks),
        *(operation, sequence_of(operation, done.coll_sn)),
        *(metadata.dump_timestamp_us * 1e-6, done.coll_exec_time_us * 1e-6, done.coll_msg_size_bytes),
    )


def _insert(store: Store) -> None:
    """A line that two collectors have delivered is there once."""
    once = "SELECT DISTINCT * FROM inspector_calls"
    run = store.connection.execute
    ((repeated,),) = run(
        f"SELECT (SELECT count(*) FROM inspector_calls) - (SELECT count(*) FROM ({once}))"
    ).fetchall()
    store.rejected.update({LINES_REPEATED: repeated} if repeated else {})
    store.insert(
        f"""
        SELECT job, {STEP_UNKNOWN} AS step, p.rank, host, '' AS role, '' AS lane, 0 AS unit, 'coll' AS kind,
            operation AS name, hash AS grp, seq, ranks AS n, t1 - seconds AS t0, t1, bytes
        FROM ({once}) c JOIN inspector_places p USING (process)
        """
    )
