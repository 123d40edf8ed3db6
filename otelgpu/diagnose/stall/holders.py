"""Who holds what a thread waits for: what the other threads of its process did meanwhile. Pure.

Of the interpreter's lock that is the thread that was on a CPU in Python code, by samples of the clock. Of another
lock it is the thread that ended the wait, where it was seen; its line is where it spent most of the waits.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from otelgpu.diagnose.stall.activities import Activity, split_waker
from otelgpu.diagnose.stall.causes import GIL, own_frame
from otelgpu.diagnose.stall.observations import CPU, OFF_CPU, SYSCALL_TIME, Seen, ThreadSeen
from otelgpu.diagnose.stall.verdicts import Holder, Line
from otelgpu.render.frames import Frame, Kind

LEAST_SHARE: Final = 0.2
"""Of the waits: who was seen less in them is not said to hold anything."""
MOST_WAITS: Final = 200
"""The longest of them are looked at."""


def holder_of(
    waits: Sequence[Activity], cause: str, thread: ThreadSeen, others: Sequence[ThreadSeen]
) -> Holder | None:
    """None where nobody was seen."""
    waits = sorted(waits, key=lambda each: -each.length_ns)[:MOST_WAITS]
    total = sum(each.length_ns for each in waits)
    found: list[tuple[int, ThreadSeen, Frame | None]] = []
    for other in others:
        if other.pid != thread.pid or other.tid == thread.tid:
            continue
        if cause != GIL and not _ended(waits, other):
            continue
        lines: Counter[Frame | None] = Counter()
        for row, length in _meanwhile(waits, other, (CPU,) if cause == GIL else (CPU, OFF_CPU, SYSCALL_TIME)):
            frames, _ = split_waker(row.frames)
            frame = own_frame(frames)
            if cause != GIL or (frame is not None and frame.kind is Kind.PYTHON):
                lines[frame] += length
        if lines:
            found.append((lines.total(), other, lines.most_common(1)[0][0]))
    if not found or not total:
        return None
    spent, other, frame = max(found, key=lambda each: each[0])
    share = min(spent / total, 1.0)
    if share < LEAST_SHARE:
        return None
    return Holder(tid=other.tid, name=other.name, line=line_of(frame), share=share)


def line_of(frame: Frame | None) -> Line | None:
    """As documents have it."""
    return None if frame is None else Line(file=frame.file, line=frame.line, function=frame.name)


def _ended(waits: Sequence[Activity], other: ThreadSeen) -> bool:
    """Whether a thread runs the function that woke the one that waited; True where nobody was seen to wake it."""
    wakers = {(frame.file, frame.name) for each in waits if (frame := own_frame(each.waker)) is not None}
    if not wakers:
        return True
    seen = ((frame.file, frame.name) for row in other.rows for frame in row.frames if frame.file)
    return any(each in wakers for each in seen)


def _meanwhile(
    waits: Sequence[Activity], other: ThreadSeen, types: Sequence[str]
) -> Iterator[tuple[Seen, int]]:
    """What it was seen in during the waits, and for how long; a system call's waits count once."""
    rows = [row for row in other.of(*types) if row.count == 1]
    begins = [row.begin_ns for row in rows]
    longest = max((row.length_ns for row in rows), default=0)
    for wait in waits:
        until = wait.begin_ns
        for row in rows[bisect_left(begins, wait.begin_ns - longest) : bisect_left(begins, wait.end_ns)]:
            begin, end = max(row.begin_ns, until), min(row.end_ns, wait.end_ns)
            if end > begin:
                until = end
                yield row, end - begin
