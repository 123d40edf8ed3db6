"""Jobs as they are watched, made of calls of CUDA whose truth is known: calls, and a thread's timeline beside them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from otelgpu.diagnose.stall.observations import Observations
from otelgpu.diagnose.utilization.devices import DeviceUse, ProcessUse
from otelgpu.diagnose.utilization.diagnosis import Job
from otelgpu.diagnose.utilization.gpu_calls import (
    BLOCKING_COPY,
    COPY,
    LAUNCH,
    MEMORY,
    SYNC,
    DeviceTimes,
    GpuCalls,
)
from otelgpu.diagnose.utilization.job_processes import JobProcess
from otelgpu.diagnose.utilization.peaks import Peak
from tests.unit.diagnose.stall_timelines import BEGIN, MS, PID, Timeline, observed

GIB = 1 << 30
PEAK = Peak(
    models=["Test"],
    sms=100,
    tflops={"bf16": 1000.0},
    memory_gb_per_s=2000.0,
    nvlink_gb_per_s=None,
    pcie_gb_per_s=64.0,
    source="https://example.com",
)


class GpuTimeline(Timeline):
    """One thread that feeds a device."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[int, ...]] = []
        self.kernels: list[tuple[int, int, int, int]] = []

    def _call(self, kind: int, ms: float, size: int = -1, *, to_host: bool = False, blocks: int = -1) -> None:
        end = self.now + round(ms * MS)
        self.calls.append((self.now, end, kind, PID, PID, 1, size, int(to_host), blocks, 0))
        self.now = end

    def launch(self, count: int = 5, ms: float = 0.01, blocks: int = 500) -> None:
        """Kernels, one after the other."""
        for _ in range(count):
            self._call(LAUNCH, ms, blocks=blocks)

    def synchronize(self, ms: float) -> None:
        """The host waits for the device: a synchronisation."""
        self.row("cuda_time", ms, (), call="cudaDeviceSynchronize")
        self._call(SYNC, ms)

    def item(self, ms: float) -> None:
        """A scalar is looked at."""
        self._call(COPY, 0.01, 4, to_host=True)
        self._call(SYNC, ms)

    def copy(self, ms: float, size: int) -> None:
        """Of memory that is not pinned."""
        begin = self.now
        self.call(ms, "cudaMemcpy")
        self.now = begin
        self._call(BLOCKING_COPY, ms, size)

    def allocate(self, ms: float) -> None:
        """A call that allocates, and waits."""
        begin = self.now
        self.call(ms, "cudaMalloc")
        self.now = begin
        self._call(MEMORY, ms)

    def kernel(self, begin_ms: float, ms: float) -> None:
        """What the device did, from so long after now on."""
        begin = self.now + round(begin_ms * MS)
        self.kernels.append((begin, begin + round(ms * MS), PID, 1))


def columns(rows: Sequence[tuple[int, ...]]) -> GpuCalls:
    """Rows as columns."""
    table = np.array(sorted(rows), dtype=np.int64).reshape(-1, 10)
    made = {name: table[:, at] for at, name in enumerate(GpuCalls.__struct_fields__)}
    return GpuCalls(**{**made, "to_host": made["to_host"] != 0})


def device(
    used: int = 60 * GIB,
    utilization: float | None = None,
    *,
    pid: int = PID,
    model: str = "NVIDIA Test",
    index: int = 0,
) -> DeviceUse:
    """One GPU, on which a process is."""
    return DeviceUse(
        uuid=f"GPU-{index}",
        index=index,
        model=model,
        readings=10,
        utilization=utilization,
        memory_used_bytes=used,
        memory_total_bytes=80 * GIB,
        pcie_bytes_per_s=None,
        nvlink_bytes_per_s=None,
        processes=[ProcessUse(pid=pid, memory_bytes=used, utilization=utilization)],
    )


def job(
    timeline: GpuTimeline | None,
    *,
    devices: Sequence[DeviceUse] | None = (device(),),
    process: JobProcess | None = None,
    seconds: float | None = None,
) -> Job:
    """As it is watched from the timeline's begin to its end, or for so long."""
    seen = observed(timeline) if timeline else Observations(threads=[], types=frozenset(), rejected={})
    end = timeline.now if timeline else BEGIN
    kernels = np.array(timeline.kernels if timeline else [], dtype=np.int64).reshape(-1, 4)
    return Job(
        observations=seen,
        calls=columns(timeline.calls if timeline else []),
        times=DeviceTimes(
            begin_ns=kernels[:, 0], end_ns=kernels[:, 1], pid=kernels[:, 2], is_kernel=kernels[:, 3] != 0
        ),
        watched_ns=(BEGIN, BEGIN + round(seconds * 1e9) if seconds else end),
        subjects=[PID],
        processes={PID: process}
        if process is not None
        else {PID: JobProcess(pid=PID, program="python", has_cuda=True)},
        devices=devices,
        peaks=[PEAK],
    )
