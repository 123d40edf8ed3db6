"""The thread that a program waits for, and the time in which it does its work. Pure.

The main thread, unless that only waits for others: then the thread with Python code that has most CPU time. A process
that only waits for its children (a launcher, a shell) is none to look at: they are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from otelgpu.diagnose.stall.observations import CPU, OFF_CPU, Seen, ThreadSeen
from otelgpu.render.frames import Kind

PARKED: Final = 0.9
"""Share of its time that a thread is in one wait: it has nothing to do."""
_PARKED_WAITS: Final = 6
_IMPORTING: Final = ("<frozen importlib", "importlib/_bootstrap")
_ENDING: Final = frozenset(("Py_FinalizeEx", "_Py_Finalize", "finalize_modules"))


def window(thread: ThreadSeen) -> tuple[int, int]:
    """From when to when a thread does its work: after imports, and before the interpreter ends.

    Of several stretches without imports, the longest: a loop may be before or after them.
    """
    rows = thread.rows
    if not rows:
        return 0, 0
    first, last = rows[0].begin_ns, max(row.end_ns for row in rows)
    ending = next((row.begin_ns for row in rows if _is_ending(row)), last)
    stretches, begin = [], first
    for row in rows:
        if row.begin_ns >= ending:
            break
        if _is_importing(row):
            stretches.append((begin, max(row.begin_ns, begin)))
            begin = max(begin, row.end_ns)
    stretches.append((begin, max(ending, begin)))
    return max(stretches, key=lambda each: each[1] - each[0])


def _is_importing(row: Seen) -> bool:
    return any(
        frame.kind is Kind.PYTHON and any(part in frame.file for part in _IMPORTING) for frame in row.frames
    )


def _is_ending(row: Seen) -> bool:
    return any(frame.name in _ENDING for frame in row.frames)


def critical_threads(threads: Iterable[ThreadSeen], subjects: Collection[int] = ()) -> list[ThreadSeen]:
    """One thread of each process that is to be judged. ``subjects``: processes that were asked for; empty: all."""
    processes: dict[int, list[ThreadSeen]] = defaultdict(list)
    for thread in threads:
        processes[thread.pid].append(thread)
    chosen = {pid: _critical(mine) for pid, mine in processes.items()}
    wanted = [found for pid in subjects if (found := chosen.get(pid)) is not None]
    if wanted:
        return wanted
    busy = [each for each in chosen.values() if each is not None]
    busiest = max(map(cpu_ns, busy), default=0)
    return sorted(
        (each for each in busy if not subjects or cpu_ns(each) * 10 >= busiest),
        key=lambda each: -cpu_ns(each),
    )


def _critical(threads: Sequence[ThreadSeen]) -> ThreadSeen | None:
    main = next((each for each in threads if each.tid == each.pid), None)
    if main is not None and main.rows and not is_parked(main):
        return main
    others = [each for each in threads if each is not main and cpu_ns(each) and not is_parked(each)]
    python = [each for each in others if _runs_python(each)]
    return max(python or others, key=cpu_ns, default=None)


def cpu_ns(thread: ThreadSeen) -> int:
    """CPU time, as its samples have it."""
    return sum(row.length_ns for row in thread.of(CPU))


def is_parked(thread: ThreadSeen) -> bool:
    """It does nothing but wait in one place. A long wait may be reported in parts, of the same stack."""
    begin, end = window(thread)
    stacks: dict[object, int] = defaultdict(int)
    waits = [row for row in thread.of(OFF_CPU) if row.state != "runnable"]
    for row in waits:
        stacks[row.frames] += row.length_ns
    longest = max(stacks.values(), default=0)
    return longest >= PARKED * max(end - begin, 1) and len(waits) < _PARKED_WAITS


def _runs_python(thread: ThreadSeen) -> bool:
    return any(frame.kind is Kind.PYTHON for row in thread.rows for frame in row.frames)
