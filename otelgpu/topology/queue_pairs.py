"""Queue pairs: what metrics and spans say of each, and which is the other end of which. Pure.

Both agents make a connection's trace id of its two ends, so two ends in one trace are a pair. Else two are one where
each names the other's number, nothing that is known of their GIDs contradicts it, and at least one names the other's
GID. Worked example: A (7, ``::a``) names (9, ``::b``), B (9, ``::b``) names (7, ``::a``): they are a pair. Invariant:
who is whose peer is symmetric, and nobody has two. What several could be stays open.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct, field

from otelgpu.families.rdma import names as qp
from otelgpu.model.resource import AttributeValue
from otelgpu.topology.owners import Owner, shown, whole

MOST: Final = 1 << 20
_BOTH: Final = 2
BROKEN_STATES: Final = ("error", "send_queue_error")


class End(Struct):
    """Process ``owner``'s end of a connection. Unix nanoseconds; ``ended_ns`` 0: not seen to end."""

    owner: int
    device: str
    number: int
    first_ns: int
    last_ns: int
    port: int = 0
    type: str = ""
    state: str = ""
    state_ns: int = 0
    gid: str = ""
    peer_gid: str = ""
    peer_number: int = 0
    peer_pod: str = ""
    communicator: str = ""
    trace: str = ""
    error: str = ""
    ended_ns: int = 0
    peer: int = -1

    @property
    def is_broken(self) -> bool:
        """Whether it reported an error, or is in the state for that."""
        return bool(self.error) or self.state in BROKEN_STATES


class QueuePairs(Struct):
    """``beyond``: those that are not taken, for there are too many."""

    ends: list[End] = field(default_factory=list)
    beyond: int = 0
    _places: dict[tuple[int, str, int, str, int], int] = field(default_factory=dict)

    def take(
        self,
        owner: Owner,
        described: Mapping[str, AttributeValue],
        first_ns: int,
        last_ns: int,
        *,
        trace: str = "",
        error: str = "",
        ended: bool = False,
    ) -> None:
        """Attributes of a metric or span of one. ``trace``: of a span whose ids are made of both ends.

        What is of no single queue pair is passed over.
        """
        number = whole(described.get(qp.NUMBER), -1)
        device = shown(described.get(qp.DEVICE, ""))
        if number < 0 or not device:
            return
        peer = shown(described.get(qp.PEER_GID, "")), whole(described.get(qp.PEER_NUMBER), 0)
        place = self._place((owner.number, device, number, *peer), first_ns)
        if place is None:
            return
        end = self.ends[place]
        end.first_ns, end.last_ns = min(end.first_ns, first_ns), max(end.last_ns, last_ns)
        end.port = whole(described.get(qp.PORT), end.port)
        end.type = shown(described.get(qp.TYPE, "")) or end.type
        end.gid = shown(described.get(qp.GID, "")) or end.gid
        end.peer_pod = shown(described.get(qp.PEER_POD, "")) or end.peer_pod
        end.communicator = shown(described.get(qp.COMMUNICATOR, "")) or end.communicator
        end.trace = trace or end.trace
        end.error = shown(error) or end.error
        if ended:
            end.ended_ns = max(end.ended_ns, last_ns)
        if qp.STATE in described and last_ns >= end.state_ns:
            end.state, end.state_ns = shown(described[qp.STATE]), last_ns

    def match(self) -> None:
        """Find every end's peer, anew."""
        match(self.ends)

    def _place(self, key: tuple[int, str, int, str, int], first_ns: int) -> int | None:
        place = self._places.get(key)
        if place is not None:
            return place
        owner, device, number, peer_gid, peer_number = key
        unconnected = self._places.pop((owner, device, number, "", 0), None) if peer_number else None
        if unconnected is not None:
            place = unconnected
            self.ends[place].peer_gid, self.ends[place].peer_number = peer_gid, peer_number
        elif len(self.ends) >= MOST:
            self.beyond += 1
            return None
        else:
            place = len(self.ends)
            self.ends.append(
                End(owner, device, number, first_ns, first_ns, peer_gid=peer_gid, peer_number=peer_number)
            )
        self._places[key] = place
        return place


_Index = dict[tuple[int, int, str, bool], list[int]]
"""Number, peer's number, GID, whether that is its own → places. Numbers alone are the same on all nodes."""


def match(ends: Sequence[End]) -> None:
    """Set ``peer`` of all ends; −1: the other end is not among them, or several could be."""
    by_trace: dict[str, list[int]] = defaultdict(list)
    by_gid: _Index = defaultdict(list)
    for place, end in enumerate(ends):
        end.peer = -1
        if end.trace:
            by_trace[end.trace].append(place)
        if end.peer_number:
            for gid, is_own in ((end.gid, True), (end.peer_gid, False)):
                if gid:
                    by_gid[end.number, end.peer_number, gid, is_own].append(place)
    for places in by_trace.values():
        if len(places) == _BOTH:
            one, other = places
            ends[one].peer, ends[other].peer = other, one
    for place, end in enumerate(ends):
        if end.peer < 0 and end.peer_number:
            found = _other(ends, place, by_gid)
            if found >= 0 and _other(ends, found, by_gid) == place:
                end.peer, ends[found].peer = found, place


def _other(ends: Sequence[End], place: int, by_gid: _Index) -> int:
    """The only end that fits; where a number was used again, the one that was there at the same time. −1: none."""
    end = ends[place]
    named = by_gid.get((end.peer_number, end.number, end.peer_gid, True), ())
    naming = by_gid.get((end.peer_number, end.number, end.gid, False), ())
    fit = [
        other
        for other in dict.fromkeys((*named, *naming))
        if other != place and ends[other].peer < 0 and _fit(end, ends[other])
    ]
    if len(fit) > 1:
        fit = [other for other in fit if _overlap(end, ends[other])]
    return fit[0] if len(fit) == 1 else -1


def _fit(end: End, other: End) -> bool:
    """One names the other's GID at least, and no GID that is known contradicts it."""
    ways = ((end.peer_gid, other.gid), (other.peer_gid, end.gid))
    return any(said and said == known for said, known in ways) and all(
        said == known for said, known in ways if said and known
    )


def _overlap(end: End, other: End) -> bool:
    return (other.ended_ns or other.last_ns) >= end.first_ns and (
        end.ended_ns or end.last_ns
    ) >= other.first_ns


def homes(ends: Iterable[End], hosts: Sequence[str]) -> dict[str, str]:
    """GID → host, of GIDs that ends on one host alone have as their own. ``hosts``: by owner."""
    found: dict[str, str] = {}
    several = set()
    for end in ends:
        if end.gid:
            host = hosts[end.owner]
            if found.setdefault(end.gid, host) != host:
                several.add(end.gid)  # link-local addresses may be anybody's
    return {gid: host for gid, host in found.items() if gid not in several}
