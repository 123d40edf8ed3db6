"""The open exchanges of one connection, in order, and which thread holds one of them.

In: what ``connection`` learns about each. Out: claims and finished exchanges, appended to the session. It
must not know about bytes or messages.

Invariant: responses come in the order of requests, so the first unanswered exchange is the one that the next
response belongs to, and the only one that a thread can hold; at most the last one is still being read.
"""

from __future__ import annotations

from collections.abc import Iterator

from otelgpu.families.requests.open_exchange import OpenExchange
from otelgpu.families.requests.protocol import Call, ConnectionFacts
from otelgpu.families.requests.session import Session
from otelgpu.model.exchange import Claim, Role, StartSource


class ExchangeQueue:
    """Requests that are not over, the oldest first. Only at a server's end are they held by threads."""

    __slots__ = (
        "_at_server",
        "_exchanges",
        "_facts",
        "_holder",
        "_next_ordinal",
        "_session",
        "_thread",
    )

    def __init__(self, facts: ConnectionFacts, session: Session) -> None:
        self._facts = facts
        self._at_server = facts.role is Role.SERVER
        self._session = session
        self._exchanges: list[OpenExchange] = []
        self._next_ordinal = 0
        self._holder: OpenExchange | None = None
        self._thread = (0, 0)  # tgid and tid that hold it

    def __len__(self) -> int:
        return len(self._exchanges)

    def __iter__(self) -> Iterator[OpenExchange]:
        """Iterate over a copy: exchanges may be finished meanwhile."""
        return iter(tuple(self._exchanges))

    @property
    def waits_for_holder(self) -> bool:
        """Whether an exchange is open and none is held."""
        return self._holder is None and self._at_server and bool(self._exchanges)

    def open(self, call: Call, *, start_ns: int, start_source: StartSource) -> OpenExchange:
        """Append an exchange of which the call moved the first byte."""
        exchange = OpenExchange(
            key=self._session.new_key(),
            ordinal=self._next_ordinal,
            call=call,
            start_ns=start_ns,
            start_source=start_source,
        )
        self._next_ordinal += 1
        self._exchanges.append(exchange)
        return exchange

    def unanswered(self, other_than: OpenExchange | None = None) -> OpenExchange | None:
        """Return the first exchange without a complete response."""
        for exchange in self._exchanges:
            if not exchange.answered and exchange is not other_than:
                return exchange
        return None

    def hold_next(self, time_ns: int) -> None:
        """Let the thread that read the first unanswered request hold it, from ``time_ns`` or its start on."""
        exchange = self.unanswered()
        if exchange is not None and not exchange.framing_lost:
            self._hold(exchange, max(exchange.taken_ns, time_ns))

    def read_on(self, exchange: OpenExchange, call: Call) -> None:
        """Take note that a thread moved more of a request: if another one held it, it lets go."""
        exchange.request_end_ns = call.end_ns
        exchange.tgid, exchange.tid = call.tgid, call.tid
        if exchange is self._holder and self._thread != (call.tgid, call.tid):
            self.let_go(exchange, call.end_ns)
            self._hold(exchange, call.end_ns)

    def let_go(self, exchange: OpenExchange, time_ns: int) -> None:
        """End the hold of an exchange, if it is held."""
        if exchange is self._holder:
            self._holder = None
            self._claim(exchange, time_ns, held=False)

    def _hold(self, exchange: OpenExchange, time_ns: int) -> None:
        self._holder = exchange
        self._thread = (exchange.tgid, exchange.tid)
        self._claim(exchange, time_ns, held=True)

    def _claim(self, exchange: OpenExchange, time_ns: int, *, held: bool) -> None:
        tgid, tid = self._thread
        self._session.claims.append(
            Claim(
                time_ns=time_ns,
                tgid=tgid,
                tid=tid,
                exchange=exchange.key,
                held=held,
                loop=self._facts.nonblocking,
            )
        )

    def drop(self, exchange: OpenExchange, time_ns: int) -> None:
        """Forget what was no exchange after all."""
        self.let_go(exchange, time_ns)
        self._exchanges.remove(exchange)
        if exchange.generation is not None:
            exchange.generation.drop()

    def hand_over(self, exchange: OpenExchange, time_ns: int) -> None:
        """Leave an exchange to another parser, which gives it out."""
        self.let_go(exchange, time_ns)
        self._exchanges.remove(exchange)

    def finish(self, exchange: OpenExchange, time_ns: int) -> None:
        """Give out an exchange that is over since ``time_ns``."""
        if not (exchange.head_seen or exchange.status_code):
            self._session.count("requests_incomplete")
            self.drop(exchange, time_ns)
            return
        if exchange.error == "capture_gap":
            self._session.count("capture_gaps")
        self._session.exchanges.append(exchange.finish(self._facts))
        self.drop(exchange, time_ns)
