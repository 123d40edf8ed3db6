"""What speaks for a verdict, in words and numbers. Pure."""

from __future__ import annotations

from collections import Counter
from statistics import median
from typing import Final

from otelgpu.diagnose.stall.causes import CPU_CONTENTION, FILES, FOR_A_CPU, NETWORK, PAGE_FAULTS, SUBPROCESS
from otelgpu.diagnose.stall.gaps import Finding
from otelgpu.diagnose.stall.rhythm import Rhythm
from otelgpu.diagnose.stall.surroundings import SocketWait, Surroundings
from otelgpu.diagnose.stall.verdicts import StallEvidence
from otelgpu.model.files import CUT
from otelgpu.model.quantities import duration

_MOST_NEIGHBOURS: Final = 3
_MOST_PEERS: Final = 2
_CALLED: Final = {"file_write": "write", "file_sync": "sync", "file_read": "read"}


def evidence_of(finding: Finding, steps: Rhythm | None, around: Surroundings | None) -> list[StallEvidence]:
    """The most telling first."""
    found = [_steps(finding, steps), *_calls(finding), *_ready(finding)]
    if around is not None:
        found += _surrounding(finding, around)
    return found


def file_evidence(path: str) -> list[StallEvidence]:
    """Where the file lies, as its process sees it: in a container from its root directory."""
    if not path:
        return []
    cut = ": the directories nearest to the root are too many to be kept" if path.startswith(CUT) else ""
    return [StallEvidence(name="file", text=f"the file is {path}{cut}")]


def peer_evidence(finding: Finding, tid: int, around: Surroundings | None) -> list[StallEvidence]:
    """Who has the other end of the socket that a thread was seen to wait on."""
    if finding.cause != NETWORK or around is None:
        return []
    mine = sorted((each for each in around.socket_waits if each.tid == tid), key=lambda each: -each.looks)
    return [
        StallEvidence(
            name="peer",
            text=f"in {each.looks} of {each.all_looks} looks at which it stood in a call on a socket, the peer was "
            f"{each.address}{_held_by(each)}",
            value=each.looks / each.all_looks,
            unit="1",
        )
        for each in mine[:_MOST_PEERS]
    ]


def _held_by(wait: SocketWait) -> str:
    if not wait.pid:
        return ", which no process of this machine is known to have"
    return f", {wait.name or 'process'} (PID {wait.pid})" + (
        " in another network namespace" if wait.elsewhere else ""
    )


def _steps(finding: Finding, steps: Rhythm | None) -> StallEvidence:
    lengths = finding.lengths_ns
    each = median(lengths)
    if steps is None:
        text = f"{len(lengths)} times, {duration(each)} in the median: no steps are known"
        return StallEvidence(name="stall", text=text, value=each / 1e9, unit="s")
    usual = duration(float(steps.usual_ns))
    if finding.steady:
        text = f"{duration(finding.cost_ns / max(finding.steps, 1))} of each step of {usual}, in every step alike"
        return StallEvidence(name="share", text=text, value=finding.share, unit="1")
    text = f"steps with it take {duration(steps.usual_ns + finding.cost_ns / len(lengths))}, the usual one {usual}"
    return StallEvidence(name="step", text=text, value=finding.cost_ns / len(lengths) / 1e9, unit="s")


def _calls(finding: Finding) -> list[StallEvidence]:
    """Where several kinds of calls make a stall: how long each takes."""
    if finding.cause not in FILES:
        return []
    spent: Counter[str] = Counter()
    for each in finding.activities:
        spent[_CALLED.get(each.cause, each.syscall)] += each.length_ns
    shares = ", ".join(
        f"{name} {duration(length / len(finding.stalls))}" for name, length in spent.most_common(4)
    )
    return [StallEvidence(name="calls", text=f"each time: {shares}")]


def _ready(finding: Finding) -> list[StallEvidence]:
    """How much of a call the thread would have run, had there been a CPU."""
    if finding.cause in FOR_A_CPU:
        return []
    ready = sum(each.ready_ns for each in finding.activities)
    total = sum(each.length_ns for each in finding.activities)
    if ready < 0.2 * total:
        return []
    text = (
        f"{ready / max(total, 1):.0%} of that time the thread was ready and waited for a CPU: "
        "on a quiet machine it is shorter"
    )
    return [StallEvidence(name="ready", text=text, value=ready / 1e9, unit="s")]


def _surrounding(finding: Finding, around: Surroundings) -> list[StallEvidence]:
    found = []
    if around.throttled_s and around.throttled_times and finding.cause in FOR_A_CPU:
        quota = f" (quota: {around.quota_cpus:.3g} CPUs)" if around.quota_cpus is not None else ""
        times = f"{around.throttled_times} times"
        if around.quota_periods:
            times = f"in {around.throttled_times} of {around.quota_periods} periods"
        text = f"its control group was throttled {times}, {around.throttled_s:.3g} s in all{quota}"
        found.append(StallEvidence(name="throttled", text=text, value=around.throttled_s, unit="s"))
    if finding.cause == PAGE_FAULTS and around.minor_faults is not None and around.major_faults is not None:
        text = f"{around.minor_faults} page faults, {around.major_faults} of them from a disk"
        found.append(StallEvidence(name="faults", text=text, value=float(around.minor_faults), unit="1"))
    if finding.cause in (CPU_CONTENTION, SUBPROCESS) and around.neighbours:
        who = ", ".join(
            f"{each.name} (PID {each.pid}) {each.cpu_s:.2g} s"
            for each in around.neighbours[:_MOST_NEIGHBOURS]
        )
        found.append(StallEvidence(name="meanwhile", text=f"meanwhile had CPU time: {who}"))
    return found
