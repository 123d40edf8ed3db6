"""Queue pairs from the calls that make, modify and destroy them: a state machine for each.

In: changes in the order of the ring, and what else names a queue pair. Out: queue pairs that connected (ready to
send), and those that ended. One that was made before the agent looked is known from its first change or count on,
and is marked so; a change that was lost shows as a step that :data:`STEPS` does not have, and is counted.

Worked example: made at 10, INIT at 20, READY_TO_RECEIVE at 30 (peer 7), READY_TO_SEND at 40, destroyed at 90: it
comes out of :meth:`QueuePairs.take_connected` after 40, with ``init_ns`` 20 and ``ready_ns`` 40, and of
:meth:`QueuePairs.take_ended` after 90.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct

from otelgpu.families.rdma.facts import NO_GID, QueuePairChanged, QueuePairState

QUEUE_PAIRS: Final = 65_536
"""How many are known at a time; changes of others are counted and passed over."""

LAST_COUNTS_NS: Final = 3_000_000_000
"""How long an ended queue pair waits for what was counted of it last: counts are read once a second."""

_S = QueuePairState
STEPS: Final[Mapping[QueuePairState, frozenset[QueuePairState]]] = {
    _S.RESET: frozenset((_S.INIT,)),
    _S.INIT: frozenset((_S.INIT, _S.READY_TO_RECEIVE)),
    _S.READY_TO_RECEIVE: frozenset((_S.READY_TO_SEND,)),
    _S.READY_TO_SEND: frozenset((_S.READY_TO_SEND, _S.SEND_QUEUE_DRAINED)),
    _S.SEND_QUEUE_DRAINED: frozenset((_S.SEND_QUEUE_DRAINED, _S.READY_TO_SEND)),
    _S.SEND_QUEUE_ERROR: frozenset((_S.READY_TO_SEND,)),
    _S.ERROR: frozenset(),
}
"""State → those that a modify may lead to; to RESET and ERROR any may. Source: as for the states, figure 124."""

_ANYWHERE: Final = frozenset((_S.RESET, _S.ERROR))

# Attributes that keep their last value: a change that does not report one leaves it.
_KEPT: Final = (
    *("context", "send_queue", "receive_queue", "device", "type", "port", "peer_number", "peer_lid"),
    *("path_mtu_bytes", "timeout", "retries", "rnr_retries"),
)


class QueuePair(Struct, eq=False):
    """What is known of one; times are 0 where the step was not seen. ``ended_ns``: destroyed, or its process is."""

    tgid: int
    address: int
    number: int
    seen_ns: int
    made_ns: int = 0
    changed_ns: int = 0
    init_ns: int = 0
    receive_ns: int = 0
    ready_ns: int = 0
    error_ns: int = 0
    ended_ns: int = 0
    state: QueuePairState = QueuePairState.UNKNOWN
    failure: int = 0  # errno of the last modify that failed
    role: str = ""  # of connections that a manager made: "client" or "server"
    generation: int = 0  # how often it connected before: RESET and again
    context: int = 0
    send_queue: int = 0
    receive_queue: int = 0
    device: str = ""
    type: str = ""
    port: int = 0
    local_gid_index: int = 0
    peer_number: int = 0
    peer_gid: bytes = NO_GID
    peer_lid: int = 0
    path_mtu_bytes: int = 0
    timeout: int = 0
    retries: int = 0
    rnr_retries: int = 0

    @property
    def key(self) -> tuple[int, int, int]:
        """Process, address and number: an address is used again for another number."""
        return self.tgid, self.address, self.number

    @property
    def late(self) -> bool:
        """It was made before the agent looked."""
        return not self.made_ns


class QueuePairs:
    """All of a session. ``counters`` grow: oddities by name."""

    def __init__(self) -> None:
        self._live: dict[tuple[int, int, int], QueuePair] = {}
        self._at: dict[tuple[int, int], QueuePair] = {}  # the one that an address is now
        self._ended: list[QueuePair] = []  # not reported yet
        self._last: dict[tuple[int, int, int], QueuePair] = {}  # of those, the last that had a key
        self._connected: dict[int, QueuePair] = {}  # by identity: two of one key may be waiting
        self.counters: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[QueuePair]:
        return iter(self._live.values())

    def find(self, tgid: int, address: int, number: int) -> QueuePair | None:
        """Live, or ended and not reported yet. ``number`` 0: whichever is at the address."""
        if not number:
            return self._at.get((tgid, address))
        key = tgid, address, number
        return self._live.get(key) or self._last.get(key)

    def found(self, tgid: int, address: int, number: int, time_ns: int) -> QueuePair | None:
        """The same, and from now on one that was not known; None: there are too many, or it has no number."""
        known = self.find(tgid, address, number)
        if known is not None or not number:
            return known
        return self._make(tgid, address, number, time_ns)

    def _make(self, tgid: int, address: int, number: int, time_ns: int) -> QueuePair | None:
        if len(self._live) >= QUEUE_PAIRS:
            self.counters["queue_pairs_beyond_memory"] += 1
            return None
        before = self._at.get((tgid, address))
        if before is not None:
            self.counters["destroy_unseen"] += 1
            self._end(before, time_ns)
        made = QueuePair(tgid, address, number, time_ns)
        self._live[made.key] = self._at[tgid, address] = made
        return made

    def change(self, fact: QueuePairChanged) -> QueuePair | None:
        """A call made, modified or destroyed one. None: it says nothing of any."""
        if not fact.queue_pair or (fact.made and fact.error):
            self.counters["create_failed" if fact.error else "queue_pair_unknown"] += 1
            return None
        queue_pair = self._made(fact) if fact.made else None
        if queue_pair is None:
            queue_pair = self.found(fact.tgid, fact.queue_pair, fact.number, fact.time_ns)
        if queue_pair is None:
            self.counters["queue_pair_unknown"] += 1
            return None
        late = fact.time_ns < queue_pair.changed_ns or bool(queue_pair.ended_ns)
        self._learn(queue_pair, fact, late=late)
        if fact.error and not fact.destroyed:
            queue_pair.failure = fact.error
        elif late and (fact.made or fact.destroyed):
            pass  # a call around another, reported after it
        elif late:
            self.counters["changes_out_of_order"] += 1
            self._note(queue_pair, fact.state, fact)
        else:
            self._step(queue_pair, fact)
        if fact.destroyed and not fact.error:
            self._end(queue_pair, fact.time_ns)
        return queue_pair

    def take_connected(self) -> list[QueuePair]:
        """Those that became ready to send since it was last asked; each once for each time that it did."""
        found = list(self._connected.values())
        self._connected.clear()
        return found

    def take_ended(self, now_ns: int, *, final: bool = False) -> list[QueuePair]:
        """Those that ended long enough ago; all that ended with ``final``, or when there are too many."""
        if final or len(self._ended) > QUEUE_PAIRS:
            done, self._ended = self._ended, []
        else:
            before = now_ns - LAST_COUNTS_NS
            done = [each for each in self._ended if each.ended_ns <= before]
            if done:
                self._ended = [each for each in self._ended if each.ended_ns > before]
        if done:
            self._last = {each.key: each for each in self._ended}
        return done

    def end_process(self, tgid: int, time_ns: int) -> list[QueuePair]:
        """Its queue pairs are gone with it: all of which the end has not been reported."""
        for each in [each for each in self._live.values() if each.tgid == tgid]:
            self._end(each, time_ns)
        gone = [each for each in self._ended if each.tgid == tgid]
        self._ended = [each for each in self._ended if each.tgid != tgid]
        self._last = {each.key: each for each in self._ended}
        return gone

    def _made(self, fact: QueuePairChanged) -> QueuePair | None:
        """The new one; None: it is known already.

        By counts that were read before its record; or by a change within the call that made it, whose record is
        written at its end: rdma_create_qp makes a queue pair and takes it to INIT.
        """
        before = self._at.get((fact.tgid, fact.queue_pair))
        if before is not None and before.number == fact.number:
            if not before.made_ns and (not before.changed_ns or fact.time_ns <= before.changed_ns):
                return None
            self.counters["destroy_unseen"] += 1
            self._end(before, fact.time_ns)
        return self._make(fact.tgid, fact.queue_pair, fact.number, fact.time_ns) if fact.number else None

    def _learn(self, queue_pair: QueuePair, fact: QueuePairChanged, *, late: bool) -> None:
        """What a change reports; a late one fills in what no other has reported."""
        for name in _KEPT:
            value = getattr(fact, name)
            if value and not (late and getattr(queue_pair, name)):
                setattr(queue_pair, name, value)
        if fact.peer_gid and not (late and queue_pair.peer_gid):
            queue_pair.peer_gid, queue_pair.local_gid_index = fact.peer_gid, fact.local_gid_index
        if fact.made:
            queue_pair.made_ns = fact.time_ns
            queue_pair.seen_ns = min(queue_pair.seen_ns, fact.time_ns)

    def _step(self, queue_pair: QueuePair, fact: QueuePairChanged) -> None:
        queue_pair.changed_ns = fact.time_ns
        before, after = queue_pair.state, fact.state
        if fact.destroyed or after is _S.UNKNOWN:
            return
        steps = STEPS.get(before)
        if steps is not None and after is not before and after not in steps and after not in _ANYWHERE:
            self.counters["steps_unseen"] += 1
        queue_pair.state = after
        if after is _S.RESET and before is not _S.RESET:
            self._reset(queue_pair)
        self._note(queue_pair, after, fact)

    def _note(self, queue_pair: QueuePair, state: QueuePairState, fact: QueuePairChanged) -> None:
        """When a state was first reached."""
        end_ns = fact.time_ns + fact.duration_ns
        if state is _S.INIT and not queue_pair.init_ns:
            queue_pair.init_ns = fact.time_ns
        elif state is _S.READY_TO_RECEIVE and not queue_pair.receive_ns:
            queue_pair.receive_ns = end_ns
        elif state is _S.READY_TO_SEND and not queue_pair.ready_ns:
            queue_pair.ready_ns = end_ns
            self._connected[id(queue_pair)] = queue_pair
        elif state is _S.ERROR and not queue_pair.error_ns:
            queue_pair.error_ns = fact.time_ns

    def _reset(self, queue_pair: QueuePair) -> None:
        """What comes now is another connection."""
        queue_pair.generation += bool(queue_pair.ready_ns)
        queue_pair.init_ns = queue_pair.receive_ns = queue_pair.ready_ns = queue_pair.error_ns = 0
        queue_pair.peer_number = queue_pair.peer_lid = queue_pair.failure = 0
        queue_pair.peer_gid = NO_GID

    def _end(self, queue_pair: QueuePair, time_ns: int) -> None:
        if queue_pair.ended_ns:
            return
        queue_pair.ended_ns = max(time_ns, queue_pair.changed_ns, queue_pair.seen_ns)
        self._live.pop(queue_pair.key, None)
        if self._at.get((queue_pair.tgid, queue_pair.address)) is queue_pair:
            del self._at[queue_pair.tgid, queue_pair.address]
        self._ended.append(queue_pair)
        self._last[queue_pair.key] = queue_pair
