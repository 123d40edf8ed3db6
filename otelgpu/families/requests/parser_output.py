"""What parsers write to, shared by all connections of a session: results, keys, counters and a memory budget.

In: counts, assignments and exchanges from the parsers. Out: the same, taken once per batch by ``decode``.
It must not know about sockets, bytes or HTTP.
"""

from __future__ import annotations

import itertools
from typing import Final

from otelgpu.engine.facts import TrafficParsed
from otelgpu.model.engine_messages import EngineMessage
from otelgpu.model.exchange import Exchange, Named, Opened, ThreadAssignment
from otelgpu.model.losses import Reasons
from otelgpu.model.shares import Headroom, Pool, Refusals, Share
from otelgpu.model.tasks import TaskService

#: Every counter that this family exports, and what one count means.
COUNTERS = Reasons(
    "http",
    {
        "bodies_not_kept": "a JSON body was larger than the bound or the budget; "
        "only its beginning and end were searched",
        "bodies_unseen": "a response body was sent in a way that is not observed (sendfile, splice)",
        "body_share_spent": "bytes of a body, a head or a message that were not kept, because their process or "
        "container holds its share of the budget; what that cost is counted beside it",
        "bytes_repeated": "bytes at stream offsets that had already been seen; dropped",
        "capture_gaps": "the framing of a message was lost because some of its bytes were not captured",
        "chunks_after_close": "a chunk of a connection that had already ended; dropped",
        "chunks_late": "a chunk that arrived after it had been counted as lost; dropped",
        "chunks_lost": "a chunk that never arrived, by sequence number",
        "chunks_shed": "a chunk that was not parsed, because its process or container had its share of parsing, and "
        "of what may wait for the next tick; its connection goes on as one that was found open",
        "connections_evicted": "a connection was evicted because there were too many",
        "connections_expired": "an idle connection was dropped",
        "connections_not_opened": "a connection whose open was not seen (attached late, or the record was lost)",
        "encoded_body": "an LLM body or gRPC message with an encoding that is not read (br, zstd, …)",
        "engine_layout_unknown": "an engine's message whose layout is that of no known version",
        "engine_messages_cut": "a serving engine's message whose relevant part was not captured",
        "engine_messages_pickled": "a pickled message on ZeroMQ; pickles are never read",
        "engine_parent_unseen": "an engine's request whose trace headers may have been in bytes not captured",
        "engine_tokens_unknown": "a request on a connection found open, whose tokens before that were not counted",
        "grpc_framing_lost": "a direction of a gRPC call in which message boundaries were lost",
        "grpc_messages_not_kept": "a gRPC message larger than the bound or the budget; counted as a message, not read",
        "hpack_lost": "an HTTP/2 header block was not captured whole; its dynamic table is unknown from then on",
        "hpack_malformed": "an invalid HTTP/2 header block",
        "hpack_unknown": "an HTTP/2 header field whose name or value was sent before observation began; left empty",
        "http2_floods": "an HTTP/2 connection given up because it carried resets or control frames and little else",
        "http2_framing_mistaken": "bytes of an HTTP/2 connection found open, or behind a capture gap, that were taken "
        "for frames and are none; frames are looked for again",
        "http2_headers_too_large": "an HTTP/2 header block larger than the bound or the budget; fields of it "
        "are missing",
        "http2_invalid": "a connection whose bytes stopped being HTTP/2; ignored from then on",
        "http2_pushes": "a response that an HTTP/2 server pushed; not read",
        "inflate_failed": "a compressed LLM body with a gap or with invalid bytes; read up to there",
        "inflate_too_large": "a compressed LLM body that inflates beyond the bound; read up to there",
        "json_malformed": "an LLM body or stream event that is not JSON of its API's schema",
        "late_bytes_skipped": "bytes before the first request or message on a connection found open",
        "not_http": "a connection of HTTP/1 with bytes that are not HTTP/1; ignored from then on",
        "plugins_not_loaded": "an installed protocol plug-in that cannot be used; `otelgpu check` says why",
        "protocol_unknown": "a connection that begins with bytes of no known protocol; ignored from then on",
        "requests_incomplete": "a request whose head was never complete and that was not answered",
        "requests_shed": "a request that was under way on a connection of which chunks were not parsed, or "
        "too many lost",
        "requests_under_way": "a request that was not answered, or not to the end, when the session ended, at each end "
        "that is observed: it has no span; a longer session has it",
        "responses_not_seen": "a request given up because a thousand after it had no response either, or "
        "because its process or container had its share of open ones",
        "resync_bytes_skipped": "bytes after a capture gap and before the next start of a message",
        "socket_errors": "a system call on a connection failed for a reason other than that it would block",
        "stream_event_too_long": "a server-sent event or line larger than the bound: its beginning and end are read",
        "unknown_kind": "a batch of a record kind unknown to this family",
        "usage_contradicted": "a server reported that it generated no token, after a stream that had some; those are "
        "counted, as an estimate",
        "unsolicited_responses": "a response without an observed request",
        "upgraded": "a connection that changed to another protocol; ignored from then on",
        "zmtp_malformed": "bytes on a ZeroMQ connection that are not a frame; skipped up to the next message",
        "zmtp_mechanism_unsupported": "a ZeroMQ connection with CURVE, PLAIN or GSSAPI; ignored from then on",
        "zmtp_messages_cut": "a ZeroMQ message that was under way when its connection, or the session, ended",
        "zmtp_version_unsupported": "a ZeroMQ connection of ZMTP 1 or 2; ignored from then on",
        "websocket_invalid": "a WebSocket with bytes that are not frames; ignored from then on",
        "websocket_messages": "a WebSocket message of an API that is not read; only counted",
        "websocket_messages_not_read": "a WebSocket message that was too large, incomplete, or could not be inflated",
    },
    intended=("requests_under_way",),
)


