"""Which collective a call is: its number, the same on every rank, without asking another rank. Pure.

In: calls of a tick, and what was learnt of communicators. Out: per call the number of its collective among those
of the same communicator and function, from which all ranks derive the same trace; or why it has none.

The ranks of a communicator must call its collectives in one order (NCCL user guide, "Using NCCL"), so a count per
function is an agreement. In order of trust:

* CALL: the call itself has the collective's number among all of its communicator, as gloo's tags are, or of its
  pair. Calls of one communicator may come in another order, for several threads run them.
* FUNCTION: the communicator counted its collectives of each function itself. The calls of a group read one value,
  for the count moves when the group is launched: a call's place among them is added. A non-blocking communicator's
  count may be behind what it took up: the number is then the one after the last. A call that moved no such count,
  where others of its function did, is no collective of its own.
* COUNTED: the agent has seen the communicator made, or knew a number before, and counts on.
* OPERATIONS: the communicator's count of all operations, with the place in the group. Not the same on ranks that send
  to different peers in between: reported as what it is.

Calls that failed, and calls that are noted into a graph, move no count and have no number. A send and a receive share
the number of the pair: the nth that rank a sends to rank b is the nth that b receives from a.

Example: 8 ranks call AllReduce, and in one group AllReduce, AllReduce; the counts read are 5, 6, 6; the numbers are
5, 6, 7. Invariant: no two calls of one rank have the same (communicator, function, number).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import IntEnum
from itertools import islice
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from otelgpu.model.codes import Codes, combine, distinct, order_of
from otelgpu.model.communicators import CommunicatorSeen
from otelgpu.model.operations import Operations, SequenceSource

Bools = npt.NDArray[np.bool_]
I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]

LIVES: Final = 16_384
"""Communicators that are known at a time; of others, calls are numbered only by what their own records say."""

KEPT_NS: Final = 10_000_000_000
"""So long is an ended communicator known: its last calls may come after the word of its end."""

MOST_RANKS: Final = 1 << 20

IN_PROGRESS: Final = 7
"""``ncclInProgress``: a non-blocking communicator took the call, whose count moves later."""

_ABSURD: Final = np.uint64(1 << 48)
_LEAP: Final = 1 << 32  # a count that grows by more between two calls was read from something else
_PLACE: Final = 1 << 63  # keeps a place in a group apart from a pair of ranks
_BACK: Final = -1  # nothing is numbered below 0
_NOBODY: Final = -1  # the peer of a call without one
_UNKNOWN: Final = -1
_INVALID: Final = -2  # a rank that cannot be
_GROUPED: Final = 4096  # kinds of calls of one group that are kept from tick to tick
_Alike = tuple[int, int, int]  # communicator's address, function, peer


class Numbered(IntEnum):
    """Where a call's number comes from: ``nccl.sequence.source``."""

    NONE = 0  # not known
    FUNCTION = 1
    OPERATIONS = 2
    CAPTURED = 3  # into a graph
    COUNTED = 4  # by the agent
    FAILED = 5
    CALL = 6

    @property
    def shared(self) -> bool:
        """Whether the other ranks have the number too."""
        return self in _SHARED


_SHARED: Final = (Numbered.FUNCTION, Numbered.OPERATIONS, Numbered.COUNTED, Numbered.CALL)


class Life(Struct):
    """A communicator from its creation, or from when it was first heard of, to its end."""

    tgid: int
    begin_ns: int
    hash: int
    rank: int
    ranks: int
    device: int
    created: bool
    end_ns: int = 0  # 0: not ended
    next: dict[tuple[int, int], int] = field(default_factory=dict)  # (function, peer) → number to come
    read: set[tuple[int, int]] = field(default_factory=set)  # of which the communicator reported its count
    doubted: bool = False  # calls were lost: what was counted until then is not believed

    def expected(self, function: int, peer: int) -> int | None:
        """The number that the agent's own count gives the next call; None: it cannot know."""
        known = self.next.get((function, peer))
        return 0 if known is None and self.created and not self.doubted else known


class Numbers(Struct, frozen=True, kw_only=True):
    """Of n calls, in the order that :meth:`Collectives.number` gave them."""

    hash: U64  # 0: not known
    rank: I64  # -1: not known
    ranks: I64  # -1: not known
    number: U64
    place: U64  # further part of the number: pair of ranks, or place in a group
    source: npt.NDArray[np.uint8]  # Numbered


