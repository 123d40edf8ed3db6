"""RDMA of a session, from facts to metrics and spans: what the pipeline asks, in the order in which it asks.

In: facts of family verbs, of ports and of hardware errors, and the communicators of processes. Out: spans of
connections, queue pairs, events and work requests; everything else goes into the metrics. Pure.

A connection is reported once it is ready to send and both its ends are known, or :data:`WAIT_NS` later with what is
known.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, Final

from msgspec import Struct

from otelgpu.engine.metrics import Metrics
from otelgpu.families.rdma import names as qp
from otelgpu.families.rdma.counts import ENTRIES, CountDeltas, Key, keys_of
from otelgpu.families.rdma.endpoints import End, Ports, peer
from otelgpu.families.rdma.facts import (
    FabricEvent,
    ObjectChanged,
    QueuePairChanged,
    QueuePairCounts,
    QueuePairState,
    RegionChanged,
    TransferSeen,
    VerbsFact,
)
from otelgpu.families.rdma.hardware_errors import HardwareErrors
from otelgpu.families.rdma.loss import WAIT_NS as LOSS_NS
from otelgpu.families.rdma.loss import LossShares
from otelgpu.families.rdma.memory_regions import Holder, Pinned
from otelgpu.families.rdma.metrics import SHARED_QUEUE, UNKNOWN, QueuePairMetrics
from otelgpu.families.rdma.owners import Owner, Owners
from otelgpu.families.rdma.ports import PortMetrics
from otelgpu.families.rdma.queue_pairs import QueuePair, QueuePairs
from otelgpu.families.rdma.spans import (
    Span,
    columns,
    connect_span,
    connection_contexts,
    event_span,
    identity_attributes,
    life_span,
    local_context,
    peer_attributes,
    transfer_span,
)
from otelgpu.model.communicators import CommunicatorSeen
from otelgpu.model.context import Context
from otelgpu.model.devices import DeviceSeen
from otelgpu.model.fabric import FabricInput, PortGone, PortReadings, PortSeen, QueuePairReadings
from otelgpu.model.losses import Reasons
from otelgpu.model.resource import Resource
from otelgpu.model.spans import SpanColumns

WAIT_NS: Final = 5_000_000_000
"""How long a connection waits for what the sensors report of its port."""

PEER_NS: Final = 1_000_000_000
"""How long it waits for its other end, where that may be on this host."""

IDENTITY_NS: Final = 3_000_000_000
"""How long counts of a queue pair wait for what it is. They are read from a map after the ring was emptied: its record
may come with the next collection, or, where it was made before the agent looked, with the driver's counters."""

PENDING: Final = 16_384
"""Work requests and events that wait for their connection's span; those beyond are counted."""

PORT_SPANS: Final = 32
"""Connections of a process below which an event of their port is reported; it is counted once all the same."""

REASONS: Final = Reasons(
    "fabric",
    {
        "changes_out_of_order": "a change of a queue pair that came after a later one: it filled in what was not known",
        "communicators_beyond_memory": "a communicator of a process that made so many that its oldest was forgotten",
        "counts_begun_anew": "what was counted of a queue pair began at zero again",
        "counts_beyond_memory": "counts of a queue pair beyond those that are followed",
        "counts_implausible": "counts that leapt by more than can be, left out",
        "create_failed": "a call that was to make a queue pair and failed",
        "deregister_unseen": "memory that was registered where other memory was: its deregistration was lost",
        "destroy_unseen": "a queue pair whose end was lost: its address became another's",
        "events_not_reported": "an event without a span, for too many waited or too many connections were concerned",
        "intervals_unobserved": "a second in which no posts of a queue pair were observed: nothing can be estimated",
        "losses_beyond_memory": "growth of a port's counters that was not divided among queue pairs",
        "never_connected": "a queue pair that ended without having tried to connect: it has no span",
        "object_calls_failed": "a call for a completion queue, an address handle or a connection that failed",
        "queue_pair_unknown": "a change that names no queue pair",
        "queue_pairs_beyond_memory": "a change of a queue pair beyond those that are followed",
        "queue_pairs_without_series": "a queue pair that shares series with others: there are too many",
        "region_calls_failed": "a call to register or deregister memory that failed",
        "regions_beyond_memory": "a memory region beyond those that are followed",
        "regions_of_before": "deregistration of memory that was registered before the agent looked",
        "regions_of_everything": "a region of all of the address space (on-demand paging), which pins nothing",
        "steps_unseen": "a step of a queue pair's state that cannot be: one before it was lost",
        "transfers_not_reported": "a work request without a span: its connection is not known, or too many waited",
    },
)
"""What one count of (``fabric``, reason) means."""

