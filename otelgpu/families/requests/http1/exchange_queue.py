"""The open exchanges of one connection, in order, and which thread works for one of them.

In: what ``connection`` learns about each. Out: assignments and finished exchanges, appended to the output. It
must not know about bytes or messages.

Invariant: responses come in the order of requests, so the first unanswered exchange is the one that the next
response belongs to, and the only one that can be assigned to a thread that reads as it serves; an event loop begins
with all that it reads. At most the last one is still being read.
"""

from __future__ import annotations

from collections.abc import Iterator

from otelgpu.families.requests.open_exchange import OpenExchange
from otelgpu.families.requests.parser_output import ExchangeRoom, ParserOutput
from otelgpu.families.requests.protocol import Call, ConnectionFacts
from otelgpu.model.exchange import Role, StartSource, ThreadAssignment


class ExchangeQueue:
    """Requests that are not over, the oldest first. They are assigned to threads at servers only."""

    __slots__ = (
        "_assigned",
        "_at_server",
        "_exchanges",
        "_facts",
        "_next_assigned",
        "_next_ordinal",
        "_output",
        "_room",
        "is_crowded",
    )

    def __init__(self, facts: ConnectionFacts, output: ParserOutput) -> None:
        self._facts = facts
        self._at_server = facts.role is Role.SERVER
        self._output = output
        self._exchanges: list[OpenExchange] = []
        self._next_ordinal = 0
        self._next_assigned = 0  # the ordinal that an event loop begins next
        self._assigned: dict[int, tuple[int, int]] = {}  # key → tgid and tid that it is assigned to
        self._room = ExchangeRoom(output)
        self.is_crowded = False  # there was no room for one more: the process has its share of open ones

    def __len__(self) -> int:
        return len(self._exchanges)

    def __iter__(self) -> Iterator[OpenExchange]:
        """Iterate over a copy: exchanges may be finished meanwhile."""
        return iter(tuple(self._exchanges))

    @property
    def oldest(self) -> OpenExchange:
        """The first that is not over. Raises IndexError where none is."""
        return self._exchanges[0]

    @property
    def plain(self) -> OpenExchange | None:
        """The one that is open, where just one is, which asks for a response and no more; nothing of it is in doubt."""
        if len(self._exchanges) != 1:
            return None
        exchange = self._exchanges[0]
        is_waiting = exchange.request_done and not (exchange.answered or exchange.status_code)
        is_whole = exchange.paired and not (
            exchange.framing_lost or exchange.response_bytes or exchange.error
        )
        asks_more = exchange.generation is not None or exchange.upgrade or exchange.method == "CONNECT"
        return exchange if is_waiting and is_whole and not asks_more else None

    @property
    def awaits_assignment(self) -> bool:
        """Whether an exchange is open that is to be assigned now."""
        if not (self._at_server and self._exchanges):
            return False
        return not self._assigned or (self._facts.nonblocking and self._next_assigned < self._next_ordinal)

    def open(self, call: Call, *, start_ns: int, start_source: StartSource) -> OpenExchange:
        """Append an exchange of which the call moved the first byte."""
        exchange = OpenExchange.begin(
            key=self._output.new_key(),
            ordinal=self._next_ordinal,
            call=call,
            start_ns=start_ns,
            start_source=start_source,
        )
        self._next_ordinal += 1
        self._exchanges.append(exchange)
        self.is_crowded = not self._room.fit(len(self._exchanges))
        return exchange

    def unanswered(self, other_than: OpenExchange | None = None) -> OpenExchange | None:
        """Return the first exchange without a complete response."""
        for exchange in self._exchanges:
            if not exchange.answered and exchange is not other_than:
                return exchange
        return None

    def assign_next(self, time_ns: int) -> None:
        """Assign the first unanswered request to the thread that read it, from ``time_ns`` or its start on.

        If the thread is an event loop's, all that it has read.
        """
        exchange = self.unanswered()
        if exchange is not None and not exchange.framing_lost:
            self._begin(exchange, max(exchange.taken_ns, time_ns))
        if self._facts.nonblocking:
            first, self._next_assigned = self._next_assigned, self._next_ordinal
            for pipelined in self._exchanges:
                if pipelined.ordinal >= first and not (pipelined.answered or pipelined.framing_lost):
                    self._begin(pipelined, max(pipelined.taken_ns, time_ns))

    def read_on(self, exchange: OpenExchange, call: Call) -> None:
        """Note that a thread read more of a request; if it was assigned to another thread, reassign it."""
        exchange.request_end_ns = call.end_ns
        exchange.tgid, exchange.tid = call.tgid, call.tid
        if self._assigned.get(exchange.key, (call.tgid, call.tid)) != (call.tgid, call.tid):
            self.unassign(exchange, call.end_ns)
            self._begin(exchange, call.end_ns)

    def unassign(self, exchange: OpenExchange, time_ns: int, *, cut: bool = False) -> None:
        """End the assignment of an exchange, if it is assigned. ``cut``: it has not been answered."""
        thread = self._assigned.pop(exchange.key, None)
        if thread is not None:
            self._report_assignment(exchange, thread, time_ns, begins=False, cut=cut)

    def _begin(self, exchange: OpenExchange, time_ns: int) -> None:
        if exchange.key not in self._assigned:
            thread = self._assigned[exchange.key] = exchange.tgid, exchange.tid
            self._report_assignment(exchange, thread, time_ns, begins=True)

    def _report_assignment(
        self,
        exchange: OpenExchange,
        thread: tuple[int, int],
        time_ns: int,
        *,
        begins: bool,
        cut: bool = False,
    ) -> None:
        tgid, tid = thread
        self._output.assignments.append(
            ThreadAssignment(
                time_ns=time_ns,
                tgid=tgid,
                tid=tid,
                exchange=exchange.key,
                begins=begins,
                loop=self._facts.nonblocking,
                cut=cut,
            )
        )

    def drop(self, exchange: OpenExchange, time_ns: int) -> None:
        """Drop what turned out to be no exchange."""
        self.hand_over(exchange, time_ns)
        if exchange.generation is not None:
            exchange.generation.drop()

    def hand_over(self, exchange: OpenExchange, time_ns: int) -> None:
        """Leave an exchange to another parser, which emits it."""
        self.unassign(exchange, time_ns)
        self._exchanges.remove(exchange)
        self.is_crowded = not self._room.fit(len(self._exchanges))

    def begin_task(self, exchange: OpenExchange, call: Call) -> None:
        """The call read the end of a request's head: a task may work for it from then on, if there are any."""
        if self._at_server and call.task:
            exchange.begun_ns, exchange.reader = call.end_ns, call.task
            self._output.tasks.append(exchange.service(self._facts.identity, is_over=False))

    def follow(self, time_ns: int) -> None:
        """A response ended: only then the next one's task works for that."""
        following = self.unanswered()
        if following is not None and following.begun_ns:
            following.begun_ns = max(following.begun_ns, time_ns)

    def distrust(self) -> None:
        """Bytes are missing: from here on a response may be another request's than it seems."""
        for exchange in self._exchanges:
            exchange.task_known = False

    def doubt(self, *, others: bool) -> None:
        """A whole response may be missing: where several are to come, which one the next is nobody knows.

        ``others``: there may be more than are known here.
        """
        waiting = [exchange for exchange in self._exchanges if not exchange.answered]
        for exchange in waiting:
            exchange.error = exchange.error or "capture_gap"
        unknown = [exchange for exchange in waiting if not exchange.status_code]
        for exchange in unknown if others or len(unknown) > 1 else ():
            exchange.paired = False

    def finish_plain(self, exchange: OpenExchange) -> None:
        """Emit what :attr:`plain` gave, once it was answered: as :meth:`unassign` and :meth:`finish` do."""
        self.unassign(exchange, exchange.end_ns)
        if self._at_server and exchange.has_task:
            self._output.tasks.append(exchange.service(self._facts.identity, is_over=True))
        self._output.exchanges.append(exchange.finish(self._facts))
        self._exchanges.clear()
        self.is_crowded = False

    def finish(self, exchange: OpenExchange, time_ns: int) -> None:
        """Emit an exchange that is over since ``time_ns``."""
        if self._at_server and exchange.has_task:
            self._output.tasks.append(exchange.service(self._facts.identity, is_over=True))
        if not (exchange.head_seen or exchange.status_code):
            self._output.count("requests_incomplete")
            self.drop(exchange, time_ns)
            return
        self.unassign(exchange, time_ns, cut=not exchange.answered)
        if exchange.error == "capture_gap":
            self._output.count("capture_gaps")
        self._output.exchanges.append(exchange.finish(self._facts))
        self.drop(exchange, time_ns)
