"""The steps that a thread goes in: what it does again and again, at regular times. Pure.

In: a thread's system calls and waits. Out: :class:`Rhythm`, the times at which steps begin. A *beat* is a call or a
wait from one Python line, or function of a native program, under the same callers; that which comes at the most
regular times, most often, is the one. Where a step is longer than the others is what is to be explained: so beats need
not come at equal times, but most of them have to.

Example: a loop computes and sleeps 20 times, and writes a file after every fifth: ``clock_nanosleep`` comes 20 times,
15 times after 100 ms and four after 200; ``write`` comes four times. The former gives steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from otelgpu.diagnose.stall.causes import FAULTS, own_frame, own_path
from otelgpu.diagnose.stall.observations import OFF_CPU, SYSCALL_TIME, Seen, ThreadSeen
from otelgpu.render.frames import Frame

LEAST_BEATS: Final = 6
"""Of fewer nothing can be said to be usual."""
NEAR: Final = 0.35
"""Steps that differ by less from the median, of it, are usual."""
USUAL: Final = 0.5
"""Share of the steps that are to be usual."""
COVERED: Final = 0.6
"""Of the time that the thread is looked at, from first to last beat: what comes for a while only is no rhythm of
all."""
LASTS: Final = 0.3
"""The same, of what goes on to the end: a loop after long preparations."""
SAME_NS: Final = 1_000_000
"""Beats of a step come after each other by more."""

BURST: Final = 5.0
"""Usual steps: what comes after a longer time than that, and spends most of the time so, comes in bursts."""
OFTENER: Final = 3.0
"""Than bursts: what comes so often, and evenly, is the rhythm in their place."""

PUBLISHED: Final = "spans that the program publishes"
_GIL_LEAF: Final = "[waiting for the GIL]"

I64 = npt.NDArray[np.int64]
_Candidate = tuple[int, int, str, Frame, I64]  # how often, how deep, what, where, when


class Rhythm(Struct, frozen=True, kw_only=True):
    """Steps begin at ``begins_ns`` (n,) and end at ``ends_ns`` (n,), the last where the thread was last seen at work.

    ``beat``: what begins them, in words, and ``site`` its line; ``usual_ns``: how long most take.
    """

    begins_ns: I64
    ends_ns: I64
    beat: str
    site: Frame | None
    usual_ns: int

    @property
    def lengths_ns(self) -> I64:
        """Of the steps."""
        return self.ends_ns - self.begins_ns


def find_rhythm(thread: ThreadSeen, begin_ns: int, end_ns: int) -> Rhythm | None:
    """Of a thread between two times; None where there is none."""
    spans = _spans(thread.rows, begin_ns, end_ns)
    if _is_regular(spans, end_ns - begin_ns):
        return _rhythm(spans, end_ns, PUBLISHED, None)
    candidates = _candidates(thread.of(SYSCALL_TIME, OFF_CPU), begin_ns, end_ns)
    found = _regular(candidates, begin_ns, end_ns) or _regular(candidates, begin_ns, end_ns, is_last=True)
    if not found:
        return None
    found = _without_bursts(found)
    most = max(count for count, *_ in found)
    # Of what comes about as often, that which is nearest to the loop: inner functions may be called twice in a step.
    _, _, key, site, times = min(
        (each for each in found if each[0] * 1.5 >= most), key=lambda each: (each[1], -each[0], each[2])
    )
    return _rhythm(times, end_ns, key, site)


def _regular(
    candidates: Mapping[tuple[str, Frame, int], I64], begin_ns: int, end_ns: int, *, is_last: bool = False
) -> list[_Candidate]:
    """Those at regular times all the while, or, ``is_last``, from some time on."""
    return [
        (len(times), depth, key, site, times)
        for (key, site, depth), times in candidates.items()
        if _is_regular(times, _rest(times, begin_ns, end_ns) if is_last else end_ns - begin_ns)
    ]


def _rest(times: I64, begin_ns: int, end_ns: int) -> int:
    """From the first beat to the end, where that is long enough; else all."""
    rest = end_ns - int(times[0])
    return rest if rest >= LASTS * (end_ns - begin_ns) else end_ns - begin_ns


def _without_bursts(found: Sequence[_Candidate]) -> list[_Candidate]:
    """Without what comes many times in some steps: the parts in which a large file is read are none.

    Unless nothing else comes several times for each burst: then they are the steps, between stalls that are long.
    """
    bursts = {key: _bursts(times) for _, _, key, _, times in found}
    even = max((count for count, _, key, _, _ in found if not bursts[key]), default=0)
    return [each for each in found if even < OFTENER * bursts[each[2]] or not bursts[each[2]]]


def _bursts(times: I64) -> int:
    """How many there are; 0 where it comes evenly."""
    lengths = np.diff(times)
    apart = lengths[lengths > BURST * np.median(lengths)]
    return len(apart) + 1 if 2 * apart.sum() > times[-1] - times[0] else 0


def _rhythm(times: I64, end_ns: int, beat: str, site: Frame | None) -> Rhythm:
    lengths = np.diff(times)
    last = min(end_ns, int(times[-1]) + 2 * int(lengths.max()))
    ends = np.append(times[1:], max(last, int(times[-1]) + 1))
    return Rhythm(begins_ns=times, ends_ns=ends, beat=beat, site=site, usual_ns=int(np.median(lengths)))


def _spans(rows: Iterable[Seen], begin_ns: int, end_ns: int) -> I64:
    """When each span was first seen that the program publishes; of spans inside each other every change is one."""
    times, current = [], ""
    for row in rows:
        if row.span and row.span != current and begin_ns <= row.begin_ns < end_ns:
            current = row.span
            times.append(row.begin_ns)
    return _apart(times)


def _candidates(rows: Iterable[Seen], begin_ns: int, end_ns: int) -> Mapping[tuple[str, Frame, int], I64]:
    """By what is done and how deep: when. What stands for several calls makes its kind incomplete."""
    times: dict[tuple[str, Frame, tuple[str, ...]], list[int]] = {}
    incomplete = set()
    for row in rows:
        if not begin_ns <= row.begin_ns < end_ns or row.state == "runnable":
            continue
        site, path = own_frame(row.frames), own_path(row.frames)
        if site is None or any(frame.name == _GIL_LEAF for frame in row.frames[:1]):
            continue
        if any(frame.name in FAULTS for frame in row.frames):  # a thousand of them make one gap
            continue
        name = f"{row.syscall or 'wait'} in {site.label}"
        if row.count != 1:
            incomplete.add(name)
        times.setdefault((name, site, path), []).append(row.begin_ns)
    return {
        (name, site, len(path)): _apart(found)
        for (name, site, path), found in times.items()
        if name not in incomplete and len(found) >= LEAST_BEATS
    }


def _apart(times: Sequence[int]) -> I64:
    """One of those that come at once."""
    found = np.sort(np.array(times, dtype=np.int64))
    if not len(found):
        return found
    apart: I64 = found[np.append(True, np.diff(found) >= SAME_NS)]
    return apart


def _is_regular(times: I64, span_ns: int) -> bool:
    if len(times) < LEAST_BEATS or span_ns <= 0:
        return False
    lengths = np.diff(times)
    usual = np.median(lengths)
    near = np.abs(lengths - usual) <= NEAR * usual
    # What stalls makes steps longer, never shorter: those that are shorter speak against a rhythm.
    return bool(near.mean() >= USUAL and (times[-1] - times[0]) >= COVERED * span_ns)
