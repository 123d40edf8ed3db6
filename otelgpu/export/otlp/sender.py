"""A bounded queue and one thread per destination: payloads in, deliveries and exact counts out.

The caller is never blocked and never sees an error. Every item given is, at any moment, in exactly one of
three places: accepted, queued (the payload being sent included), or lost under one reason.

* ``queue_full``: the queue is bounded by bytes; a payload that does not fit is the one dropped.
* ``memory_short``: the bound was lowered; the oldest make room, but for the one that is being sent.
* ``rejected``: the server took the payload less these (partial success). ``refused``: it will never take it.
* ``retries_exhausted``: transient failures until the payload was older than the horizon.
* ``shutdown``: still queued, or sent with no answer yet, when ``close`` ran out of time, or when nothing was taken for
  :data:`DEAD_SECONDS` of it.

Pacing follows https://opentelemetry.io/docs/specs/otel/protocol/exporter/#retry: exponential back-off with
jitter that belongs to the destination, not to a payload, so that a dead server sees one attempt per interval;
a wait that the server asked for is kept. Example without jitter: attempts at 0, 1, 2.5, 4.75, 8.125 s …
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Mapping

from msgspec import Struct

from otelgpu.export.base import Accepted, Outcome, Payload, Refused, Retry, Transport
from otelgpu.model.self_telemetry import ATTEMPT_SECONDS, Durations

DEFAULT_QUEUE_BYTES = 64 * 1024 * 1024
DEAD_SECONDS = 10.0
"""At the end a server that takes nothing for so long is given up, however much time there would be."""
LOSS_REASONS = ("queue_full", "memory_short", "rejected", "refused", "retries_exhausted", "shutdown")

_log = logging.getLogger("otelgpu.export")


class RetryPolicy(Struct, frozen=True, kw_only=True):
    """How long to wait between attempts, and when to give up."""

    initial_s: float = 1.0
    factor: float = 1.5
    cap_s: float = 30.0
    jitter: float = 0.5  # a wait is drawn from [1 - jitter, 1] of its nominal length
    horizon_s: float = 300.0  # a payload that fails when it is older than this is given up

    def wait_s(self, failures: int, draw: float) -> float:
        """The wait after the ``failures``-th failure in a row; ``draw`` is uniform in [0, 1)."""
        exponent = min(failures - 1, 64)  # far beyond the cap, short of overflow
        return min(self.cap_s, self.initial_s * self.factor**exponent) * (1 - self.jitter * draw)


class Counts(Struct, frozen=True, kw_only=True):
    """One destination's account, in items. ``given == accepted + queued + sum(lost.values())``, always."""

    given: int
    accepted: int
    queued: int
    queued_bytes: int
    lost: Mapping[str, int]
    sent_bytes: int  # of payloads that were accepted, before compression
    retries: int  # attempts that failed and were, or will be, made again
    attempts: Mapping[str, Durations]  # by outcome: "" of those that were accepted, "transient", "refused"
    failing_s: float  # for how long nothing has been accepted while something was to be delivered


class _Entry(Struct):
    payload: Payload
    since: float


def _wait(condition: threading.Condition, seconds: float | None) -> None:
    condition.wait(seconds)


