"""Work handed from one thread of a process to another, as far as the kernel sees it: one woke the other from idle."""

from __future__ import annotations

from enum import IntEnum

from msgspec import Struct


class HandoffEvent(IntEnum):
    """What happened to the thread: ``enum sched_event`` of ``bpf/sched/sched.h``."""

    WOKEN = 1
    TIMED_OUT = 2  # its wait ended by itself
    SIGNALLED = 3  # it reported another thread something: what it was given may be done
    MADE = 4  # it made a semaphore for one thread at a time: a lock, or part of what a result will be in
    AWAITS = 5  # it begins to wait, idle, at the semaphore that it made last: for a result, not for a lock


class Handoff(Struct, frozen=True, kw_only=True):
    """An event of a thread that may be a worker. Times are CLOCK_MONOTONIC nanoseconds."""

    time_ns: int
    tgid: int
    tid: int  # the worker
    event: HandoffEvent
    idle_ns: int = 0  # when the wait that ended began; 0 for the other events
    waker: int = 0  # thread
