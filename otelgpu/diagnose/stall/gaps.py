"""What makes steps longer than usual, and what takes a share of all of them that it should not have. Pure.

In: the activities of a thread, its rhythm, the time that it is looked at. Out: :class:`Finding`, the most costly
first.

Activities of one cause, from one function, are a *group*. Of a step longer than usual a group explains what it took
more than it takes in usual steps. Where there is no rhythm, a group is a stall where it comes several times and takes
a share of the time. What every step has alike is reported of causes only that are no work (a lock, throttling, input
that is not there), and from a larger share on; of a sleep never: the program is meant so.

Example: steps of 100 ms, every fifth of 220, in those a ``write`` of 115: that explains 115 of 120 ms.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from otelgpu.diagnose.stall.activities import Activity
from otelgpu.diagnose.stall.causes import (
    CAUSES,
    CGROUP_THROTTLING,
    CPU_CONTENTION,
    FILE_CHANGE,
    FILE_SYNC,
    FILES,
    FOR_A_CPU,
    GARBAGE_COLLECTION,
    GIL,
    IDLE,
    PAGE_FAULTS,
)
from otelgpu.diagnose.stall.rhythm import Rhythm
from otelgpu.render.frames import Frame

LONGER: Final = 0.2
"""Of the usual step: a step that is longer by this has a gap."""
LEAST_GAP_NS: Final = 5_000_000
"""The least that a step is longer by."""
LEAST_SHARE: Final = 0.03
"""Of all time that a stall costs: less is not worth a verdict."""
LEAST_TIMES: Final = 3
"""Steps with the gap: what happens once or twice may be anything."""
ALONE_TIMES: Final = 3
"""The same where no rhythm is known."""
ALONE_SHARE: Final = 0.08
"""Of all time, where no rhythm is known."""
ALONE_NS: Final = 15_000_000
"""Each time, where no rhythm is known: short calls many times are how a program works."""
CONTENDED: Final = 0.15
"""Of all time that waits for a CPU cost, in gaps too: every machine has some."""
LASTING: Final = 0.25
"""Share of what waits for a CPU cost that either half of the time has to have."""
EXPLAINED: Final = 0.3
"""Share of the gaps of its steps that a group has to explain."""
SYNCED: Final = 0.25
"""Share of a group's time on files that waits for the disk, from which on it is named by that."""
REGULAR: Final = 0.75
"""Share of the distances between gaps that are the same: then they come in every n-th step."""

_EVERYWHERE: Final = FOR_A_CPU | {GARBAGE_COLLECTION, PAGE_FAULTS, GIL}
"""Causes that are of no one function."""

I64 = npt.NDArray[np.int64]


class Finding(Struct, frozen=True, kw_only=True):
    """One stall, each time that it happened.

    ``activities``: those that cost, in order; ``stalls``: the same, by when they happened together; ``lengths_ns``: how
    long each took. ``every``: in each so manieth step; 0: irregularly, or not known. ``steady``: every step has it
    alike.
    """

    cause: str
    activities: Sequence[Activity]
    stalls: Sequence[Sequence[Activity]]
    lengths_ns: Sequence[int]
    cost_ns: int
    share: float
    steps: int
    every: int
    period_ns: int
    steady: bool
    explained: float


def findings(found: Sequence[Activity], rhythm: Rhythm | None, begin_ns: int, end_ns: int) -> list[Finding]:
    """All, those that break the rhythm first, of each the most costly first."""
    if rhythm is not None:
        begin_ns, end_ns = int(rhythm.begins_ns[0]), int(rhythm.ends_ns[-1])
    total = max(end_ns - begin_ns, 1)
    inside = [each for each in found if begin_ns <= each.begin_ns < end_ns]
    out = []
    grouped = list(groups(inside).values())
    more = [_excess(group, rhythm) for group in grouped] if rhythm is not None else []
    for at, group in enumerate(grouped):
        # What the steps are found by is in each of them: it is judged as if there were none.
        steps = None if _is_beat(group, rhythm) else rhythm
        in_steps = None
        if rhythm is not None:
            others = sum(
                (each for number, each in enumerate(more) if number != at), start=np.zeros_like(more[at])
            )
            in_steps = _in_steps(group, rhythm, total, more[at], others)
        if steps is not None and cause_of_group(group) in FOR_A_CPU:
            made = _dearer(in_steps, _steady(group, steps, total))
        elif steps is not None:
            made = in_steps or _steady(group, steps, total)
        else:
            made = _alone(group, total) or _steady(group, None, total) or _regular(in_steps)
        if made is not None:
            out.append(made)
    # A machine that others use makes everything longer, what is to be mended too: that comes first.
    return sorted(out, key=lambda each: (_is_usual(each), each.cause == CPU_CONTENTION, -each.cost_ns))


