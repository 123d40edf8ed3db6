"""What each rank spends on its own work in a step: medians of its last steps, for the simplest comparison. Pure.

In: steps of one process, and whose they are. Out: gauges by rank and kind of work, with the job in their attributes, so
that a rule of Prometheus can compare ranks without joining resources. Time inside a collective, or in a wait, is that
of whom a rank waits for, and in none of them. A process whose launcher says no rank has none.

Example: 32 steps of which 16 loaded data for 10 ms, and the 16 since then for 30 ms: ``input`` stands at 20 ms, and
comes to 30 ms with the next step. A single long step changes nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final

from otelgpu.engine.metric import Instrument, Metric
from otelgpu.engine.metrics import Metrics
from otelgpu.families.steps.training import names
from otelgpu.families.steps.training.step import TrainingStep
from otelgpu.model.job import JOB_ID, JOB_RANK
from otelgpu.model.resource import Resource

LAST: Final = 32
"""Steps that a median is of: a fault is in it after half as many."""

OWN_TIME: Final = Metric(
    name="otelgpu.training.step.own_time",
    unit="s",
    instrument=Instrument.GAUGE,
    description=f"What a rank's own work of a kind took in a step of training: the median of its last {LAST} steps. "
    "Communication and waits are none.",
)
LABELS: Final = (JOB_ID, JOB_RANK, names.KIND)


class OwnTimes:
    """Of all processes of a session."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._last: dict[int, dict[str, deque[int]]] = {}  # process → kind → nanoseconds

    def take(self, steps: Sequence[TrainingStep], owner: Resource) -> None:
        """Steps of one process, in their order."""
        rank = owner.get(JOB_RANK)
        if not steps or not isinstance(rank, int):
            return
        kinds = self._last.setdefault(steps[0].tgid, {})
        for step in steps:
            for kind, time_ns in _own(step):
                kinds.setdefault(kind, deque(maxlen=LAST)).append(time_ns)
        job = str(owner.get(JOB_ID) or "")
        for kind, last in kinds.items():
            labels: dict[str, str | int] = {JOB_ID: job, JOB_RANK: rank, names.KIND: kind}
            self._metrics.set(OWN_TIME, names.SCOPE, owner, labels, _median(last) * 1e-9)

    def keep(self, is_there: Callable[[int], bool]) -> None:
        """Forget all processes but these; what was reported of them goes with their resources."""
        self._last = {tgid: kinds for tgid, kinds in self._last.items() if is_there(tgid)}


def _median(last: Collection[int]) -> float:
    """Of one at least; the module ``statistics`` imports what nothing else at the start needs."""
    ordered = sorted(last)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def _own(step: TrainingStep) -> Iterator[tuple[str, int]]:
    """Kind and nanoseconds, of the kinds of ``ops.kind`` (docs/reference/tables.md)."""
    yield "input", step.parts.data_loader_stall_ns
    yield "file", step.parts.file_ns
    yield "host", step.parts.host_overhead_ns
    if step.device is not None:
        yield "compute", step.device.compute_ns
        yield "copy", step.device.copy_ns
