"""Names that only steps of training use: docs/reference/steps.md. What they share with engines' is in ``step_names``.

Times are exported in seconds.
"""

from __future__ import annotations

from typing import Final

SCOPE: Final = "otelgpu.training"
STEP: Final = "training step"
"""Name of a step's span."""

BOUNDARY: Final = "otelgpu.step.boundary"
"""What parts steps: ``host_to_device_copy``, ``data_loader``, ``backward``, ``collective`` or ``wait``."""

CONFIDENCE: Final = "otelgpu.step.period_confidence"
"""Share of the collectives of the last 16 steps that are of the period."""

CALL: Final = "otelgpu.step.call.duration"
"""Host time in calls that queue work, collectives among them."""

H2D_COPY: Final = "otelgpu.step.host_to_device_copy.duration"
"""Host time in copies to the device, while no other call was under way."""

FILE: Final = "otelgpu.step.file.duration"
"""Host time in reads, writes and syncs of files that took long, by threads that drive the GPU, in no other call."""

FILES: Final = "otelgpu.step.files"
"""Such calls of all threads of the process."""

FILE_BYTES: Final = "otelgpu.step.file_bytes"
WRITTEN_BYTES: Final = "otelgpu.step.written_bytes"
"""Of these, to files; where there are any."""

SLOWEST_FILE: Final = "otelgpu.step.slowest_file"
"""Name, without its path, of the file of the longest."""

THROTTLED: Final = "otelgpu.step.cpu.throttled.duration"
"""Time since the last step that reports it, in which a cgroup of the process had spent its quota of CPU time."""

MAJOR_FAULTS: Final = "otelgpu.step.major_faults"
"""Page faults of the process that waited for a disk, swap's among them, since the last step that reports them."""

DATA_LOADER_STALL: Final = "otelgpu.step.data_loader_stall.duration"
"""Time in no call that a copy to the device ended: the data loader, or whatever else the program did."""

HOST_OVERHEAD: Final = "otelgpu.step.host_overhead.duration"
"""All other time in no call: the program's own code between its calls (CPU-bound time, as the field has it too)."""

COMMUNICATION_WAIT: Final = "otelgpu.step.communication_wait.duration"
"""The part of ``otelgpu.step.wait.duration`` in waits for a stream or the device whose last queued work was a
collective."""

LAUNCHES: Final = "otelgpu.step.launches"
"""Of kernels and graphs, those of the communication library among them where they are seen."""

COLLECTIVES: Final = "otelgpu.step.collectives"
COLLECTIVE_BYTES: Final = "otelgpu.step.collective_bytes"
H2D_COPIES: Final = "otelgpu.step.host_to_device_copies"
H2D_COPY_BYTES: Final = "otelgpu.step.host_to_device_copy_bytes"

DEVICE: Final = "otelgpu.step.device.index"
"""The device that worked most in the step, of which these are:"""

DEVICE_COMPUTE: Final = "otelgpu.step.device.compute.duration"
"""Device time in which any kernel ran that is none of the communication library."""

DEVICE_EXPOSED: Final = "otelgpu.step.device.exposed_communication.duration"
"""Device time in which kernels of the communication library ran, and no others."""

DEVICE_COPY: Final = "otelgpu.step.device.copy.duration"
"""Device time in which only copies and memsets ran."""

DEVICE_IDLE: Final = "otelgpu.step.device.idle.duration"
"""The rest of the step."""

DEVICE_COMMUNICATION: Final = "otelgpu.step.device.communication.duration"
"""Device time in which kernels of the communication library ran, whatever else did."""

PART: Final = "otelgpu.step.part"
"""Of a metric: which part of steps' time."""

KIND: Final = "otelgpu.step.kind"
"""Of a metric: which kind of a rank's own work: ``compute``, ``copy``, ``input``, ``file`` or ``host``."""