def _is_usual(found: Finding) -> bool:
    """How the program works; not that it is throttled, which makes every other stall longer."""
    return found.steady and found.cause != CGROUP_THROTTLING


def _dearer(gaps: Finding | None, steady: Finding | None) -> Finding | None:
    return max(
        (each for each in (gaps, steady) if each is not None), key=lambda each: each.cost_ns, default=None
    )


def _regular(beat: Finding | None) -> Finding | None:
    """What the steps are found by, where every n-th has more of it: who has nothing to do is not so regular."""
    return beat if beat is not None and beat.every > 1 else None


def _is_beat(group: Sequence[Activity], rhythm: Rhythm | None) -> bool:
    of_one_place = cause_of_group(group) not in _EVERYWHERE
    return rhythm is not None and of_one_place and any(each.site == rhythm.site for each in group)


def groups(found: Sequence[Activity]) -> dict[tuple[str, str, str], list[Activity]]:
    """By cause and function; of files by function."""
    made: dict[tuple[str, str, str], list[Activity]] = defaultdict(list)
    for each in found:
        if each.cause == IDLE:
            continue
        family = "file" if each.cause in FILES else each.cause
        site = None if each.cause in _EVERYWHERE else each.site
        made[family, site.file if site else "", site.name if site else ""].append(each)
    return made


def cause_of_group(group: Sequence[Activity]) -> str:
    """That which takes longest; of files, reading, writing or syncing wherever it has a part in it."""
    spent: Counter[str] = Counter()
    for each in group:
        spent[each.cause] += each.length_ns
    if spent[FILE_SYNC] > SYNCED * spent.total():  # what was written before it may be long because of it
        return FILE_SYNC
    if len(spent) > 1 and spent[FILE_CHANGE] < 0.75 * spent.total():
        del spent[FILE_CHANGE]
    return spent.most_common(1)[0][0]


def _excess(group: Sequence[Activity], rhythm: Rhythm) -> I64:
    """What each step has more of the group than usual ones have, in nanoseconds."""
    spent, usual = time_in_steps(group, rhythm), rhythm.usual_ns
    at_rest = spent[rhythm.lengths_ns - usual <= max(LONGER * usual, LEAST_GAP_NS)]
    return np.maximum(spent - (int(np.median(at_rest)) if len(at_rest) else int(spent.min())), 0)


def _in_steps(
    group: Sequence[Activity], rhythm: Rhythm, total: int, excess: I64, others: I64
) -> Finding | None:
    """``others``: what all other groups have more of: of two in one step each has its part to explain."""
    lengths = rhythm.lengths_ns
    usual = rhythm.usual_ns
    gap = np.maximum(lengths - usual, 0)
    long = gap > max(LONGER * usual, LEAST_GAP_NS)
    spent = time_in_steps(group, rhythm)
    gap[-1] = max(gap[-1], excess[-1])  # the last step has no end that was seen
    long[-1] |= gap[-1] > max(LONGER * usual, LEAST_GAP_NS)
    longer = excess > max(0.1 * usual, LEAST_GAP_NS)
    hit = long & longer & (excess > EXPLAINED * np.maximum(gap - others, 0))
    numbers = np.flatnonzero(hit)
    cost = int(np.minimum(excess, gap)[hit].sum())
    cause = cause_of_group(group)
    least = CONTENDED if cause == CPU_CONTENTION else LEAST_SHARE
    # Of one that comes often enough, some may be hidden by what makes the same steps longer still.
    if len(numbers) < 2 or np.count_nonzero(longer) < LEAST_TIMES or cost < least * total:
        return None
    if cause == CPU_CONTENTION and not _lasts(np.minimum(excess, gap) * hit):
        return None
    place = np.searchsorted(rhythm.begins_ns, [each.begin_ns for each in group], side="right") - 1
    stalls = [[each for each, step in zip(group, place, strict=True) if step == number] for number in numbers]
    telling = _telling(group, place, set(numbers.tolist()), len(lengths))
    stalls = [
        telling_ones for each in stalls if (telling_ones := [one for one in each if one.site in telling])
    ]
    if not stalls:
        return None
    return _finding(
        cause,
        stalls,
        spent[numbers].tolist(),
        cost_ns=cost,
        total=total,
        steps=len(lengths),
        every=every_nth(np.flatnonzero(excess > LEAST_GAP_NS).tolist(), len(lengths)),
        explained=float(cost / max(int(gap[hit].sum()), 1)),
    )


