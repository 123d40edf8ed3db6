"""A verdict on a stall in one sentence, for who reads no JSON. Pure."""

from __future__ import annotations

import posixpath
from typing import Final

from otelgpu.diagnose.stall.causes import CAUSES, FILE_READ, FILES, INPUT
from otelgpu.diagnose.stall.verdicts import INCONCLUSIVE, Line, StallVerdict, ThreadPlace
from otelgpu.model.quantities import duration

_MOST_KERNEL: Final = 5


def sentence(verdict: StallVerdict) -> str:
    """Who, where, what, how long, how often, under what, what it costs and what to do."""
    if verdict.klass == INCONCLUSIVE or verdict.thread is None:
        return f"Inconclusive: {verdict.evidence[0].text}"
    parts = [
        f"Stall: {_who(verdict.thread)} {CAUSES[verdict.cause].says}{_object(verdict)}",
        f" at {shown_line(verdict.line)}" if verdict.line is not None else "",
        _latency(verdict),
        f", {_when(verdict)}",
        f", in the kernel under {' ← '.join(_telling(verdict.kernel))}" if verdict.kernel else "",
        _holder(verdict),
        f"; it costs {verdict.cost.share:.0%} of the time" if verdict.cost is not None else "",
        f": {verdict.next}.",
    ]
    return "".join(parts)


def shown_line(line: Line) -> str:
    """``train.py:31 save``."""
    name = posixpath.basename(line.file) or line.file
    place = f"{name}:{line.line}" if line.line else name
    return f"{place} {line.function}"


def _who(thread: ThreadPlace) -> str:
    which = "main thread" if thread.tid == thread.pid else f'thread "{thread.name}"'
    return f"{thread.program} (PID {thread.pid}), {which} (TID {thread.tid}),"


def _object(verdict: StallVerdict) -> str:
    if verdict.cause == INPUT and any("pipe" in name for name in verdict.kernel):
        return " from a pipe"
    if verdict.cause not in FILES:
        return ""
    size = (
        f" {shown_bytes(verdict.bytes)} {'of' if verdict.cause == FILE_READ else 'to'}"
        if verdict.bytes
        else ""
    )
    return f"{size} {verdict.file or 'a file'}"


def shown_bytes(count: int) -> str:
    """In powers of ten, as files are measured: ``50.0 MB``."""
    value = float(count)
    for unit in ("B", "kB", "MB"):
        if value < 999.5:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"


def _latency(verdict: StallVerdict) -> str:
    if verdict.latency is None:
        return ""
    median, most = duration(verdict.latency.median_s * 1e9), duration(verdict.latency.most_s * 1e9)
    return f", which takes {median}" + (f" (at most {most})" if most != median else "")


def _when(verdict: StallVerdict) -> str:
    rhythm = verdict.rhythm
    if rhythm is None:
        return ""
    period = f" (every {rhythm.period_s:.2g} s)" if rhythm.period_s else ""
    if rhythm.steps and rhythm.every == 1:
        return f"in every one of {rhythm.steps} steps{period}"
    if rhythm.steps and rhythm.every > 1:
        return f"in every {ordinal(rhythm.every)} of {rhythm.steps} steps{period}"
    if rhythm.steps:
        return f"in {rhythm.times} of {rhythm.steps} steps{period}"
    return f"{rhythm.times} times{period}"


def ordinal(number: int) -> str:
    """``5th``."""
    last = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{last}"


def _telling(kernel: object) -> list[str]:
    """The innermost functions, and the last of them: where the kernel was entered."""
    names = list(kernel) if isinstance(kernel, list | tuple) else []
    return names if len(names) <= _MOST_KERNEL else [*names[: _MOST_KERNEL - 2], "…", *names[-2:]]


def _holder(verdict: StallVerdict) -> str:
    holder = verdict.holder
    if holder is None:
        return ""
    where = f" at {shown_line(holder.line)}" if holder.line is not None else ""
    verb = "which comes from" if verdict.cause == INPUT else "held by"
    return f', {verb} thread "{holder.name}" (TID {holder.tid}){where}'
