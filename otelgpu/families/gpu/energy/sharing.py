"""What was used in an interval, among the requests that it was used for: exactly, in whole numbers. Pure.

In: an interval of one GPU, the processes on it, and what each of them worked on. Out: what is idle, what is charged
to each request, and what is nobody's; their sum is what was used, whatever comes in.

A process's part goes, by the first that is known:

1. ``steps``: to the engine steps that overlap the interval, by how much they do, and of each step to its members by
   the tokens that it worked on for them; a step whose members are not all known goes to the requests under way in it;
2. ``device_time``: to the requests that the device worked for, by how long;
3. ``calls``: to the requests whose threads called the device, by the host time in those calls, waits among them;
4. ``concurrency``: to the requests under way, equally, as long as each was.

>>> split(Used(10, 100), [1, 1, 1])
[Used(nanojoules=3, time_ns=33), Used(nanojoules=3, time_ns=33), Used(nanojoules=4, time_ns=34)]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from msgspec import Struct, field

NOBODY: Final = 0
"""In place of a request's key: what is charged to it is unattributed."""


class Method(StrEnum):
    """How a request's part was found: ``otelgpu.gen_ai.request.energy.method``."""

    STEPS = "steps"
    DEVICE_TIME = "device_time"
    CALLS = "calls"
    CONCURRENCY = "concurrency"


class Used(NamedTuple):
    """Of a GPU."""

    nanojoules: int
    time_ns: int  # in which somebody worked on it


class Charge(NamedTuple):
    """To a request, by its key; or to NOBODY."""

    key: int
    used: Used
    method: Method


class StepPart(NamedTuple):
    """A step of an engine in an interval."""

    overlap_ns: int
    members: tuple[tuple[int, int], ...]  # request and tokens; () where they are not all known
    under_way: tuple[tuple[int, int], ...]  # requests, and for how much of the step: in place of the members


class ProcessPart(Struct, frozen=True, kw_only=True):
    """What a process did on a GPU in an interval. ``weight``: of it among all processes there."""

    weight: int
    steps: Sequence[StepPart] = ()
    device_time: Sequence[tuple[int, int]] = ()  # request and nanoseconds
    calls: Sequence[tuple[int, int]] = ()  # the same
    under_way: Sequence[tuple[int, int]] = ()  # the same
    spans: Sequence[tuple[int, int]] = field(default_factory=tuple)  # when anything of it was under way


def split(used: Used, weights: Sequence[int]) -> list[Used]:
    """Parts by weight, whose sum is ``used``; all of it to the last where no weight is above 0."""
    if not weights:
        return []
    whole = sum(weights) or 1
    found: list[Used] = []
    given = Used(0, 0)
    reached = 0
    for position, weight in enumerate(weights):
        reached += weight
        share = whole if position == len(weights) - 1 else reached
        upto = Used(used.nanojoules * share // whole, used.time_ns * share // whole)
        found.append(Used(upto.nanojoules - given.nanojoules, upto.time_ns - given.time_ns))
        given = upto
    return found


def charges(used: Used, processes: Sequence[ProcessPart]) -> list[Charge]:
    """What was used beyond idling, to whom; of a process without any request it is nobody's."""
    found: list[Charge] = []
    for process, part in zip(processes, split(used, [each.weight for each in processes]), strict=True):
        found += _of_process(part, process)
    if not processes:
        found.append(Charge(NOBODY, used, Method.CONCURRENCY))
    return found


def _of_process(used: Used, process: ProcessPart) -> list[Charge]:
    if process.steps:
        found: list[Charge] = []
        parts = split(used, [step.overlap_ns for step in process.steps])
        for step, part in zip(process.steps, parts, strict=True):
            method = Method.STEPS if step.members else Method.CONCURRENCY
            found += _among(part, step.members or step.under_way, method)
        return found
    for method, weights in (
        (Method.DEVICE_TIME, process.device_time),
        (Method.CALLS, process.calls),
    ):
        if weights:
            return _among(used, weights, method)
    return _among(used, process.under_way, Method.CONCURRENCY)


def _among(used: Used, weights: Sequence[tuple[int, int]], method: Method) -> list[Charge]:
    if not any(weight for _, weight in weights):
        return [Charge(NOBODY, used, method)]
    parts = split(used, [weight for _, weight in weights])
    return [Charge(key, part, method) for (key, _), part in zip(weights, parts, strict=True)]


def covered_ns(spans: Iterable[tuple[int, int]]) -> int:
    """How long at least one of the spans lasted.

    >>> covered_ns([(10, 20), (0, 12), (30, 31)])
    21
    """
    whole = reached = 0
    for start, end in sorted(spans):
        start = max(start, reached)
        if end > start:
            whole += end - start
            reached = end
    return whole
