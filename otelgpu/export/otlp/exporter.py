"""The OTLP exporter: spans, metrics, profiles and events to an endpoint each, encoded here and delivered by senders."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from otelgpu.export.base import Payload, Signal, Transport
from otelgpu.export.otlp.sender import DEFAULT_QUEUE_BYTES, Counts, RetryPolicy, Sender
from otelgpu.export.otlp.settings import OtlpSettings, Protocol
from otelgpu.export.profiles import encode_profiles
from otelgpu.export.protobuf import delimited
from otelgpu.export.wire import DEFAULT_MAX_BYTES, encode_spans
from otelgpu.model.self_telemetry import Delivery
from otelgpu.model.shares import Headroom

if TYPE_CHECKING:
    from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData, ResourceMetrics

    from otelgpu.model.events import Event
    from otelgpu.model.profiles import ProfileColumns
    from otelgpu.model.spans import SpanBatch

ITEMS = {
    Signal.TRACES: "spans",
    Signal.METRICS: "points",
    Signal.PROFILES: "profiles",
    Signal.LOGS: "events",
}

_COMPONENTS = {
    Signal.TRACES: "span_exporter",
    Signal.METRICS: "metric_exporter",
    Signal.PROFILES: "profile_exporter",
    Signal.LOGS: "log_exporter",
}
"""How the semantic conventions call what exports a signal, behind the protocol."""

_QUEUE_BYTES = 8 * 1024 * 1024
"""Of metrics, of profiles, and of events."""

_log = logging.getLogger("otelgpu.export")


def open_transport(settings: OtlpSettings) -> Transport:
    """The transport that the settings ask for; only its libraries are imported."""
    if settings.protocol is Protocol.GRPC:
        from otelgpu.export.otlp.grpc import GrpcTransport

        return GrpcTransport(settings)
    from otelgpu.export.otlp.http import HttpTransport

    return HttpTransport(settings)


def prepare_transport(settings: OtlpSettings) -> None:
    """Import what opens it. Not gRPC, which is not to be there when processes are forked."""
    if settings.protocol is not Protocol.GRPC:
        import_module("otelgpu.export.otlp.http")  # and with it OpenSSL


class OtlpExporter:
    """An :class:`~otelgpu.export.base.Exporter` to an OTLP server, with a queue and a thread per signal.

    Those of profiles and of events come into being with the first of them.
    """

    def __init__(
        self,
        traces: OtlpSettings,
        metrics: OtlpSettings,
        profiles: OtlpSettings | None = None,
        logs: OtlpSettings | None = None,
        *,
        queue_bytes: int = DEFAULT_QUEUE_BYTES,
        retry: RetryPolicy | None = None,
    ) -> None:
        """Starts the threads; connects when there is something to send."""
        self._settings = {each.signal: each for each in (traces, metrics, profiles, logs) if each is not None}
        self._queue_bytes, self._retry = queue_bytes, retry
        self._senders = {settings.signal: self._sender(settings) for settings in (traces, metrics)}
        self._unencodable = dict.fromkeys(ITEMS, 0)

    def _sender(self, settings: OtlpSettings) -> Sender:
        return Sender(
            open_transport(settings),
            name=f"OTLP {settings.signal} to {settings.shown}",
            timeout_s=settings.timeout_s,
            queue_bytes=self._queue_bytes_of(settings.signal),
            retry=self._retry,
        )

    def fit(self, headroom: Headroom) -> None:
        """See :class:`~otelgpu.export.base.Queueing`."""
        for signal, sender in self._senders.items():
            sender.fit(self._queue_bytes_of(signal) >> headroom.steps)

    def _queue_bytes_of(self, signal: Signal) -> int:
        return self._queue_bytes if signal is Signal.TRACES else _QUEUE_BYTES

    def export_spans(self, batches: Iterable[SpanBatch]) -> None:
        """See :class:`~otelgpu.export.base.Exporter`. Encodes in the caller's thread, sends in another."""
        left = iter(batches)
        while not self._encode_all(left):
            pass  # a batch that breaks its contract ends the encoder, not the export

    def _encode_all(self, batches: Iterator[SpanBatch]) -> bool:
        """Whether all of them could be encoded; if not, what was not sent of those taken so far is counted."""
        taken = 0

        def counted() -> Iterator[SpanBatch]:
            nonlocal taken
            for columns in batches:
                taken += len(columns)
                yield columns

        try:
            for payload in encode_spans(counted()):
                self._senders[Signal.TRACES].offer(payload)
                taken -= payload.items
        except ValueError:
            if not self._unencodable[Signal.TRACES]:
                _log.exception("spans that break their contract are dropped")
            self._unencodable[Signal.TRACES] += taken
            return False
        return True

    def export_metrics(self, data: MetricsData, items: int) -> None:
        """See :class:`~otelgpu.export.base.Exporter`."""
        for payload in encode_metrics(data, items):
            self._senders[Signal.METRICS].offer(payload)

    def export_profiles(self, batches: Sequence[ProfileColumns]) -> None:
        """See :class:`~otelgpu.export.base.Exporter`. Encodes in the caller's thread, sends in another."""
        sender = self._late_sender(Signal.PROFILES)
        if sender is None:
            return
        for columns in batches:
            left = len(columns)
            try:
                for payload in encode_profiles([columns]):
                    sender.offer(Payload(signal=Signal.PROFILES, body=payload.body, items=payload.rows))
                    left -= payload.rows
            except ValueError:
                if not self._unencodable[Signal.PROFILES]:
                    _log.exception("profiles that break their contract are dropped")
                self._unencodable[Signal.PROFILES] += left

    def export_events(self, events: Sequence[Event]) -> None:
        """See :class:`~otelgpu.export.base.EventExporter`."""
        from otelgpu.export.logs import logs_data  # most sessions have none

        sender = self._late_sender(Signal.LOGS)
        if sender is not None:
            body = logs_data(events).SerializeToString()
            sender.offer(Payload(signal=Signal.LOGS, body=body, items=len(events)))

    def _late_sender(self, signal: Signal) -> Sender | None:
        """That of a signal which most sessions have nothing of; None where it goes nowhere."""
        sender, settings = self._senders.get(signal), self._settings.get(signal)
        if sender is None and settings is not None:
            sender = self._sender(settings)
            self._senders = {**self._senders, signal: sender}  # other threads read it
        return sender

    def flush(self, deadline_s: float) -> bool:
        """See :class:`~otelgpu.export.base.Exporter`."""
        until = time.monotonic() + deadline_s
        return all(sender.flush(max(0.0, until - time.monotonic())) for sender in self._senders.values())

    def close(self, deadline_s: float) -> None:
        """See :class:`~otelgpu.export.base.Exporter`."""
        until = time.monotonic() + deadline_s
        for sender in self._senders.values():
            sender.begin_close(deadline_s)
        for sender in self._senders.values():
            sender.close(max(0.0, until - time.monotonic()))

    def stats(self) -> Mapping[str, int]:
        """See :class:`~otelgpu.export.base.Exporter`."""
        stats: dict[str, int] = {}
        for signal, sender in self._senders.items():
            stats |= flat(ITEMS[signal], sender.counts(), self._unencodable[signal])
        return stats

    def deliveries(self) -> Sequence[Delivery]:
        """See :class:`~otelgpu.export.base.Exporter`."""
        return [self._delivery(signal, sender) for signal, sender in self._senders.items()]

    def _delivery(self, signal: Signal, sender: Sender) -> Delivery:
        counts, settings = sender.counts(), self._settings[signal]
        transport = "grpc" if settings.protocol is Protocol.GRPC else "http"
        return Delivery(
            kind=f"otlp_{transport}_{_COMPONENTS[signal]}",
            metrics=signal is Signal.METRICS,
            profiles=signal is Signal.PROFILES,
            events=signal is Signal.LOGS,
            address=settings.address,
            accepted=counts.accepted,
            queued=counts.queued,
            queued_bytes=counts.queued_bytes,
            queue_limit_bytes=sender.queue_bytes,
            lost={**counts.lost, "unencodable": self._unencodable[signal]},
            sent_bytes=counts.sent_bytes,
            retries=counts.retries,
            attempts=counts.attempts,
            failing_s=counts.failing_s,
        )


