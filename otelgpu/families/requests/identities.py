"""The span of an exchange, and its parent. Pure.

In: exchanges as they open, what the process published meanwhile, and the exchanges when they end. Out: an
:class:`Identity` of each: the context that its work goes under, its parent, and whether the span is ours to report.

The first that applies (DESIGN.md section 5):

1. The process published its own context when it answered (or asked): that is the span, and not ours to report.
2. The request carries a ``traceparent``. At a server that is the parent. At a client the process made
   it, so the span is the process's own, unless it came in with a request to the same process: a proxy passed it on,
   and our span is a child of that request's; where it came with several at once, of the span that the header names.
   The server that it was passed on to is then a child of the proxy's span, where both ends of that connection are seen.
3. The client's thread serves a request: that request's span is the parent.
4. The server's client is observed too: the client's span of the same exchange is the parent.
5. The ids are derived from what both endpoints see (``Exchange.wire_id``), so that they meet in one trace wherever the
   other endpoint is observed, without coordination between the observers.
6. The ids are derived from the session's seed.

A process that exports traces itself and publishes no context has a span for a request with a ``traceparent``,
whose id is not known here: ours is not made, and the work goes under the caller's span, in the same trace.

Example: a client sends a request without a ``traceparent`` at byte 17 of a connection: its span is (t, c), both
derived from the wire id. The server's span is (t, s), a child of c if the same session saw the client, else a second
root in trace t.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from otelgpu.engine.attribution.threads import UNSETTLED as UNSETTLED_OWNER
from otelgpu.model.context import NO_SPAN, SAMPLED, Context
from otelgpu.model.exchange import CLIENT, SERVER, Exchange, Opened, Published, Role, TraceParent
from otelgpu.model.ids import request_ids
from otelgpu.model.sampling import ALL, NONE_EXCLUDED, Exclusion, Sampler
from otelgpu.model.shares import Remembered

try:
    from _blake2 import blake2b  # without OpenSSL, which hashlib loads
except ImportError:  # another Python than CPython
    from hashlib import blake2b

REMEMBERED: Final = 65_536
"""Exchanges that are open, or ended not long ago."""

ENDED_REMEMBERED: Final = 4096
"""Of these, those that ended; of a container that has most the oldest are forgotten first."""
_DEEPEST: Final = 8
"""Processes in a chain of requests that are looked at for whether one's is known."""
SAME_RECEIVED: Final = 8
"""Requests to one process with the same ``traceparent`` that are told apart."""
_OTHERS: Final = -1
"""In place of their keys: there were more, under way at once, so that nobody knows which of all is the only one."""
SAMPLED_OUT: Final = "sampled_out_requests"
EXCLUDED: Final = "excluded_requests"
CAPPED: Final = "capped_requests"
_EXPORTS: Final = ("/v1/traces", "/v1/metrics", "/v1/logs", "/v1development/profiles")
_EXPORT_SERVICE: Final = "opentelemetry.proto.collector."
_TRACE_EXPORTS: Final = ("/v1/traces", "trace.v1.TraceService/Export")

_TRACE: Final = blake2b(digest_size=16, person=b"otelgpu trace")
_SPAN: Final = {
    role: blake2b(digest_size=8, person=b"otelgpu " + role.name.lower().encode()) for role in Role
}
"""What ids are hashed by, to be copied: that takes half as long as to make one."""

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Identity(Struct, frozen=True, kw_only=True, gc=False):
    """An exchange among the spans."""

    context: Context
    parent_span_id: bytes = NO_SPAN
    state: str = ""  # W3C tracestate
    own: bool = True  # the span is ours to report; False: the process reports it, or its caller
    peer: Context | None = None  # the peer's span, if it is in another trace
    left_out: str = ""  # why it, or what it is below, is not reported: SAMPLED_OUT, …; "": not by us

    @property
    def reported(self) -> bool:
        """Whether a span of ours is made."""
        return self.own and self.context.sampled

    def kept(self) -> Identity:
        """Reported after all. Of how many it is one is not known: it has no trace state of a sampler's."""
        context = self.context._replace(flags=self.context.flags | SAMPLED)
        return replace(self, context=context, left_out="")

    def dropped(self, reason: str) -> Identity:
        """Left out after all."""
        return replace(
            self, context=self.context._replace(flags=self.context.flags & ~SAMPLED), left_out=reason
        )


def _opening_of(exchange: Exchange) -> Opened:
    """What its identity is made of."""
    return Opened(
        key=exchange.key,
        tgid=exchange.tgid,
        tid=exchange.tid,
        start_ns=exchange.start_ns,
        role=exchange.role,
        parent=exchange.parent,
        wire_id=exchange.wire_id,
        task=exchange.task,
        asked=exchange.asked,
        path=exchange.path,
        user_agent=exchange.user_agent,
    )


