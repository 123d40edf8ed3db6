"""What was lost, by family and reason: the agent's own metric, and the summary's table. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from otelgpu.engine import names
from otelgpu.engine.metric import Instrument, Metric
from otelgpu.engine.metrics import Metrics
from otelgpu.engine.summary import Summary
from otelgpu.model.losses import Reasons
from otelgpu.model.resource import Resource

CALLS_COUNTED: Final = Reasons(
    "memory",
    {
        "calls_counted": "allocations and frees that were counted, not recorded: memory in use is not exact since",
    },
)
"""What one count of (``memory``, reason) means."""

LOSSES: Final = Metric(
    name=names.LOSSES,
    unit="{event}",
    instrument=Instrument.COUNTER,
    description="Events that were dropped, skipped or could not be read, by reason.",
)

RECORDS_LOST: Final = Metric(
    name=names.RECORDS_LOST,
    unit="{record}",
    instrument=Instrument.COUNTER,
    description="Records of the process that found no room, of those in otelgpu.losses.",
)


UNOBSERVED: Final = Metric(
    name=names.UNOBSERVED,
    unit="s",
    instrument=Instrument.COUNTER,
    description="Time in which launches, copies and events of the process had no probes, for `max_overhead`.",
    per_unit=1_000_000_000,
)


class Losses:
    """One session's. ``own``: the agent, whose losses they are."""

    def __init__(self, metrics: Metrics, summary: Summary, own: Resource) -> None:
        self._metrics, self._summary, self._own = metrics, summary, own
        self._reported: Counter[tuple[str, str]] = Counter()

    def add(self, family: str, reason: str, count: int) -> None:
        """So many more."""
        if count:
            labels = {names.LOSS_FAMILY: family, names.LOSS_REASON: reason}
            self._metrics.add(LOSSES, names.SELF_SCOPE, self._own, labels, count)
            self._summary.losses[family, reason] += count

    def add_of_process(self, owner: Resource, family: str, count: int) -> None:
        """So many records more of a process, which :meth:`add` has counted, or will."""
        self._metrics.add(RECORDS_LOST, names.SELF_SCOPE, owner, {names.LOSS_FAMILY: family}, count)

    def add_unobserved(self, owner: Resource, family: str, duration_ns: int) -> None:
        """So much more time in which calls of a process were not observed."""
        self._metrics.add(UNOBSERVED, names.SELF_SCOPE, owner, {names.LOSS_FAMILY: family}, duration_ns)

    def follow(self, family: str, counters: Mapping[str, int]) -> None:
        """What ``counters``, which only grow, grew by since they were seen last."""
        for reason, total in counters.items():
            grown = total - self._reported[family, reason]
            self._reported[family, reason] = total
            self.add(family, reason, grown)
