"""A thread's observations as one timeline: calls and waits, one after the other, each with its cause. Pure.

In: :class:`ThreadSeen`. Out: :class:`Activity` values that do not overlap, in order of time; what lies between is
running. A slow call on a file, the system call that it is, and the waits inside it are one activity: what the call is
on comes from the first, the kernel's frames from the last. Samples of the clock say of running what Python cannot:
the time of a garbage collector, of page faults, or of a compiler in the process.

Example: ``write`` of 62 ms, in it three waits of 20 ms for a CPU: one activity of 62 ms, :data:`FILE_WRITE`, of which
``ready_ns`` is 60 ms.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct, structs

from otelgpu.diagnose.stall.causes import (
    COMPILE,
    CPU_CONTENTION,
    FAULTS,
    GARBAGE_COLLECTION,
    IDLE,
    PAGE_FAULTS,
    cause_of,
    cause_of_call,
    kernel_frames,
    own_frame,
    own_path,
)
from otelgpu.diagnose.stall.observations import (
    CALL_TIMES,
    CPU,
    FILE_TIME,
    OFF_CPU,
    SYSCALL_TIME,
    Frames,
    Seen,
    ThreadSeen,
)
from otelgpu.render.frames import Frame

LEAST_NS: Final = 500_000
"""Shorter calls are steps of the rhythm, never stalls."""
_SLACK_NS: Final = 300_000
_WOKEN_BY: Final = "[woken by]"
_SAMPLED: Final = (GARBAGE_COLLECTION, PAGE_FAULTS, COMPILE)
_APART: Final = 2.5  # periods: samples that are no further apart are of one run


class Activity(Struct, frozen=True, kw_only=True):
    """What the thread did or waited for.

    ``site``: the program's own Python line, or function; ``path``: names of its functions, the innermost first;
    ``syscall``: of a vendor's library the function. ``ready_ns``:
    how long of it the thread waited for a CPU. ``waker``: frames of who ended the wait, the leaf first.
    """

    begin_ns: int
    end_ns: int
    cause: str
    site: Frame | None
    path: tuple[str, ...] = ()
    syscall: str = ""
    file_name: str = ""
    file_path: str = ""
    size_bytes: int = -1
    kernel: tuple[str, ...] = ()
    waker: Frames = ()
    ready_ns: int = 0
    span: str = ""

    @property
    def length_ns(self) -> int:
        """How long it took."""
        return self.end_ns - self.begin_ns


def split_waker(frames: Frames) -> tuple[Frames, Frames]:
    """The stack that waited, and that of who woke it: profiles have the two as one, the waker's upside down."""
    place = next((at for at, frame in enumerate(frames) if frame.name == _WOKEN_BY), -1)
    return (frames, ()) if place < 0 else (frames[place + 1 :], tuple(reversed(frames[:place])))


def activities(thread: ThreadSeen) -> list[Activity]:
    """All of a thread, in order."""
    calls = list(_calls(thread))
    waits = [_wait(row) for row in thread.of(OFF_CPU)]
    joined = _with_waits(calls, waits)
    samples = thread.of(CPU)
    found = [*_with_samples(joined, samples), *_sampled(samples, joined)]
    return _apart(sorted(found, key=lambda each: (each.begin_ns, -each.end_ns)))