def _telling(
    group: Sequence[Activity], steps: Sequence[int] | I64, hit: set[int], count: int
) -> set[Frame | None]:
    """Lines that have more of the steps with a gap than of the others; all, where none has."""
    inside: Counter[Frame | None] = Counter()
    outside: Counter[Frame | None] = Counter()
    for each, step in zip(group, steps, strict=True):
        (inside if int(step) in hit else outside)[each.site] += each.length_ns
    rest = max(count - len(hit), 1)
    found = {site for site in inside if inside[site] / len(hit) > 2 * outside[site] / rest}
    return found or set(inside)


def _lasts(costs: I64) -> bool:
    """In either half of the steps: a machine is busy for a while, with making tables of unwinding for one."""
    half = len(costs) // 2
    return bool(min(costs[:half].sum(), costs[half:].sum()) >= LASTING * costs.sum())


def time_in_steps(group: Sequence[Activity], rhythm: Rhythm) -> I64:
    """Nanoseconds of the group in each step: an activity that lasts into the next step has its part in both."""
    spent = np.zeros(len(rhythm.begins_ns), dtype=np.int64)
    for each in group:
        first = max(int(np.searchsorted(rhythm.begins_ns, each.begin_ns, side="right")) - 1, 0)
        for step in range(first, len(spent)):
            begin, end = int(rhythm.begins_ns[step]), int(rhythm.ends_ns[step])
            if begin >= each.end_ns:
                break
            spent[step] += max(min(end, each.end_ns) - max(begin, each.begin_ns), 0)
    return spent


def every_nth(numbers: Sequence[int], steps: int) -> int:
    """1 where nearly all steps are hit, n where every n-th is; 0: irregular, or too few to say."""
    if steps and len(numbers) >= 0.9 * steps:
        return 1
    apart = Counter(np.diff(np.array(numbers)).tolist())
    if not apart:
        return 0
    distance, count = apart.most_common(1)[0]
    is_all = (len(numbers) + 1) * distance >= REGULAR * steps
    return int(distance) if count >= REGULAR * apart.total() and is_all else 0


def _alone(group: Sequence[Activity], total: int) -> Finding | None:
    cause = cause_of_group(group)
    if CAUSES[cause].steady is None or cause == CPU_CONTENTION:
        return None
    stalls = [each for each in bursts(group) if _spent(each) >= ALONE_NS]
    cost = sum(map(_spent, stalls))
    if len(stalls) < ALONE_TIMES or cost < ALONE_SHARE * total:
        return None
    lengths = list(map(_spent, stalls))
    return _finding(cause, stalls, lengths, cost_ns=cost, total=total, steps=0, every=0, explained=1.0)


def bursts(group: Sequence[Activity]) -> list[list[Activity]]:
    """Activities that follow each other by less than they take themselves; of throttling one for each period."""
    out: list[list[Activity]] = []
    is_one = cause_of_group(group) == CGROUP_THROTTLING
    for each in sorted(group, key=lambda one: one.begin_ns):
        near = LEAST_GAP_NS if is_one else max(each.length_ns, LEAST_GAP_NS)
        if out and each.begin_ns - out[-1][-1].end_ns <= near // 2:
            out[-1].append(each)
        else:
            out.append([each])
    return out


