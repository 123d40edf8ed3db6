"""What the parts of this program say of themselves: its rings, its probes in each process, its destinations."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field
from msgspec.structs import replace

ATTEMPT_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Bounds of the histogram of how long attempts to deliver take."""


class RingFill(Struct, frozen=True, kw_only=True):
    """``high_water`` is the most bytes that waited in a ring at once since somebody asked; ``limit`` is its size."""

    high_water: int
    limit: int


class Attachment(Struct, frozen=True, kw_only=True):
    """How many of a process's libraries have their probes.

    ``attached``: all, and from the first instruction. ``blind``: all, but the process ran with the library for a
    moment before. ``failed``: the kernel refused some.
    """

    executable: str
    attached: int = 0
    blind: int = 0
    failed: int = 0


class Durations(Struct):
    """Attempts that ended in one way: how many in each bucket of :data:`ATTEMPT_SECONDS`, and their sum."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(ATTEMPT_SECONDS) + 1))
    total_s: float = 0.0

    def plus(self, other: Durations) -> Durations:
        """Those of both."""
        counts = [one + more for one, more in zip(self.counts, other.counts, strict=True)]
        return Durations(counts=counts, total_s=self.total_s + other.total_s)


class Delivery(Struct, frozen=True, kw_only=True):
    """What became of one signal at one destination so far. Items: spans, data points, observations of profiles, events.

    ``kind`` is the ``otel.component.type``. ``attempts``: by ``error.type``, "" for those that were accepted.
    """

    kind: str
    metrics: bool  # data points, not spans
    accepted: int
    queued: int
    lost: Mapping[str, int]  # by reason
    profiles: bool = False  # observations, not spans
    events: bool = False  # log records, not spans
    address: tuple[str, int] | None = None
    queued_bytes: int = 0
    queue_limit_bytes: int = 0
    sent_bytes: int = 0
    retries: int = 0
    attempts: Mapping[str, Durations] = field(default_factory=dict)
    failing_s: float = 0.0  # for how long nothing has been accepted while something was to be delivered

    @property
    def signal(self) -> str:
        """Its word in OTLP."""
        if self.metrics:
            return "metrics"
        return "profiles" if self.profiles else "logs" if self.events else "traces"

    def plus(self, other: Delivery) -> Delivery:
        """Of two that are reported as one, because one replaced the other."""
        lost, attempts = dict(self.lost), dict(self.attempts)
        for reason, items in other.lost.items():
            lost[reason] = lost.get(reason, 0) + items
        for outcome, reported in other.attempts.items():
            attempts[outcome] = attempts.get(outcome, Durations()).plus(reported)
        return replace(
            self,
            accepted=self.accepted + other.accepted,
            queued=self.queued + other.queued,
            lost=lost,
            queued_bytes=self.queued_bytes + other.queued_bytes,
            queue_limit_bytes=self.queue_limit_bytes + other.queue_limit_bytes,
            sent_bytes=self.sent_bytes + other.sent_bytes,
            retries=self.retries + other.retries,
            attempts=attempts,
            failing_s=max(self.failing_s, other.failing_s),
        )

    def retired(self) -> Delivery:
        """Of a destination that takes nothing new: its counts remain, its state is nobody's concern."""
        return replace(self, queue_limit_bytes=0, failing_s=0.0)
