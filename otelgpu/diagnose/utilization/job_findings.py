"""Causes in the job, not in its loop: a person is waited for, it has ended, the wrong library or GPUs. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from msgspec import Struct

from otelgpu.diagnose.stall.verdicts import StallEvidence
from otelgpu.diagnose.utilization.causes import (
    INTERACTIVE,
    LIBRARY_INSTALLATION,
    NOT_DEEP_LEARNING,
    OVERSUBSCRIPTION,
    UNRELEASED,
)
from otelgpu.diagnose.utilization.devices import DeviceUse
from otelgpu.diagnose.utilization.findings import Loss
from otelgpu.diagnose.utilization.gpu_calls import LAUNCH, GpuCalls
from otelgpu.diagnose.utilization.idle import idle_by_calls
from otelgpu.diagnose.utilization.job_processes import JobProcess
from otelgpu.model.quantities import duration, size

LEAST_NS: Final = 2_000_000_000
"""Of a job that is watched: who does nothing for less may be about to begin."""
IDLE_SHARE: Final = 0.6
"""Of the time that a GPU is without work, for it to be the job's nature."""
AT_REST: Final = 0.5
"""CPU time of a process, of the time: above, it does something, if not with the GPU."""
COMPUTES: Final = 0.3
"""The same of one that computes on CPUs."""
FEW_LAUNCHES: Final = 20.0
"""In a second of CPU time: of a program that hardly uses the GPU."""
SHARED: Final = 0.1
"""Share of the time that others' kernels run on a device."""


class Watched(Struct, frozen=True, kw_only=True):
    """One process of the job while it was watched.

    ``ran_ns``: for how long its threads ran; ``cpu_ns``: or were ready to.

    ``job``: all processes of it; ``seen``: None: nobody looked.
    """

    pid: int
    begin_ns: int
    end_ns: int
    ran_ns: int
    cpu_ns: int
    calls: GpuCalls
    seen: JobProcess | None
    devices: Sequence[DeviceUse]
    job: Collection[int]

    @property
    def length_ns(self) -> int:
        """How long it was watched."""
        return max(self.end_ns - self.begin_ns, 1)

    @property
    def memory_bytes(self) -> int:
        """That it has on devices, as the driver says."""
        return sum(
            process.memory_bytes or 0
            for device in self.devices
            for process in device.processes
            if process.pid == self.pid
        )


def nature(watched: Watched) -> Loss | None:
    """The one cause that makes all others pointless, where there is one."""
    if watched.length_ns < LEAST_NS:
        return None
    return _library(watched) or _at_rest(watched) or _not_deep_learning(watched)


def _loss(watched: Watched, cause: str, lost_ns: float, evidence: list[StallEvidence]) -> Loss:
    return Loss(
        cause=cause,
        lost_ns=round(lost_ns),
        share=lost_ns / watched.length_ns,
        evidence=evidence,
        begin_ns=watched.begin_ns,
        end_ns=watched.end_ns,
    )


def _holds(watched: Watched) -> list[StallEvidence]:
    """That it has a GPU to itself: memory on it, or an open device file, or calls."""
    if watched.memory_bytes:
        text = f"it holds {size(watched.memory_bytes)} of the device's memory"
        return [StallEvidence(name="memory", text=text, value=float(watched.memory_bytes), unit="By")]
    if watched.seen is not None and watched.seen.holds_device:
        return [StallEvidence(name="device", text="it has the device open")]
    return (
        [StallEvidence(name="calls", text=f"{len(watched.calls)} calls of CUDA before")]
        if len(watched.calls)
        else []
    )


def _library(watched: Watched) -> Loss | None:
    seen = watched.seen
    if seen is None or not seen.frameworks or seen.has_cuda or len(watched.calls) or not watched.devices:
        return None
    if watched.cpu_ns < COMPUTES * watched.length_ns:
        return None
    evidence = [
        StallEvidence(
            name="libraries", text=f"{', '.join(seen.frameworks)} is loaded, and no library of CUDA is"
        ),
        StallEvidence(name="devices", text=f"the machine has {watched.devices[0].model or 'a GPU'}"),
        _cpu(watched),
    ]
    return _loss(watched, LIBRARY_INSTALLATION, watched.length_ns, evidence)