def _is_same(opened: Opened, exchange: Exchange) -> bool:
    """Whether that is what was known when it opened: who worked for it, and of whom, may have turned out since."""
    return (
        opened.tid == exchange.tid
        and opened.task == exchange.task
        and opened.tgid == exchange.tgid
        and opened.parent is exchange.parent
        and opened.asked is exchange.asked
        and opened.wire_id == exchange.wire_id
        and opened.start_ns == exchange.start_ns
        and opened.role is exchange.role
        and opened.path == exchange.path
        and opened.user_agent == exchange.user_agent
    )


def exports_telemetry(exchange: Exchange) -> bool:
    """Whether an exchange carries telemetry: no work of a service, and no span of ours."""
    if exchange.rpc is not None:
        return exchange.rpc.method.startswith(_EXPORT_SERVICE)
    return exchange.method == "POST" and exchange.path.endswith(_EXPORTS)


def _exports_traces(exchange: Exchange) -> bool:
    reported = exchange.rpc.method if exchange.rpc is not None else exchange.path
    return exchange.role is CLIENT and reported.endswith(_TRACE_EXPORTS) and exports_telemetry(exchange)


class Identities:
    """Those of one session: of :data:`REMEMBERED` exchanges, of which the last that ended are kept for their late work.

    ``serving(opened)`` returns the exchange that the thread or the task of a client worked for, 0 for none,
    UNSETTLED_OWNER where that will be known later; ``unserved(opened)`` is told, once, of those of none.
    ``defer``: False makes our spans in addition to those of processes that make their own. ``sampler`` decides which of
    our spans are reported. ``exclusion``: of which none is, nor what was sent for it.
    """

    def __init__(
        self,
        seed: int,
        serving: Callable[[Opened], int],
        unserved: Callable[[Opened], None] = lambda opened: None,
        *,
        defer: bool = True,
        sampler: Sampler = ALL,
        exclusion: Exclusion = NONE_EXCLUDED,
    ) -> None:
        self._seed = seed
        self._serving = serving
        self._unserved = unserved
        self._defer = defer
        self.sampler, self.exclusion = sampler, exclusion
        self._opened: OrderedDict[int, Opened] = OrderedDict()
        self._known: OrderedDict[int, Identity] = OrderedDict()
        self._published: OrderedDict[int, Published] = OrderedDict()
        self._publishers: set[int] = set()  # processes that publish a context while they serve
        self._exporters: set[int] = set()
        self._clients: OrderedDict[bytes, int] = OrderedDict()  # by wire id
        self._servers: OrderedDict[bytes, int] = OrderedDict()
        # keys by process and traceparent, the oldest first
        self._received: OrderedDict[tuple[int, bytes, bytes], list[int]] = OrderedDict()
        self._ends_ns: OrderedDict[int, int] = OrderedDict()  # of those that ended
        self._ended: Remembered[int] = Remembered(ENDED_REMEMBERED)

    def open(self, opened: Opened) -> None:
        """A request began."""
        _remember(self._opened, opened.key, opened)
        if opened.wire_id:
            by_wire_id = self._clients if opened.role is CLIENT else self._servers
            _remember(by_wire_id, opened.wire_id, opened.key)
        if opened.role is SERVER and opened.parent is not None:
            self._receive(opened.key, _carried(opened.tgid, opened.parent))

    def _receive(self, key: int, carried: tuple[int, bytes, bytes]) -> None:
        keys = self._received.get(carried, [])
        if len(keys) >= SAME_RECEIVED:
            ended = next((each for each in keys if each in self._ends_ns), None)
            if ended is None and _OTHERS not in keys:
                keys[0] = _OTHERS
            else:
                keys.remove(keys[1] if ended is None else ended)
        _remember(self._received, carried, [*keys, key])

    def publish(self, key: int, tgid: int, published: Published | None) -> None:
        """A process published a context while it worked for an exchange."""
        if published is not None:
            self._publishers.add(tgid)
            _remember(self._published, key, published)

    def note(self, exchange: Exchange) -> None:
        """An exchange ended: note what it shows of its process."""
        self.publish(exchange.key, exchange.tgid, exchange.published)
        if _exports_traces(exchange):
            self._exporters.add(exchange.tgid)

    def forget_process(self, tgid: int) -> None:
        """A process ended, or became another program."""
        self._publishers.discard(tgid)
        self._exporters.discard(tgid)

    def of(self, exchange: Exchange, *, wanted: bool = False) -> Identity:
        """The identity of an exchange that ended. ``wanted``: to be reported, whatever the sampler says.

        A request and what was sent for it are each wanted or not by themselves, in one trace.
        """
        opened = self._opened.get(exchange.key)
        if opened is not None and _is_same(opened, exchange):
            self._opened.move_to_end(exchange.key)
        else:
            opened = _opening_of(exchange)
            _remember(self._opened, exchange.key, opened)
        _remember(self._ends_ns, exchange.key, exchange.end_ns)
        found = self._find(opened)
        if wanted and found.own and found.left_out == SAMPLED_OUT:
            found = found.kept()
            _remember(self._known, exchange.key, found)
        if found.own and opened.role is SERVER and opened.parent is not None:
            found = self._behind_proxy(found, opened, opened.parent)
        if found.peer is not None and opened.wire_id in self._servers:
            found = replace(found, peer=None)  # the peer is in the same trace
        if (oldest := self._ended.add(exchange.cgroup_id, exchange.key)) is not None:
            self.forget(oldest)
        return found

    def drop(self, key: int, found: Identity, reason: str) -> Identity:
        """The same, left out after all, and with it what will be sent for it."""
        found = found.dropped(reason)
        if found.own:
            _remember(self._known, key, found)
        return found

    def forget(self, key: int) -> None:
        """Nobody will ask for an exchange any more."""
        opened = self._opened.pop(key, None)
        self._known.pop(key, None)
        self._published.pop(key, None)
        self._ends_ns.pop(key, None)
        if opened is None:
            return
        for by_wire_id in (self._clients, self._servers):
            if by_wire_id.get(opened.wire_id) == key:
                del by_wire_id[opened.wire_id]
        if opened.parent is not None:
            carried = _carried(opened.tgid, opened.parent)
            keys = self._received.get(carried, [])
            if key in keys:
                keys.remove(key)
            if keys in ([], [_OTHERS]):
                self._received.pop(carried, None)

    def context(self, key: int) -> Context | None:
        """The span of an exchange that is open, or ended not long ago; None where it is not known yet."""
        opened = self._opened.get(key)
        if opened is None:
            return None
        if opened.tgid in self._publishers and key not in self._published:
            return None  # the process's own span, whose id is not known yet
        if not self._is_settled(opened):
            return None
        return self._find(opened).context

    def is_settled(self, exchange: Exchange) -> bool:
        """Whether the identity of an exchange that ended is known: else that of the request it was made for is not."""
        opened = self._opened.get(exchange.key)
        return opened is None or self._is_settled(opened)

    def _is_settled(self, opened: Opened, depth: int = _DEEPEST) -> bool:
        if (
            opened.parent is not None
            or opened.key in self._known
            or opened.key in self._published
            or not depth
        ):
            return True
        if opened.role is SERVER:
            client = self._opened.get(self._clients.get(opened.wire_id, 0)) if opened.wire_id else None
            return client is None or self._is_settled(client, depth - 1)
        key = self._serving(opened)
        served = self._opened.get(key)
        return key != UNSETTLED_OWNER and (served is None or self._is_settled(served, depth - 1))

    def _find(self, opened: Opened) -> Identity:
        published = self._published.get(opened.key) if self._defer else None
        if published is not None and opened.role is SERVER:
            return Identity(
                context=Context(published.trace_id, published.span_id, published.flags), own=False
            )
        known = self._known.get(opened.key)
        if known is None:
            known = self._client(opened) if opened.role is CLIENT else self._server(opened)
            if known.own and self.exclusion.fits(opened.path, opened.user_agent):
                known = known.dropped(EXCLUDED)
            _remember(self._known, opened.key, known)
        if known.own and opened.parent is not None and self._reports_itself(opened):
            parent = opened.parent
            return Identity(context=Context(parent.trace_id, parent.span_id, parent.flags), own=False)
        return known

    def _reports_itself(self, opened: Opened) -> bool:
        return self._defer and opened.role is SERVER and opened.tgid in self._exporters

    def _server(self, opened: Opened) -> Identity:
        if opened.parent is not None:
            return self._below(opened, opened.parent)
        client = self._sent(opened)
        if client is not None:
            above = self._find(client)
            return Identity(
                context=Context(above.context.trace_id, self._span_id(opened), above.context.flags),
                parent_span_id=above.context.span_id,
                state=above.state,
                left_out=above.left_out,
            )
        return self._root(opened)

    def _client(self, opened: Opened) -> Identity:
        parent = opened.parent
        if parent is None:
            key = max(self._serving(opened), 0)  # what is not known by now is nobody's
            if not key:
                self._unserved(opened)
            served = self._opened.get(key)
        else:
            received = self._received_before(opened, parent)
            if not received and self._defer:
                return Identity(context=Context(parent.trace_id, parent.span_id, parent.flags), own=False)
            if len(received) != 1 or _OTHERS in self._received[_carried(opened.tgid, parent)]:
                return self._below(opened, parent)
            served = received[0]
        published = self._published.get(opened.key)
        above = None
        if published is not None:
            above = Identity(context=Context(published.trace_id, published.span_id, published.flags))
        elif served is not None and served.role is SERVER:
            above = self._find(served)
        if above is None:
            return self._root(opened)
        peer = None
        if opened.wire_id and parent is None:
            peer = Context(wire_trace_id(opened.wire_id), wire_span_id(opened.wire_id, SERVER), SAMPLED)
        return Identity(
            context=Context(above.context.trace_id, self._span_id(opened), above.context.flags),
            parent_span_id=above.context.span_id,
            state=above.state,
            peer=peer,
            left_out=above.left_out,
        )

    def _received_before(self, opened: Opened, parent: TraceParent) -> list[Opened]:
        """Requests to the process of an outgoing one that brought its ``traceparent``: those under way, if any was.

        Not what the process sent to itself: that ``traceparent`` is its own.
        """
        before = [
            each
            for key in self._received.get(_carried(opened.tgid, parent), ())
            if (each := self._opened.get(key)) is not None and each.start_ns <= opened.start_ns
        ]
        before = [each for each in before if (sent := self._sent(each)) is None or sent.tgid != opened.tgid]
        if len(before) < 2:
            return before
        under_way = [
            each for each in before if self._ends_ns.get(each.key, opened.start_ns) >= opened.start_ns
        ]
        return under_way or before

    def _sent(self, opened: Opened) -> Opened | None:
        """The client's side of an exchange, where it is seen too."""
        return self._opened.get(self._clients.get(opened.wire_id, 0)) if opened.wire_id else None

    def _behind_proxy(self, found: Identity, opened: Opened, parent: TraceParent) -> Identity:
        """The same below the span of the client that passed the ``traceparent`` on, where one did."""
        client = self._sent(opened)
        if client is None or client.parent is None:
            return found
        if _carried(0, client.parent) != _carried(0, parent) or not self._received_before(client, parent):
            return found
        above = self._find(client)
        if not above.own or above.context.trace_id != found.context.trace_id:
            return found
        return replace(found, parent_span_id=above.context.span_id)

    def _below(self, opened: Opened, parent: TraceParent) -> Identity:
        flags, state = self.sampler.child(parent.trace_id, parent.flags, parent.state)
        return Identity(
            context=Context(parent.trace_id, self._span_id(opened), flags),
            parent_span_id=parent.span_id,
            state=state,
            left_out="" if flags & SAMPLED or self.sampler.parent_based else SAMPLED_OUT,
        )

    def _root(self, opened: Opened) -> Identity:
        trace_id, span_id = self._ids(opened)
        flags, state = self.sampler.root(trace_id)
        context = Context(trace_id, span_id, flags)
        return Identity(context=context, state=state, left_out="" if flags & SAMPLED else SAMPLED_OUT)

    def _span_id(self, opened: Opened) -> bytes:
        if opened.wire_id:
            return wire_span_id(opened.wire_id, opened.role)
        return request_ids(self._seed, opened.key, opened.start_ns)[1]

    def _ids(self, opened: Opened) -> tuple[bytes, bytes]:
        """The trace that it begins, and its span."""
        if opened.wire_id:
            return wire_trace_id(opened.wire_id), wire_span_id(opened.wire_id, opened.role)
        return request_ids(self._seed, opened.key, opened.start_ns)


def wire_trace_id(wire_id: bytes) -> bytes:
    """The trace of an exchange as both endpoints of its connection derive it."""
    hashed = _TRACE.copy()
    hashed.update(wire_id)
    return hashed.digest()


def wire_span_id(wire_id: bytes, role: Role) -> bytes:
    """The span of an exchange at one endpoint, as both endpoints derive it."""
    hashed = _SPAN[role].copy()
    hashed.update(wire_id)
    return hashed.digest()


def _carried(tgid: int, parent: TraceParent) -> tuple[int, bytes, bytes]:
    return tgid, parent.trace_id, parent.span_id


def _remember(table: OrderedDict[_Key, _Value], key: _Key, value: _Value) -> None:
    if key in table:
        table.move_to_end(key)
    elif len(table) >= REMEMBERED:
        table.popitem(last=False)
    table[key] = value
