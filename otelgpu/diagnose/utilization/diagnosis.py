"""From what was seen of a job to a report: what its GPUs waited for, and what it costs. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct, structs

from otelgpu.diagnose.stall.activities import activities
from otelgpu.diagnose.stall.causes import CAUSES as WAITS
from otelgpu.diagnose.stall.causes import CGROUP_THROTTLING, SLEEP
from otelgpu.diagnose.stall.critical import cpu_ns, critical_threads
from otelgpu.diagnose.stall.diagnosis import place_of
from otelgpu.diagnose.stall.holders import line_of
from otelgpu.diagnose.stall.observations import CALL_TIMES, Observations, ThreadSeen
from otelgpu.diagnose.stall.processor import throttled
from otelgpu.diagnose.stall.rhythm import Rhythm, find_rhythm
from otelgpu.diagnose.stall.surroundings import Surroundings
from otelgpu.diagnose.stall.verdicts import Spent, StallEvidence, ThreadPlace
from otelgpu.diagnose.utilization.causes import API_MISUSE, BATCH_SIZE, CAUSES, LIBRARY_INSTALLATION
from otelgpu.diagnose.utilization.devices import DeviceUse
from otelgpu.diagnose.utilization.figures import Workload, figures
from otelgpu.diagnose.utilization.findings import LEAST_SHARE, Loop, Loss, Waits, losses, wanted_cpu
from otelgpu.diagnose.utilization.gpu_calls import LAUNCH, DeviceTimes, GpuCalls, kind_of
from otelgpu.diagnose.utilization.idle import BY_CALLS, Idle, idle_by_calls, idle_by_device
from otelgpu.diagnose.utilization.job_facts import Calls, facts_of
from otelgpu.diagnose.utilization.job_findings import Watched, nature, shared_or_unused
from otelgpu.diagnose.utilization.job_processes import JobProcess
from otelgpu.diagnose.utilization.lost import MOST_LOST, MOST_UNSEEN, Lost
from otelgpu.diagnose.utilization.matrix_products import MatrixProducts
from otelgpu.diagnose.utilization.peaks import Peak, peak_of
from otelgpu.diagnose.utilization.verdicts import (
    INCONCLUSIVE,
    LOW_UTILIZATION,
    GpuTimeLost,
    UtilizationReport,
    UtilizationSummary,
    UtilizationVerdict,
)

LEAST_SECONDS: Final = 1.0
"""Of a loop that is judged: of less nothing is usual."""
MOST_ROWS: Final = 12
BY_DEVICES: Final = "devices"
_WITHOUT_GAPS: Final = (BATCH_SIZE, LIBRARY_INSTALLATION)
"""Causes for which it is no matter when the device was idle."""


class Job(Struct, kw_only=True):
    """All that was seen. ``watched_ns``: from when until when, Unix nanoseconds.

    ``processes``, ``devices``: None of a file, which has neither. ``products``: None: nobody looked.
    ``names``: calls by name; ``host``: what is known of the machine; ``surroundings``: by process.
    """

    observations: Observations
    calls: GpuCalls
    times: DeviceTimes
    watched_ns: tuple[int, int]
    subjects: Sequence[int] = ()
    processes: Mapping[int, JobProcess] | None = None
    devices: Sequence[DeviceUse] | None = None
    device_note: str = ""
    server_note: str = ""
    peaks: Sequence[Peak] = ()
    workload: Workload | None = None
    rejected: Mapping[str, int] = {}
    lost: Lost = Lost()
    products: MatrixProducts | None = None
    names: Calls | None = None
    host: Mapping[str, str] = {}
    surroundings: Mapping[int, Surroundings] = {}

    def shares_lost(self) -> tuple[float, float]:
        """Of the calls, and of what was seen of threads."""
        rows = sum(len(each.rows) for each in self.observations.threads)
        return self.lost.shares(int(self.calls.count.sum()), rows)


class Judged(Struct, kw_only=True):
    """One process: what the page draws. ``loop``: None: it launches nothing."""

    pid: int
    thread: ThreadSeen | None
    loop: Loop | None
    steps: Rhythm | None
    losses: list[Loss]
    remarks: list[str]


def diagnose(job: Job) -> tuple[UtilizationReport, list[Judged]]:
    """The report, and what it was made of."""
    pids = _pids(job)
    judged = [_judge(job, pid, pids) for pid in pids]
    verdicts = [_verdict(loss, each, job) for each in judged for loss in each.losses]
    verdicts.sort(key=lambda each: -(each.cost.seconds if each.cost is not None else 0.0))
    if not verdicts and (missing := _missing(job, judged)) is not None:
        verdicts = [missing]
    first = next((each for each in judged if each.loop is not None), judged[0] if judged else None)
    loop = first.loop if first is not None else None
    step_s = first.steps.usual_ns / 1e9 if first is not None and first.steps is not None else 0.0
    mine = _devices_of(job, pids)
    peak = peak_of(mine[0].model, job.peaks) if mine else None
    shown = figures(loop, step_s, mine, peak, job.workload, job.products)
    table = _table(loop) if loop is not None else []
    seen = [each for pid, each in (job.processes or {}).items() if pid in pids]
    seconds = (loop.length_ns if loop is not None else job.watched_ns[1] - job.watched_ns[0]) / 1e9
    report = UtilizationReport(
        verdicts=verdicts,
        input=_summary(job, judged, first),
        figures=shown,
        table=table,
        remarks=[remark for each in judged for remark in each.remarks],
        limits=_limits(job, judged, mine),
        facts=facts_of(mine, seen, job.host, job.names, seconds, table, shown),
    )
    return report, judged


def _pids(job: Job) -> list[int]:
    """Processes that are judged: those that call CUDA, else those that do the work, else those asked for."""
    calling = list(dict.fromkeys(job.calls.pid.tolist()))
    if calling:
        return calling
    threads = critical_threads(job.observations.threads, job.subjects)
    return list(dict.fromkeys([each.pid for each in threads] or job.subjects))


def _judge(job: Job, pid: int, pids: Sequence[int]) -> Judged:
    threads = [each for each in job.observations.threads if each.pid == pid]
    calls, times = job.calls.where(job.calls.pid == pid), job.times.of_process(pid)
    seen = (job.processes or {}).get(pid)
    watched = Watched(
        pid=pid,
        begin_ns=job.watched_ns[0],
        end_ns=job.watched_ns[1],
        ran_ns=sum(map(cpu_ns, threads)),
        cpu_ns=sum(row.length_ns for thread in threads for row in wanted_cpu(thread)),
        calls=calls,
        seen=seen,
        devices=job.devices or (),
        job=frozenset((*pids, *job.subjects)),
    )
    thread = _thread(threads, calls)
    found = nature(watched)
    apart = shared_or_unused(watched)
    loop, steps = (None, None) if thread is None else _loop(job, thread, calls, times)
    remarks: list[str] = []
    lost = [found] if found is not None else []
    if found is None and loop is not None and loop.length_ns >= LEAST_SECONDS * 1e9:
        lost, others = losses(loop)
        remarks = [_remark(each) for each in sorted(others, key=lambda each: each.cause == SLEEP)]
        if seen is not None and seen.blocking:
            lost.append(_blocking(loop))
        _bound_by_devices(lost, loop)
    if apart is not None:
        lost.append(apart)
    if job.shares_lost()[0] > MOST_LOST:  # what was between two calls that arrived is not known
        lost = [each for each in lost if each.cause in _WITHOUT_GAPS]
        for each in lost:
            each.confidence = min(each.confidence, 0.5)
        remarks = []
    return Judged(pid=pid, thread=thread, loop=loop, steps=steps, losses=lost, remarks=remarks)


def _remark(waits: Waits) -> str:
    text = f"{waits.share:.0%} of the time the GPU is idle while "
    if waits.cause == SLEEP:
        return f"{text}the program sleeps"
    if waits.cause == CGROUP_THROTTLING:
        return f"{text}the thread {WAITS[waits.cause].says}: {WAITS[waits.cause].next}"
    return f"{text}the thread is in {waits.cause}: otelgpu diagnose stall says where"


def _thread(threads: Sequence[ThreadSeen], calls: GpuCalls) -> ThreadSeen | None:
    """That which launches most; where nobody does, the one that the program waits for."""
    launches = Counter(calls.of(LAUNCH).tid.tolist())
    for tid, _ in launches.most_common():
        found = next((each for each in threads if each.tid == tid), None)
        if found is not None:
            return found
    if launches:  # of who launches nothing else was seen, or what was seen is lost
        return ThreadSeen(pid=int(calls.pid[0]), program="", tid=launches.most_common(1)[0][0])
    return next(iter(critical_threads(threads)), threads[0] if threads else None)


def _loop(
    job: Job, thread: ThreadSeen, calls: GpuCalls, times: DeviceTimes
) -> tuple[Loop | None, Rhythm | None]:
    launches = calls.of(LAUNCH)
    if not len(launches):
        return None, None
    begin, end = int(launches.begin_ns[0]), max(int(calls.end_ns.max()), int(launches.begin_ns[0]) + 1)
    found = [each for each in activities(thread) if begin <= each.begin_ns < end]
    found = throttled(found, job.surroundings.get(thread.pid))
    steps = find_rhythm(thread, begin, end)
    devices = _devices_of(job, [thread.pid])
    peak = peak_of(devices[0].model, job.peaks) if devices else None
    used, utilization = None, devices[0].utilization if devices else None
    if devices and devices[0].memory_total_bytes and devices[0].memory_used_bytes is not None:
        used = devices[0].memory_used_bytes / devices[0].memory_total_bytes
    return (
        Loop(
            thread=thread,
            activities=found,
            calls=calls,
            times=times,
            idle=_idle(calls, times, begin, end, is_bounded=utilization is not None),
            begin_ns=begin,
            end_ns=end,
            steps=len(steps.begins_ns) if steps is not None else 0,
            used_memory=used,
            utilization=utilization,
            sms=peak.sms if peak is not None else None,
        ),
        steps,
    )


def _idle(calls: GpuCalls, times: DeviceTimes, begin_ns: int, end_ns: int, *, is_bounded: bool) -> Idle:
    """By what the device measured, where it did so; else by calls.

    ``is_bounded``: the device says for how long it was busy in all; else only what is certain counts.
    """
    if times.is_kernel.any():
        return idle_by_device(times, begin_ns, end_ns)
    idle = idle_by_calls(calls, begin_ns, end_ns)
    return idle if is_bounded else idle.certain()


def _blocking(loop: Loop) -> Loss:
    text = "CUDA_LAUNCH_BLOCKING is set: each launch waits until its kernel has ended"
    total = loop.idle.total_ns
    return Loss(
        cause=API_MISUSE,
        lost_ns=total,
        share=total / loop.length_ns,
        evidence=[StallEvidence(name="launch_blocking", text=text)],
        begin_ns=loop.begin_ns,
        end_ns=loop.end_ns,
    )


def _bound_by_devices(lost: list[Loss], loop: Loop) -> None:
    """Calls bound idle time from above: what the device says it was busy for is not lost."""
    if loop.idle.basis != BY_CALLS or loop.utilization is None:
        return
    most = (1 - loop.utilization) * loop.length_ns
    total = sum(each.lost_ns for each in lost)
    if total > most:
        for each in lost:
            each.lost_ns = round(each.lost_ns * most / total)
            each.share = each.lost_ns / loop.length_ns
    lost[:] = [each for each in lost if each.share >= 0.05]


def _devices_of(job: Job, pids: Sequence[int]) -> list[DeviceUse]:
    """Devices on which the processes are; the only one, where the driver does not say."""
    devices = list(job.devices or ())
    mine = [each for each in devices if any(process.pid in pids for process in each.processes)]
    if mine or len(devices) <= 1:
        return mine or devices
    used = {int(each) for each in job.calls.device.tolist() if each >= 0}
    return [each for each in devices if each.index in used]


def _verdict(loss: Loss, judged: Judged, job: Job) -> UtilizationVerdict:
    cause = CAUSES[loss.cause]
    thread = judged.thread
    seen = (job.processes or {}).get(judged.pid)
    name = thread.program if thread is not None else seen.program if seen is not None else "process"
    place = (
        place_of(thread)
        if thread is not None
        else ThreadPlace(pid=judged.pid, program=name, tid=judged.pid, name=name)
    )
    basis = judged.loop.idle.basis if judged.loop is not None else BY_DEVICES if job.devices else BY_CALLS
    return UtilizationVerdict(
        klass=LOW_UTILIZATION,
        cause=loss.cause,
        process=place,
        line=line_of(loss.site),
        file=loss.file,
        cost=GpuTimeLost(seconds=loss.lost_ns / 1e9, share=loss.share, basis=basis),
        confidence=round(loss.confidence, 3),
        evidence=loss.evidence,
        spans=loss.spans,
        next=cause.next,
        code=cause.code,
        start_unix_s=loss.begin_ns / 1e9,
        end_unix_s=loss.end_ns / 1e9,
    )


def _missing(job: Job, judged: Sequence[Judged]) -> UtilizationVerdict | None:
    """Why nothing can be said; None where it can."""
    loops = [each.loop for each in judged if each.loop is not None]
    calls, observations = job.shares_lost()
    if calls > MOST_LOST:
        return _inconclusive(
            f"{calls:.0%} of the calls of CUDA were lost: when the GPU was idle is not known",
            "record less at once (-p of one process, a machine with a CPU to spare), or into a larger ring: "
            "OTELGPU_RING_BYTES=134217728",
        )
    idle = max((each.idle.total_ns / each.length_ns for each in loops), default=0.0)
    unseen = [each for each in loops if not each.thread.rows]
    if idle >= LEAST_SHARE and (observations > MOST_UNSEEN or unseen):
        return _inconclusive(
            f"the GPU was idle {idle:.0%} of the time, and what the thread did meanwhile was not seen, or is lost",
            "otelgpu check -p PID says what can be seen; give the recorder a CPU, or watch it for less time: -d 10",
        )
    if loops:
        longest = max(each.length_ns for each in loops) / 1e9
        if longest >= LEAST_SECONDS:
            return None
        return _inconclusive(
            f"from the first launch to the last call {longest:.2g} s went by: too short to say what is usual",
            "watch it for longer: -d 30",
        )
    if job.devices:
        text = "no launch of CUDA was seen, and nothing that says why"
    elif job.devices is None:
        text = "no launch of CUDA is in the input"
    else:
        text = f"no launch of CUDA was seen, and no GPU can be read: {job.device_note or 'there is none'}"
    return _inconclusive(
        text, "otelgpu check -p PID says whether its calls of CUDA can be seen; watch it while it works"
    )


def _inconclusive(text: str, following: str) -> UtilizationVerdict:
    return UtilizationVerdict(
        klass=INCONCLUSIVE,
        confidence=1.0,
        evidence=[StallEvidence(name="missing", text=text)],
        next=following,
    )


def _summary(job: Job, judged: Sequence[Judged], first: Judged | None) -> UtilizationSummary:
    loop = first.loop if first is not None else None
    thread = first.thread if first is not None else None
    rejected = Counter(job.observations.rejected) + Counter(job.rejected)
    return UtilizationSummary(
        processes=len(judged),
        thread=place_of(thread) if thread is not None else None,
        seconds=max(job.watched_ns[1] - job.watched_ns[0], 0) / 1e9,
        devices=[each.model or each.uuid for each in job.devices or ()],
        calls=int(job.calls.count.sum()),
        idle_share=loop.idle.total_ns / loop.length_ns if loop is not None else None,
        idle_basis=loop.idle.basis if loop is not None else "",
        rejected=dict(sorted(rejected.items())),
    )


def _table(loop: Loop) -> list[Spent]:
    """What the thread did while the device was idle."""
    lost = loop.idle.within(
        [each.begin_ns for each in loop.activities], [each.end_ns for each in loop.activities]
    )
    groups: dict[tuple[str, str], list[int]] = {}
    for each, length in zip(loop.activities, lost.tolist(), strict=True):
        if length:
            place = f"{each.site.label}" if each.site is not None else ""
            groups.setdefault((each.cause, place), []).append(length)
    rows = [
        _spent(cause, f"in {place}" if place else "", lengths, loop)
        for (cause, place), lengths in groups.items()
    ]
    rows.sort(key=lambda row: -row.seconds)
    rest = max(loop.idle.total_ns - int(lost.sum()), 0)
    return [*rows[:MOST_ROWS], structs.replace(_spent("running", "", [rest], loop), times=0)]


def _spent(cause: str, what: str, lengths: Sequence[int], loop: Loop) -> Spent:
    return Spent(
        cause=cause,
        what=what,
        times=len(lengths),
        seconds=sum(lengths) / 1e9,
        share=sum(lengths) / loop.length_ns,
        most_s=max(lengths) / 1e9,
    )


def _limits(job: Job, judged: Sequence[Judged], devices: Sequence[DeviceUse]) -> list[str]:
    limits = _losses(job)
    if any(each.loop is not None and each.loop.idle.basis == BY_CALLS for each in judged):
        limits.append(
            "device times were not measured: while the host launches or waits for the device it is taken for busy, and "
            "without NVML's utilisation also after launches that nobody has waited for"
        )
    if job.server_note:
        limits.append(job.server_note)
    if job.processes is None:
        limits.append("from a file: libraries, terminals and settings of the processes are not known")
    if not job.devices:
        note = f": {job.device_note}" if job.device_note else ""
        limits.append(f"no GPU was read{note}: who else uses it, and its memory, are not known")
    elif any(peak_of(each.model, job.peaks) is None for each in devices):
        limits.append(f"no peak figures of {devices[0].model!r} are known: shares of them cannot be told")
    seen = [(job.processes or {}).get(each.pid) for each in judged]
    if len(job.devices or ()) > 1 and any(each is not None and each.visible is None for each in seen):
        limits.append("CUDA_VISIBLE_DEVICES is not set: which GPUs the job was given is not known")
    return limits


def _losses(job: Job) -> list[str]:
    """What did not arrive."""
    calls, observations = job.shares_lost()
    limits = []
    if job.lost.calls:
        limits.append(
            f"{job.lost.calls:,} calls of CUDA, {calls:.2g} of all, were lost or only counted: in what looks idle some "
            "may have been made"
        )
    if job.lost.observations:
        limits.append(
            f"{job.lost.observations:,} observations of threads, {observations:.2g} of all, were lost or have no time: "
            "causes may be missing, or take longer than is said"
        )
    return limits


def calls_of_threads(threads: Sequence[ThreadSeen]) -> GpuCalls:
    """Calls as profiles of kind ``cuda`` have them: without sizes, grids and devices."""
    rows = sorted(
        (
            (row.begin_ns, row.end_ns, kind_of(row.call), thread.pid, thread.tid)
            for thread in threads
            for row in thread.of(*CALL_TIMES)
            if row.call and not row.call.startswith("nccl")
        ),
    )
    table = np.array(rows, dtype=np.int64).reshape(-1, 5)
    nothing = np.full(len(table), -1, dtype=np.int64)
    return GpuCalls(
        begin_ns=table[:, 0],
        end_ns=table[:, 1],
        kind=table[:, 2],
        pid=table[:, 3],
        tid=table[:, 4],
        count=np.ones(len(table), dtype=np.int64),
        size_bytes=nothing,
        to_host=np.zeros(len(table), dtype=np.bool_),
        blocks=nothing,
        device=nothing,
    )
