"""What spans of ranks do not say, from what they share: the job and global rank of a process, steps that agree. Pure.

A process knows its rank in each communicator, and what its launcher said of the whole job. The largest of these that
it takes part in is taken for the job's, the rank in it for the global one. Each process counts its steps from where it
was first seen to repeat itself, so ranks number one step differently, but their calls of one collective are in the same
step: that gives the difference.

Example: rank 1 was seen two steps later. The collective that rank 0 made in step 12 it made in its step 10, and so in
all others: 2 is added to its numbers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

_AGREED: Final = 0.99
"""Share of the collectives of two processes that have to say the same difference: a step's end may fall between."""

MEMBERS: Final = "SELECT process, hash, rank, max(ranks) FROM {calls} GROUP BY ALL ORDER BY ALL"
"""The fields of :class:`Member`, from a table of calls."""

_SEVERAL: Final = (
    "{service}: {count} communicators that no larger one joins; each is taken for a job, named as its launcher names "
    "it, else by its hash"
)

UNNAMED: Final = "job"
"""Of a launcher that says ranks and names no job."""


class Process(Struct, frozen=True):
    """Whose spans they are. ``service`` is the name of its job, as far as anything says it."""

    host: str
    service: str


class Member(Struct, frozen=True):
    """A process takes part in a communicator of ``ranks`` (0: not known) as ``rank``."""

    process: int
    communicator: str
    rank: int
    ranks: int


class Place(Struct, frozen=True):
    """A process's communicator of the whole job, and its rank there."""

    communicator: str
    rank: int


class Shift(Struct, frozen=True):
    """In ``count`` collectives the step of ``other`` had a number larger by ``difference`` than that of ``one``."""

    one: int
    other: int
    difference: int
    count: int


def places(members: Iterable[Member]) -> dict[int, Place]:
    """By process. Processes that say that they are the same rank of one communicator have none."""
    of_communicator: dict[str, dict[int, Member]] = defaultdict(dict)
    claims: Counter[tuple[str, int]] = Counter()
    conflicting = set()
    for member in members:
        known = of_communicator[member.communicator].setdefault(member.process, member)
        if known is member:
            claims[member.communicator, member.rank] += 1
        elif known.rank != member.rank:
            conflicting.add(member.process)
    found: dict[int, Place] = {}
    for communicator, processes in sorted(of_communicator.items(), key=_largest_first):
        for process, member in processes.items():
            found.setdefault(process, Place(communicator, member.rank))
    return {
        process: place
        for process, place in found.items()
        if process not in conflicting and claims[place.communicator, place.rank] == 1
    }


def without_conflicts(launched: Iterable[Member]) -> list[Member]:
    """Without the jobs in which two processes say that they are the same rank: of which they are is not known."""
    members = list(launched)
    claims = Counter((member.communicator, member.rank) for member in members)
    twice = {job for (job, _), count in claims.items() if count > 1}
    return [member for member in members if member.communicator not in twice]


def _largest_first(item: tuple[str, Mapping[int, Member]]) -> tuple[int, int, str]:
    communicator, members = item
    return -max(member.ranks for member in members.values()), -len(members), communicator


def jobs_of(
    limits: list[str],
    processes: Sequence[Process],
    found: Mapping[int, Place],
    launched: Iterable[Member] = (),
) -> dict[int, str]:
    """The name of the job of each process: its service's, and the launcher's or communicator's where it has several.

    ``limits``: gets a sentence about each such service. ``launched``: the launcher's jobs, without conflicts.
    """
    communicators: dict[str, set[str]] = defaultdict(set)
    for process, place in found.items():
        communicators[processes[process].service].add(place.communicator)
    for service, several in sorted(communicators.items()):
        if len(several) > 1:
            limits.append(_SEVERAL.format(service=service or "one service", count=len(several)))
    names = _launchers_names(found, launched)
    return {
        process: f"{service} {names.get(communicator, communicator)}".strip()
        if len(communicators[service]) > 1
        else service
        for process, place in found.items()
        for service, communicator in ((processes[process].service, place.communicator),)
    }


def launchers_job(name: str) -> str:
    """What a launcher's job is called beside communicators: they are hexadecimal, and this is not."""
    return f"{UNNAMED} {name}".strip()


def _launchers_names(found: Mapping[int, Place], launched: Iterable[Member]) -> dict[str, str]:
    """Communicator → the launcher's job, where all of its processes are of that, and no other communicator's are."""
    job_of = {member.process: member.communicator for member in launched}
    jobs: dict[str, set[str]] = defaultdict(set)
    for process, place in found.items():
        jobs[place.communicator].add(job_of.get(process, ""))
    shared = Counter(job for several in jobs.values() for job in several)
    return {
        communicator: job
        for communicator, several in jobs.items()
        for job in several
        if len(several) == 1 and shared[job] == 1 and job not in ("", UNNAMED)
    }


def offsets(processes: Sequence[int], shifts: Iterable[Shift]) -> dict[int, int]:
    """What is to be added to the step numbers of each process, from 0.

    Left out are those that nothing joins to the most, and all that are joined in ways that contradict each other.
    """
    neighbours = _agreed(shifts)
    best: dict[int, int] = {}
    placed: set[int] = set()
    for start in processes:
        if start in placed:
            continue
        group = {start: 0}
        queue = [start]
        for one in queue:
            for other, difference in neighbours.get(one, {}).items():
                if other not in group:
                    group[other] = group[one] - difference
                    queue.append(other)
        placed |= group.keys()
        contradicted = any(
            group[other] != group[one] - difference
            for one in group
            for other, difference in neighbours.get(one, {}).items()
        )
        if len(group) > len(best) and not contradicted:
            best = group
    least = min(best.values(), default=0)
    return {process: offset - least for process, offset in best.items()}


def _agreed(shifts: Iterable[Shift]) -> dict[int, dict[int, int]]:
    """Process → another → how much larger its numbers are, where nearly all collectives agree."""
    by_pair: dict[tuple[int, int], Counter[int]] = defaultdict(Counter)
    for shift in shifts:
        by_pair[shift.one, shift.other][shift.difference] += shift.count
    found: dict[int, dict[int, int]] = defaultdict(dict)
    for (one, other), counts in by_pair.items():
        difference, count = counts.most_common(1)[0]
        if count >= _AGREED * counts.total():
            found[one][other], found[other][one] = difference, -difference
    return found
