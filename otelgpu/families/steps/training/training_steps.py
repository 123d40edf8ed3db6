"""Steps of training of a session, from operations to spans: what the pipeline asks, in the order in which it asks.

In: what :class:`~otelgpu.families.steps.training.steps.TrainingSteps` found out, and of processes that measure
device time what their devices did, for which steps wait. Out: spans of steps, each the root of a trace of its own,
their operations, what collectives link to, metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from otelgpu.engine import names
from otelgpu.engine.attribution.returns import SETTLED_NS
from otelgpu.engine.folding import Parents, unfolded
from otelgpu.engine.metrics import Metrics
from otelgpu.engine.totals import Totals
from otelgpu.families.steps import names as step_names
from otelgpu.families.steps.hint_attributes import hint_values
from otelgpu.families.steps.reporting import StepsReport
from otelgpu.families.steps.serving.spans import step_parents
from otelgpu.families.steps.training import names as training_names
from otelgpu.families.steps.training.device import TrainingDevices
from otelgpu.families.steps.training.metrics import training_metrics
from otelgpu.families.steps.training.own_time import OwnTimes
from otelgpu.families.steps.training.step import HOST_BOUNDARIES, DeviceParts, TrainingStep, key_of
from otelgpu.families.steps.training.steps import (
    OPERATIONS_HELD,
    EndedTraining,
    TrainingSteps,
    join_reported,
    only_steps,
)
from otelgpu.model.context import UNSETTLED, Context, Unsettled
from otelgpu.model.context_sources import ContextSource
from otelgpu.model.device_work import Activities
from otelgpu.model.operations import Operations
from otelgpu.model.pressure import ProcessPressed
from otelgpu.model.resource import Resource
from otelgpu.model.spans import SpanColumns, SpanKind, attributes_of_rows, constant_text


class TrainingSession:
    """One session's."""

    def __init__(
        self,
        steps: TrainingSteps,
        metrics: Metrics,
        totals: Totals,
        resource_of: Callable[[int], Resource],
        *,
        seed: int,
        kernel_name: Callable[[int, int], str] = lambda tgid, name: "",
        file_name: Callable[[int], str] = lambda handle: "",
        sees_devices: bool = False,
    ) -> None:
        """Names, "" where not known: of a kernel by process and what an activity calls it, of a file by handle.

        ``sees_devices``: calls of a device's API are observed, so that who makes none drives none.
        """
        self._sees_devices = sees_devices
        self._file_name = file_name
        self._devices = TrainingDevices(steps.watches, kernel_name)
        self._measured = False  # whether any process says what its device did
        self._waiting: list[_Waiting] = []
        self._steps, self._metrics, self._totals = steps, metrics, totals
        self._resource_of, self._seed = resource_of, seed
        self._own_times = OwnTimes(metrics)
        self._pressed: dict[int, tuple[int, int]] = {}  # process → throttled, major faults, of no step yet

    @property
    def counters(self) -> Mapping[str, int]:
        """Losses and oddities by name, since the start."""
        return {**self._steps.counters, **self._devices.counters}

    @property
    def is_waiting(self) -> bool:
        """Whether anything may still be reported."""
        return bool(self._waiting) or self._steps.has_processes

    def take(self, rows: Operations) -> npt.NDArray[np.bool_]:
        """Operations that are nobody's: shape (n,), True where one is held and will be reported by :meth:`report`.

        Of collectives, sends and receives, which are reported elsewhere, always False.
        """
        return self._steps.take(rows)

    def see_activities(self, rows: Activities) -> None:
        """What devices did, as processes reported it."""
        self._measured = True
        self._devices.see_activities(rows)

    def see_calls(self, rows: Operations, reported: npt.NDArray[np.uint64]) -> None:
        """Calls with what their records say of activities, before launches are given their names."""
        self._measured = True
        self._devices.see_calls(rows, reported)

    def press(self, seen: ProcessPressed) -> None:
        """What kept a process from running: reported with its next step."""
        if not self._steps.watches(seen.tgid):
            return
        throttled_ns, faults = self._pressed.get(seen.tgid, (0, 0))
        self._pressed[seen.tgid] = throttled_ns + seen.throttled_ns, faults + seen.major_faults

    def lose(self) -> None:
        """Records of device work were lost, or of calls."""
        self._devices.lose()

    def report(self, now_ns: int, *, offset_ns: int, final: bool) -> StepsReport | None:
        """The steps that have ended; None when there is nothing to report."""
        reported = self._steps.report(now_ns if final else now_ns - SETTLED_NS, final=final)
        if self._measured:
            reported = self._with_devices(reported, now_ns, final=final)
        if not reported.steps and not len(reported.rest):
            return None
        parents = step_parents([step.key for step in reported.steps], self._seed)
        reported.operations["context_source"] = ContextSource.STEP
        spans = []
        for tgid, rows in _by_process(reported.steps).items():
            mine = [reported.steps[row] for row in rows]
            self._measure(mine, self._resource_of(tgid))
            spans.append(self._spans(reported, rows, parents, offset_ns))
        self._own_times.keep(self._steps.watches)
        return StepsReport(
            spans=spans,
            work=unfolded(reported.operations, reported.step),
            parents=parents,
            rest=reported.rest,
        )

    def watches(self, tgid: int) -> bool:
        """Whether a process may have steps of training."""
        return self._steps.watches(tgid)

    def step_at(self, tgid: int, tid: int, time_ns: int) -> Context | Unsettled | None:
        """The span of the step that was under way in a process; None: of none; UNSETTLED: not known yet.

        ``tid`` says nothing: the threads of a process share its steps.
        """
        start_ns = self._steps.step_at(tgid, time_ns)
        if start_ns is None:
            return None
        if start_ns < 0:
            return UNSETTLED
        parents = step_parents([key_of(tgid, start_ns)], self._seed)
        return Context(parents.trace_id[0].tobytes(), parents.span_id[0].tobytes(), int(parents.flags[0]))

    def forget_process(self, tgid: int) -> None:
        """A process ended: what it left is reported at the next tick."""
        self._steps.forget_process(tgid)
        self._devices.forget_process(tgid)
        self._pressed.pop(tgid, None)

    def _with_devices(self, reported: EndedTraining, now_ns: int, *, final: bool) -> EndedTraining:
        """The steps of which it is known what the device did, or that it never will be, in their order."""
        measured = [self._devices.measures(step.tgid) for step in reported.steps]
        if any(measured):
            self._waiting.append(_Waiting(only_steps(reported, measured)))
            reported = only_steps(reported, [not each for each in measured], rest=reported.rest)
        ready = [reported]
        held = sum(len(each.reported.operations) for each in self._waiting)
        while self._waiting:
            first = self._waiting[0]
            if not first.settle(self._devices, now_ns, final=final or held > OPERATIONS_HELD):
                break
            held -= len(first.reported.operations)
            ready.append(first.with_devices())
            del self._waiting[0]
        self._devices.prune(now_ns, [step for each in self._waiting for step in each.reported.steps])
        return join_reported(ready)

    def _pressure(self, tgid: int) -> dict[str, float | int]:
        """What kept the process from running since it was last reported."""
        throttled_ns, faults = self._pressed.pop(tgid, (0, 0))
        found: dict[str, float | int] = {training_names.THROTTLED: throttled_ns / 1e9} if throttled_ns else {}
        return found | ({training_names.MAJOR_FAULTS: faults} if faults else {})

    def _without_device(self, step: TrainingStep) -> dict[str, float]:
        """Device time of a step of a program that drives no device: it computes in its own, which is host overhead."""
        if not self._sees_devices or step.boundary not in HOST_BOUNDARIES:
            return {}
        return {training_names.DEVICE_COMPUTE: 0.0, training_names.DEVICE_COPY: 0.0}

    def _measure(self, steps: Sequence[TrainingStep], owner: Resource) -> None:
        for found in training_metrics(steps):
            self._metrics.add(found.metric, training_names.SCOPE, owner, found.labels, np.array(found.values))
        self._own_times.take(steps, owner)

    def _spans(
        self, reported: EndedTraining, rows: Sequence[int], parents: Parents, offset_ns: int
    ) -> SpanColumns:
        """The spans of steps of one process; ``rows`` are their positions among all."""
        chosen = [reported.steps[row] for row in rows]
        attributes = [
            training_attributes(each, self._file_name) | self._without_device(each) for each in chosen
        ]
        attributes[-1] |= self._pressure(chosen[-1].tgid)
        sums = self._totals.by_group(reported.operations, reported.step, len(reported.steps))[rows]
        return SpanColumns(
            resource=self._resource_of(chosen[0].tgid),
            scope=training_names.SCOPE,
            kind=SpanKind.INTERNAL,
            trace_id=parents.trace_id[rows],
            span_id=parents.span_id[rows],
            parent_span_id=np.zeros((len(rows), 8), dtype=np.uint8),
            trace_state=None,
            flags=parents.flags[rows],
            start_unix_ns=np.array([each.start_ns + offset_ns for each in chosen], dtype=np.uint64),
            end_unix_ns=np.array([each.end_ns + offset_ns for each in chosen], dtype=np.uint64),
            name=constant_text(training_names.STEP, len(rows)),
            status=np.zeros(len(rows), dtype=np.uint8),
            status_message=None,
            attributes=(
                *attributes_of_rows(attributes),
                *self._totals.attributes(sums),
            ),
        )


