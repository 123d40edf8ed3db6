"""From profiles to a report: the critical thread, its rhythm, what breaks it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from statistics import median
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from otelgpu.diagnose.stall.activities import Activity, activities
from otelgpu.diagnose.stall.causes import (
    CAUSES,
    CPU_CONTENTION,
    FOR_A_CPU,
    GIL,
    IDLE,
    INPUT,
    LOCK,
    SLEEP,
    own_frame,
)
from otelgpu.diagnose.stall.compiling import compiled
from otelgpu.diagnose.stall.critical import critical_threads, window
from otelgpu.diagnose.stall.disks import disk_evidence, disk_of
from otelgpu.diagnose.stall.evidence import evidence_of, file_evidence, peer_evidence
from otelgpu.diagnose.stall.gaps import (
    LEAST_GAP_NS,
    LONGER,
    Finding,
    bursts,
    cause_of_group,
    file_of,
    findings,
    groups,
    stall_bytes,
    time_in_steps,
)
from otelgpu.diagnose.stall.holders import holder_of, line_of
from otelgpu.diagnose.stall.observations import (
    CPU,
    FILE_TIME,
    OFF_CPU,
    SYSCALL_TIME,
    Observations,
    ThreadSeen,
)
from otelgpu.diagnose.stall.processor import throttled, unjudged_contention
from otelgpu.diagnose.stall.rhythm import Rhythm as Steps
from otelgpu.diagnose.stall.rhythm import find_rhythm
from otelgpu.diagnose.stall.surroundings import Surroundings
from otelgpu.diagnose.stall.verdicts import (
    INCONCLUSIVE,
    STALL,
    Latency,
    Rhythm,
    Spent,
    StallCost,
    StallEvidence,
    StallReport,
    StallSummary,
    StallVerdict,
    ThreadPlace,
)
from otelgpu.model.quantities import duration
from otelgpu.render.frames import Frame

LEAST_SECONDS: Final = 0.5
"""Of a thread that is looked at: of less nothing is usual."""
UNEXPLAINED: Final = 0.1
"""Share of the time in gaps that nothing seen explains, from which on that is said."""
MOST_SPANS: Final = 20
MOST_ROWS: Final = 12
_KINDS: Final = {
    OFF_CPU: "offcpu: waits cannot be told",
    SYSCALL_TIME: "syscall: sleeps and calls cannot be told",
    FILE_TIME: "file: the names and sizes of files cannot be told",
    CPU: "cpu: garbage collections and page faults cannot be told",
}


class Judged(Struct, frozen=True, kw_only=True):
    """One thread's: what the page draws."""

    thread: ThreadSeen
    begin_ns: int
    end_ns: int
    activities: Sequence[Activity]
    steps: Steps | None
    findings: Sequence[Finding]
    remarks: Sequence[str] = ()


def diagnose(
    seen: Observations,
    *,
    subjects: Collection[int] = (),
    surroundings: Mapping[int, Surroundings] | None = None,
) -> tuple[StallReport, list[Judged]]:
    """The report, and what it was made of.

    ``subjects``: processes that were asked for; empty: all. ``surroundings``: by process; None: nobody looked.
    """
    chosen = critical_threads(seen.threads, subjects)
    judged = [_judge(thread, seen.threads, (surroundings or {}).get(thread.pid)) for thread in chosen]
    limits = []
    if surroundings is None:  # else all kinds were recorded, and some had nothing to report
        limits += [f"no profile of kind {says}" for kind, says in _KINDS.items() if kind not in seen.types]
        limits.append(
            "from a file: whether a control group's quota throttled it, and who else ran, is not known"
        )
    verdicts = [
        _verdict(finding, each, seen, (surroundings or {}).get(each.thread.pid))
        for each in judged
        for finding in each.findings
    ]
    if not verdicts and (lacking := _lacking(seen, judged, is_file=surroundings is None)) is not None:
        verdicts = [lacking]
    first = judged[0] if judged else None
    return StallReport(
        verdicts=verdicts,
        input=_summary(seen, first),
        table=_table(first) if first is not None else [],
        remarks=[text for each in judged for text in _remarks(each)],
        limits=limits,
    ), judged