class Collectives:
    """One session's communicators, and how many calls each has had."""

    def __init__(self) -> None:
        self._lives: dict[tuple[int, int], list[Life]] = {}
        self._count = 0
        self._processes: set[int] | None = None  # that have any; None: not known
        self._joined_ns: dict[int, int] = {}  # hash → when the last of its ranks that live here came
        self._ended: list[tuple[int, tuple[int, int], Life]] = []
        self._groups = _Groups()
        self.counters: Counter[str] = Counter()

    def learn(self, seen: Iterable[CommunicatorSeen]) -> None:
        """What was reported since the last tick, in any order."""
        for reported in sorted(seen, key=lambda each: (each.time_ns, each.ended, each.address)):
            self._learn(reported)

    def _learn(self, reported: CommunicatorSeen) -> None:
        self._processes = None
        lives = self._lives.setdefault((reported.tgid, reported.address), [])
        life = lives[-1] if lives and not lives[-1].end_ns else None
        if life is not None and _is_another(life, reported):
            self._end(reported.time_ns, (reported.tgid, reported.address), life)
            life = None
        if life is None:
            if reported.ended:
                self._forget_empty((reported.tgid, reported.address))
                return
            if self._count >= LIVES:
                self.counters["communicators_full"] += 1
                self._forget_empty((reported.tgid, reported.address))
                return
            self._count += 1
            life = Life(reported.tgid, reported.time_ns, 0, -1, -1, reported.device, reported.created)
            lives.append(life)
        if reported.hash and reported.hash != life.hash:
            life.hash = reported.hash
            if len(self._joined_ns) < LIVES:
                self._joined_ns[life.hash] = max(
                    self._joined_ns.get(life.hash, reported.time_ns), reported.time_ns
                )
        if reported.ranks > MOST_RANKS or (reported.ranks > 0 and not -1 <= reported.rank < reported.ranks):
            self.counters["communicator_rank_invalid"] += 1
        else:
            life.rank = reported.rank if reported.rank >= 0 else life.rank
            life.ranks = reported.ranks if reported.ranks > 0 else life.ranks
        if reported.ended:
            self._end(reported.time_ns, (reported.tgid, reported.address), life)

    def _end(self, time_ns: int, key: tuple[int, int], life: Life) -> None:
        life.end_ns = max(time_ns, 1)
        self._ended.append((time_ns, key, life))

    def _forget_empty(self, key: tuple[int, int]) -> None:
        if not self._lives.get(key):
            self._lives.pop(key, None)

    def members(self) -> dict[int, set[int]]:
        """The ranks of each communicator that live here, by its hash."""
        found: dict[int, set[int]] = {}
        for lives in self._lives.values():
            for life in lives:
                if life.hash and not life.end_ns and life.rank >= 0:
                    found.setdefault(life.hash, set()).add(life.rank)
        return found

    def forming(self, since_ns: int) -> dict[int, int]:
        """How many ranks the communicators have of which some came here since then, and more may; by hash."""
        self._joined_ns = {
            hash_: time_ns for hash_, time_ns in self._joined_ns.items() if time_ns >= since_ns
        }
        if not self._joined_ns:
            return {}
        lives = (life for lives in self._lives.values() for life in lives)
        return {life.hash: life.ranks for life in lives if life.hash in self._joined_ns and life.ranks > 0}

    @property
    def has_any(self) -> bool:
        """Whether any communicator is known."""
        return bool(self._lives)

    def has(self, tgid: int) -> bool:
        """Whether a communicator of a process is known."""
        if self._processes is None:
            self._processes = {of for of, _ in self._lives}
        return tgid in self._processes

    def doubt(self) -> None:
        """Calls were lost: only communicators that count themselves, or are made from now on, have numbers."""
        for lives in self._lives.values():
            for life in lives:
                life.next.clear()
                life.doubted = True
        self._groups.clear()

    def forget_before(self, time_ns: int) -> None:
        """Communicators that ended so long ago."""
        old = [each for each in self._ended if each[0] < time_ns]
        self._ended = [each for each in self._ended if each[0] >= time_ns]
        for _, key, life in old:
            self._drop(key, life)

    def _drop(self, key: tuple[int, int], life: Life) -> None:
        self._processes = None
        lives = self._lives.get(key, [])
        kept = [each for each in lives if each is not life]
        self._count -= len(lives) - len(kept)
        if kept:
            self._lives[key] = kept
        else:
            self._lives.pop(key, None)

    def forget_process(self, tgid: int) -> None:
        """All of a process."""
        self._processes = None
        for key in [key for key in self._lives if key[0] == tgid]:
            self._count -= len(self._lives.pop(key))
        self._ended = [each for each in self._ended if each[1][0] != tgid]
        self._groups.forget_process(tgid)

    # -- numbers ----------------------------------------------------------------------------------

    def number(self, rows: Operations, functions: Codes, captured: Bools, ways: Sequence[int]) -> Numbers:
        """Number calls that are in order of time per thread.

        ``functions``: of each row, an index into ``ways``, which says what a function is: 0 a collective, 1 a send,
        -1 a receive, 2 something that no other rank calls with it.
        """
        lives, owner = self._owners(rows)
        table = np.array([(life.rank, life.ranks) for life in lives], dtype=np.int64).reshape(-1, 2)
        rank, ranks = _known(rows["rank"].astype(np.int64), table[owner, 0]), table[owner, 1]
        hashes = np.array([life.hash for life in lives], dtype=np.uint64)[owner]
        hashes = np.where(rows["communicator_hash"] != 0, rows["communicator_hash"], hashes)
        rank = self._checked(rank, ranks)
        way = np.array(ways, dtype=np.int64)[functions]
        peers = np.where(np.abs(way) == 1, rows["peer"].astype(np.int64), _NOBODY)
        failed = (rows["status"] != 0) & (rows["returned"] == 1) & (rows["status"] != IN_PROGRESS)
        captured = captured | (rows["sequence_source"] == SequenceSource.CAPTURED)
        moves = ~failed & ~captured
        source = np.full(len(rows), Numbered.NONE, dtype=np.uint8)
        source[captured] = Numbered.CAPTURED
        source[failed] = Numbered.FAILED
        made = Numbers(
            hash=hashes.astype(np.uint64),
            rank=rank,
            ranks=ranks,
            number=np.zeros(len(rows), dtype=np.uint64),
            place=np.zeros(len(rows), dtype=np.uint64),
            source=source,
        )
        chosen = np.flatnonzero(moves & (way != 2))
        if len(chosen):
            self._number(made, chosen, rows, (lives, owner), (functions, way, peers))
        self._withdraw(made, way, peers)
        return made

    def _owners(self, rows: Operations) -> tuple[list[Life], Codes]:
        """The communicator of each row: a list of those that occur, and indices into it."""
        tgids, tgid_codes = distinct(np.ascontiguousarray(rows["tgid"]))
        addresses, address_codes = np.unique(rows["handle"], return_inverse=True)
        codes, count = combine(
            [(tgid_codes, len(tgids)), (address_codes.reshape(-1), len(addresses))], len(rows)
        )
        order = order_of(codes, count)
        edges = np.cumsum(np.bincount(codes, minlength=count)).tolist()
        owner = np.empty(len(rows), dtype=np.intp)
        found: list[Life] = []
        begin = 0
        for end in edges:
            mine = order[begin:end]
            begin = end
            first = rows[mine[0]]
            lives = self._of(int(first["tgid"]), int(first["handle"]), first)
            if len(lives) == 1:
                owner[mine] = len(found)
            else:
                begins = np.array([life.begin_ns for life in lives[1:]], dtype=np.uint64)
                owner[mine] = len(found) + np.searchsorted(begins, rows["start_ns"][mine], side="right")
            found += lives
        return found, owner

    def _of(self, tgid: int, address: int, first: np.void) -> list[Life]:
        """The lives of an address in order; one that nobody reported of begins with its first call."""
        lives = self._lives.get((tgid, address))
        if lives:
            return lives
        life = Life(
            tgid, int(first["start_ns"]), int(first["communicator_hash"]), int(first["rank"]), -1, -1, False
        )
        if self._count < LIVES:
            self._count += 1
            self._lives[tgid, address] = [life]
            self._processes = None
        else:
            self.counters["communicators_full"] += 1
        return [life]

    def _checked(self, rank: I64, ranks: I64) -> I64:
        wrong = (rank < -1) | ((ranks > 0) & (rank >= ranks)) | (rank >= MOST_RANKS)
        if wrong.any():
            self.counters["rank_invalid"] += int(np.count_nonzero(wrong))
            rank = np.where(wrong, _INVALID, rank)
        return rank

    def _number(
        self,
        made: Numbers,
        chosen: Codes,
        rows: Operations,
        owned: tuple[list[Life], Codes],
        called: tuple[Codes, I64, I64],
    ) -> None:
        lives, owner = owned
        functions, _, peers = called
        values, peer_codes = distinct(peers[chosen])
        keys, count = combine(
            [
                (owner[chosen], len(lives)),
                (functions[chosen], int(functions.max()) + 1),
                (peer_codes, len(values)),
            ],
            len(chosen),
        )
        places = self._places(rows.take(chosen), keys, count, functions[chosen], peers[chosen])
        order = order_of(keys, count)
        edges = np.cumsum(np.bincount(keys, minlength=count)).tolist()
        begin = 0
        for end in edges:
            mine = order[begin:end]
            begin = end
            at = chosen[mine]
            life = lives[int(owner[at[0]])]
            key = int(functions[at[0]]), int(peers[at[0]])
            self._number_one(made, at, rows.take(at), places[mine], life, key)

    def _places(self, rows: Operations, keys: Codes, count: int, functions: Codes, peers: I64) -> I64:
        """The place of each call among those of its group that are alike; 0 outside groups."""
        places = np.zeros(len(rows), dtype=np.int64)
        inside = np.flatnonzero(rows["group"])
        if len(inside):
            some = rows.take(inside)
            places[inside] = self._groups.places(
                some, (keys[inside], count), functions[inside].tolist(), peers[inside].tolist()
            )
        return places

    def _number_one(
        self, made: Numbers, at: Codes, rows: Operations, places: I64, life: Life, key: tuple[int, int]
    ) -> None:
        """Calls of one function by one rank of a communicator; they move its count."""
        own = rows["sequence_source"].copy()
        if key[1] != _NOBODY:
            own[own != SequenceSource.CALL] = SequenceSource.UNKNOWN  # NCCL does not count pairs
        read = rows["sequence"]
        counted = own == SequenceSource.FUNCTION
        absurd = (own != SequenceSource.UNKNOWN) & (read >= _ABSURD)
        given = (own == SequenceSource.CALL) & ~absurd
        made.number[at[given]], made.source[at[given]] = read[given], Numbered.CALL
        if given.all():
            return
        expected = life.expected(*key)
        if counted.all() and not absurd.any():
            numbers = read.astype(np.int64) + places
            before = np.maximum.accumulate(
                np.concatenate([[_BACK if expected is None else expected - 1], numbers])
            )
            steady = int(numbers[-1]) - int(before[0] if expected is not None else numbers[0]) < _LEAP
            if steady and (numbers > before[:-1]).all():
                made.number[at], made.source[at] = numbers, Numbered.FUNCTION
                life.next[key] = int(numbers[-1]) + 1
                life.read.add(key)
                return
        unread = key not in life.read and not counted.any() and not (own == SequenceSource.OPERATIONS).any()
        if unread and expected is not None:
            made.number[at] = np.arange(expected, expected + len(at))
            made.source[at] = Numbered.COUNTED
            life.next[key] = expected + len(at)
            return
        self._number_each(made, at, rows, own, places, life, key)

    def _number_each(
        self,
        made: Numbers,
        at: Codes,
        rows: Operations,
        own: npt.NDArray[np.uint8],
        places: I64,
        life: Life,
        key: tuple[int, int],
    ) -> None:
        """The same one by one: where sources differ, where counts do not move, or move back."""
        expected = life.expected(*key)
        columns = (at, own, rows["sequence"], places)
        for row, source, read, place in zip(*(column.tolist() for column in columns), strict=True):
            if source == SequenceSource.FUNCTION:
                life.read.add(key)
                number = read + place
                if read >= _ABSURD or (expected is not None and number - expected >= _LEAP):
                    self.counters["sequence_absurd"] += 1
                    continue
                if expected is not None and number < expected:
                    self.counters["sequence_behind"] += 1
                    number = expected
                made.number[row], made.source[row] = number, Numbered.FUNCTION
                expected = number + 1
            elif key in life.read:
                self.counters["sequence_not_counted"] += 1  # nothing was launched, or it could not be read
            elif expected is not None:
                made.number[row], made.source[row] = expected, Numbered.COUNTED
                expected += 1
            elif source == SequenceSource.OPERATIONS:
                if read >= _ABSURD:
                    self.counters["sequence_absurd"] += 1
                else:
                    made.number[row], made.source[row] = read, Numbered.OPERATIONS
                    made.place[row] = np.uint64(_PLACE | place)
        if expected is not None:
            life.next[key] = expected

    def _withdraw(self, made: Numbers, way: I64, peers: I64) -> None:
        """Take the number of calls of which it does not report the collective; give pairs their place."""
        shared = np.isin(made.source, _SHARED)
        pairs = shared & (np.abs(way) == 1)
        lost = shared & ((made.hash == 0) | (made.rank == _INVALID))
        wrong = pairs & ((peers < 0) | (peers >= np.where(made.ranks > 0, made.ranks, MOST_RANKS)))
        if wrong.any():
            self.counters["peer_invalid"] += int(np.count_nonzero(wrong))
        made.source[lost | wrong | (pairs & (made.rank < 0))] = Numbered.NONE
        pairs &= made.source != Numbered.NONE
        first = np.where(way == 1, made.rank, peers)[pairs].astype(np.uint64)
        second = np.where(way == 1, peers, made.rank)[pairs].astype(np.uint64)
        made.place[pairs] = (first << np.uint64(32)) | second


