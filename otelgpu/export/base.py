"""What every exporter and transport agrees on: payloads, outcomes, and the two protocols.

Spans, metrics and profiles come in; an :class:`Exporter` owns them from then on and accounts for each one. Nothing
here does I/O or starts threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from msgspec import Struct

from otelgpu.errors import OtelgpuError
from otelgpu.model.losses import Reasons
from otelgpu.model.self_telemetry import Delivery
from otelgpu.model.shares import Headroom

if TYPE_CHECKING:
    from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

    from otelgpu.model.events import Event
    from otelgpu.model.profiles import ProfileColumns
    from otelgpu.model.spans import SpanBatch

REASONS: Final = Reasons(
    "export",
    {
        "queue_full": "the queue's memory bound was reached: the Collector is down or too slow",
        "memory_short": "this program came near its memory limit, and gave up the oldest that waited",
        "rejected": "the Collector took the batch but rejected these (OTLP partial success)",
        "refused": "the Collector answered with an error that is not to be retried",
        "retries_exhausted": "no attempt succeeded within the time for retries",
        "shutdown": "still queued when the time to flush at the end was over",
        "unencodable": "larger than what may be sent or written as one unit",
        "write_failed": "the disk or the terminal did not take it",
    },
)
"""What one count of (``export``, reason) means."""


class ExportError(OtelgpuError):
    """A destination cannot be used as it was configured; raised at start-up only."""


class Signal(StrEnum):
    """An OTLP signal. The value is the word that URLs and variable names use."""

    TRACES = "traces"
    METRICS = "metrics"
    PROFILES = "profiles"
    LOGS = "logs"
    """Events of sessions; those of batch commands the SDK's exporter sends: see sdk.py."""

    @property
    def path(self) -> str:
        """Of the standard URL: ``/v1/traces``. Profiles are in development, and say so."""
        return f"/{'v1development' if self is Signal.PROFILES else 'v1'}/{self}"


class Payload(Struct, frozen=True, kw_only=True):
    """One serialized ``Export{Trace,Metrics,Profiles,Logs}ServiceRequest``, sent and accounted for as a whole."""

    signal: Signal
    body: bytes
    items: int  # spans, metric data points, observations of profiles, or events


class Accepted(Struct, frozen=True):
    """The server took the payload, less ``rejected`` items (OTLP partial success); never sent again."""

    rejected: int = 0
    message: str = ""


class Retry(Struct, frozen=True):
    """A transient failure. ``after_s``: how long the server asked to be left alone; None if it did not."""

    after_s: float | None
    reason: str


class Refused(Struct, frozen=True):
    """A permanent failure: sending the same payload again cannot help."""

    reason: str


Outcome = Accepted | Retry | Refused


class Transport(Protocol):
    """One connection to one OTLP endpoint. Used by one thread at a time, except ``close``."""

    def send(self, payload: Payload, timeout_s: float) -> Outcome:
        """Deliver once, within about ``timeout_s`` seconds. Raises nothing for network or server faults."""

    def close(self) -> None:
        """Give the connection up; safe from any thread, cuts short a ``send`` under way, may be repeated."""


class Exporter(Protocol):
    """Where finished spans, metrics and profiles go. A destination's faults raise nothing: losses are counted."""

    def export_spans(self, batches: Iterable[SpanBatch]) -> None:
        """Take over the spans, which may be made as they are taken; returns without waiting for a network."""

    def export_metrics(self, data: MetricsData, items: int) -> None:
        """Take over the metrics. ``items``: how many data points ``data`` holds."""

    def export_profiles(self, batches: Sequence[ProfileColumns]) -> None:
        """Take over profiles: each batch is of one resource and sample type, and of one time."""

    def flush(self, deadline_s: float) -> bool:
        """Wait up to ``deadline_s`` seconds until nothing is queued; whether that was reached."""

    def close(self, deadline_s: float) -> None:
        """Flush for up to ``deadline_s`` seconds, count what is left as lost, and let go of everything."""

    def stats(self) -> Mapping[str, int]:
        """Exact counts so far, per signal: ``{spans,points}_{given,accepted,queued,lost_<reason>}``.

        ``profiles_…``, which count observations, and ``events_…`` from the first of those on. Always given = accepted +
        queued + the sum of all lost.
        """

    def deliveries(self) -> Sequence[Delivery]:
        """The same for this program's own metrics, and what there is besides; safe from any thread."""


@runtime_checkable
class Queueing(Protocol):
    """An exporter that keeps what waits to be sent."""

    def fit(self, headroom: Headroom) -> None:
        """Keep as much as there is room for from here on; what waited longest makes room."""


@runtime_checkable
class EventExporter(Protocol):
    """An exporter that has a place for events, too."""

    def export_events(self, events: Sequence[Event]) -> None:
        """Take over events; returns without waiting for a network."""


def deliveries_of(kind: str, stats: Mapping[str, int], failing_s: float = 0.0) -> list[Delivery]:
    """``Exporter.deliveries`` of a destination that is no server's, from its ``stats``."""
    found = []
    for items in ("spans", "points", "profiles", "events"):
        if f"{items}_accepted" not in stats:
            continue
        lost = f"{items}_lost_"
        found.append(
            Delivery(
                kind=kind,
                metrics=items == "points",
                profiles=items == "profiles",
                events=items == "events",
                accepted=stats[f"{items}_accepted"],
                queued=stats[f"{items}_queued"],
                lost={key.removeprefix(lost): n for key, n in stats.items() if key.startswith(lost)},
                failing_s=failing_s,
            )
        )
    return found