_ROLES: Final = {"rdma_connect": "client", "rdma_accept": "server"}

LISTED: Final = 1024
"""Connections that :meth:`FabricSession.connections` gives of one communicator."""


class _Connection(Struct, eq=False):
    """A queue pair whose connect span was reported."""

    context: Context
    own: End | None


class FabricSession:
    """One session's.

    ``resource_of`` describes any process, ``known_of`` one that is observed or None. ``own``: this program's
    resource. ``context_of``: the span that a process worked under, as :class:`HardwareErrors` asks it.
    """

    def __init__(
        self,
        metrics: Metrics,
        resource_of: Callable[[int], Resource],
        known_of: Callable[[int], Resource | None],
        own: Resource,
        *,
        seed: int,
        context_of: Callable[[int, int], Context | None] | None = None,
    ) -> None:
        self._resource_of, self._seed = resource_of, seed
        self._ports = PortMetrics(metrics, own, known_of)
        self._errors = HardwareErrors(metrics, own, known_of, seed=seed, context_of=context_of)
        self._metrics = QueuePairMetrics(metrics, resource_of, own)
        self._queue_pairs = QueuePairs()
        self._counts = CountDeltas()
        self._pinned = Pinned()
        self._owners = Owners()
        self._losses = LossShares()
        self._places = Ports()
        self._unplaced: dict[Key, tuple[int, QueuePairCounts]] = {}  # since when; the last row of each
        self._read: dict[tuple[int, int], tuple[str, int]] = {}  # (process, number) → device and port
        self._waiting: dict[QueuePair, None] = {}  # ready to send, not reported
        self._reported: dict[QueuePair, _Connection] = {}
        self._at: dict[End, QueuePair] = {}  # ends on this host
        self._departed: list[Span] = []  # of processes that are gone
        self._pending: deque[FabricEvent | TransferSeen] = deque()
        self._recent: deque[QueuePair] = deque()  # ended, but may still be blamed
        self._changed: dict[QueuePair, None] = {}
        self._held: dict[Holder, None] = {}  # whose pinned memory changed
        self._recount = False
        self._standing_in: dict[tuple[int, str], QueuePair] = {}  # by process and type
        self._owned: dict[tuple[int, int], list[Context]] | None = None  # made when asked
        self._counters: Counter[str] = Counter()

    @property
    def counters(self) -> Counter[str]:
        """What was left out or looked odd so far, by reason."""
        found = self._counters.copy()
        for each in (
            *(self._queue_pairs, self._counts, self._pinned, self._owners),
            *(self._losses, self._metrics, self._ports, self._errors),
        ):
            found.update(each.counters)
        return found

    @property
    def is_active(self) -> bool:
        """Whether anything is known that time has an effect on."""
        return bool(
            len(self._queue_pairs)
            or self._unplaced
            or self._waiting
            or self._departed
            or self._pending
            or self._recent
            or self._changed
            or self._held
            or self._standing_in
            or self._errors.is_waiting
        )

    # -- inputs -----------------------------------------------------------------------------------

    def take(self, facts: Iterable[VerbsFact]) -> None:
        """Facts of family verbs, in the order of the ring."""
        for fact in facts:
            match fact:
                case QueuePairChanged():
                    self._change(fact)
                case QueuePairCounts():
                    self._count(fact)
                case RegionChanged():
                    self._pinned.take(fact)
                    self._held[Holder(fact.tgid, fact.device, fact.dmabuf)] = None
                case FabricEvent():
                    self._metrics.event(fact)
                    self._keep(fact)
                case TransferSeen():
                    self._keep(fact)
                case ObjectChanged():
                    self._object(fact)

    def learn(self, item: FabricInput | DeviceSeen) -> None:
        """What sensors report: ports, their counters, hardware errors, and which GPUs those are of."""
        self._errors.take(item)
        if isinstance(item, DeviceSeen):
            return
        self._ports.take(item)
        match item:
            case PortSeen() | PortGone():
                self._places.take(item)
            case PortReadings():
                deltas = self._ports.deltas(item.device, item.port)
                self._losses.grew(item.device, item.port, item.time_ns, deltas)
            case QueuePairReadings():
                self._losses.read(item)
                self._learn_place(item)

    def learn_communicators(self, seen: Sequence[CommunicatorSeen]) -> None:
        """What was learnt of communicators, in its order."""
        self._owners.learn(seen)
        if seen:
            self._owned = None
            processes = {each.tgid for each in seen}
            self._changed.update(dict.fromkeys(each for each in self._queue_pairs if each.tgid in processes))

    def _change(self, fact: QueuePairChanged) -> None:
        queue_pair = self._queue_pairs.change(fact)
        if queue_pair is not None:
            self._infer_port(queue_pair)
            self._recount = True
            self._changed[queue_pair] = None

    def _object(self, fact: ObjectChanged) -> None:
        self._counters["object_calls_failed"] += bool(fact.error)
        role, queue_pair = _ROLES.get(fact.call), self._queue_pairs.find(fact.tgid, fact.object, 0)
        if role is not None and queue_pair is not None:
            queue_pair.role = role

    def _learn_place(self, item: QueuePairReadings) -> None:
        """Numbers are their device's own: those that a process has on two devices say nothing."""
        key, place = (item.tgid, item.number), (item.device, item.port)
        if item.tgid and len(self._read) < ENTRIES:
            known = self._read.setdefault(key, place)
            if known != place:
                self._read[key] = ("", 0)

    def _count(self, counts: QueuePairCounts) -> None:
        """Those of queue pairs that are not known yet wait; a later row of the same has the earlier one within it."""
        known = []
        for row, key in enumerate(keys_of(counts)):
            if key[2] and not self._is_placed(key):
                time_ns = int(counts.time_ns[row])
                since_ns = self._unplaced[key][0] if key in self._unplaced else time_ns
                if key in self._unplaced or len(self._unplaced) < PENDING:
                    self._unplaced[key] = since_ns, counts.rows([row])
                    continue
            self._unplaced.pop(key, None)
            known.append(row)
        if known:
            self._measure(counts.rows(known))

    def _is_placed(self, key: Key) -> bool:
        """Whether all that names its series is known; of those that have series it has to be enough."""
        of = self._queue_pairs.find(*key)
        return of is not None and bool(of.port or of.ended_ns or of in self._metrics.sums)

    def _place(self, keys: Iterable[Key]) -> None:
        """Counts of these wait no longer."""
        if rows := [self._unplaced.pop(key)[1] for key in keys]:
            self._measure(QueuePairCounts.joined(rows))

    def _place_known(self, now_ns: int, *, final: bool) -> None:
        """Report counts of queue pairs that are known by now, or that nothing more is learnt of."""
        self._place(
            [
                key
                for key, (since_ns, _) in self._unplaced.items()
                if final or now_ns - since_ns >= IDENTITY_NS or self._is_placed(key)
            ]
        )

    def _measure(self, counts: QueuePairCounts) -> None:
        before = len(self._queue_pairs)
        grown = self._counts.take(counts)
        of = [
            self._found(key, time_ns) or self._shared(*key)
            for key, time_ns in zip(grown.keys, grown.time_ns.tolist(), strict=True)
        ]
        self._recount |= len(self._queue_pairs) != before
        self._metrics.measure(grown, of)
        latencies = [place for place, each in enumerate(grown.counters) if each.what == "latencies"]
        self._losses.completed(grown.keys, grown.time_ns.tolist(), grown.values[:, latencies])

    def _found(self, key: Key, time_ns: int) -> QueuePair | None:
        queue_pair = self._queue_pairs.found(*key, time_ns)
        if queue_pair is not None and not queue_pair.device:
            device, port = self._read.get((key[0], key[2]), ("", 0))
            queue_pair.device, queue_pair.port = device, queue_pair.port or port
        if queue_pair is not None:
            self._infer_port(queue_pair)
        return queue_pair

    def _infer_port(self, queue_pair: QueuePair) -> None:
        """The change that reported the port of a late one was before the agent looked."""
        if queue_pair.late and not queue_pair.port:
            queue_pair.port = self._places.only_port(queue_pair.device)

    def _shared(self, tgid: int, address: int, number: int) -> QueuePair | None:
        """What stands for the shared receive queues of a process, or for queue pairs that are not known."""
        if number:
            return None  # there are too many: counted
        kind = SHARED_QUEUE if address else UNKNOWN
        return self._standing_in.setdefault((tgid, kind), QueuePair(tgid, 0, 0, 0, type=kind))

    def _keep(self, fact: FabricEvent | TransferSeen) -> None:
        if len(self._pending) >= PENDING:
            self._counters[
                "events_not_reported" if isinstance(fact, FabricEvent) else "transfers_not_reported"
            ] += 1
            return
        self._pending.append(fact)

    # -- what comes out ---------------------------------------------------------------------------

    def report(self, now_ns: int, offset_ns: int, final: bool) -> list[SpanColumns]:
        """Spans of what is known by now, or of all; metrics that stand are set anew where they changed."""
        spans, self._departed = self._departed, []
        self._place_known(now_ns, final=final)
        self._waiting.update(dict.fromkeys(self._queue_pairs.take_connected()))
        spans += self._report_connected(now_ns, final=final)
        spans += self._report_pending(now_ns, final=final)
        for queue_pair in self._queue_pairs.take_ended(now_ns, final=final):
            spans += self._end(queue_pair, now_ns)
        if final:
            spans += [self._life(each, now_ns) for each in self._queue_pairs]
        self._lose(now_ns, final=final)
        self._stand(now_ns)
        return columns(spans, offset_ns) + self._errors.report(now_ns, offset_ns, final=final)

    def forget_process(self, tgid: int, time_ns: int) -> None:
        """A process ended, and all that it did has been taken: its spans come with the next :meth:`report`."""
        self._place([key for key in self._unplaced if key[0] == tgid])
        for place in [place for place in self._read if place[0] == tgid]:
            del self._read[place]
        self._waiting.update(dict.fromkeys(self._queue_pairs.take_connected()))
        gone = self._queue_pairs.end_process(tgid, time_ns)
        for queue_pair in gone:
            self._departed += self._end(queue_pair, time_ns, departed=True)
        self._recount |= bool(gone)
        for key in [key for key in self._standing_in if key[0] == tgid]:
            self._metrics.ended(self._standing_in.pop(key), time_ns, departed=True)
        self._metrics.unpin(self._pinned.forget_process(tgid))
        for holder in [holder for holder in self._held if holder.tgid == tgid]:
            del self._held[holder]
        self._counts.forget_process(tgid)
        self._owners.forget_process(tgid)
        self._pending = deque(each for each in self._pending if each.tgid != tgid)

    def connections(self, tgid: int, communicator_hash: int) -> list[Context]:
        """The connect spans of a process's connections that a communicator owns, for a collective to link to."""
        if self._owned is None:
            self._owned = {}
            for queue_pair, reported in self._reported.items():
                owner = self._owners.owner(queue_pair)
                if owner is not None:
                    self._owned.setdefault((queue_pair.tgid, owner.hash), []).append(reported.context)
        return self._owned.get((tgid, communicator_hash), [])[:LISTED]

    # -- connections ------------------------------------------------------------------------------

    def _report_connected(self, now_ns: int, *, final: bool) -> list[Span]:
        """Those whose ends are known, or that have waited for long enough."""
        for queue_pair in self._waiting:
            self._register(queue_pair)
        settled = [each for each in self._waiting if final or self._settled(each, now_ns)]
        for queue_pair in settled:
            del self._waiting[queue_pair]
        return self._connect(settled)

    def _register(self, queue_pair: QueuePair) -> End | None:
        own = self._places.local(queue_pair)
        if own is not None and not queue_pair.ended_ns:
            self._at[own] = queue_pair
        return own

    def _settled(self, queue_pair: QueuePair, now_ns: int) -> bool:
        waited_ns = now_ns - queue_pair.ready_ns
        if waited_ns >= WAIT_NS or queue_pair.ended_ns or peer(queue_pair) is None:
            return True
        if self._places.local(queue_pair) is None and not self._places.known(queue_pair):
            return False
        return peer(queue_pair) in self._at or waited_ns >= PEER_NS

    def _connect(self, queue_pairs: Sequence[QueuePair]) -> list[Span]:
        """The connect spans; from here on each connection has a place for what belongs to it."""
        owns = [self._register(each) for each in queue_pairs]
        others = [peer(each) for each in queue_pairs]
        known = [
            (own, other, each.generation)
            for own, other, each in zip(owns, others, queue_pairs, strict=True)
            if own is not None and other is not None and own != other
        ]
        contexts = iter(connection_contexts(known))
        return [
            self._connected(each, own, other, next(contexts) if own and other and own != other else None)
            for each, own, other in zip(queue_pairs, owns, others, strict=True)
        ]

    def _connected(
        self,
        queue_pair: QueuePair,
        own: End | None,
        other: End | None,
        contexts: tuple[Context, Context] | None,
    ) -> Span:
        """``contexts``: the connect spans of both ends; None: an end is not known."""
        attributes = identity_attributes(queue_pair, own, self._owners.owner(queue_pair))
        attributes[qp.IDENTITY] = "ends" if contexts is not None else "local"
        context = contexts[0] if contexts is not None else local_context(queue_pair, self._seed)
        links = contexts[1:] if contexts is not None else ()
        attributes |= self._peer(other)
        self._reported[queue_pair] = _Connection(context, own)
        self._owned = None
        self._metrics.connected(queue_pair)
        return connect_span(queue_pair, self._resource_of(queue_pair.tgid), context, attributes, links)

    def _peer(self, other: End | None) -> dict[str, Any]:
        """The process at the other end, where it is on this host."""
        there = self._at.get(other) if other is not None else None
        return peer_attributes(there.tgid, self._resource_of(there.tgid)) if there is not None else {}

    def _end(self, queue_pair: QueuePair, now_ns: int, *, departed: bool = False) -> list[Span]:
        """The spans of one that is no more, and nothing of it after them."""
        spans: list[Span] = []
        if queue_pair in self._waiting:
            del self._waiting[queue_pair]
            spans += self._connect([queue_pair])
        elif queue_pair not in self._reported and (queue_pair.receive_ns or queue_pair.failure):
            spans += self._connect([queue_pair])  # it tried
        elif queue_pair not in self._reported:
            self._counters["never_connected"] += not queue_pair.late
        if queue_pair.ready_ns or queue_pair in self._metrics.sums:
            spans.append(self._life(queue_pair, queue_pair.ended_ns))
        reported = self._reported.pop(queue_pair, None)
        self._owned = None
        if reported is not None and reported.own is not None and self._at.get(reported.own) is queue_pair:
            del self._at[reported.own]
        self._changed.pop(queue_pair, None)
        self._metrics.ended(queue_pair, now_ns, departed=departed)
        self._counts.forget(queue_pair.key)
        self._recent.append(queue_pair)
        self._recount = True
        return spans

    def _life(self, queue_pair: QueuePair, end_ns: int) -> Span:
        reported = self._reported.get(queue_pair)
        owner = self._owners.owner(queue_pair)
        return life_span(
            queue_pair,
            self._resource_of(queue_pair.tgid),
            reported.context if reported is not None else None,
            identity_attributes(queue_pair, reported.own if reported is not None else None, owner),
            self._metrics.sums.get(queue_pair),
            seed=self._seed,
            end_ns=end_ns,
        )

    # -- events and work requests -----------------------------------------------------------------

    def _report_pending(self, now_ns: int, *, final: bool) -> list[Span]:
        spans: list[Span] = []
        still: deque[FabricEvent | TransferSeen] = deque()
        for fact in self._pending:
            if isinstance(fact, TransferSeen):
                of = self._queue_pairs.find(fact.tgid, fact.queue_pair, fact.number)
                concerned = [of] if of is not None else []
            else:
                concerned = self._concerned(fact)
            if not final and any(each in self._waiting for each in concerned):
                still.append(fact)
                continue
            reported = [(each, self._reported[each]) for each in concerned if each in self._reported]
            if isinstance(fact, TransferSeen):
                self._counters["transfers_not_reported"] += not reported
            for each, connection in reported:
                resource = self._resource_of(fact.tgid)
                owner = self._owners.owner(each)
                attributes = identity_attributes(each, connection.own, owner)
                if isinstance(fact, TransferSeen):
                    spans.append(transfer_span(fact, resource, connection.context, attributes))
                else:
                    spans.append(event_span(fact, resource, connection.context, attributes))
        self._pending = still
        return spans

    def _concerned(self, event: FabricEvent) -> list[QueuePair]:
        """The connections that an event is about: one, or those of its port."""
        of = self._queue_pairs.find(event.tgid, event.object, 0) if event.object else None
        if of is not None:
            return [of]
        if not event.of_port:
            return []
        place = event.device, event.number
        found = [
            each for each in self._reported if each.tgid == event.tgid and (each.device, each.port) == place
        ]
        self._counters["events_not_reported"] += max(len(found) - PORT_SPANS, 0)
        return found[:PORT_SPANS]

    # -- metrics that stand -----------------------------------------------------------------------

    def _lose(self, now_ns: int, *, final: bool) -> None:
        for loss in self._losses.take(now_ns, chain(self._queue_pairs, self._recent), final=final):
            owner: Owner | None = self._owners.owner(loss.queue_pair) if loss.queue_pair is not None else None
            self._metrics.lose(loss, owner)
        while self._recent and self._recent[0].ended_ns <= now_ns - 3 * LOSS_NS:
            gone = self._recent.popleft()
            if self._queue_pairs.find(*gone.key) is None:
                self._losses.forget(gone.key, gone.device)

    def _stand(self, now_ns: int) -> None:
        for queue_pair in self._changed:
            if not queue_pair.ended_ns and queue_pair.state not in (
                QueuePairState.RESET,
                QueuePairState.UNKNOWN,
            ):
                self._metrics.show(queue_pair, self._owners.owner(queue_pair))
        self._changed.clear()
        if self._recount:
            self._metrics.count_states(self._queue_pairs)
            self._recount = False
        self._metrics.pin(self._pinned, self._held)
        self._held.clear()
        self._metrics.expire(now_ns)
