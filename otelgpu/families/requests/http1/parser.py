"""HTTP/1 at clients and servers: the bytes of a connection become assignments and exchanges.

In: the bytes of both directions, in order, with their gaps. Out: assignments and finished exchanges, appended to
the output. It must not raise on any bytes. Format: RFC 9112.

Invariant: a response belongs to the first request that is not answered (see ``exchange_queue``), and what is
emitted depends on the bytes alone, times aside, not on how system calls and records cut them.

Example, two pipelined requests read by thread 7 at 100 and answered by thread 8, each response one write::

    read  [50,100]  "GET /a …GET /b …"   thread 7 begins a at 100
    write [150,160] "HTTP/1.1 200 …"     thread 7 ends a and begins b at 160, exchange a
    write [170,190] "HTTP/1.1 200 …"     thread 7 ends b at 190, exchange b

At a client the same bytes are written and read, nothing is assigned, and times are those of its calls:
a request starts as its first write begins, a response as the read of its first byte returns.

Gaps: in a body of known length they only count; in a head or in chunked framing they lose the framing: the
exchange gets the error ``capture_gap``, and its direction goes on at the next call whose bytes look like the
start of a message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from otelgpu.families.requests.http1.directions import Http1RequestDirection, Http1ResponseDirection
from otelgpu.families.requests.http1.exchange_queue import ExchangeQueue
from otelgpu.families.requests.http1.framing import REQUEST_START, RESPONSE_START, InvalidHttp, State
from otelgpu.families.requests.http2 import parser as http2
from otelgpu.families.requests.llm import reader as llm
from otelgpu.families.requests.open_exchange import SWITCHING_PROTOCOLS, OpenExchange
from otelgpu.families.requests.parser_output import ParserOutput
from otelgpu.families.requests.protocol import Call, ConnectionFacts, Parser, ProtocolSpec, Recognition
from otelgpu.families.requests.websocket import parser as websocket
from otelgpu.model.exchange import Named, Role, StartSource
from otelgpu.spanwriter.heads import PERSISTS, STATUS

#: No client has more open requests on one connection.
MAX_OPEN = 1024
_HTTP1_VERSIONS = ("1.0", "1.1")
_RESPONSE_STARTS = (b"HTTP/1.0 ", b"HTTP/1.1 ")
#: The methods that llhttp parses (https://github.com/nodejs/llhttp, src/llhttp/constants.ts: METHODS_HTTP).
_METHODS = (
    *("DELETE", "GET", "HEAD", "POST", "PUT", "CONNECT", "OPTIONS", "TRACE", "COPY", "LOCK", "MKCOL", "MOVE"),
    *("PROPFIND", "PROPPATCH", "SEARCH", "UNLOCK", "BIND", "REBIND", "UNBIND", "ACL", "REPORT", "MKACTIVITY"),
    *("CHECKOUT", "MERGE", "M-SEARCH", "NOTIFY", "SUBSCRIBE", "UNSUBSCRIBE", "PATCH", "PURGE", "MKCALENDAR"),
    *("LINK", "UNLINK", "SOURCE", "QUERY"),
)
_REQUEST_STARTS = tuple(f"{method} ".encode() for method in _METHODS)
#: The successor after a response 101, by what the request's ``Upgrade`` asked for.
_UPGRADES: Final[dict[str, Callable[[ConnectionFacts, ParserOutput, OpenExchange], Parser]]] = {
    "h2c": http2.upgraded,
    "websocket": websocket.upgraded,
}
# See framing: a member of an enumeration is dear to look up.
_LENGTH: Final = State.LENGTH
_LOST: Final = State.LOST
_NO_CALL = Call(0, 0, 0, 0, 0, 0, None)


class Http1:
    """The :class:`~otelgpu.families.requests.protocol.Parser` of one HTTP/1 connection."""

    __slots__ = (
        "_any_missed",
        "_garbage",
        "_last_response_ns",
        "_lossy",
        "_overlaps",
        "_reads_ended",
        "_requests",
        "_responses",
        "_searching",
        "at_server",
        "call",
        "exchanges",
        "facts",
        "ignored",
        "last_request",
        "output",
        "requests_missed",
        "response_ns",
        "successor",
    )

    def __init__(self, facts: ConnectionFacts, output: ParserOutput) -> None:
        self.facts = facts
        self.output = output
        self.at_server = facts.role is Role.SERVER
        self.ignored = False
        self.successor: Parser | None = None
        self.call = _NO_CALL  # the one under way
        self.exchanges = ExchangeQueue(facts, output)
        self.response_ns = 0  # when it moves bytes of a response: the write began, or the read returned
        self._last_response_ns = 0  # when the last one of those that did returned
        self.last_request = False  # the client sends no other (Connection: close)
        self._reads_ended = False
        self.requests_missed = self._any_missed = facts.late
        self._lossy = False  # framing was known, and then lost
        self._overlaps = False  # a later call read a request before the response to the one before it
        self._garbage = False
        self._searching = facts.late  # for the first request
        self._requests = Http1RequestDirection(self)
        self._responses = Http1ResponseDirection(self)
        if facts.late:
            self._requests.reader.lose()
            self._responses.reader.lose()

    @property
    def busy(self) -> bool:
        """Whether an exchange is open."""
        return bool(self.exchanges)

    def feed(self, call: Call, data: bytes, offset: int, *, from_client: bool) -> None:
        """Take the next bytes of a direction."""
        if self._take_request(call, data) if from_client else self._take_response(call, data):
            return
        self.call = call
        direction: Http1RequestDirection | Http1ResponseDirection
        if from_client:
            direction = requests = self._requests
            fresh = call is not requests.call
            if fresh:
                requests.call = call
                requests.call_offset = offset
            self._reads_ended = False
            if requests.current is not None:
                self.exchanges.read_on(requests.current, call)
        else:
            direction = self._responses
            fresh = call is not direction.call
            direction.call = call
            self.response_ns = call.begin_ns if self.at_server else call.end_ns
            if fresh and direction.reader.state is _LENGTH:
                self._end_unseen_body(data)
        reader = direction.reader
        if reader.state is _LOST and not self._resume(direction, data, offset, fresh):
            return
        try:
            reader.feed(data)
        except InvalidHttp:
            self._invalid(direction)
        if not from_client:
            self._last_response_ns = call.end_ns
            if self._responses.current is not None and reader.state is not _LOST:
                self._responses.current.written_by(call.task, call.end_ns)
            if self.successor is not None:
                self._hand_over(data, offset)
                return
        if self.exchanges.awaits_assignment:
            self.exchanges.assign_next(0 if from_client else call.end_ns)

    def _take_request(self, call: Call, data: bytes) -> bool:
        """Take a call's bytes if they are one whole request, and nothing else is under way or in doubt.

        What the long way does with them and no more; False: nothing was taken.
        """
        requests, exchanges, facts = self._requests, self.exchanges, self.facts
        in_doubt = self._lossy or self.requests_missed or (self._any_missed and facts.pipelines)
        if in_doubt or exchanges or exchanges.is_crowded or self._responses.reader.state is _LOST:
            return False
        reader = requests.reader
        if (found := reader.whole_message(data)) is None or not found[1][PERSISTS]:
            return False
        if (head := reader.plain_head(data, 0, found[1])) is None:
            return False
        start = reader.pass_message(len(data))
        if call is not requests.call:
            requests.call, requests.call_offset = call, start
        self.call = call
        self._reads_ended = False
        start_ns, source = self._start()
        exchange = exchanges.open(call, start_ns=start_ns, start_source=source)
        exchange.fill(head)
        self.head_seen(exchange)
        generation = llm.http_reader(exchange.method, exchange.path, self.output)
        if generation is not None:
            exchange.generation = generation
            if generation.request_head(head) and found[0] < len(data):
                generation.request_body(data[found[0] :])
            generation.request_ended()
        exchange.request_bytes = len(data)
        exchange.request_done = True
        if self.at_server:
            exchanges.assign_next(0)
        return True

    def _take_response(self, call: Call, data: bytes) -> bool:
        """Take a call's bytes if they are one whole response to the only request there is; else as above."""
        responses, exchanges = self._responses, self.exchanges
        exchange = exchanges.plain
        if exchange is None or self._garbage:
            return False
        found = responses.reader.whole_message(data, bodiless=exchange.method == "HEAD")
        if found is None:
            return False
        self.call = responses.call = call
        end_ns = call.end_ns
        self.response_ns = self._last_response_ns = end_ns
        exchange.status_code = found[1][STATUS]
        exchange.response_bytes = len(data)
        if self.at_server:
            self.response_ns = call.begin_ns
            exchange.published = call.published
        exchange.first_byte_ns = responses.first_byte_ns = self.response_ns
        exchange.written_by(call.task, end_ns, first=call.task if self.at_server else 0)
        responses.first_task, responses.interim = call.task, False
        responses.ended_at = responses.reader.pass_message(len(data)) + len(data)
        exchange.end_ns = end_ns
        exchange.answered = True
        exchanges.finish_plain(exchange)
        return True

    def take_streamed(self, data: bytes, begin_ns: int, end_ns: int, task: int) -> bool:
        """Take all bytes that a call moved to the client if they are one whole chunk of a body.

        What :meth:`feed` does with them and no more; False: they are something else, and it has to.
        """
        exchange = self._responses.current
        if exchange is None or not exchange.named or exchange.generation is None:
            return False
        chunk = self._responses.reader.take_chunk(data)
        if chunk is None:
            return False
        exchange.generation.response_body(chunk, begin_ns if self.at_server else end_ns)
        exchange.written_by(task, end_ns)
        self._last_response_ns = end_ns
        return True

    def gap(self, call: Call, size: int, offset: int, *, from_client: bool) -> None:
        """Skip bytes that were not captured."""
        direction: Http1RequestDirection | Http1ResponseDirection = (
            self._requests if from_client else self._responses
        )
        if self._searching:
            self.output.count("late_bytes_skipped", size)
            return
        self.call = call
        direction.gap_call = call
        cut = self._requests.reader.partial_head if from_client else None
        if not direction.reader.gap(size):
            if cut is not None and cut.target and cut.version in _HTTP1_VERSIONS:
                self._requests.head_cut(cut)
            direction.lost()
        if direction.reader.state is _LOST:  # as it may have been before: a whole response may be missing
            self.exchanges.distrust()
            if not from_client:
                self.miss_response()
        if not from_client:
            self._last_response_ns = call.end_ns
        if self.exchanges.awaits_assignment:
            self.exchanges.assign_next(call.end_ns)

    def end(self, call: Call, *, from_client: bool) -> None:
        """One endpoint sends nothing more."""
        self.call = call
        if from_client:
            self._reads_ended = True
            current = self._requests.current
            if current is not None:
                self.finish_if_over(current)
        else:
            self._end_body_until_close(call.end_ns, call.end_ns)
            self._finish_all(call.end_ns, "connection_closed")
            if self.at_server:  # some read on, so that what the client had sent is no reason for a reset
                self._requests.reader.stop()

    def close(self, time_ns: int) -> None:
        """The process closed it: at a server, a response delimited by the close is complete; others are not."""
        if self.at_server:
            self._end_body_until_close(self._last_response_ns, time_ns)
        self.abort(time_ns, "connection_closed")

    def abort(self, time_ns: int, error: str) -> None:
        """It carries nothing more: emit what is open, with that error unless it was answered."""
        self._finish_all(time_ns, error)
        self._ignore()

    def _ignore(self) -> None:
        """Take nothing more from this connection; exchanges must have been finished."""
        self.ignored = True
        self._stop()

    def _stop(self) -> None:
        self._requests.reader.stop()
        self._responses.reader.stop()
        self._requests.current = self._responses.current = None

    # Exchanges

    def open_exchange(self) -> OpenExchange:
        """Open an exchange: the first byte of a request was moved."""
        if self.exchanges:
            self._finish_passed_over()
            self._finish_unpaired()
        call, facts = self.call, self.facts
        if (
            len(self.exchanges) >= MAX_OPEN or self.exchanges.is_crowded
        ):  # answered in a way that is not observed
            self.output.count("responses_not_seen", len(self.exchanges))
            self._finish_all(call.end_ns, "response_not_seen")
            self._responses.reader.lose()
        start_ns, source = self._start()
        exchange = self.exchanges.open(call, start_ns=start_ns, start_source=source)
        before = self.exchanges.unanswered(other_than=exchange)
        other = before is not None
        lost = self._responses.reader.state is _LOST
        if lost or self._lossy or (self._any_missed and (self.requests_missed or other or facts.pipelines)):
            self.exchanges.distrust()  # the response to a request that was not seen would be taken for ours
        facts.pipelines = facts.pipelines or other
        if before is not None and not facts.lossy and before.taken_ns < exchange.taken_ns:
            self._overlaps = True
        missed = self.requests_missed and facts.lossy and (facts.pipelines or call.cut)
        if missed or (before is not None and not before.paired):
            exchange.error, exchange.paired = "capture_gap", False  # responses to what was lost come first
        self.requests_missed = False
        if other and self._lossy:  # what is unanswered may have had its response, and get the one after it
            self.miss_response()
        return exchange

    def miss_response(self) -> None:
        """A whole response may be missing."""
        facts = self.facts
        self.exchanges.doubt(others=facts.lossy and (self.requests_missed or facts.request_missed))

    def miss_requests(self) -> None:
        """A request may be missing: of the next ones on this connection no task is known."""
        self.requests_missed = self._any_missed = True
        self.miss()

    def miss(self) -> None:
        """Where a message ends is not known: a client that pipelines may get each next response for another request."""
        self._lossy = True
        self.exchanges.distrust()

    def _start(self) -> tuple[int, StartSource]:
        """When the request under way began, and how that is known."""
        call, direction = self.call, self._requests
        if not self.at_server:
            return call.begin_ns, StartSource.WRITE
        first = direction.reader.message_start == direction.call_offset and direction.gap_call is not call
        if first and 0 < call.arrival_ns <= call.end_ns:
            return call.arrival_ns, StartSource.ARRIVAL
        return call.end_ns, StartSource.READ

    def head_seen(self, exchange: OpenExchange) -> None:
        """Note that a request's head is complete."""
        exchange.wire_id = self.facts.wire_id(self._requests.reader.message_start)
        if self.at_server:
            self.exchanges.begin_task(exchange, self.call)
        else:
            exchange.asked_by(self.call)
        self.output.opened.append(exchange.opened(self.facts))

    def named(self, exchange: OpenExchange, request_id: str) -> None:
        """Note the request id that a response carries."""
        exchange.named = True
        self.output.named.append(
            Named(key=exchange.key, tgid=exchange.tgid, request_id=request_id, time_ns=self.call.end_ns)
        )

    def answered(self, exchange: OpenExchange) -> None:
        """Note that the response is complete with the present call."""
        exchange.end_ns = self.call.end_ns
        if exchange.upgrades:
            self._upgrade(exchange)
        else:
            self._answer(exchange, self.call.end_ns)

    def _answer(self, exchange: OpenExchange, time_ns: int) -> None:
        exchange.answered = True
        if exchange.generation is not None:
            exchange.generation.response_ended()
            # Go ends such a response properly once it has noticed that the client has gone
            if self._reads_ended and self.at_server and exchange.generation.is_broken_off:
                exchange.error = exchange.error or "connection_closed"
        self.exchanges.unassign(exchange, time_ns)
        self.exchanges.follow(time_ns)
        self.finish_if_over(exchange)

    def finish_if_over(self, exchange: OpenExchange) -> None:
        """Emit an exchange of which nothing more is to come."""
        if exchange.answered and (exchange.request_done or self._reads_ended):
            self._finish(exchange, exchange.end_ns)

    def _finish(self, exchange: OpenExchange, time_ns: int, error: str = "") -> None:
        """Emit an exchange. An unanswered one ends at its last response byte, or at ``time_ns``."""
        requests, responses = self._requests, self._responses
        if requests.current is exchange:
            exchange.request_bytes = requests.reader.message_bytes
            requests.current = None
        if responses.current is exchange:
            exchange.response_bytes += responses.reader.message_bytes
            responses.current = None
        if not exchange.answered:
            began = exchange.status_code and self._last_response_ns >= exchange.first_byte_ns
            exchange.end_ns = self._last_response_ns if began else time_ns
            exchange.error = exchange.error or error
        self.exchanges.finish(exchange, time_ns)
        if self._garbage and not self.exchanges:
            self._ignore()

    def _finish_all(self, time_ns: int, error: str) -> None:
        for exchange in self.exchanges:
            self._finish(exchange, time_ns, error)

    def _finish_passed_over(self) -> None:
        """A new request comes: emit those whose response passed while framing was unknown."""
        responses = self._responses
        if responses.reader.state is not _LOST:
            return
        if responses.current is None and self.exchanges.oldest.start_ns >= self._last_response_ns:
            return  # as with all that came after it: the queue is in the order of their starts
        for exchange in self.exchanges:
            if exchange.framing_lost or exchange.start_ns < self._last_response_ns < self.call.end_ns:
                self._finish(exchange, self.call.end_ns, "capture_gap")

    def _finish_unpaired(self) -> None:
        """A new request comes: emit those that were answered in between by a response that was nobody's.

        Unless the client is known to send requests before it has its responses, and not in one call alone.
        """
        for exchange in () if self._overlaps else self.exchanges:
            if not exchange.paired and exchange.taken_ns < self._last_response_ns < self.call.end_ns:
                self._finish(exchange, self.call.end_ns, "capture_gap")

    def _finish_lost(self) -> None:
        """Another response begins: what was lost is over."""
        for exchange in self.exchanges:
            if exchange.framing_lost and not exchange.answered:
                self._finish(exchange, self.call.end_ns, "capture_gap")

    def next_answered(self) -> OpenExchange | None:
        """The exchange whose response begins; None: it is not known which, and what seemed to be it is over."""
        self._finish_lost()
        exchange = self.exchanges.unanswered()
        if exchange is not None and exchange.error and self.facts.request_missed:
            exchange.paired = False
        if exchange is None or exchange.paired:
            return exchange
        self._finish(exchange, self.call.end_ns, "capture_gap")
        return None

    def _end_body_until_close(self, end_ns: int, time_ns: int) -> None:
        responses = self._responses
        exchange = responses.current
        if exchange is not None and responses.reader.state is State.UNTIL_CLOSE:
            exchange.response_bytes += responses.reader.message_bytes
            responses.current = None
            responses.reader.restart()
            exchange.end_ns = end_ns
            self._answer(exchange, time_ns)

    # Other protocols

    def _upgrade(self, exchange: OpenExchange) -> None:
        """The response is the last of HTTP/1: the connection changes protocol (RFC 9110, 7.8)."""
        follow = _UPGRADES.get(exchange.upgrade) if exchange.status_code == SWITCHING_PROTOCOLS else None
        if follow is http2.upgraded:  # it is answered there
            self.exchanges.hand_over(exchange, self.call.end_ns)
        else:
            self._answer(exchange, self.call.end_ns)
        if follow is not None:
            self.successor = follow(self.facts, self.output, exchange)
        self._finish_all(self.call.end_ns, "connection_closed")
        if self.successor is None:
            self.output.count("upgraded")
            self._ignore()
        else:
            self._stop()

    def _hand_over(self, data: bytes, offset: int) -> None:
        """Feed what came after the upgrading response to the successor."""
        rest = self._responses.ended_at - offset
        if self.successor is not None and rest < len(data):
            self.successor.feed(self.call, data[rest:], offset + rest, from_client=False)

    # Gaps, and bytes that are not HTTP/1

    def _resume(
        self, direction: Http1RequestDirection | Http1ResponseDirection, data: bytes, offset: int, fresh: bool
    ) -> bool:
        """With framing unknown: whether a message starts here. Else the bytes are skipped."""
        reader = direction.reader
        reader.offset = offset
        if fresh and reader.starts_message(data):
            if direction is self._requests:
                self._searching = False
                reader.restart()
                return True
            if self._start_response_again():
                reader.restart()
                return True
        reader.offset += len(data)
        self.output.count("late_bytes_skipped" if self._searching else "resync_bytes_skipped", len(data))
        if direction is self._responses:
            self._last_response_ns = self.call.end_ns
        return False

    def _start_response_again(self) -> bool:
        """Whether apparent response bytes can be a response: there is a request that they may answer."""
        lost = self._responses.current
        if lost is None:
            return self.exchanges.unanswered() is not None
        waiting = self.exchanges.unanswered(other_than=lost)
        if lost.status_code and waiting is None:
            return False  # possibly part of its body
        if not lost.status_code and (waiting is None or waiting.taken_ns == lost.taken_ns):
            self._responses.current = None
            return True
        # or the client sent another request: it had its response
        self._finish(lost, self.call.begin_ns, "capture_gap")
        return True

    def _end_unseen_body(self, data: bytes) -> None:
        """End a body that was sent unobserved: the client's next request is being answered."""
        responses = self._responses
        current = responses.current
        if current is None or not responses.reader.starts_message(data):
            return
        waiting = self.exchanges.unanswered(other_than=current)
        if waiting is not None and waiting.start_ns > self._last_response_ns and waiting.request_done:
            self.output.count("bodies_unseen")
            current.response_bytes += responses.reader.message_bytes
            responses.current = None
            current.end_ns = self._last_response_ns
            self._answer(current, waiting.start_ns)
            responses.reader.restart()

    def _invalid(self, direction: Http1RequestDirection | Http1ResponseDirection) -> None:
        reader = direction.reader
        head = reader.partial_head
        if direction is self._requests:
            exchange = self._requests.current
            if exchange is not None and head is not None and not exchange.head_seen:
                if head.target and head.version in _HTTP1_VERSIONS:
                    exchange.fill(head)
                else:
                    self.exchanges.drop(exchange, self.call.end_ns)
                    self._requests.current = None
                    exchange = None
            self.output.count("not_http")
            reader.stop()
            self._garbage = True
            if exchange is not None:  # the server may still answer it, with 400
                exchange.error = "invalid_http"
                exchange.request_done = True
                self.finish_if_over(exchange)
            if not self.exchanges:
                self._ignore()
            return
        self.output.count("not_http")
        self._finish_all(self.call.end_ns, "invalid_http")
        self._ignore()


def recognise(data: bytes, from_client: bool, late: bool) -> Recognition:
    """Whether bytes begin a request or, if sent by the server, a response."""
    # RFC 9112, section 2.2: empty lines before a request are ignored
    text = data.lstrip(b"\r\n") if from_client else data
    if late:
        pattern = REQUEST_START if from_client else RESPONSE_START
        return Recognition.YES if pattern.match(text) else Recognition.NO
    starts = _REQUEST_STARTS if from_client else _RESPONSE_STARTS
    if text.startswith(starts):
        return Recognition.YES
    return Recognition.MORE if any(start.startswith(text) for start in starts) else Recognition.NO


SPEC: Final = ProtocolSpec(name="http", recognise=recognise, open=Http1)
