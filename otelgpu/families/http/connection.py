"""One server connection: pieces of what its system calls moved become claims and exchanges.

In: the pieces of ``struct http_data_*`` in the order of their sequence, then the close. Out: claims and
finished exchanges, appended to the session. It must not raise on any bytes, read a clock or know numpy.

Invariant: a response belongs to the first request that is not answered (see ``exchange_queue``), and what is
given out depends on the bytes alone, times aside, not on how system calls and records cut them.

Example, two pipelined requests read by thread 7 at 100 and answered by thread 8, each response one write::

    read  [50,100]  "GET /a …GET /b …"   claim(100, 7, a, held)
    write [150,160] "HTTP/1.1 200 …"     claim(160, 7, a, let go), exchange a, claim(160, 7, b, held)
    write [170,190] "HTTP/1.1 200 …"     claim(190, 7, b, let go), exchange b

Holes: where ``stream_offset`` jumps, bytes were not captured. In a body of known length they only count; in a
head or in chunk framing they cost the framing: the exchange gets the error ``capture_gap``, and its direction
goes on at the next call whose bytes look like the start of a message.
"""

from __future__ import annotations

import errno

from otelgpu.families.http.exchange_queue import ExchangeQueue
from otelgpu.families.http.framing import InvalidHttp, State
from otelgpu.families.http.open_exchange import OpenExchange
from otelgpu.families.http.session import Session
from otelgpu.families.http.sides import Requests, Responses
from otelgpu.model.exchange import Endpoint

#: No client has more requests on the way on one connection.
MAX_OPEN = 1024
#: All pieces of a call are numbered this long after it returned at most.
NUMBERED_WITHIN_NS = 20_000
_HTTP1_VERSIONS = ("1.0", "1.1")
#: Results that say "not now": nothing moved and nothing is wrong.
_WAITS = frozenset(-e for e in (errno.EAGAIN, errno.EINTR, 512, 513, 514, 516))  # 51x: ERESTART*
#: Results after which the connection carries nothing more.
_DEAD = frozenset(
    -e for e in (errno.EPIPE, errno.ECONNRESET, errno.ECONNABORTED, errno.ETIMEDOUT, errno.ENOTCONN)
)


