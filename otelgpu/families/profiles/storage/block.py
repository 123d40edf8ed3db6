"""Requests to block devices → metrics. Pure.

In: samples of kind BLOCK, which are all requests of the processes in scope, and what is written back for them. Out: how
long they took, and what they moved, by process, device and operation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from otelgpu.engine.metric import Instrument, Metric
from otelgpu.engine.metrics import Metrics
from otelgpu.families.profiles import names
from otelgpu.families.profiles.storage.profile_rows import NameOf, block_label
from otelgpu.model.codes import combine, distinct
from otelgpu.model.resource import Resource
from otelgpu.model.samples import SampleKind, Samples

SCOPE: Final = names.SCOPE

DURATION: Final = Metric(
    name="otelgpu.block.io.duration",
    unit="s",
    instrument=Instrument.HISTOGRAM,
    description="Requests to block devices, from when a thread made them until they were done (profile kind block).",
    buckets=(
        *(0.00002, 0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005),
        *(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0),
    ),
)
IO: Final = Metric(
    name="otelgpu.block.io",
    unit="By",
    instrument=Instrument.COUNTER,
    description="Bytes that those requests moved.",
)
METRICS: Final = (DURATION, IO)
LABELS: Final = (names.BLOCK_DEVICE, names.BLOCK_OPERATION, names.BLOCK_GROUP)


class BlockSession:
    """One session's."""

    def __init__(self, metrics: Metrics, resource_of: Callable[[int], Resource]) -> None:
        self._metrics, self._resource_of = metrics, resource_of

    def take(self, samples: Samples, name_of: NameOf) -> None:
        """Samples of any kinds; ``name_of`` says a request's device."""
        rows = samples[samples["kind"] == SampleKind.BLOCK]
        if not len(rows):
            return
        tgids, tgid_codes = distinct(np.ascontiguousarray(rows["tgid"]))
        numbers, number_codes = distinct(np.ascontiguousarray(rows["other"]))
        codes, _ = combine([(tgid_codes, len(tgids)), (number_codes, len(numbers))], len(rows))
        for code in np.unique(codes).tolist():
            mine = rows.compress(codes == code)
            owner, number = self._resource_of(int(mine["tgid"][0])), int(mine["other"][0])
            labels = dict(block_label(number, name_of))
            self._metrics.add(DURATION, SCOPE, owner, labels, mine["value"] * 1e-9)
            if mine["size_bytes"].any():
                self._metrics.add(IO, SCOPE, owner, labels, mine["size_bytes"])