class Sender:
    """Delivers payloads through one transport, in order, from its own daemon thread."""

    def __init__(
        self,
        transport: Transport,
        *,
        name: str,
        timeout_s: float,
        queue_bytes: int = DEFAULT_QUEUE_BYTES,
        retry: RetryPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[threading.Condition, float | None], None] = _wait,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """``name`` says in log lines what goes where. ``clock``, ``wait`` and ``draw`` are for tests."""
        self._transport = transport
        self._name = name
        self._timeout_s = timeout_s
        self._queue_bytes = queue_bytes
        self._retry = retry or RetryPolicy()
        self._clock, self._wait, self._draw = clock, wait, draw

        self._changed = threading.Condition()  # guards all below
        self._queue: deque[_Entry] = deque()  # its head is the one being sent
        self._bytes = 0
        self._queued = 0
        self._given = 0
        self._accepted = 0
        self._lost: Counter[str] = Counter()
        self._sent_bytes = 0
        self._retries = 0
        self._attempts: dict[str, Durations] = {}
        self._failing_since: float | None = None  # nothing was accepted since
        self._failures = 0  # in a row
        self._not_before = 0.0  # no attempt earlier than this
        self._throttled = False  # the server asked for that wait
        self._closing_since = 0.0
        self._closing_at: float | None = None  # close() has begun, and ends then
        self._closed = False
        self._trouble = ""  # the last state reported in a log line; "" when all is well
        self._lost_before = 0  # when the trouble began
        self._dropping = False
        self._last_warning = ""
        self._thread = threading.Thread(target=self._run, name=f"otelgpu-export {name}", daemon=True)
        self._thread.start()

    def offer(self, payload: Payload) -> None:
        """Take the payload over: queue it, or drop it and count why. Does not wait."""
        with self._changed:
            self._given += payload.items
            if self._closed or self._closing_at is not None:
                self._lost["shutdown"] += payload.items
            elif self._bytes + len(payload.body) > self._queue_bytes:
                self._lost["queue_full"] += payload.items
                if not self._dropping:
                    self._dropping = True
                    _log.warning(
                        "%s: the queue is full (%d bytes); new data is dropped", self._name, self._bytes
                    )
            else:
                self._queue.append(_Entry(payload, self._clock()))
                self._bytes += len(payload.body)
                self._queued += payload.items
                self._changed.notify_all()

    def fit(self, queue_bytes: int) -> None:
        """From here on the queue may hold so much, at most what it could at first; what is beyond that is dropped."""
        with self._changed:
            self._queue_bytes = queue_bytes
            while self._bytes > queue_bytes and len(self._queue) > 1:
                entry = self._queue[1]
                del self._queue[1]
                self._bytes -= len(entry.payload.body)
                self._queued -= entry.payload.items
                self._lost["memory_short"] += entry.payload.items

    @property
    def queue_bytes(self) -> int:
        """What the queue may hold."""
        return self._queue_bytes

    def counts(self) -> Counts:
        """A consistent snapshot."""
        with self._changed:
            lost = {reason: self._lost[reason] for reason in LOSS_REASONS}
            since = self._failing_since
            return Counts(
                given=self._given,
                accepted=self._accepted,
                queued=self._queued,
                queued_bytes=self._bytes,
                lost=lost,
                sent_bytes=self._sent_bytes,
                retries=self._retries,
                attempts={
                    outcome: Durations(counts=list(reported.counts), total_s=reported.total_s)
                    for outcome, reported in self._attempts.items()
                },
                failing_s=self._clock() - since if since is not None else 0.0,
            )

    def flush(self, deadline_s: float) -> bool:
        """Wait up to ``deadline_s`` seconds until nothing is queued or under way; whether that came true."""
        until = self._clock() + deadline_s
        with self._changed:
            while self._queue:
                left = until - self._clock()
                if left <= 0:
                    return False
                self._wait(self._changed, left)
            return True

    def begin_close(self, deadline_s: float) -> None:
        """Take no more, and deliver what is queued within ``deadline_s`` seconds; does not wait.

        A back-off under way is cut short once, unless the server asked for it.
        """
        with self._changed:
            if self._closing_at is None:
                self._closing_since = self._clock()
                self._closing_at = self._closing_since + deadline_s
                if not self._throttled:
                    self._not_before = 0.0
                self._changed.notify_all()

    def close(self, deadline_s: float) -> None:
        """:meth:`begin_close`, wait for its end, and count as lost what is left. May be repeated."""
        self.begin_close(deadline_s)
        self.flush(deadline_s)
        with self._changed:
            self._abandon()
            self._changed.notify_all()
        self._transport.close()
        self._thread.join(timeout=1.0)

    def _abandon(self) -> None:
        """With the lock: what is left is lost; a payload under way too, as its answer can no longer count."""
        if self._closed:
            return
        self._closed = True
        if self._queued:
            self._lost["shutdown"] += self._queued
            _log.warning("%s: %d items were not delivered before the end", self._name, self._queued)
        self._queue.clear()
        self._queued = self._bytes = 0

    def _run(self) -> None:
        while (entry := self._next()) is not None:
            payload, timeout_s = entry
            began = self._clock()
            try:
                outcome = self._transport.send(payload, timeout_s)
            except Exception as error:
                _log.debug("%s: sending failed", self._name, exc_info=True)
                outcome = Refused(f"unforeseen {type(error).__name__}: {error}")
            with self._changed:
                self._measure(payload, outcome, began)
                self._settle(payload, outcome)
                self._changed.notify_all()

    def _next(self) -> tuple[Payload, float] | None:
        """Wait for a payload whose time has come; it stays queued. None: closed."""
        with self._changed:
            while not self._closed:
                now, ends_at = self._clock(), self._ends_at()
                if not self._queue:
                    self._wait(self._changed, None)
                elif now >= ends_at:
                    self._abandon()
                    self._changed.notify_all()
                elif now < self._not_before:
                    self._wait(self._changed, min(self._not_before, ends_at) - now)
                else:
                    return self._queue[0].payload, min(self._timeout_s, ends_at - now)
            return None

    def _ends_at(self) -> float:
        """With the lock: when what is not delivered by then is given up."""
        if self._closing_at is None:
            return math.inf
        if self._failing_since is None:
            return self._closing_at
        return min(self._closing_at, max(self._failing_since, self._closing_since) + DEAD_SECONDS)

    def _measure(self, payload: Payload, outcome: Outcome, began: float) -> None:
        """With the lock: what this program reports of itself about an attempt."""
        now = self._clock()
        if isinstance(outcome, Accepted):
            ended, self._failing_since = "", None
            self._sent_bytes += len(payload.body)
        else:
            ended = "transient" if isinstance(outcome, Retry) else "refused"
            self._retries += isinstance(outcome, Retry)
            if self._failing_since is None:
                self._failing_since = began
        reported = self._attempts.setdefault(ended, Durations())
        reported.counts[bisect_left(ATTEMPT_SECONDS, now - began)] += 1
        reported.total_s += now - began

    def _settle(self, payload: Payload, outcome: Outcome) -> None:
        """With the lock: account for an attempt's outcome."""
        if self._closed:
            return  # already counted under "shutdown"
        if isinstance(outcome, Retry):
            self._back_off(outcome)
            if self._clock() - self._queue[0].since >= self._retry.horizon_s:
                self._take_head()
                self._lose("retries_exhausted", payload.items)
            return
        self._failures, self._not_before, self._throttled = 0, 0.0, False
        self._take_head()
        if isinstance(outcome, Refused):
            self._went_down(outcome.reason, "refused for good; this data is dropped")
            self._lose("refused", payload.items)
            return
        rejected = min(outcome.rejected, payload.items)
        self._accepted += payload.items - rejected
        self._lose("rejected", rejected)
        self._came_up()
        self._warn_once(rejected, outcome)

    def _take_head(self) -> None:
        payload = self._queue.popleft().payload
        self._bytes -= len(payload.body)
        self._queued -= payload.items

    def _lose(self, reason: str, items: int) -> None:
        self._lost[reason] += items

    def _back_off(self, outcome: Retry) -> None:
        self._failures += 1
        self._throttled = outcome.after_s is not None
        if outcome.after_s is None:
            wait_s = self._retry.wait_s(self._failures, self._draw())
        else:
            wait_s = min(outcome.after_s, self._retry.horizon_s)
        self._not_before = self._clock() + wait_s
        self._went_down(outcome.reason, "retrying, and keeping what fits in the queue")

    def _went_down(self, reason: str, consequence: str) -> None:
        if not self._trouble:
            self._lost_before = sum(self._lost.values())
        if self._trouble != consequence:
            self._trouble = consequence
            _log.warning("%s: not delivered: %s (%s)", self._name, reason, consequence)

    def _came_up(self) -> None:
        self._dropping = False
        if self._trouble:
            self._trouble = ""
            lost = sum(self._lost.values()) - self._lost_before
            _log.warning("%s: delivering again; %d items were lost meanwhile", self._name, lost)

    def _warn_once(self, rejected: int, outcome: Accepted) -> None:
        """A server's warning, when it differs from the last one."""
        warning = outcome.message or ("no reason given" if rejected else "")
        if warning and warning != self._last_warning:
            _log.warning("%s: the server rejected %d items: %s", self._name, rejected, warning)
        self._last_warning = warning or self._last_warning
