"""Calls on files that took long → metrics, and the names of the files. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from otelgpu.engine.metric import Instrument, Metric
from otelgpu.engine.metrics import Metrics
from otelgpu.model.codes import combine, distinct
from otelgpu.model.files import FileCall, FileCalls
from otelgpu.model.resource import Resource

SCOPE: Final = "otelgpu.file"
OPERATION: Final = "otelgpu.file.operation"
"""``read``, ``write`` or ``sync``."""

NAMES: Final = 4096
"""Files whose names are known; of more, the oldest are forgotten."""

DURATION: Final = Metric(
    name="otelgpu.file.call.duration",
    unit="s",
    instrument=Instrument.HISTOGRAM,
    description="Calls that read, wrote or synced a file and took at least file_slow_ms.",
    buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0),
)
IO: Final = Metric(
    name="otelgpu.file.io",
    unit="By",
    instrument=Instrument.COUNTER,
    description="Bytes that those calls moved.",
)
METRICS: Final = (DURATION, IO)


class FileSession:
    """One session's."""

    def __init__(self, metrics: Metrics, resource_of: Callable[[int], Resource]) -> None:
        self._metrics, self._resource_of = metrics, resource_of
        self._names: dict[int, str] = {}

    def take(self, calls: FileCalls) -> None:
        """More calls."""
        rows = calls.rows
        for handle, name in calls.names.items():
            self._names.pop(handle, None)
            self._names[handle] = name
        while len(self._names) > NAMES:
            del self._names[next(iter(self._names))]
        tgids, tgid_codes = distinct(np.ascontiguousarray(rows["tgid"]))
        apis, api_codes = distinct(np.ascontiguousarray(rows["api"]))
        codes, _ = combine([(tgid_codes, len(tgids)), (api_codes, len(apis))], len(rows))
        for code in np.unique(codes).tolist():
            mine = rows.compress(codes == code)
            owner = self._resource_of(int(mine["tgid"][0]))
            labels = {OPERATION: FileCall(int(mine["api"][0])).name.lower()}
            self._metrics.add(DURATION, SCOPE, owner, labels, mine["duration_ns"] * 1e-9)
            if mine["size_bytes"].any():
                self._metrics.add(IO, SCOPE, owner, labels, mine["size_bytes"])

    def name(self, handle: int) -> str:
        """The last part of a file's path; "" where it is not known."""
        return self._names.get(handle, "")