def _cpu(watched: Watched) -> StallEvidence:
    share = watched.cpu_ns / watched.length_ns
    return StallEvidence(
        name="cpu", text=f"its threads ran, or were ready to, on {share:.2g} CPUs", value=share, unit="1"
    )


def _at_rest(watched: Watched) -> Loss | None:
    """Interactive, or done: the device has no work, and the process none either."""
    held = _holds(watched)
    if not held:
        return None
    calls = watched.calls
    idle = idle_by_calls(calls, watched.begin_ns, watched.end_ns)
    if watched.seen is not None and watched.seen.interactive:
        if idle.total_ns < IDLE_SHARE * watched.length_ns:
            return None
        share = idle.total_ns / watched.length_ns
        evidence = [
            StallEvidence(name="interactive", text=watched.seen.interactive),
            StallEvidence(
                name="idle", text=f"{share:.0%} of the time no work was queued", value=share, unit="1"
            ),
            *held,
        ]
        return _loss(watched, INTERACTIVE, idle.total_ns, evidence)
    last = int(calls.end_ns.max()) if len(calls) else watched.begin_ns
    rest = watched.end_ns - max(last, watched.begin_ns)
    if rest < IDLE_SHARE * watched.length_ns or watched.cpu_ns > AT_REST * watched.length_ns:
        return None
    text = f"no call of CUDA in the last {duration(float(rest))}"
    return _loss(
        watched,
        UNRELEASED,
        rest,
        [StallEvidence(name="idle", text=text, value=rest / 1e9, unit="s"), *held, _cpu(watched)],
    )


def _not_deep_learning(watched: Watched) -> Loss | None:
    seen, held = watched.seen, _holds(watched)
    if seen is None or seen.frameworks or not held or watched.cpu_ns < COMPUTES * watched.length_ns:
        return None
    launches = watched.calls.of(LAUNCH)
    rate = float(launches.count.sum()) * 1e9 / max(watched.ran_ns, 1)
    idle = idle_by_calls(watched.calls, watched.begin_ns, watched.end_ns)
    if rate > FEW_LAUNCHES or idle.total_ns < 0.8 * watched.length_ns:
        return None
    evidence = [
        StallEvidence(name="libraries", text="no framework of deep learning is loaded"),
        StallEvidence(
            name="launches", text=f"{rate:.2g} launches in a second of CPU time", value=rate, unit="1/s"
        ),
        _cpu(watched),
        *held,
    ]
    return _loss(watched, NOT_DEEP_LEARNING, idle.total_ns, evidence)


def shared_or_unused(watched: Watched) -> Loss | None:
    """Devices that the job was given and does not use; a device that others use too."""
    mine = [
        device
        for device in watched.devices
        if any(process.pid in watched.job for process in device.processes)
    ]
    visible = watched.seen.visible if watched.seen is not None else None
    used = max(len(mine), len({int(each) for each in watched.calls.device.tolist() if each >= 0}))
    if visible is not None and used and visible > used:
        unused = visible - used
        text = f"CUDA_VISIBLE_DEVICES leaves it {visible} devices, and it uses {used}"
        evidence = [StallEvidence(name="unused_devices", text=text, value=float(unused), unit="1")]
        return _loss(watched, OVERSUBSCRIPTION, unused * watched.length_ns, evidence)
    for device in mine:
        others = [process for process in device.processes if process.pid not in watched.job]
        share = sum(process.utilization or 0.0 for process in others)
        if share >= SHARED:
            who = ", ".join(f"PID {process.pid}" for process in others[:4])
            text = f"{who} ran kernels on GPU {device.index} for {share:.0%} of the time"
            evidence = [StallEvidence(name="shared_device", text=text, value=share, unit="1")]
            return _loss(watched, OVERSUBSCRIPTION, min(share, 1.0) * watched.length_ns, evidence)
    return None
