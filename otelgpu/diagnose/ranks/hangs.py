"""Collectives that some members never came to: who did not come, while the others wait. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from otelgpu.diagnose.ranks.facts import Columns
from otelgpu.diagnose.ranks.verdicts import HANG, Evidence, RankVerdict
from otelgpu.diagnose.ranks.wording import numbered

CERTAIN: Final = 0.9
"""Confidence where all members are in the input. Dumps of a job that goes on can look alike where they were taken one
after the other."""
UNCERTAIN: Final = 0.6
"""Where some are not: they may be the ones."""

NEXT: Final = {
    "absent": "look at what these ranks do instead: their stacks (otelgpu profile -p PID), whether they are there, "
    "their Xid errors (dmesg)",
    "transfer": "all members came: look at the links between their hosts, port errors and Xid errors first",
    "unseen": "add the dumps or recordings of the ranks that are missing: they are the suspects",
}


class _Call(Struct, frozen=True, kw_only=True):
    """One that has not ended: who of the group is in it, and the longest wait in it by a rank's own clock."""

    group: str
    name: str
    number: int
    waiting: frozenset[int]
    waited_s: float


class _Group(Struct, kw_only=True):
    """``last``: rank → number of its last call. ``size``: members, as calls say."""

    last: dict[int, int]
    size: int = 0
    step: int = -1


def hangs(pending: Columns, groups: Columns, hosts: Mapping[int, str]) -> list[RankVerdict]:
    """A verdict for each collective that hangs by itself: not for those whose absent members wait in another one.

    Nor for those whose absent members wait in a send or receive. Where all wait for each other, which calls in
    different orders bring about, one for all of these. Of several that the same ranks never came to, the one that was
    waited in the longest.
    """
    members = _members(groups)
    calls = [call for call in _calls(pending) if _is_whole(call, members[call.group])]
    waits = frozenset().union(*(call.waiting for call in calls), _transferring(pending))
    absent = [_absent(call, members[call.group]) for call in calls]
    first = [(call, who - waits) for call, who in zip(calls, absent, strict=True) if not who or who - waits]
    if calls and not first:
        first = [(calls[0], frozenset().union(*absent))]
    found: dict[frozenset[int], RankVerdict] = {}
    for call, who in sorted(first, key=lambda item: -item[0].waited_s):
        group = members[call.group]
        key = who or frozenset([-1 - len(found)])  # several groups whose transfers hang have no rank to share
        found.setdefault(key, _verdict(call, who, group, hosts))
    return sorted(found.values(), key=lambda verdict: -verdict.confidence)


def _absent(call: _Call, group: _Group) -> frozenset[int]:
    return frozenset(rank for rank, last in group.last.items() if last < call.number)


def _is_whole(call: _Call, group: _Group) -> bool:
    """Elsewise members have been there and gone on: it is no hang, but a dump that is older than another."""
    return _absent(call, group) | call.waiting >= group.last.keys()


def _calls(pending: Columns) -> list[_Call]:
    by: dict[tuple[str, str, int], dict[int, float]] = {}
    for group, kind, name, rank, number, waited_s in _rows(
        pending, "grp", "kind", "name", "rank", "seq", "waited_s"
    ):
        if kind == "coll":
            by.setdefault((str(group), str(name), int(number)), {})[int(rank)] = float(waited_s)
    first: dict[str, tuple[int, str]] = {}
    for group, name, number in by:
        first[group] = min(first.get(group, (number, name)), (number, name))
    return [
        _Call(
            group=group,
            name=name,
            number=number,
            waiting=frozenset(by[group, name, number]),
            waited_s=max(by[group, name, number].values()),
        )
        for group, (number, name) in sorted(first.items())
    ]


def _transferring(pending: Columns) -> frozenset[int]:
    """Who waits in a send or receive, for somebody else."""
    return frozenset(int(rank) for kind, rank in _rows(pending, "kind", "rank") if kind == "p2p")


def _members(groups: Columns) -> dict[str, _Group]:
    found: dict[str, _Group] = {}
    columns = ("grp", "kind", "rank", "members", "last_seq", "last_step")
    for group, kind, rank, size, last, step in _rows(groups, *columns):
        if kind == "coll":
            one = found.setdefault(str(group), _Group(last={}))
            one.last[int(rank)] = int(last)
            one.size, one.step = max(one.size, int(size)), max(one.step, int(step))
    return found


def _rows(columns: Columns, *names: str) -> Sequence[tuple[Any, ...]]:
    return list(zip(*(columns[name].tolist() for name in names), strict=True))


def _verdict(call: _Call, absent: frozenset[int], group: _Group, hosts: Mapping[int, str]) -> RankVerdict:
    unseen = max(0, group.size - len(group.last))
    evidence = [
        Evidence(
            name="waiting",
            text=f"{numbered(call.waiting)} wait in {call.name} number {call.number} of group {call.group}",
            ranks=sorted(call.waiting),
        )
    ]
    evidence += [
        Evidence(
            name="last_call",
            text=f"rank {rank}: its last call in that group was number {group.last[rank]}",
            ranks=[rank],
            value=group.last[rank],
        )
        for rank in sorted(absent & group.last.keys())
    ]
    if unseen:
        evidence.append(Evidence(name="unseen", text=f"{unseen} members of the group are not in the input"))
    what = "absent" if absent else "unseen" if unseen else "transfer"
    return RankVerdict(
        klass=HANG,
        cause={"absent": "absent", "unseen": "absent", "transfer": "communication"}[what],
        ranks=sorted(absent),
        hosts=list(dict.fromkeys(hosts[rank] for rank in sorted(absent) if hosts.get(rank))),
        group=f"{call.name} number {call.number} of group {call.group}",
        first_step=group.step,
        last_step=group.step,
        persistent=True,
        confidence=UNCERTAIN if unseen else CERTAIN,
        evidence=evidence,
        next=NEXT[what],
    )
