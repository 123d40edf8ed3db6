"""What the host did while the device had nothing to do, by cause. Pure.

In: the activities of the thread that the program waits for (:mod:`otelgpu.diagnose.stall`), and when the device was
idle. Out: :class:`Loss` values. Each idle nanosecond is charged once: to the wait that covers it, else to what ran.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct, field

from otelgpu.diagnose.stall.activities import Activity
from otelgpu.diagnose.stall.causes import FOR_A_CPU, IDLE, own_frame
from otelgpu.diagnose.stall.gaps import file_of
from otelgpu.diagnose.stall.observations import CPU, OFF_CPU, Seen, ThreadSeen
from otelgpu.diagnose.stall.verdicts import StallEvidence
from otelgpu.diagnose.utilization.causes import (
    API_MISUSE,
    BATCH_SIZE,
    HOST_TRANSFER,
    PREPROCESSING,
    cause_of_wait,
)
from otelgpu.diagnose.utilization.gpu_calls import (
    BLOCKING_COPY,
    COPY,
    I64,
    LAUNCH,
    SYNC,
    DeviceTimes,
    GpuCalls,
)
from otelgpu.diagnose.utilization.idle import BY_DEVICE, Idle
from otelgpu.model.quantities import duration, size
from otelgpu.render.frames import Frame

LEAST_SHARE: Final = 0.05
"""Of the time that is lost by one cause: less is not worth a verdict."""
LEAST_TIMES: Final = 3
"""What happens once or twice may be anything."""
HOST_WORK_NS: Final = 5_000_000
"""Of a thread that runs while the device is idle: shorter, and it is what a launch or a look at a result takes."""
RUNNING_SHARE: Final = 0.1
"""Of the time that is lost to what runs: it has to be more than what is lost to a wait."""
READY_SHARE: Final = 0.2
"""Of what runs while the device is idle, that it waited for a CPU, from which on that is said."""
SMALL_COPY_BYTES: Final = 256
"""Of a copy to the host: a loss, an index, a flag."""
SHORT_KERNEL_NS: Final = 10_000
"""Median of kernels that take as long to launch as to run: a launch takes 2 to 5 µs."""
LAUNCHING_SHARE: Final = 0.5
"""Of the time in which the host had a CPU, that it is in launches, between two of them, or waits for them."""
BUSY_SHARE: Final = 0.8
"""Of the time that a device is busy, from which on it is no matter how it is fed."""
FREE_MEMORY: Final = 0.5
"""Share of a device's memory that has to be free for a larger batch."""


class Loss(Struct, kw_only=True):
    """Time in which the device was idle, and why. ``share``: of the time that was looked at."""

    cause: str
    lost_ns: int
    share: float
    site: Frame | None = None
    file: str = ""
    evidence: list[StallEvidence] = field(default_factory=list)
    spans: list[str] = field(default_factory=list)
    confidence: float = 1.0
    begin_ns: int = 0
    end_ns: int = 0


class Loop(Struct, frozen=True, kw_only=True):
    """One process's work: from its first launch to its last call.

    ``calls``, ``times``: of the process; ``steps``: how many, 0: not known; ``used_memory``: share of the device's,
    ``utilization``: by NVML, ``sms``: of the device; None: not known.
    """

    thread: ThreadSeen
    activities: Sequence[Activity]
    calls: GpuCalls
    times: DeviceTimes
    idle: Idle
    begin_ns: int
    end_ns: int
    steps: int
    used_memory: float | None = None
    utilization: float | None = None
    sms: int | None = None

    @property
    def length_ns(self) -> int:
        """Of the time that is looked at."""
        return max(self.end_ns - self.begin_ns, 1)


class Waits(Struct, frozen=True, kw_only=True):
    """Time lost to waits that are none of the causes: of a name of :mod:`otelgpu.diagnose.stall`."""

    cause: str
    share: float


def losses(loop: Loop) -> tuple[list[Loss], list[Waits]]:
    """All that are worth a word, the most costly first; and what is none of the causes."""
    found, others = _in_waits(loop)
    found += [*_running(loop), *_small_kernels(loop)]
    return sorted(found, key=lambda each: -each.lost_ns), others