class _Waiting:
    """Steps of one tick, and what their devices did, as far as it is known."""

    def __init__(self, reported: EndedTraining) -> None:
        self.reported = reported
        self._known: list[DeviceParts | None] = []

    def settle(self, devices: TrainingDevices, now_ns: int, *, final: bool) -> bool:
        """Whether all is known now."""
        for step in self.reported.steps[len(self._known) :]:
            settled, parts = devices.settle(step, now_ns, final=final)
            if not settled:
                return False
            self._known.append(parts)
        return True

    def with_devices(self) -> EndedTraining:
        """The steps with them."""
        steps = [
            replace(step, device=device)
            for step, device in zip(self.reported.steps, self._known, strict=True)
        ]
        return replace(self.reported, steps=steps)


def training_attributes(step: TrainingStep, file_name: Callable[[int], str]) -> dict[str, Any]:
    """Of a step's span: seconds, of which the six parts of :class:`StepParts` add up to its duration."""
    parts = step.parts
    found: dict[str, Any] = {
        names.THREAD_ID: step.tid,
        step_names.NUMBER: step.number,
        training_names.BOUNDARY: str(step.boundary),
        training_names.CONFIDENCE: step.confidence,
        training_names.CALL: parts.call_ns / 1e9,
        training_names.H2D_COPY: parts.h2d_copy_ns / 1e9,
        step_names.WAIT: parts.wait_ns / 1e9,
        training_names.FILE: parts.file_ns / 1e9,
        training_names.DATA_LOADER_STALL: parts.data_loader_stall_ns / 1e9,
        training_names.HOST_OVERHEAD: parts.host_overhead_ns / 1e9,
        training_names.COMMUNICATION_WAIT: parts.communication_wait_ns / 1e9,
        training_names.LAUNCHES: step.evidence.launches,
        training_names.COLLECTIVES: step.collectives,
        training_names.COLLECTIVE_BYTES: step.collective_bytes,
        training_names.H2D_COPIES: step.h2d_copies,
        training_names.H2D_COPY_BYTES: step.h2d_copy_bytes,
    }
    if step.files:
        found |= {
            training_names.FILES: step.files,
            training_names.FILE_BYTES: step.file_bytes,
            training_names.SLOWEST_FILE: file_name(step.slowest_file),
        }
    if step.written_bytes:
        found[training_names.WRITTEN_BYTES] = step.written_bytes
    return found | _device_attributes(step.device) | hint_values(step.evidence, step.duration_ns)


def _device_attributes(parts: DeviceParts | None) -> dict[str, Any]:
    """In seconds: ``compute + exposed communication + copy + idle`` is the step's duration."""
    if parts is None:
        return {}
    return {
        training_names.DEVICE: parts.device,
        training_names.DEVICE_COMPUTE: parts.compute_ns / 1e9,
        training_names.DEVICE_EXPOSED: parts.exposed_communication_ns / 1e9,
        training_names.DEVICE_COPY: parts.copy_ns / 1e9,
        training_names.DEVICE_IDLE: parts.idle_ns / 1e9,
        training_names.DEVICE_COMMUNICATION: parts.communication_ns / 1e9,
    }


def _by_process(steps: Sequence[TrainingStep]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for row, step in enumerate(steps):
        found.setdefault(step.tgid, []).append(row)
    return found