def _calls(thread: ThreadSeen) -> Iterator[Activity]:
    """Calls that are reported by themselves; of files what they are on."""
    files = {row.begin_ns // _SLACK_NS: row for row in thread.of(FILE_TIME)}
    used = set()
    for row in thread.of(SYSCALL_TIME):
        if row.count != 1 or row.length_ns < LEAST_NS:
            continue
        near = (row.begin_ns // _SLACK_NS + at for at in (0, -1, 1))
        file = next((files[at] for at in near if at in files), None)
        if file is not None:
            used.add(id(file))
            row = structs.replace(
                row,
                file_call=file.file_call,
                file_name=file.file_name,
                file_path=file.file_path,
                size_bytes=file.size_bytes,
            )
        yield _activity(row)
    yield from (_activity(row) for row in files.values() if id(row) not in used)
    for row in thread.of(*CALL_TIMES):
        if row.length_ns >= LEAST_NS and cause_of_call(row.call):
            yield _activity(row)


def _wait(row: Seen) -> Activity:
    frames, waker = split_waker(row.frames)
    found = _activity(structs.replace(row, frames=frames))
    ready = row.length_ns if row.state == "runnable" else 0
    return structs.replace(found, waker=waker, ready_ns=ready)


def _activity(row: Seen) -> Activity:
    cause = cause_of(row.frames, syscall=row.syscall, file_call=row.file_call, state=row.state, call=row.call)
    return Activity(
        begin_ns=row.begin_ns,
        end_ns=row.end_ns,
        cause=cause or IDLE,
        site=own_frame(row.frames),
        path=own_path(row.frames),
        syscall=row.call or row.syscall,
        file_name=row.file_name,
        file_path=row.file_path,
        size_bytes=row.size_bytes,
        kernel=kernel_frames(row.frames),
        span=row.span,
    )


def _with_waits(calls: list[Activity], waits: list[Activity]) -> list[Activity]:
    """Waits inside a call are part of it; the others stand for themselves."""
    calls.sort(key=lambda each: (each.begin_ns, -each.end_ns))
    begins = [each.begin_ns for each in calls]
    inside: dict[int, list[Activity]] = {}
    alone = []
    for wait in waits:
        at = bisect_left(begins, wait.begin_ns + _SLACK_NS) - 1
        if at >= 0 and wait.begin_ns < calls[at].end_ns:
            inside.setdefault(at, []).append(wait)
        else:
            alone.append(wait)
    joined = [_refined(call, inside.get(at, ())) for at, call in enumerate(calls)]
    return _apart(sorted([*joined, *alone], key=lambda each: (each.begin_ns, -each.end_ns)))


def _refined(call: Activity, waits: Sequence[Activity]) -> Activity:
    if not waits:
        return call
    longest = max(waits, key=lambda each: each.length_ns)
    is_known = call.file_name or call.cause != IDLE
    blocked = [each for each in waits if not each.ready_ns]
    decisive = max(blocked, key=lambda each: each.length_ns, default=None)
    cause = call.cause
    if (decisive is not None and (decisive.cause == "gil" or not is_known or cause == "other_wait")) or (
        not call.file_name and call.syscall in ("read", "write", "readv", "writev") and decisive is not None
    ):
        cause = decisive.cause
    return structs.replace(
        call,
        cause=cause,
        kernel=(decisive or longest).kernel or call.kernel,
        waker=next((each.waker for each in reversed(waits) if each.waker), ()),
        ready_ns=sum(each.ready_ns for each in waits),
        site=call.site or longest.site,
        path=call.path or longest.path,
    )


def _apart(found: list[Activity]) -> list[Activity]:
    """Without overlaps: what begins while another lasts begins at its end."""
    out: list[Activity] = []
    for each in found:
        begin = max(each.begin_ns, out[-1].end_ns) if out else each.begin_ns
        if begin < each.end_ns:
            out.append(each if begin == each.begin_ns else structs.replace(each, begin_ns=begin))
    return out


def _with_samples(found: list[Activity], samples: Sequence[Seen]) -> list[Activity]:
    """The kernel's frames of calls that ran in place of waiting: those of a sample of the clock in them."""
    ends = [row.end_ns for row in samples]
    out = []
    for each in found:
        if not each.kernel and each.syscall:
            here = samples[bisect_left(ends, each.begin_ns) : bisect_left(ends, each.end_ns)]
            kernel = next((kernel for row in here if (kernel := kernel_frames(row.frames))), ())
            each = structs.replace(each, kernel=kernel)
        out.append(each)
    return out


def _is_of(one: Seen, other: Seen) -> bool:
    return own_frame(one.frames) == own_frame(other.frames)


def _sampled(samples: Sequence[Seen], found: Sequence[Activity]) -> list[Activity]:
    """Runs of samples of one cause, where nothing else is known."""
    taken = [(each.begin_ns, each.end_ns) for each in found if each.cause != CPU_CONTENTION]
    begins = [begin for begin, _ in taken]
    runs: list[list[Seen]] = []
    causes: list[str] = []
    last = -1  # of what is known, that which began before
    for row in samples:
        names = {frame.name for frame in row.frames}
        cause = cause_of(row.frames) if row.frames else ""
        if cause not in _SAMPLED and FAULTS & names:
            cause = PAGE_FAULTS
        at = bisect_left(begins, row.end_ns) - 1
        if cause not in _SAMPLED or (at >= 0 and row.end_ns < taken[at][1]):
            continue
        if (
            runs
            and at == last
            and causes[-1] == cause
            and _is_of(runs[-1][-1], row)
            and row.begin_ns - runs[-1][-1].end_ns < _APART * row.length_ns
        ):
            runs[-1].append(row)
        else:
            runs.append([row])
            causes.append(cause)
        last = at
    return [
        Activity(
            begin_ns=run[0].begin_ns,
            end_ns=run[-1].end_ns,
            cause=cause,
            site=own_frame(run[0].frames),
            path=own_path(run[0].frames),
            kernel=kernel_frames(run[0].frames),
            span=run[0].span,
        )
        for cause, run in zip(causes, runs, strict=True)
    ]
