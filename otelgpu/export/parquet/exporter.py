"""Tables of steps, calls, waits and evidence, a new file of each every minute."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from otelgpu.export.base import ExportError, deliveries_of
from otelgpu.export.parquet.folder import Bounds, ParquetFolder
from otelgpu.export.parquet.rows import SCOPES, Columns, Rows, rows_of
from otelgpu.model.self_telemetry import Delivery
from otelgpu.model.spans import SpanBatch

if TYPE_CHECKING:
    from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

    from otelgpu.model.profiles import ProfileColumns

MOST_ROWS: Final = 200_000
"""So many wait at most, of all tables: some 30 MB."""

_log = logging.getLogger("otelgpu.export")


class ParquetExporter:
    """An :class:`~otelgpu.export.base.Exporter` of those spans that are a row of a table; of no other is it given any.

    A row waits until a minute's are written together. Where that fails they are counted as lost ("write_failed"), and
    the next ones are tried.
    """

    def __init__(self, path: str, bounds: Bounds, *, every_s: float) -> None:
        """Raises :class:`ExportError` where files cannot be made in ``path``, or DuckDB is not installed."""
        self._path, self._every_s = path, every_s
        try:
            self._folder: ParquetFolder | None = ParquetFolder(path, bounds)
        except OSError as error:
            hint = "Give a folder that may be written to."
            raise ExportError(f"cannot write to {path!r}: {error.strerror}", hint) from error
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._waiting: dict[str, list[Columns]] = defaultdict(list)
        self._waiting_rows = 0
        self._due_s = time.monotonic() + every_s
        self._failing_since: float | None = None

    def export_spans(self, batches: Iterable[SpanBatch]) -> None:
        """See :class:`~otelgpu.export.base.Exporter`."""
        for batch in batches:
            if batch.scope not in SCOPES:
                continue
            for columns in batch.in_columns():
                try:
                    found = rows_of(columns)
                except (ValueError, IndexError):
                    _log.exception("spans that break their contract were dropped")
                    with self._lock:
                        self._counts["spans_given"] += len(columns)
                        self._counts["spans_lost_unencodable"] += len(columns)
                    continue
                for rows in found:
                    self._take(rows)
        self._write_what_is_due()

    def export_metrics(self, data: MetricsData, items: int) -> None:
        """None is a row; they come when nothing else does."""
        self._write_what_is_due()

    def export_profiles(self, batches: Sequence[ProfileColumns]) -> None:
        """None is a row."""

    def flush(self, deadline_s: float) -> bool:
        """See :class:`~otelgpu.export.base.Exporter`."""
        with self._lock:
            self._write()
        return True

    def close(self, deadline_s: float) -> None:
        """Write what waits; what comes later is counted as lost ("shutdown")."""
        with self._lock:
            if self._folder is not None:
                self._write()
                self._folder.close()
                self._folder = None

    def stats(self) -> Mapping[str, int]:
        """See :class:`~otelgpu.export.base.Exporter`."""
        keys = ("given", "accepted", "lost_write_failed", "lost_shutdown", "lost_unencodable")
        with self._lock:
            found = {
                f"{items}_{key}": self._counts[f"{items}_{key}"]
                for items in ("spans", "points")
                for key in keys
            }
            return found | {"spans_queued": self._waiting_rows, "points_queued": 0}

    def deliveries(self) -> Sequence[Delivery]:
        """See :class:`~otelgpu.export.base.Exporter`."""
        since = self._failing_since
        return deliveries_of("parquet", self.stats(), time.monotonic() - since if since is not None else 0.0)

    def _take(self, rows: Rows) -> None:
        with self._lock:
            self._counts["spans_given"] += len(rows)
            if self._folder is None:
                self._counts["spans_lost_shutdown"] += len(rows)
                return
            self._waiting[rows.table].append(rows.columns)
            self._waiting_rows += len(rows)
            if self._waiting_rows >= MOST_ROWS:
                self._write()

    def _write_what_is_due(self) -> None:
        with self._lock:
            if time.monotonic() >= self._due_s:
                self._write()

    def _write(self) -> None:
        """All that waits, a file of each table. The lock is held."""
        waiting, self._waiting, self._waiting_rows = self._waiting, defaultdict(list), 0
        self._due_s = time.monotonic() + self._every_s
        if self._folder is None:
            return
        for table, parts in waiting.items():
            rows = sum(len(next(iter(part.values()))) for part in parts)
            try:
                self._folder.write(
                    table, {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
                )
            except OSError as error:
                self._counts["spans_lost_write_failed"] += rows
                if self._failing_since is None:
                    self._failing_since = time.monotonic()
                    _log.warning(
                        "cannot write to %s: %s; data is dropped until it works again", self._path, error
                    )
                continue
            self._counts["spans_accepted"] += rows
            if self._failing_since is not None:
                self._failing_since = None
                _log.warning("writing to %s works again", self._path)