class Connection:
    """State of one connection. ``late``: its first bytes may have been moved before we looked."""

    __slots__ = (
        "_cgroup_id",
        "_garbage",
        "_last_write_ns",
        "_reads_ended",
        "_requests",
        "_responses",
        "_searching",
        "_tgid",
        "_tid",
        "begin_ns",
        "close_at",
        "end_ns",
        "exchanges",
        "held",
        "held_bytes",
        "identity",
        "ignored",
        "last_ns",
        "last_request",
        "next_sequence",
        "opened",
        "requests_missed",
        "session",
        "tgid",
    )

    def __init__(self, identity: int, session: Session, *, opened: bool, late: bool) -> None:
        self.identity = identity
        self.opened = opened
        self.ignored = False
        # For the owner, which knows processes and brings the pieces into order:
        self.tgid = -1
        self.last_ns = 0
        self.next_sequence = 0
        self.held: dict[int, Piece] = {}
        self.held_bytes = 0
        self.close_at: tuple[int, int] | None = None  # time_ns and number of pieces
        # The call under way:
        self.begin_ns = 0
        self.end_ns = 0
        self._tgid = 0
        self._tid = 0
        self._cgroup_id = 0

        self.session = session
        self.exchanges = ExchangeQueue(identity, session)
        self._last_write_ns = 0
        self.last_request = False  # the client said that it sends no other
        self._reads_ended = False
        self.requests_missed = False
        self._garbage = False
        self._searching = late  # for the first request
        self._requests = Requests(self)
        self._responses = Responses(self)
        if late:
            self._requests.reader.lose()
            self._responses.reader.lose()
            self._requests.reader.offset = self._responses.reader.offset = -1

    def set_endpoints(self, *, server: Endpoint, client: Endpoint) -> None:
        """Say between whom the connection is."""
        self.exchanges.server = server
        self.exchanges.client = client

    @property
    def busy(self) -> bool:
        """Whether an exchange is open."""
        return bool(self.exchanges)

    def take(self, piece: Piece, write: bool) -> None:
        """Take the next piece. Never raises on what is in it."""
        if self.ignored:
            return
        time_ns, end_ns, tgid, tid, cgroup_id, offset, result, _, data = piece
        side: Requests | Responses
        other: Requests | Responses
        side, other = (self._responses, self._requests) if write else (self._requests, self._responses)
        reader = side.reader
        if reader.offset < 0:
            reader.offset = offset
        fresh = time_ns != side.call_ns or tid != side.call_tid
        if fresh:
            if side.call_end_offset > reader.offset:
                self._settle(side)
            if other.call_end_offset > other.reader.offset and (
                tid == other.call_tid or time_ns > other.call_end_ns + NUMBERED_WITHIN_NS
            ):
                self._settle(other)
            side.call_ns = time_ns
            side.call_tid = tid
            side.call_end_ns = end_ns
            side.call_end_offset = offset + result if result > 0 else -1
        self.begin_ns = time_ns
        self.end_ns = end_ns
        self._tgid = tgid
        self._tid = tid
        self._cgroup_id = cgroup_id
        if result <= 0 and not data:
            self._nothing_moved(result, write)
            return
        if offset != reader.offset:
            data = self._align(side, offset, data)
        if not data or self.ignored:
            return
        if not write:
            self._reads_ended = False
            if self._requests.current is not None:
                self.exchanges.read_on(self._requests.current, tgid, tid, end_ns)
        if reader.state is State.LOST and not self._resume(side, data, fresh):
            return
        if write and fresh and reader.state is State.LENGTH:
            self._end_unseen_body(data)
        try:
            reader.feed(data)
        except InvalidHttp:
            self._invalid(side)
        if write:
            self._last_write_ns = end_ns
        if self.exchanges.waits_for_holder:
            self.exchanges.hold_next(end_ns if write else 0)

    @property
    def unsettled(self) -> bool:
        """Whether a call moved bytes of which the end has not come, and may never."""
        requests, responses = self._requests, self._responses
        return not self.ignored and (
            requests.call_end_offset > requests.reader.offset
            or responses.call_end_offset > responses.reader.offset
        )

    def settle(self, before_ns: int) -> None:
        """Pass over what calls that returned by ``before_ns`` left out; no more of it will come."""
        for side in (self._requests, self._responses):
            if side.call_end_ns <= before_ns:
                self._settle(side)

    def _settle_all(self) -> None:
        self._settle(self._requests)
        self._settle(self._responses)

    def close(self, time_ns: int) -> None:
        """The server closed it: a response that only the close delimits is complete, others are not."""
        self._settle_all()
        responses = self._responses
        exchange = responses.current
        if exchange is not None and responses.reader.state is State.UNTIL_CLOSE:
            exchange.response_bytes += responses.reader.message_bytes
            responses.current = None
            exchange.end_ns = self._last_write_ns
            self._answer(exchange, time_ns)
        self.abort(time_ns, "connection_closed")

    def abort(self, time_ns: int, error: str) -> None:
        """It carries nothing more: give out what is open, with that error unless it was answered."""
        self._settle_all()
        self._finish_all(time_ns, error)
        self.ignore()

    def ignore(self) -> None:
        """Take nothing more from this connection; exchanges must have been finished."""
        self.ignored = True
        self._requests.reader.stop()
        self._responses.reader.stop()
        self._requests.current = self._responses.current = None

    # Exchanges

    def open_exchange(self) -> OpenExchange:
        """Open an exchange: the first byte of a request was read."""
        if self.exchanges:
            self._finish_passed_over()
        if len(self.exchanges) >= MAX_OPEN:  # written by a way that is not observed
            self.session.count("responses_not_seen", len(self.exchanges))
            self._finish_all(self.end_ns, "response_not_seen")
            self._responses.reader.lose()
        exchange = self.exchanges.open(
            tgid=self._tgid, tid=self._tid, cgroup_id=self._cgroup_id, read_ns=self.end_ns
        )
        exchange.request_end_ns = self.end_ns
        if self.requests_missed:  # a response to a request that was not seen would be taken for ours
            self.requests_missed = False
            if self.exchanges.unanswered(other_than=exchange) is not None:
                exchange.error = "capture_gap"
        return exchange

    def answered(self, exchange: OpenExchange) -> None:
        """Take note that the response is complete with the present write."""
        exchange.end_ns = self.end_ns
        self._answer(exchange, self.end_ns)
        if exchange.upgrades:
            self.session.count("upgraded")
            self._finish_all(self.end_ns, "connection_closed")
            self.ignore()

    def _answer(self, exchange: OpenExchange, time_ns: int) -> None:
        exchange.answered = True
        if exchange.generation is not None:
            exchange.generation.response_ended()
        self.exchanges.let_go(exchange, time_ns)
        self.finish_if_over(exchange)

    def finish_if_over(self, exchange: OpenExchange) -> None:
        """Give out an exchange of which nothing more is to come."""
        if exchange.answered and (exchange.request_done or self._reads_ended):
            self._finish(exchange, exchange.end_ns)

    def _finish(self, exchange: OpenExchange, time_ns: int, error: str = "") -> None:
        """Give out an exchange. An unanswered one ends at its last write, or at ``time_ns`` without any."""
        requests, responses = self._requests, self._responses
        if requests.current is exchange:
            exchange.request_bytes = requests.reader.message_bytes
            requests.current = None
        if responses.current is exchange:
            exchange.response_bytes += responses.reader.message_bytes
            responses.current = None
        if not exchange.answered:
            wrote = exchange.status_code and self._last_write_ns >= exchange.first_byte_ns
            exchange.end_ns = self._last_write_ns if wrote else time_ns
            exchange.error = exchange.error or error
        self.exchanges.finish(exchange, time_ns)
        if self._garbage and not self.exchanges:
            self.ignore()

    def _finish_all(self, time_ns: int, error: str) -> None:
        for exchange in self.exchanges:
            self._finish(exchange, time_ns, error)

    def _finish_passed_over(self) -> None:
        """A new request comes: give out those whose response went by without its framing being known."""
        if self._responses.reader.state is not State.LOST:
            return
        for exchange in self.exchanges:
            if exchange.framing_lost or exchange.start_ns < self._last_write_ns < self.end_ns:
                self._finish(exchange, self.end_ns, "capture_gap")

    # Holes and bytes that are not HTTP/1

    def _nothing_moved(self, result: int, write: bool) -> None:
        if result == 0:
            if not write:
                self._reads_ended = True
                current = self._requests.current
                if current is not None:
                    self.finish_if_over(current)
        elif result not in _WAITS:
            self.session.count("socket_errors")
            if result in _DEAD:
                self.abort(self.end_ns, "connection_closed")

    def _align(self, side: Requests | Responses, offset: int, data: bytes) -> bytes:
        size = offset - side.reader.offset
        if size > 0:
            if self._searching:
                side.reader.offset += size
                self.session.count("late_bytes_skipped", size)
            else:
                self._pass_over(side, size)
            return data
        self.session.count("bytes_repeated", min(-size, len(data)))
        return data[-size:]

    def _settle(self, side: Requests | Responses) -> None:
        size = side.call_end_offset - side.reader.offset
        if size <= 0 or self.ignored:
            return
        self.begin_ns, self.end_ns = side.call_ns, side.call_end_ns
        if self._searching:
            side.reader.offset += size
            self.session.count("late_bytes_skipped", size)
            return
        self._pass_over(side, size)
        if side is self._responses:
            self._last_write_ns = self.end_ns
        if self.exchanges.waits_for_holder:
            self.exchanges.hold_next(self.end_ns)

    def _pass_over(self, side: Requests | Responses, size: int) -> None:
        if not side.reader.gap(size):
            side.lost()

    def _resume(self, side: Requests | Responses, data: bytes, fresh: bool) -> bool:
        """With framing unknown: whether a message starts here. Else the bytes are passed over."""
        reader = side.reader
        if fresh and reader.starts_message(data):
            if side is self._requests:
                self._searching = False
                reader.restart()
                return True
            if self._start_response_again():
                reader.restart()
                return True
        reader.offset += len(data)
        self.session.count("late_bytes_skipped" if self._searching else "resync_bytes_skipped", len(data))
        if side is self._responses:
            self._last_write_ns = self.end_ns
        return False

    def _start_response_again(self) -> bool:
        """Whether what looks like a response can be one: there is a request that it may answer."""
        lost = self._responses.current
        if lost is None:
            return self.exchanges.unanswered() is not None
        waiting = self.exchanges.unanswered(other_than=lost)
        if lost.status_code and waiting is None:
            return False  # of its body, for all we know
        if not lost.status_code and (waiting is None or waiting.start_ns == lost.start_ns):
            self._responses.current = None
            return True
        self._finish(lost, self.begin_ns, "capture_gap")  # or else, the client asked again: it had its answer
        return True

    def _end_unseen_body(self, data: bytes) -> None:
        """End a body that went out unseen: its client asked again after it, and that is answered now."""
        responses = self._responses
        current = responses.current
        if current is None or not responses.reader.starts_message(data):
            return
        waiting = self.exchanges.unanswered(other_than=current)
        if waiting is not None and waiting.start_ns > self._last_write_ns and waiting.request_done:
            self.session.count("bodies_unseen")
            current.response_bytes += responses.reader.message_bytes
            responses.current = None
            current.end_ns = self._last_write_ns
            self._answer(current, waiting.start_ns)
            responses.reader.restart()

    def _invalid(self, side: Requests | Responses) -> None:
        reader = side.reader
        head = reader.partial_head
        if side is self._requests:
            exchange = self._requests.current
            if exchange is not None and head is not None and not exchange.head_seen:
                if head.method == "PRI" and head.version == "2.0":
                    self.session.count("http2_not_supported_yet")
                    self.exchanges.drop(exchange, self.end_ns)
                    self._requests.current = None
                    self._finish_all(self.end_ns, "connection_closed")
                    self.ignore()
                    return
                if head.target and head.version in _HTTP1_VERSIONS:
                    exchange.fill(head)
                else:
                    self.exchanges.drop(exchange, self.end_ns)
                    self._requests.current = None
                    exchange = None
            self.session.count("not_http")
            reader.stop()
            self._garbage = True
            if exchange is not None:  # the server may still answer it, with 400
                exchange.error = "invalid_http"
                exchange.request_done = True
                self.finish_if_over(exchange)
            if not self.exchanges:
                self.ignore()
            return
        self.session.count("not_http")
        self._finish_all(self.end_ns, "invalid_http")
        self.ignore()


#: time_ns, end_ns, tgid, tid, cgroup_id, stream_offset, result, direction, data
Piece = tuple[int, int, int, int, int, int, int, int, bytes]
