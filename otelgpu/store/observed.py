"""What was seen of processes of all hosts → rows of the tables: by SQL, so that memory does not grow.

In: steps, calls, waits and what else was seen, from any number of readers. Ranks of processes and common numbers of
steps are known when all is there (:mod:`otelgpu.store.placing`). What was read stays: of inputs that grow it becomes
rows again and again, with what is new.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from otelgpu.store.places import Member, Process, launchers_job
from otelgpu.store.placing import EVIDENCE_ROWS, ROWS, SPAN_ROWS, TIMED, place, report_limits
from otelgpu.store.reasons import RANKS_UNKNOWN, SPANS_REPEATED
from otelgpu.store.tables import RANK_OF_HOST

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from otelgpu.store.database import Store

MOST_PROCESSES: Final = 1 << 17

STEPS: Final = {
    "span": "UBIGINT",
    "process": "INTEGER",
    "number": "BIGINT",
    "t0": "DOUBLE",
    "t1": "DOUBLE",
    "input_s": "DOUBLE",
    "file_s": "DOUBLE",
    "host_s": "DOUBLE",
    "compute_s": "DOUBLE",  # NULL: device time was not measured
    "copy_s": "DOUBLE",  # likewise
    "slowest_file": "VARCHAR",  # of `file_s`; "": not known, or none
    "link": "VARCHAR",  # as of `step_spans`; "": not known
    "throttled_s": "DOUBLE",
    "major_faults": "BIGINT",
    "written_bytes": "BIGINT",
}
CALLS: Final = {
    "span": "UBIGINT",
    "process": "INTEGER",
    "trace": "UBIGINT",  # the same on all ranks
    "kind": "VARCHAR",
    "operation": "VARCHAR",
    "hash": "VARCHAR",
    "grp": "VARCHAR",
    "rank": "INTEGER",  # in the communicator
    "ranks": "INTEGER",
    "seq": "BIGINT",
    "t0": "DOUBLE",
    "device_s": "DOUBLE",  # seconds on the device; NULL: not measured
    "bytes": "BIGINT",
}
WAITS: Final = {"call": "UBIGINT", "t1": "DOUBLE"}
PROBES: Final = {
    "span": "UBIGINT",
    "process": "INTEGER",
    "t0": "DOUBLE",
    "t1": "DOUBLE",
    "name": "VARCHAR",
    "seconds": "DOUBLE",
}
"""Hits of a user's own: garbage collections, checkpoints, evaluations."""
ERRORS: Final = {
    "span": "UBIGINT",
    "host": "VARCHAR",
    "t0": "DOUBLE",
    "t1": "DOUBLE",
    "number": "DOUBLE",  # of the Xid or SXid
    "text": "VARCHAR",
}
GROWTHS: Final = {
    "host": "VARCHAR",
    "t0": "DOUBLE",
    "t1": "DOUBLE",
    "name": "VARCHAR",  # of the metric
    "value": "DOUBLE",
    "text": "VARCHAR",
}
_PLACES: Final = {
    "process": "INTEGER",
    "job": "VARCHAR",
    "rank": "INTEGER",
    "host": "VARCHAR",
    "added": "BIGINT",
    "alike": "BIGINT",
}
_OF_SPANS: Final = ("otlp_steps", "otlp_calls", "otlp_probes", "otlp_errors")
_GROWTHS: Final = f"SELECT '', {RANK_OF_HOST}, host, t0, t1, name, value, text FROM otlp_growths"

Identity = tuple[int, int, int, int]
"""Of a file: device, inode, size, and when it was written."""


class Observed:
    """``steps``, ``calls``, ``waits``, ``probes``, ``errors`` and ``growths`` take rows.

    ``processes``: by the numbers that those have.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.processes: list[Process] = []
        self._numbers: dict[tuple[str, str, str], int] = {}
        self._launched: list[Member] = []  # as their launchers say
        self._read: set[Identity] = set()
        self._read_before: set[Identity] = set()
        self.steps = store.staging("otlp_steps", STEPS)
        self.calls = store.staging("otlp_calls", CALLS)
        self.waits = store.staging("otlp_waits", WAITS)
        self.probes = store.staging("otlp_probes", PROBES)
        self.errors = store.staging("otlp_errors", ERRORS)
        self.growths = store.staging("otlp_growths", GROWTHS)

    def process(self, host: str, service: str, instance: str, job: str, rank: int, size: int) -> int | None:
        """Its number; None: there are too many. ``job``, ``rank`` and ``size``: as its launcher says; −1: not."""
        key = host, service, instance
        if key not in self._numbers:
            if len(self.processes) >= MOST_PROCESSES:
                return None
            self._numbers[key] = number = len(self.processes)
            if 0 <= rank < size:
                self._launched.append(Member(number, launchers_job(job), rank, size))
            self.processes.append(Process(host, service))
        return self._numbers[key]

    def insert(self) -> None:
        """All that there is, into ``ops``, ``evidence`` and ``step_spans``."""
        store = self._store
        self._flush()
        for table in _OF_SPANS:
            _once(store, table)
        store.connection.execute(f"CREATE TABLE otlp_timed AS {TIMED}")
        found = place(store.run, dict(enumerate(self.processes)), self._launched, store.limits)
        with store.staging("otlp_places", _PLACES) as batches:
            for each in found:
                batches.add(each.process, each.job, each.rank, each.host, each.added, each.alike)
        for query in ROWS:
            store.insert(query)
        for query in (*EVIDENCE_ROWS, _GROWTHS):
            store.connection.execute(f"INSERT INTO evidence {query}")
        store.connection.execute(f"INSERT INTO step_spans {SPAN_ROWS}")
        lacking = report_limits(store.run, store.limits)
        store.rejected.update({RANKS_UNKNOWN: lacking} if lacking else {})
        store.drop("otlp_places", "otlp_timed")

    def forget(self, before_s: float) -> None:
        """What had ended by then."""
        self._flush()
        for table in (*_OF_SPANS, "otlp_waits", "otlp_growths"):
            column = "t0" if table == "otlp_calls" else "t1"
            self._store.connection.execute(f"DELETE FROM {table} WHERE {column} < ?", [before_s])

    def unread(self, paths: Sequence[str]) -> dict[str, Identity]:
        """Of files that are written once, those of which nothing is here from this look or an earlier one.

        Raises OSError for one that is not there.
        """
        found = {path: _identity(path) for path in paths}
        self._read |= self._read_before.intersection(found.values())
        return {path: identity for path, identity in found.items() if identity not in self._read}

    def have_read(self, files: Iterable[Identity]) -> None:
        """Their rows are here."""
        self._read.update(files)

    def start_over(self) -> None:
        """Another look begins: files that it does not come across are gone."""
        self._read_before, self._read = self._read, set()

    def _flush(self) -> None:
        for batches in (self.steps, self.calls, self.waits, self.probes, self.errors, self.growths):
            batches.flush()


def _once(store: Store, table: str) -> None:
    """Spans that were delivered twice stay once."""
    run = store.connection.execute
    columns = [str(name) for name, *_ in run(f"DESCRIBE {table}").fetchall()]
    chosen = ", ".join(f"any_value({name}) AS {name}" for name in columns if name != "span")
    (before,) = run(f"SELECT count(*) FROM {table}").fetchall()[0]
    run(f"CREATE OR REPLACE TABLE {table} AS SELECT span, {chosen} FROM {table} GROUP BY span")
    (after,) = run(f"SELECT count(*) FROM {table}").fetchall()[0]
    store.rejected.update({SPANS_REPEATED: before - after} if before > after else {})


def _identity(path: str) -> Identity:
    status = os.stat(path)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
