"""A step of training: one iteration of a loop that moves data among ranks, known by its host calls.

Times are CLOCK_MONOTONIC nanoseconds of the host.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from otelgpu.families.steps.step import Evidence, StepKey


class Boundary(StrEnum):
    """What parts one step from the next: ``otelgpu.step.boundary``."""

    H2D_COPY = "host_to_device_copy"  # the first copy of a batch to the device, with the time before it
    DATA_LOADER = (
        "data_loader"  # where the program asked for its next batch: of programs that drive no device
    )
    BACKWARD = (
        "backward"  # the return of a backward pass, of such programs where nothing says that they load data
    )
    COLLECTIVE = "collective"  # the return of a collective that such a program calls itself, as with MPI
    WAIT = "wait"  # the return of a wait for the device or a stream, or of a copy to the host that waits


HOST_BOUNDARIES = (Boundary.DATA_LOADER, Boundary.BACKWARD, Boundary.COLLECTIVE)
"""Of programs that drive no device."""


class StepParts(Struct, frozen=True, kw_only=True):
    """Where a step's time went. At each instant the first of these that holds of any thread that drives the GPU."""

    call_ns: int = 0  # in a call that queues work, a collective, or any other call
    h2d_copy_ns: int = 0  # in a copy to the device
    communication_wait_ns: int = 0  # in a wait for a stream or device whose last queued work was a collective
    other_wait_ns: int = 0  # in any other wait
    file_ns: int = 0  # in a call that read, wrote or synced a file, and took long
    data_loader_stall_ns: int = 0  # in no call, and the next one is a copy to the device
    host_overhead_ns: int = 0  # in no call otherwise: the program's own code between its calls

    @property
    def wait_ns(self) -> int:
        """In waits of both kinds."""
        return self.communication_wait_ns + self.other_wait_ns

    @property
    def busy_ns(self) -> int:
        """In calls of any kind, but for those on files."""
        return self.call_ns + self.h2d_copy_ns + self.wait_ns

    @property
    def total_ns(self) -> int:
        """The step's duration."""
        return self.busy_ns + self.file_ns + self.data_loader_stall_ns + self.host_overhead_ns


class DeviceParts(Struct, frozen=True, kw_only=True):
    """Where a step's time went on the device that worked most in it, as that measured it itself.

    All but ``communication_ns`` are disjoint, and add up to the step's duration.
    """

    device: int  # ordinal by which the process calls it
    compute_ns: int  # in which any kernel ran that is none of the communication library
    exposed_communication_ns: int  # in which kernels of that library ran, and no others
    copy_ns: int  # in which only copies and memsets ran
    idle_ns: int
    communication_ns: int  # in which kernels of the communication library ran, whatever else did

    @property
    def total_ns(self) -> int:
        """The step's duration."""
        return self.compute_ns + self.exposed_communication_ns + self.copy_ns + self.idle_ns


class TrainingStep(Struct, frozen=True, kw_only=True):
    """One iteration, which begins where the one before ends unless something else was done in between."""

    tgid: int
    tid: int  # the thread that launched most
    number: int  # of the steps of its process since a period was first seen, from 1
    start_ns: int
    end_ns: int
    boundary: Boundary
    confidence: float  # share of the collectives of the last steps that are of the period
    parts: StepParts
    evidence: Evidence  # ``host_ns``: all but the gaps
    collectives: int
    collective_bytes: int
    h2d_copies: int
    h2d_copy_bytes: int
    files: int = 0  # calls on files that took long, of all threads of the process
    file_bytes: int = 0
    written_bytes: int = 0  # of these, to files
    slowest_file: int = 0  # handle of the file of the longest one
    device: DeviceParts | None = None  # None: it was not measured, or not all that ran is known

    @property
    def key(self) -> StepKey:
        """What it is told from others by."""
        return key_of(self.tgid, self.start_ns)

    @property
    def duration_ns(self) -> int:
        """Host time from boundary to boundary."""
        return self.end_ns - self.start_ns


def key_of(tgid: int, start_ns: int) -> StepKey:
    """Of a step that begins then, known before the step has ended: threads of a process share its steps."""
    return StepKey(tgid, 0, start_ns)
