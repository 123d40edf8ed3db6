"""Records that are taken and counted. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from otelgpu.engine.services import Services
from otelgpu.model.inputs import Batch
from otelgpu.model.losses import Reasons

REASONS: Final = Reasons("noop_records", {"taken_for_nothing": "a record of which nothing is made"})
"""What one count of (``noop_records``, reason) means."""


class NoopHandler:
    """It has no use for the session's parts."""

    def __init__(self, services: Services) -> None:
        self._counters: Counter[str] = Counter()

    @property
    def counters(self) -> Mapping[str, int]:
        """How many were taken."""
        return self._counters

    def take(self, batch: Batch) -> None:
        """They are counted."""
        self._counters["taken_for_nothing"] += len(batch.records)