class _Groups:
    """How many calls that are alike each thread's last group has had: its next may come with the next tick."""

    def __init__(self) -> None:
        self._open: dict[tuple[int, int], tuple[int, dict[_Alike, int]]] = {}

    def places(
        self, rows: Operations, keys: tuple[Codes, int], functions: Sequence[int], peers: Sequence[int]
    ) -> I64:
        """The place of each row, all of which are in groups; ``keys`` are the same in rows that are alike."""
        tgids, tgid_codes = distinct(np.ascontiguousarray(rows["tgid"]))
        tids, tid_codes = distinct(np.ascontiguousarray(rows["tid"]))
        groups, group_codes = np.unique(rows["group"], return_inverse=True)
        threads, count = combine([(tgid_codes, len(tgids)), (tid_codes, len(tids))], len(rows))
        each, size = combine([(threads, count), (group_codes.reshape(-1), len(groups)), keys], len(rows))
        found = _running(each, size)
        order = order_of(threads, count)
        begin = 0
        for end in np.cumsum(np.bincount(threads, minlength=count)).tolist():
            mine = order[begin:end]
            begin = end
            group_of = rows["group"][mine]
            name = int(rows["tgid"][mine[0]]), int(rows["tid"][mine[0]])
            held = self._open.pop(name, None)
            if held is not None:
                for row in mine[group_of == held[0]].tolist():
                    found[row] += held[1].get((int(rows["handle"][row]), functions[row], peers[row]), 0)
            newest = int(group_of.max())
            counts = held[1] if held is not None and held[0] == newest else {}
            for row in mine[group_of == newest].tolist():
                alike = int(rows["handle"][row]), functions[row], peers[row]
                counts[alike] = max(counts.get(alike, 0), int(found[row]) + 1)
            self._open[name] = newest, dict(islice(counts.items(), _GROUPED))  # the newest last
        while len(self._open) > LIVES:
            del self._open[next(iter(self._open))]
        return found

    def clear(self) -> None:
        """Calls were lost."""
        self._open.clear()

    def forget_process(self, tgid: int) -> None:
        """All of a process's threads."""
        self._open = {name: held for name, held in self._open.items() if name[0] != tgid}


def _running(codes: Codes, size: int) -> I64:
    """How many rows before each have its code."""
    order = order_of(codes, size)
    lengths = np.bincount(codes, minlength=size)
    before = np.cumsum(lengths) - lengths
    found = np.empty(len(codes), dtype=np.int64)
    found[order] = np.arange(len(codes)) - np.repeat(before, lengths)
    return found


def _known(reported: I64, otherwise: I64) -> I64:
    return np.where(reported == _UNKNOWN, otherwise, reported)


def _is_another(life: Life, reported: CommunicatorSeen) -> bool:
    """Whether an address has become another communicator's without word of the first one's end."""
    if life.hash and reported.hash and life.hash != reported.hash:
        return True
    return reported.created and not life.created and not reported.ended
