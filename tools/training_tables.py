"""Tables of the section on training in docs/steps.md, from the tables that the code works with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from otelgpu.correlate.training import COUNTERS
from otelgpu.correlate.training_device import COUNTERS as DEVICE_COUNTERS
from otelgpu.families.base import Metric
from otelgpu.signals import names, step_names, training_names
from otelgpu.signals.training_metrics import DEVICE_TIME, METRICS, TIME

ATTRIBUTES: Final[Mapping[str, str]] = {
    names.THREAD_ID: "the thread that launched most",
    step_names.NUMBER: "of the process's steps since its period was first seen, from 1, told or not",
    training_names.BOUNDARY: "what parts steps: `upload` or `wait`, see above",
    training_names.CONFIDENCE: "share of the collectives of the last 16 steps that are of the period",
    training_names.CALL: "part: in a call that queues work, a collective, or any other call but these:",
    training_names.UPLOAD: "part: in a copy to the device",
    step_names.WAIT: "part: in a synchronisation, or a copy to the host that waits",
    training_names.FILE: "part: in a call that read, wrote or synced a file and took `file_slow_ms` or longer",
    training_names.INPUT_GAP: "part: in no call, and the next one is a copy to the device: the data loader, "
    "or whatever else the program did",
    training_names.HOST_GAP: "part: in no call otherwise",
    training_names.COMMUNICATION_WAIT: "of `otelgpu.step.wait_ns`: in waits for a stream, or the device, whose "
    "last work of the step is a collective",
    training_names.LAUNCHES: "launches of kernels and graphs, the communication library's own among them",
    training_names.COLLECTIVES: "collectives, sends and receives",
    training_names.COLLECTIVE_BYTES: "bytes that they were given",
    training_names.UPLOADS: "copies to the device",
    training_names.UPLOADED_BYTES: "their bytes",
    training_names.FILES: "such calls on files, of all threads of the process",
    training_names.FILE_BYTES: "bytes that they moved",
    training_names.SLOWEST_FILE: "name, without its path, of the file of the longest",
    training_names.DEVICE: "where device time is measured: the device that worked most in the step, by its ordinal "
    "in the process",
    training_names.DEVICE_COMPUTE: "part of the device's time: any kernel ran that is not the communication library's",
    training_names.DEVICE_EXPOSED: "part of the device's time: kernels of the communication library ran, and no others",
    training_names.DEVICE_COPY: "part of the device's time: only copies and sets ran",
    training_names.DEVICE_IDLE: "part of the device's time: nothing ran",
    training_names.DEVICE_COMMUNICATION: "no part: kernels of the communication library ran, whatever else did",
}
"""Attribute of a step's span → what it tells; hints and sums of calls come besides."""


def metric_labels() -> dict[Metric, list[str]]:
    """Each metric, and its attributes."""
    return {metric: [training_names.PART] if metric in (TIME, DEVICE_TIME) else [] for metric in METRICS}


def reasons() -> dict[tuple[str, str], str]:
    """What is counted, and what one count means."""
    return {("training", name): text for name, text in (COUNTERS | DEVICE_COUNTERS).items()}