EXCHANGE_BYTES: Final = 1024
"""Of an open exchange, all that is remembered of it elsewhere included."""


class ParserOutput:
    """The results of all parsers of one :class:`~otelgpu.families.requests.decode.HttpState`.

    ``budget_bytes`` bounds the body bytes and the reordered chunks of all connections together; of it, what comes from
    :meth:`of_process` has a share. ``capture_content``: whether prompts and completions are kept
    (``Generation.content``); off unless the user asks.
    """

    __slots__ = (
        "_keys",
        "_pool",
        "assignments",
        "capture_content",
        "counters",
        "exchanges",
        "messages",
        "named",
        "opened",
        "refused",
        "shed",
        "tasks",
    )

    def __init__(
        self, budget_bytes: int, *, capture_content: bool = False, headroom: Headroom | None = None
    ) -> None:
        self.capture_content = capture_content
        self.assignments: list[ThreadAssignment] = []
        self.exchanges: list[Exchange] = []
        self.opened: list[Opened] = []
        self.shed: list[int] = []
        self.named: list[Named] = []
        self.messages: list[EngineMessage] = []
        self.tasks: list[TaskService] = []
        self.counters = dict.fromkeys(COUNTERS, 0)
        self._pool = Pool(budget_bytes, headroom=headroom)
        self._keys = itertools.count(1)
        self.refused = Refusals()

    @property
    def container(self) -> int | str:
        """Whose parsers' it is, a cgroup; 0: everybody's."""
        return 0

    def of_process(self, process: int, container: int) -> OutputOfProcess:
        """The same for parsers of a process's connections: what they reserve is within its share."""
        return OutputOfProcess(self, self._pool.share_of(process, container))

    @property
    def is_over(self) -> bool:
        """Whether more is held than may be now."""
        return self._pool.free < 0

    def most_first(self) -> list[Share]:
        """The shares of processes, those that hold most first."""
        return self._pool.most_first()

    def take(self) -> TrafficParsed:
        """All results since the last time."""
        taken = TrafficParsed(
            assignments=self.assignments.copy(),
            exchanges=self.exchanges.copy(),
            opened=self.opened.copy(),
            shed=self.shed.copy(),
            named=self.named.copy(),
            messages=self.messages.copy(),
            tasks=self.tasks.copy(),
        )
        for results in (
            *(self.assignments, self.exchanges, self.opened, self.shed, self.named, self.messages),
            self.tasks,
        ):
            results.clear()
        return taken

    def count(self, name: str, times: int = 1) -> None:
        """Add to a counter of :data:`COUNTERS`."""
        self.counters[name] += times

    def new_key(self) -> int:
        """Return the next ``Exchange.key``."""
        return next(self._keys)

    def reserve(self, size: int) -> bool:
        """Reserve ``size`` bytes of the budget; False when it is spent."""
        if size > self._pool.free:
            return False
        self._pool.held += size
        return True

    def release(self, size: int) -> None:
        """Release bytes reserved by :meth:`reserve`."""
        self._pool.held -= size


class OutputOfProcess(ParserOutput):
    """The output of ``whole`` for one process."""

    __slots__ = ("share",)

    def __init__(self, whole: ParserOutput, share: Share) -> None:
        self.capture_content = whole.capture_content
        self.assignments, self.exchanges = whole.assignments, whole.exchanges
        self.opened, self.named, self.messages = whole.opened, whole.named, whole.messages
        self.shed = whole.shed
        self.tasks = whole.tasks
        self.counters, self._keys, self._pool = whole.counters, whole._keys, whole._pool
        self.refused = whole.refused
        self.share = share

    @property
    def container(self) -> int | str:
        """That of the process."""
        return self.share.container

    def reserve(self, size: int) -> bool:
        """Reserve ``size`` bytes of the budget; False when the share is spent."""
        if self.share.reserve(size):
            return True
        self.counters["body_share_spent"] += 1
        self.refused.add(self.share.process, self.share.container)
        return False

    def release(self, size: int) -> None:
        """Release bytes reserved by :meth:`reserve`."""
        self.share.release(size)


class ExchangeRoom:
    """Room for the open exchanges of a connection but the first, out of the budget of its process.

    Invariant: it holds room for no more exchanges than were open at the last :meth:`fit`, but one.
    """

    __slots__ = ("_kept", "_output")

    def __init__(self, output: ParserOutput) -> None:
        self._output = output
        self._kept = 0

    def fit(self, count: int) -> bool:
        """``count`` exchanges are open, one more or less than before; False where there is no room for that many."""
        beyond, kept = count - 1, self._kept
        if kept > beyond > -1:
            self._output.release(EXCHANGE_BYTES * (kept - beyond))
            self._kept = beyond
        elif kept < beyond and self._output.reserve(EXCHANGE_BYTES):
            self._kept = kept + 1
        return self._kept >= beyond