def _judge(thread: ThreadSeen, all_threads: Sequence[ThreadSeen], around: Surroundings | None) -> Judged:
    begin, end = window(thread)
    found = throttled([each for each in activities(thread) if begin <= each.begin_ns < end], around)
    found = compiled(found, thread, all_threads)
    steps = find_rhythm(thread, begin, end)
    if steps is not None:
        begin, end = int(steps.begins_ns[0]), int(steps.ends_ns[-1])
        found = [each for each in found if begin <= each.begin_ns < end]
    named = findings(found, steps, begin, end)
    remarks = []
    if any(each.cause == CPU_CONTENTION for each in named):
        remarks = unjudged_contention(thread, found, all_threads, around)
        named = [each for each in named if each.cause != CPU_CONTENTION or not remarks]
    return Judged(
        thread=thread,
        begin_ns=begin,
        end_ns=end,
        activities=found,
        steps=steps,
        findings=named,
        remarks=remarks,
    )


def place_of(thread: ThreadSeen) -> ThreadPlace:
    """As documents have it."""
    return ThreadPlace(pid=thread.pid, program=thread.program, tid=thread.tid, name=thread.name)


def _verdict(
    finding: Finding, judged: Judged, seen: Observations, around: Surroundings | None
) -> StallVerdict:
    cause, disk = finding.cause, disk_of(finding, judged.thread)
    mine = [each for each in finding.activities if each.cause == cause] or list(finding.activities)
    longest = _most(mine)
    lengths = sorted(finding.lengths_ns)
    file, path = file_of(mine)
    holder = None
    if cause in (GIL, LOCK) or (cause == INPUT and longest.waker):
        holder = holder_of(mine, cause, judged.thread, seen.threads)
    return StallVerdict(
        klass=STALL,
        cause=cause,
        thread=place_of(judged.thread),
        line=line_of(longest.site),
        file=file,
        path=path,
        device="" if disk is None else disk.device,
        bytes=stall_bytes(finding),
        latency=Latency(median_s=median(lengths) / 1e9, most_s=lengths[-1] / 1e9),
        rhythm=Rhythm(
            times=len(finding.stalls),
            steps=finding.steps,
            every=finding.every,
            period_s=finding.period_ns / 1e9,
        ),
        kernel=() if cause in FOR_A_CPU else _kernel(mine),
        holder=holder,
        cost=StallCost(seconds=finding.cost_ns / 1e9, share=finding.share),
        confidence=round(finding.explained, 3),
        evidence=[
            *evidence_of(finding, judged.steps, around),
            *file_evidence(path),
            *peer_evidence(finding, judged.thread.tid, around),
            *disk_evidence(finding, disk, seen, around),
        ],
        spans=list(dict.fromkeys(each.span for each in finding.activities if each.span))[:MOST_SPANS],
        next=CAUSES[cause].next,
        code=CAUSES[cause].code,
        start_unix_s=finding.activities[0].begin_ns / 1e9,
        end_unix_s=finding.activities[-1].end_ns / 1e9,
    )


def _most(found: Sequence[Activity]) -> Activity:
    """The longest, from the line that most of the time is spent at."""
    spent: dict[object, int] = {}
    for each in found:
        spent[each.site] = spent.get(each.site, 0) + each.length_ns
    site = max(spent, key=lambda key: (key is not None, spent[key]))
    return max((each for each in found if each.site == site), key=lambda each: each.length_ns)


def _kernel(found: Sequence[Activity]) -> Sequence[str]:
    spent: Counter[tuple[str, ...]] = Counter()
    for each in found:
        if each.kernel:
            spent[each.kernel] += each.length_ns
    return list(spent.most_common(1)[0][0]) if spent else []


def _lacking(seen: Observations, judged: Sequence[Judged], *, is_file: bool) -> StallVerdict | None:
    """Why nothing can be said; None where it can."""
    if is_file and not seen.types & {OFF_CPU, SYSCALL_TIME, FILE_TIME}:
        return _inconclusive(
            "there are no waits, system calls or calls on files in the input",
            "record with: otelgpu profile -t cpu,offcpu,syscall,file,block --export file:profile.jsonl -p PID",
        )
    if not judged:
        return _inconclusive(
            "no thread was seen that does the work: all of them wait in one place, or nothing ran",
            "record for longer, and while it is slow; name the process that works with -p",
        )
    longest = max((each.end_ns - each.begin_ns for each in judged), default=0) / 1e9
    if longest < LEAST_SECONDS:
        return _inconclusive(
            f"the thread was at work for {longest:.2g} s: too short to say what is usual",
            "record for longer: -d 30",
        )
    for each in judged:
        if (missing := _unexplained(each)) is not None:
            return missing
    return None