def _in_waits(loop: Loop) -> tuple[list[Loss], list[Waits]]:
    lost = loop.idle.within(
        [each.begin_ns for each in loop.activities], [each.end_ns for each in loop.activities]
    )
    groups: dict[tuple[str, object], list[int]] = defaultdict(list)
    others: Counter[str] = Counter()
    for at, each in enumerate(loop.activities):
        cause = cause_of_wait(each.cause, each.kernel, each.syscall)
        if cause:
            groups[cause, (each.site.file, each.site.name) if each.site else None].append(at)
        elif each.cause != IDLE:
            others[each.cause] += int(lost[at])
    found = []
    for (cause, _), members in groups.items():
        total = int(lost[members].sum())
        mine = [loop.activities[at] for at in members if lost[at]]
        if total < LEAST_SHARE * loop.length_ns or len(mine) < LEAST_TIMES:
            continue
        found.append(_of_waits(cause, mine, total, loop))
    rest = [
        Waits(cause=cause, share=total / loop.length_ns)
        for cause, total in others.most_common()
        if total >= LEAST_SHARE * loop.length_ns
    ]
    return found, rest


def _of_waits(cause: str, mine: Sequence[Activity], total: int, loop: Loop) -> Loss:
    longest = max(mine, key=lambda each: each.length_ns)
    text = f"{len(mine)} times, {duration(total / len(mine))} of each with the GPU idle"
    evidence = [StallEvidence(name="waits", text=text, value=total / 1e9, unit="s")]
    if longest.kernel:
        evidence.append(
            StallEvidence(name="kernel", text=f"in the kernel under {' ← '.join(longest.kernel[:5])}")
        )
    if cause == HOST_TRANSFER:
        evidence += _copies(loop)
    return Loss(
        cause=cause,
        lost_ns=total,
        share=total / loop.length_ns,
        site=longest.site,
        file=file_of(mine)[0],
        evidence=evidence,
        spans=list(dict.fromkeys(each.span for each in mine if each.span))[:20],
        begin_ns=mine[0].begin_ns,
        end_ns=mine[-1].end_ns,
    )


def _copies(loop: Loop) -> list[StallEvidence]:
    copies = loop.calls.of(BLOCKING_COPY)
    sizes = copies.size_bytes[copies.size_bytes > 0]
    took = int((copies.end_ns - copies.begin_ns)[copies.size_bytes > 0].sum())
    if not len(sizes) or not took:
        return []
    rate = int(sizes.sum()) * 1e9 / took
    text = f"{len(sizes)} copies that block, {size(float(np.median(sizes)))} in the median, at {rate / 1e9:.3g} GB/s"
    return [StallEvidence(name="copies", text=text, value=rate, unit="By/s")]


def _running(loop: Loop) -> list[Loss]:
    """Idle time in which the thread waits for nothing: long stretches are work, short ones follow a look."""
    begins, ends, drained = _stretches(loop)
    lengths = ends - begins
    ran_ns = lengths - _ready_ns(loop, begins, ends)
    long = ran_ns >= HOST_WORK_NS
    found = []
    total = int(lengths[long].sum())
    sites = _sites(loop.thread.of(CPU), begins[long], ends[long])
    ran = sites.total() >= HOST_WORK_NS * int(long.sum())
    if total >= RUNNING_SHARE * loop.length_ns and int(long.sum()) >= LEAST_TIMES and ran:
        each = duration(float(np.median(lengths[long])))
        text = f"{int(long.sum())} times the thread ran for {each} with the GPU idle"
        evidence = [StallEvidence(name="ran", text=text, value=total / 1e9, unit="s")]
        ready = 1 - float(ran_ns[long].sum()) / total
        if ready >= READY_SHARE:
            text = f"{ready:.0%} of that time it was ready and waited for a CPU"
            evidence.append(StallEvidence(name="ready", text=text, value=ready, unit="1"))
        found.append(_loss(loop, PREPROCESSING, total, evidence, sites.most_common(1)[0][0]))
    short = ~long & drained
    total = int(ran_ns[short].sum())
    looks = _looks(loop)
    if total >= LEAST_SHARE * loop.length_ns and looks is not None:
        text = f"after each, {duration(total / max(int(short.sum()), 1))} until the next launch, with nothing queued"
        found.append(
            _loss(
                loop,
                API_MISUSE,
                total,
                [looks, StallEvidence(name="drained", text=text)],
                _site_of_sync(loop),
            )
        )
    return found


