"""OTLP/JSON lines in a file: what :mod:`otelgpu.otlp_json.writer` makes of what is exported."""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from otelgpu.export.base import ExportError, deliveries_of
from otelgpu.export.file.line_file import NO_ROTATION, LineFile, Rotation
from otelgpu.model.self_telemetry import Delivery
from otelgpu.model.spans import SpanBatch, in_columns
from otelgpu.otlp_json.writer import message_line, span_lines

if TYPE_CHECKING:
    from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

    from otelgpu.model.events import Event
    from otelgpu.model.profiles import ProfileColumns

SETTLED_S = 5.0
"""How long nothing may fail before it is said that writing works again: a full disk still takes short lines."""

_log = logging.getLogger("otelgpu.export")


class FileExporter:
    """Appends lines to a file; an :class:`~otelgpu.export.base.Exporter`.

    Lines are written at once and whole: nothing is queued. When the disk fails, the line is counted as lost
    ("write_failed"), and the next one is tried.
    """

    def __init__(self, path: str, *, private: bool = False, rotation: Rotation = NO_ROTATION) -> None:
        """Opens ``path`` for appending; ``private``: for the owner's eyes only.

        Raises :class:`ExportError` when that is not possible.
        """
        self._path = path
        try:
            self._file: LineFile | None = LineFile(path, 0o600 if private else 0o644, rotation)
        except OSError as error:
            hint = "Give a file in a directory that exists and may be written to."
            raise ExportError(f"cannot write to {path!r}: {error.strerror}", hint) from error
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._failing_since: float | None = None
        self._failed_at = 0.0  # last
        self._reported = False  # that it fails

    def export_spans(self, batches: Iterable[SpanBatch]) -> None:
        """See :class:`~otelgpu.export.base.Exporter`."""
        for columns in in_columns(batches):
            left = len(columns)
            try:
                for line, items in span_lines(columns):
                    self._write("spans", line, items)
                    left -= items
            except (ValueError, IndexError):
                _log.exception("spans that break their contract were dropped")
                with self._lock:
                    self._counts["spans_given"] += left
                    self._counts["spans_lost_unencodable"] += left

    def export_metrics(self, data: MetricsData, items: int) -> None:
        """See :class:`~otelgpu.export.base.Exporter`."""
        if data.resource_metrics:
            self._write("points", message_line(data), items)

    def export_profiles(self, batches: Sequence[ProfileColumns]) -> None:
        """See :class:`~otelgpu.export.base.Exporter`."""
        from opentelemetry.proto.profiles.v1development.profiles_pb2 import ProfilesData

        from otelgpu.export.profiles import encode_profiles  # most sessions have none

        for columns in batches:
            left = len(columns)
            try:
                for payload in encode_profiles([columns]):  # ProfilesData has the fields of the request
                    line = message_line(ProfilesData.FromString(payload.body))
                    self._write("profiles", line, payload.rows)
                    left -= payload.rows
            except ValueError:
                _log.exception("profiles that break their contract were dropped")
                with self._lock:
                    self._counts["profiles_given"] += left
                    self._counts["profiles_lost_unencodable"] += left

    def export_events(self, events: Sequence[Event]) -> None:
        """See :class:`~otelgpu.export.base.EventExporter`."""
        from otelgpu.export.logs import logs_data

        self._write("events", message_line(logs_data(events)), len(events))

    def flush(self, deadline_s: float) -> bool:
        """Nothing is ever queued."""
        return True

    def close(self, deadline_s: float) -> None:
        """Close the file; what comes later is counted as lost ("shutdown")."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def stats(self) -> Mapping[str, int]:
        """See :class:`~otelgpu.export.base.Exporter`."""
        keys = ("given", "accepted", "queued", "lost_write_failed", "lost_shutdown", "lost_unencodable")
        with self._lock:
            later = (items for items in ("profiles", "events") if self._counts[f"{items}_given"])
            reported = ("spans", "points", *later)
            return {f"{items}_{key}": self._counts[f"{items}_{key}"] for items in reported for key in keys}

    def deliveries(self) -> Sequence[Delivery]:
        """See :class:`~otelgpu.export.base.Exporter`."""
        since = self._failing_since
        return deliveries_of("file", self.stats(), time.monotonic() - since if since is not None else 0.0)

    def _write(self, kind: str, line: bytes, items: int) -> None:
        with self._lock:
            self._counts[f"{kind}_given"] += items
            if self._file is None:
                self._counts[f"{kind}_lost_shutdown"] += items
                return
            try:
                self._file.append(line)
            except OSError as error:
                if error.errno == errno.EFBIG:
                    self._counts[f"{kind}_lost_unencodable"] += items
                    return
                self._counts[f"{kind}_lost_write_failed"] += items
                self._failed_at = time.monotonic()
                if self._failing_since is None:
                    self._failing_since = self._failed_at
                if not self._reported:
                    self._reported = True
                    _log.warning(
                        "cannot write to %s: %s; data is dropped until it works again", self._path, error
                    )
                return
            self._counts[f"{kind}_accepted"] += items
            self._failing_since = None
            if self._reported and time.monotonic() - self._failed_at >= SETTLED_S:
                self._reported = False
                _log.warning("writing to %s works again", self._path)
