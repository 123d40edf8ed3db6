"""Steps of training → metrics. Pure.

In: steps of one process. Out: measurements. The names of these metrics are written here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from otelgpu.engine.metric import Instrument, Measured, Metric
from otelgpu.families.steps.training import names as training_names
from otelgpu.families.steps.training.step import TrainingStep

DURATION: Final = Metric(
    name="otelgpu.training.step.duration",
    unit="s",
    instrument=Instrument.HISTOGRAM,
    description="From one boundary of a step of training to the next.",
    buckets=(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0),
)
TIME: Final = Metric(
    name="otelgpu.training.step.time",
    unit="s",
    per_unit=1_000_000_000,
    instrument=Instrument.COUNTER,
    description="Host time of steps of training, by what it went to; the parts are disjoint and add up to it.",
)
COLLECTIVE_BYTES: Final = Metric(
    name="otelgpu.training.step.collective.bytes",
    unit="By",
    instrument=Instrument.COUNTER,
    description="Bytes that steps of training gave to collectives, sends and receives.",
)
H2D_COPY_BYTES: Final = Metric(
    name="otelgpu.training.step.host_to_device_copy.bytes",
    unit="By",
    instrument=Instrument.COUNTER,
    description="Bytes that steps of training copied to the device.",
)

DEVICE_TIME: Final = Metric(
    name="otelgpu.training.step.device.time",
    unit="s",
    per_unit=1_000_000_000,
    instrument=Instrument.COUNTER,
    description="Time of the steps of training whose device time was measured, by what the device did; the parts are "
    "disjoint and add up to it.",
)
DEVICE_COMMUNICATION: Final = Metric(
    name="otelgpu.training.step.device.communication.time",
    unit="s",
    per_unit=1_000_000_000,
    instrument=Instrument.COUNTER,
    description="Device time in which kernels of the communication library ran in those steps, whatever else did.",
)

METRICS: Final = (DURATION, TIME, COLLECTIVE_BYTES, H2D_COPY_BYTES, DEVICE_TIME, DEVICE_COMMUNICATION)

PARTS: Final = (
    "call",
    "host_to_device_copy",
    "communication_wait",
    "other_wait",
    "file",
    "data_loader_stall",
    "host_overhead",
)
"""Values of ``otelgpu.step.part``."""

DEVICE_PARTS: Final = ("compute", "exposed_communication", "copy", "idle")
"""The same of :data:`DEVICE_TIME`."""


def training_metrics(steps: Sequence[TrainingStep]) -> list[Measured]:
    """What the steps of one process add. ``Measured.rows`` index ``steps``."""
    rows = range(len(steps))
    found = [
        Measured(metric=DURATION, labels={}, values=[step.duration_ns * 1e-9 for step in steps], rows=rows)
    ]
    columns = zip(*(_parts(step) for step in steps), strict=True)
    for part, values in zip(PARTS, columns, strict=True):
        found.append(
            Measured(metric=TIME, labels={training_names.PART: part}, values=list(values), rows=rows)
        )
    for metric, amounts in (
        (COLLECTIVE_BYTES, [step.collective_bytes for step in steps]),
        (H2D_COPY_BYTES, [step.h2d_copy_bytes for step in steps]),
    ):
        found.append(Measured(metric=metric, labels={}, values=amounts, rows=rows))
    return [each for each in found if any(each.values)] + _device_metrics(steps)


def _device_metrics(steps: Sequence[TrainingStep]) -> list[Measured]:
    """Of the steps whose device time is known."""
    known = [(row, step.device) for row, step in enumerate(steps) if step.device is not None]
    rows = [row for row, _ in known]
    by_part: dict[str, list[int]] = {part: [] for part in DEVICE_PARTS}
    for _, parts in known:
        times = (parts.compute_ns, parts.exposed_communication_ns, parts.copy_ns, parts.idle_ns)
        for part, time_ns in zip(DEVICE_PARTS, times, strict=True):
            by_part[part].append(time_ns)
    found = [
        Measured(metric=DEVICE_TIME, labels={training_names.PART: part}, values=values, rows=rows)
        for part, values in by_part.items()
    ]
    moved = [parts.communication_ns for _, parts in known]
    found.append(Measured(metric=DEVICE_COMMUNICATION, labels={}, values=moved, rows=rows))
    return [each for each in found if any(each.values)]


def _parts(step: TrainingStep) -> tuple[int, ...]:
    parts = step.parts
    return (
        parts.call_ns,
        parts.h2d_copy_ns,
        parts.communication_wait_ns,
        parts.other_wait_ns,
        parts.file_ns,
        parts.data_loader_stall_ns,
        parts.host_overhead_ns,
    )