def _loss(loop: Loop, cause: str, total: int, evidence: list[StallEvidence], site: Frame | None) -> Loss:
    return Loss(
        cause=cause,
        lost_ns=total,
        share=total / loop.length_ns,
        site=site,
        evidence=evidence,
        begin_ns=loop.begin_ns,
        end_ns=loop.end_ns,
    )


def _stretches(loop: Loop) -> tuple[I64, I64, I64]:
    """Idle intervals without the activities in them; and whether the device certainly had nothing."""
    begins, ends, drained = [], [], []
    at, idle = 0, loop.idle
    waits = [each for each in loop.activities if each.cause not in FOR_A_CPU]  # who is ready has work to do
    for begin, end, empty in zip(
        idle.begin_ns.tolist(), idle.end_ns.tolist(), idle.drained.tolist(), strict=True
    ):
        while at < len(waits) and waits[at].end_ns <= begin:
            at += 1
        place, now = at, begin
        while place < len(waits) and waits[place].begin_ns < end:
            each = waits[place]
            if each.begin_ns > now:
                begins.append(now)
                ends.append(each.begin_ns)
                drained.append(empty)
            now = max(now, each.end_ns)
            place += 1
        if now < end:
            begins.append(now)
            ends.append(end)
            drained.append(empty)
    return (
        np.array(begins, dtype=np.int64),
        np.array(ends, dtype=np.int64),
        np.array(drained, dtype=np.bool_),
    )


def wanted_cpu(thread: ThreadSeen) -> list[Seen]:
    """Rows in which it ran, or was ready to: on a machine that others use it runs for less than it would."""
    return [row for row in thread.of(CPU, OFF_CPU) if row.type == CPU or row.state == "runnable"]


def _sites(samples: Sequence[Seen], begins: I64, ends: I64) -> Counter[Frame | None]:
    """Time of rows that end in the stretches, by the program's own line."""
    spent: Counter[Frame | None] = Counter()
    for row in samples:
        at = int(np.searchsorted(begins, row.end_ns, side="right")) - 1
        if at >= 0 and row.end_ns <= ends[at] + row.length_ns:
            spent[own_frame(row.frames)] += row.length_ns
    return spent


def _ready_ns(loop: Loop, begins: I64, ends: I64) -> I64:
    """For how long of each stretch the thread was ready, and got no CPU: it prepared nothing then."""
    waits = [each for each in loop.activities if each.cause in FOR_A_CPU]
    ready = Idle(
        begin_ns=np.array([each.begin_ns for each in waits], dtype=np.int64),
        end_ns=np.array([each.end_ns for each in waits], dtype=np.int64),
        drained=np.zeros(len(waits), dtype=np.bool_),
        basis="",
    )
    return ready.within(begins, ends)


def _looks(loop: Loop) -> StallEvidence | None:
    """Small copies to the host, or waits, that come in most steps; of unknown steps, at least once in a second."""
    calls = loop.calls
    small = calls.to_host & (calls.size_bytes >= 0) & (calls.size_bytes <= SMALL_COPY_BYTES)
    small &= np.isin(calls.kind, (COPY, BLOCKING_COPY))
    copies, waits = int(calls.count[small].sum()), int(calls.count[calls.kind == SYNC].sum())
    least = max(0.8 * loop.steps, loop.length_ns / 1e9, LEAST_TIMES)
    of_steps = f" in {loop.steps} steps" if loop.steps else f" in {loop.length_ns / 1e9:.1f} s"
    if copies >= least:
        text = f"{copies} copies of at most {SMALL_COPY_BYTES} bytes to the host{of_steps}: .item(), print, if loss > …"
        return StallEvidence(name="small_copies", text=text, value=float(copies), unit="1")
    if waits >= least:
        return StallEvidence(
            name="waits", text=f"{waits} synchronisations{of_steps}", value=float(waits), unit="1"
        )
    return None