def _by_step(group: Sequence[Activity], rhythm: Rhythm) -> list[list[Activity]]:
    """Of each step that has some: what a steady one costs is told by the step, and so is what it moves."""
    places = np.searchsorted(rhythm.begins_ns, [each.begin_ns for each in group], side="right")
    out: dict[int, list[Activity]] = defaultdict(list)
    for each, place in zip(group, places.tolist(), strict=True):
        out[place].append(each)
    return [out[place] for place in sorted(out)]


def _steady(group: Sequence[Activity], rhythm: Rhythm | None, total: int) -> Finding | None:
    cause = cause_of_group(group)
    least, cost = CAUSES[cause].steady, _spent(group)
    steps = len(rhythm.begins_ns) if rhythm is not None else 0
    if rhythm is not None:  # an episode in some steps is not in all of them alike
        cost = min(cost, int(np.median(time_in_steps(group, rhythm))) * steps)
        total = min(total, rhythm.usual_ns * steps)
    if least is None or cost < least * total:
        return None
    stalls = bursts(group) if rhythm is None else _by_step(group, rhythm)
    if len(stalls) < ALONE_TIMES:
        return None
    each = time_in_steps(group, rhythm) if rhythm is not None else np.array(list(map(_spent, stalls)))
    hit = np.flatnonzero(each > 0).tolist() if rhythm is not None else []
    return _finding(
        cause,
        stalls,
        each[each > 0].tolist(),
        cost_ns=cost,
        total=total,
        steps=steps,
        every=every_nth(hit, steps),
        explained=1.0,
        steady=True,
        period_ns=rhythm.usual_ns if rhythm is not None else 0,
    )


def _finding(
    cause: str,
    stalls: Sequence[Sequence[Activity]],
    lengths_ns: Sequence[int],
    *,
    cost_ns: int,
    total: int,
    steps: int,
    every: int,
    explained: float,
    steady: bool = False,
    period_ns: int = 0,
) -> Finding:
    begins = [each[0].begin_ns for each in stalls]
    apart = np.diff(np.array(begins))
    return Finding(
        cause=cause,
        activities=[each for stall in stalls for each in stall],
        stalls=stalls,
        lengths_ns=lengths_ns,
        cost_ns=cost_ns,
        share=cost_ns / total,
        steps=steps,
        every=every,
        period_ns=period_ns or (int(np.median(apart)) if len(apart) else 0),
        steady=steady,
        explained=min(explained, 1.0),
    )


def _spent(group: Sequence[Activity]) -> int:
    return sum(each.length_ns for each in group)


def stall_bytes(finding: Finding) -> int | None:
    """Bytes that each stall's calls of the cause moved, in the median; None where that is not known."""
    sizes = [
        sum(each.size_bytes for each in stall if each.size_bytes > 0 and each.cause != FILE_CHANGE)
        for stall in finding.stalls
    ]
    known = [size for size in sizes if size]
    return int(median(known)) if known else None


def file_of(found: Sequence[Activity]) -> tuple[str, str]:
    """The file that most time is spent on, and its path; ("", ""): not known.

    Of many whose names differ by numbers the name has ``*`` in place of those, and the path, too, where they lie in
    several directories.
    """
    spent: Counter[tuple[str, str]] = Counter()
    for each in found:
        if each.file_name:
            spent[each.file_name, each.file_path] += each.length_ns
    if not spent:
        return "", ""
    patterns: Counter[str] = Counter()
    for (name, _), length in spent.items():
        patterns[_starred(name)] += length
    pattern = patterns.most_common(1)[0][0]
    names, paths = zip(*(each for each in spent if _starred(each[0]) == pattern), strict=True)
    file = names[0] if len(set(names)) == 1 else pattern
    if len(set(paths)) == 1:
        return file, paths[0]
    folders = {posixpath.dirname(path) for path in paths if path}
    if not folders:
        return file, ""
    folder = folders.pop() if len(folders) == 1 else _starred(folders.pop())
    return file, posixpath.join(folder, file)


def _starred(text: str) -> str:
    return re.sub(r"\d+", "*", text)