def flat(items: str, counts: Counts, unencodable: int) -> dict[str, int]:
    """One sender's counts under the keys of ``Exporter.stats``."""
    return {
        f"{items}_given": counts.given + unencodable,
        f"{items}_accepted": counts.accepted,
        f"{items}_queued": counts.queued,
        f"{items}_lost_unencodable": unencodable,
        **{f"{items}_lost_{reason}": count for reason, count in counts.lost.items()},
    }


def encode_metrics(data: MetricsData, items: int, *, max_bytes: int = DEFAULT_MAX_BYTES) -> list[Payload]:
    """``data`` as ``ExportMetricsServiceRequest`` bodies, split between resources where it is too large.

    Both messages hold nothing but ``repeated ResourceMetrics = 1``, so their bytes are the same.
    ``items`` must be the number of data points in ``data``.
    """
    if not data.resource_metrics:
        return []
    if data.ByteSize() <= max_bytes:
        return [Payload(signal=Signal.METRICS, body=data.SerializeToString(), items=items)]
    payloads: list[Payload] = []
    body, points = b"", 0
    for part in data.resource_metrics:
        field = delimited(b"\x0a", part.SerializeToString())
        if body and len(body) + len(field) > max_bytes:
            payloads.append(Payload(signal=Signal.METRICS, body=body, items=points))
            body, points = b"", 0
        body += field
        points += count_points(part)
    return [*payloads, Payload(signal=Signal.METRICS, body=body, items=points)]


def count_points(part: ResourceMetrics) -> int:
    """How many data points of any type ``part`` holds."""
    metrics = (metric for scope in part.scope_metrics for metric in scope.metrics)
    kinds = ((metric, metric.WhichOneof("data")) for metric in metrics)
    return sum(len(getattr(metric, kind).data_points) for metric, kind in kinds if kind)