def _site_of_sync(loop: Loop) -> Frame | None:
    """The line that most waits are at."""
    spent: Counter[Frame | None] = Counter()
    for row in loop.thread.rows:
        if row.call and ("Synchronize" in row.call or "Memcpy" in row.call):
            spent[own_frame(row.frames)] += 1
    return spent.most_common(1)[0][0] if spent else None


def _small_kernels(loop: Loop) -> list[Loss]:
    launches = loop.calls.of(LAUNCH)
    if len(launches) < 100 or (loop.used_memory is not None and loop.used_memory > FREE_MEMORY):
        return []
    if loop.utilization is not None and loop.utilization >= BUSY_SHARE:
        return []
    rate = float(launches.count.sum()) * 1e9 / loop.length_ns
    evidence = [StallEvidence(name="launches", text=f"{rate:,.0f} launches a second", value=rate, unit="1/s")]
    lost = (
        _lost_by_kernels(loop, evidence) if loop.idle.basis == BY_DEVICE else _lost_by_grids(loop, evidence)
    )
    if lost < LEAST_SHARE * loop.length_ns:
        return []
    if loop.used_memory is not None:
        text = f"{loop.used_memory:.0%} of the device's memory is used"
        evidence.append(StallEvidence(name="memory", text=text, value=loop.used_memory, unit="1"))
    found = _loss(loop, BATCH_SIZE, lost, evidence, _site_of_launches(loop))
    found.confidence = 1.0 if loop.idle.basis == BY_DEVICE else 0.6 if loop.used_memory is None else 0.8
    return [found]


def _lost_by_kernels(loop: Loop, evidence: list[StallEvidence]) -> int:
    """Short gaps between short kernels."""
    kernels = loop.times.is_kernel
    lengths = (loop.times.end_ns - loop.times.begin_ns)[kernels]
    if not len(lengths) or np.median(lengths) > SHORT_KERNEL_NS:
        return 0
    gaps = loop.idle.end_ns - loop.idle.begin_ns
    middle = float(np.median(lengths))
    text = f"a kernel takes {duration(middle)} in the median on the device"
    evidence.append(StallEvidence(name="kernels", text=text, value=middle / 1e9, unit="s"))
    return int(gaps[(gaps < HOST_WORK_NS) & ~loop.idle.drained].sum()) or int(
        gaps[gaps < 10 * SHORT_KERNEL_NS].sum()
    )


def _lost_by_grids(loop: Loop, evidence: list[StallEvidence]) -> int:
    """Of a host that only launches and waits, grids that leave multiprocessors without a block."""
    launches = loop.calls.of(LAUNCH)
    known = launches.blocks > 0
    if loop.sms is None or known.sum() < 100:
        return 0
    apart = np.diff(launches.begin_ns)
    launching = int(np.minimum(apart, 2 * int(np.median(apart)))[apart < HOST_WORK_NS].sum())
    waits = loop.calls.of(SYNC)
    launching += int((waits.end_ns - waits.begin_ns).sum())
    blocks = float(np.median(np.repeat(launches.blocks[known], np.minimum(launches.count[known], 1000))))
    ready = sum(each.length_ns for each in loop.activities if each.cause in FOR_A_CPU)
    if launching < LAUNCHING_SHARE * (loop.length_ns - ready) or blocks >= loop.sms:
        return 0
    text = f"a grid has {blocks:.0f} blocks in the median, the device {loop.sms} multiprocessors"
    evidence.append(StallEvidence(name="grids", text=text, value=blocks / loop.sms, unit="1"))
    text = f"{launching / loop.length_ns:.0%} of the time the host launches one after the other, or waits for them"
    evidence.append(StallEvidence(name="launching", text=text, value=launching / 1e9, unit="s"))
    return int(launching * (1 - blocks / loop.sms))


def _site_of_launches(loop: Loop) -> Frame | None:
    """The line that most launches are at: by their stacks where those were taken, else by samples of the clock."""
    spent = Counter(
        own_frame(row.frames) for row in loop.thread.rows if row.call and "Launch" in row.call
    ) or Counter(
        own_frame(row.frames)
        for row in loop.thread.of(CPU)
        if any("Launch" in frame.name for frame in row.frames)
    )
    return spent.most_common(1)[0][0] if spent else None