def _unexplained(judged: Judged) -> StallVerdict | None:
    """Gaps that nothing explains: said, for silence would be taken for health."""
    steps = judged.steps
    if steps is None:
        return None
    ran = steps.lengths_ns - time_in_steps(judged.activities, steps)
    gap = ran - int(np.median(ran))
    long = gap > max(LONGER * steps.usual_ns, LEAST_GAP_NS)
    total = int(steps.ends_ns[-1] - steps.begins_ns[0])
    if long[:-1].sum() < 2 or gap[:-1][long[:-1]].sum() < UNEXPLAINED * total:
        return None
    return _inconclusive(
        f"{int(long[:-1].sum())} of {len(gap)} steps are longer than usual ({duration(float(steps.usual_ns))}), "
        "and no wait that was seen explains it: the thread ran, or waited for less than 1 ms at a time"
        + _ran_at(judged, steps, long),
        "otelgpu profile -t cpu,python -p PID says what it ran",
    )


def _ran_at(judged: Judged, steps: Steps, long: npt.NDArray[np.bool_]) -> str:
    """Where it was seen on a CPU in those steps, more than in the others."""
    inside: Counter[Frame] = Counter()
    outside: Counter[Frame] = Counter()
    for row in judged.thread.of(CPU):
        step = int(np.searchsorted(steps.begins_ns, row.begin_ns, side="right")) - 1
        if (frame := own_frame(row.frames)) is not None and 0 <= step < len(long):
            (inside if long[step] else outside)[frame] += row.length_ns
    share = long.sum() / max((~long).sum(), 1)
    more = {frame: spent - share * outside[frame] for frame, spent in inside.items()}
    most = max(more, key=lambda frame: more[frame], default=None)
    return "" if most is None else f", most of it at {most.label}"


def _inconclusive(text: str, following: str) -> StallVerdict:
    return StallVerdict(
        klass=INCONCLUSIVE,
        confidence=1.0,
        evidence=[StallEvidence(name="missing", text=text)],
        next=following,
    )


def _summary(seen: Observations, judged: Judged | None) -> StallSummary:
    steps = judged.steps if judged is not None else None
    return StallSummary(
        processes=len({thread.pid for thread in seen.threads}),
        threads=len(seen.threads),
        thread=place_of(judged.thread) if judged is not None else None,
        seconds=(judged.end_ns - judged.begin_ns) / 1e9 if judged is not None else 0.0,
        beat=steps.beat if steps is not None else "",
        steps=len(steps.begins_ns) if steps is not None else 0,
        usual_step_s=steps.usual_ns / 1e9 if steps is not None else 0.0,
        rejected=dict(sorted(seen.rejected.items())),
    )


def _table(judged: Judged) -> list[Spent]:
    total = max(judged.end_ns - judged.begin_ns, 1)
    rows = []
    for group in groups(judged.activities).values():
        cause, site = cause_of_group(group), _most(group).site
        what = " ".join(filter(None, (file_of(group)[0], f"in {site.label}" if site is not None else "")))
        rows.append(_spent(cause, what, group, total))
    idle = [each for each in judged.activities if each.cause == IDLE]
    if idle:
        rows.append(_spent(IDLE, "", idle, total))
    rows.sort(key=lambda row: -row.seconds)
    rest = total - sum(each.length_ns for each in judged.activities)
    running = Spent(
        cause="running", what="", times=0, seconds=max(rest, 0) / 1e9, share=max(rest, 0) / total, most_s=0.0
    )
    return [*rows[:MOST_ROWS], running]


def _spent(cause: str, what: str, group: Sequence[Activity], total: int) -> Spent:
    seconds = sum(each.length_ns for each in group) / 1e9
    return Spent(
        cause=cause,
        what=what,
        times=len(group),
        seconds=seconds,
        share=seconds * 1e9 / total,
        most_s=max(each.length_ns for each in group) / 1e9,
    )


def _remarks(judged: Judged) -> list[str]:
    """What takes long, and is as it is meant."""
    named = {(each.cause, each.activities[0].site) for each in judged.findings}
    total = max(judged.end_ns - judged.begin_ns, 1)
    texts = list(judged.remarks)
    for group in groups(judged.activities).values():
        cause, longest = cause_of_group(group), _most(group)
        spent = sum(each.length_ns for each in group)
        if cause != SLEEP or spent < 0.1 * total or (cause, longest.site) in named:
            continue
        where = longest.site.label if longest.site is not None else "native code"
        times = len(bursts(group))
        texts.append(
            f"{where} sleeps {duration(spent / len(group))} each time, {times} times, {spent / total:.0%} of the time: "
            "in every step alike, which is no stall"
        )
    return texts
