"""What all connections of one HTTP state share: finished facts, the keys, the counters, the memory budget.

In: counts, claims and exchanges from the connections. Out: the same, taken once per batch by ``decode``.
It must not know about sockets, bytes or HTTP.
"""

from __future__ import annotations

from otelgpu.model.exchange import Claim, Exchange

#: Every counter that this family exports, and what one count means.
COUNTERS = {
    "bodies_not_kept": "a JSON body was larger than the bound or the budget; only its ends were searched",
    "bodies_unseen": "a response body went out by a way that is not observed (sendfile, splice)",
    "bytes_repeated": "bytes at stream offsets that had already been seen; dropped",
    "capture_gaps": "a message lost its framing because bytes of it were not captured",
    "connections_evicted": "a connection was forgotten because there were too many",
    "connections_expired": "an idle connection was forgotten",
    "connections_not_opened": "a connection whose open was not seen (attached late, or the record was lost)",
    "encoded_body": "an LLM body with a content encoding (gzip, br, …) that is not read",
    "http2_not_supported_yet": "a connection that speaks HTTP/2; ignored from then on",
    "json_malformed": "an LLM body or stream event that is not the JSON that its API promises",
    "late_bytes_skipped": "bytes before the first request on a connection found open",
    "not_http": "a connection with bytes that are not HTTP/1; ignored from then on",
    "pieces_after_close": "a piece of a connection that had already ended; dropped",
    "pieces_late": "a piece that came after it had been given up as lost; dropped",
    "pieces_lost": "a piece that never came, by its sequence number",
    "requests_incomplete": "a request whose head never became complete and that was not answered",
    "responses_not_seen": "a request given up because a thousand after it were not answered either",
    "resync_bytes_skipped": "bytes after a capture gap and before the next start of a message",
    "socket_errors": "a system call on a connection failed for another reason than having to wait",
    "stream_event_too_long": "a server-sent event larger than the bound; its content is unknown",
    "unknown_kind": "a batch of a record kind that this family does not know",
    "unsolicited_responses": "a response that no seen request asked for",
    "upgraded": "a connection that changed to another protocol; ignored from then on",
}


class Session:
    """Sinks shared by the connections of one :class:`~otelgpu.families.http.decode.HttpState`.

    ``budget_bytes`` bounds the body bytes and the held-back pieces of all connections together.
    """

    __slots__ = ("_budget", "_next_key", "claims", "counters", "exchanges")

    def __init__(self, budget_bytes: int) -> None:
        self.claims: list[Claim] = []
        self.exchanges: list[Exchange] = []
        self.counters = dict.fromkeys(COUNTERS, 0)
        self._budget = budget_bytes
        self._next_key = 1

    def count(self, name: str, times: int = 1) -> None:
        """Add to a counter of :data:`COUNTERS`."""
        self.counters[name] += times

    def new_key(self) -> int:
        """Return the next ``Exchange.key``."""
        key = self._next_key
        self._next_key = key + 1
        return key

    def keep(self, size: int) -> bool:
        """Reserve ``size`` bytes of the budget; False when it is spent."""
        if size > self._budget:
            return False
        self._budget -= size
        return True

    def release(self, size: int) -> None:
        """Give back bytes reserved by :meth:`keep`."""
        self._budget += size
