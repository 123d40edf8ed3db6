"""The table of processes: what metrics say of each, with what was read of the process itself. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from otelgpu.engine.presentation import TopTable
from otelgpu.render.top.rows import Row, Value, column_keys


class ObservedProcess(Struct, frozen=True, kw_only=True):
    """A process at one moment. ``cpu_s``: CPU time of all its threads so far; None where nobody read it.

    ``start_time_ns``: with ``pid`` it names a process for good. ``probed_files``: files with all of their probes;
    ``unprobed_files``: those of which some were refused.
    """

    pid: int
    program: str
    start_time_ns: int = 0
    cpu_s: float | None = None
    probed_files: int = 0
    unprobed_files: int = 0


def joined(
    top_table: TopTable,
    rows: Sequence[Row],
    before: Mapping[int, ObservedProcess],
    after: Mapping[int, ObservedProcess],
    seconds: float,
) -> list[Row]:
    """Rows of the processes that metrics tell of, and of those that are observed and do nothing that counts."""
    idle: Row = dict.fromkeys(column_keys(top_table))
    told = {row["pid"] for row in rows}
    found = [*rows, *(idle | {"pid": pid} for pid in after if pid not in told)]
    for row in found:
        pid = row["pid"]
        process = after.get(pid) if isinstance(pid, int) else None
        if process is not None:
            row |= {
                "program": process.program or None,
                "cpu_share": _share(before.get(process.pid), process, seconds),
                "probed_files": process.probed_files,
                "unprobed_files": process.unprobed_files,
            }
    return found


def _share(before: ObservedProcess | None, after: ObservedProcess, seconds: float) -> Value:
    """Of a core, of several more than 1; None at the first reading of a process."""
    if before is None or before.start_time_ns != after.start_time_ns:
        return None
    if before.cpu_s is None or after.cpu_s is None or seconds <= 0:
        return None
    return max(after.cpu_s - before.cpu_s, 0.0) / seconds
