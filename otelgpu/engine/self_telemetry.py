"""What this program reports of itself: records, rings, probes, destinations, its own cost. Pure.

Where OpenTelemetry has a convention it is kept: ``otel.sdk.*`` (SDK self-observability) for what is exported,
``process.*`` for the process. Everything stands in one scope of the program's own resource, next to
``otelgpu.losses``, which the pipeline counts.

In: :class:`AgentStats`, as often as somebody reads. Out: series in a :class:`~otelgpu.engine.metrics.Metrics`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Final

import numpy as np
from msgspec import Struct, field

from otelgpu.engine import names
from otelgpu.engine.metric import Instrument, Metric
from otelgpu.engine.metrics import Labels, Metrics
from otelgpu.model.resource import Resource
from otelgpu.model.self_telemetry import ATTEMPT_SECONDS, Attachment, Delivery, Durations, RingFill

PROCESSES_REPORTED: Final = 100
"""Processes whose probes are reported one by one: what is beyond adds up under the process id 0."""

COMPONENT_NAME: Final = "otel.component.name"
COMPONENT_TYPE: Final = "otel.component.type"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
CPU_MODE: Final = "cpu.mode"
PROCESS_ID: Final = "process.pid"
PROCESS_NAME: Final = "process.executable.name"
RECORD: Final = "otelgpu.record"
ATTACH_STATE: Final = "otelgpu.attach.state"
TRACKED: Final = "otelgpu.tracked.type"
OUTCOME: Final = "otelgpu.reload.outcome"

_TURN_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


def _counter(name: str, unit: str, description: str, *, whole: bool = True) -> Metric:
    return Metric(name=name, unit=unit, instrument=Instrument.COUNTER, description=description, whole=whole)


def _level(name: str, unit: str, description: str) -> Metric:
    return Metric(name=name, unit=unit, instrument=Instrument.UP_DOWN_COUNTER, description=description)


def _gauge(name: str, unit: str, description: str) -> Metric:
    return Metric(name=name, unit=unit, instrument=Instrument.GAUGE, description=description)


def _histogram(name: str, buckets: tuple[float, ...], description: str) -> Metric:
    return Metric(
        name=name, unit="s", instrument=Instrument.HISTOGRAM, description=description, buckets=buckets
    )


RECORDS: Final = _counter("otelgpu.records", "{record}", "Records that were read from the rings.")
RING_HIGH_WATER: Final = _gauge(
    "otelgpu.ring.high_water",
    "By",
    "Most bytes that waited in a family's ring at once since the last reading.",
)
RING_LIMIT: Final = _level("otelgpu.ring.limit", "By", "Size of a family's ring.")
DRAIN_INTERVAL: Final = _histogram(
    "otelgpu.drain.interval", _TURN_SECONDS, "From one draining of the rings to the next."
)
DRAIN_DURATION: Final = _histogram(
    "otelgpu.drain.duration", _TURN_SECONDS, "Draining the rings and making spans and metrics of it."
)
LOOP_LAG: Final = _gauge(
    "otelgpu.loop.lag",
    "s",
    "How late the rings were drained at most, since the last report.",
)
TRACKED_THINGS: Final = _level(
    "otelgpu.tracked", "{item}", "Processes, connections and requests that are remembered while they last."
)
PROCESS_LIBRARIES: Final = _level(
    "otelgpu.process.libraries",
    "{library}",
    "Files with probes that an observed process has, by their state.",
)
RELOADS: Final = _counter(
    "otelgpu.config.reloads", "{reload}", "Times that the configuration was read again."
)
QUEUE_USAGE: Final = _level("otelgpu.exporter.queue.usage", "By", "Bytes that wait to be sent.")
QUEUE_LIMIT: Final = _level("otelgpu.exporter.queue.limit", "By", "Bytes that may wait; more are dropped.")
SENT: Final = _counter("otelgpu.exporter.sent", "By", "Bytes that were accepted, before compression.")
RETRIES: Final = _counter("otelgpu.exporter.retries", "{attempt}", "Attempts that failed for the moment.")
FAILING: Final = _gauge(
    "otelgpu.exporter.failing",
    "s",
    "For how long nothing was accepted though something was to be; 0: all is well.",
)
SPANS_EXPORTED: Final = _counter(
    "otel.sdk.exporter.span.exported",
    "{span}",
    "Spans that were accepted, or lost for the reason in error.type.",
)
SPANS_IN_FLIGHT: Final = _level(
    "otel.sdk.exporter.span.inflight", "{span}", "Spans that wait to be accepted."
)
POINTS_EXPORTED: Final = _counter(
    "otel.sdk.exporter.metric_data_point.exported",
    "{data_point}",
    "Data points that were accepted, or lost for the reason in error.type.",
)
POINTS_IN_FLIGHT: Final = _level(
    "otel.sdk.exporter.metric_data_point.inflight", "{data_point}", "Data points that wait to be accepted."
)
SAMPLES_EXPORTED: Final = _counter(
    "otelgpu.exporter.profile_sample.exported",
    "{sample}",
    "Observations of profiles that were accepted, or lost for the reason in error.type.",
)
SAMPLES_IN_FLIGHT: Final = _level(
    "otelgpu.exporter.profile_sample.inflight",
    "{sample}",
    "Observations of profiles that wait to be accepted.",
)
EVENTS_EXPORTED: Final = _counter(
    "otel.sdk.exporter.log.exported",
    "{log_record}",
    "Log records that were accepted, or lost for the reason in error.type.",
)
EVENTS_IN_FLIGHT: Final = _level(
    "otel.sdk.exporter.log.inflight", "{log_record}", "Log records that wait to be accepted."
)
_IN_FLIGHT: Final = (SPANS_IN_FLIGHT, POINTS_IN_FLIGHT, SAMPLES_IN_FLIGHT, EVENTS_IN_FLIGHT)
ATTEMPTS: Final = _histogram(
    "otel.sdk.exporter.operation.duration", ATTEMPT_SECONDS, "Attempts to deliver, by how they ended."
)
CPU_TIME: Final = _counter("process.cpu.time", "s", "CPU time of this program.", whole=False)
MEMORY: Final = _level("process.memory.usage", "By", "Resident memory of this program.")
MEMORY_LIMIT: Final = _level("otelgpu.memory.limit", "By", "Resident memory near which things are given up.")
MEMORY_LEVEL: Final = _gauge(
    "otelgpu.memory.level", "1", "How much is given up for want of memory: 0 nothing, 5 most."
)
DESCRIPTORS: Final = _level(
    "process.unix.file_descriptor.count", "{file_descriptor}", "Descriptors that this program has open."
)
THREADS: Final = _level("process.thread.count", "{thread}", "Threads of this program.")
UPTIME: Final = _gauge("process.uptime", "s", "Since this program began to observe.")

_DESTINATION: Final = (COMPONENT_NAME, COMPONENT_TYPE, SERVER_ADDRESS, SERVER_PORT)

SELF_METRICS: Final[tuple[tuple[Metric, tuple[str, ...]], ...]] = (
    (RECORDS, (names.LOSS_FAMILY, RECORD)),
    (RING_HIGH_WATER, (names.LOSS_FAMILY,)),
    (RING_LIMIT, (names.LOSS_FAMILY,)),
    (DRAIN_INTERVAL, ()),
    (DRAIN_DURATION, ()),
    (LOOP_LAG, ()),
    (TRACKED_THINGS, (TRACKED,)),
    (PROCESS_LIBRARIES, (PROCESS_ID, PROCESS_NAME, ATTACH_STATE)),
    (RELOADS, (OUTCOME,)),
    (SPANS_EXPORTED, (*_DESTINATION, names.ERROR_TYPE)),
    (SPANS_IN_FLIGHT, _DESTINATION),
    (POINTS_EXPORTED, (*_DESTINATION, names.ERROR_TYPE)),
    (POINTS_IN_FLIGHT, _DESTINATION),
    (SAMPLES_EXPORTED, (*_DESTINATION, names.ERROR_TYPE)),
    (SAMPLES_IN_FLIGHT, _DESTINATION),
    (EVENTS_EXPORTED, (*_DESTINATION, names.ERROR_TYPE)),
    (EVENTS_IN_FLIGHT, _DESTINATION),
    (ATTEMPTS, (*_DESTINATION, names.ERROR_TYPE)),
    *((metric, _DESTINATION) for metric in (QUEUE_USAGE, QUEUE_LIMIT, SENT, RETRIES, FAILING)),
    (CPU_TIME, (CPU_MODE,)),
    (MEMORY, ()),
    (MEMORY_LIMIT, ()),
    (MEMORY_LEVEL, ()),
    (DESCRIPTORS, ()),
    (THREADS, ()),
    (UPTIME, ()),
)
"""Every metric of this module, with its attributes."""


class Cost(Struct, frozen=True, kw_only=True):
    """What the process takes, in the units of the metrics."""

    user_s: float
    system_s: float
    resident_bytes: int
    descriptors: int
    threads: int


class AgentStats(Struct, frozen=True, kw_only=True):
    """One reading. All counts are since the start; ``deliveries`` come with the place of their destination."""

    uptime_s: float
    lag_s: float  # the longest since such a reading before
    cost: Cost
    rings: Mapping[str, RingFill]  # by family
    tracked: Mapping[str, int]
    attachments: Iterable[tuple[int, Attachment]]  # of processes
    deliveries: Sequence[tuple[int, Delivery]]
    reloads: Mapping[str, int] = field(default_factory=dict)
    memory_limit_bytes: int = 0
    memory_level: int = 0


class SelfMetrics:
    """Keeps the series of one session."""

    def __init__(self, metrics: Metrics, own: Resource) -> None:
        self._metrics, self._own = metrics, own
        self._reported: dict[Labels, Durations] = {}

    def count_records(self, family: str, record: str, count: int) -> None:
        """Some were read."""
        self._add(RECORDS, {names.LOSS_FAMILY: family, RECORD: record}, count)

    def turned(self, interval_s: float | None, duration_s: float) -> None:
        """The rings were drained, ``interval_s`` after the time before, and it took so long."""
        if interval_s is not None:
            self._add(DRAIN_INTERVAL, {}, interval_s)
        self._add(DRAIN_DURATION, {}, duration_s)

    def publish(self, stats: AgentStats) -> None:
        """Report a reading; what it no longer has is reported no more."""
        self._set(UPTIME, {}, float(stats.uptime_s))
        self._set(LOOP_LAG, {}, stats.lag_s)
        self._publish_cost(stats.cost)
        if stats.memory_limit_bytes:
            self._set(MEMORY_LIMIT, {}, stats.memory_limit_bytes)
            self._set(MEMORY_LEVEL, {}, stats.memory_level)
        for family, fill in stats.rings.items():
            self._set(RING_HIGH_WATER, {names.LOSS_FAMILY: family}, fill.high_water)
            self._set(RING_LIMIT, {names.LOSS_FAMILY: family}, fill.limit)
        for thing, count in stats.tracked.items():
            self._set(TRACKED_THINGS, {TRACKED: thing}, count)
        for outcome, count in stats.reloads.items():
            self._set(RELOADS, {OUTCOME: outcome}, count)
        self._publish_attachments(stats.attachments)
        self._publish_deliveries(stats.deliveries)

    def _publish_cost(self, cost: Cost) -> None:
        self._set(CPU_TIME, {CPU_MODE: "user"}, cost.user_s)
        self._set(CPU_TIME, {CPU_MODE: "system"}, cost.system_s)
        self._set(MEMORY, {}, cost.resident_bytes)
        self._set(DESCRIPTORS, {}, cost.descriptors)
        self._set(THREADS, {}, cost.threads)

    def _publish_attachments(self, attachments: Iterable[tuple[int, Attachment]]) -> None:
        self._metrics.unset(PROCESS_LIBRARIES, self._own)
        left = iter(attachments)
        for tgid, attachment in islice(left, PROCESSES_REPORTED):
            self._report_process(tgid, attachment)
        others = list(left)
        if others:
            summed = Attachment(
                executable="",
                attached=sum(each.attached for _, each in others),
                blind=sum(each.blind for _, each in others),
                failed=sum(each.failed for _, each in others),
            )
            self._report_process(0, summed)

    def _report_process(self, tgid: int, attachment: Attachment) -> None:
        for state, count in (
            ("attached", attachment.attached),
            ("blind", attachment.blind),
            ("failed", attachment.failed),
        ):
            if count:
                labels: dict[str, str | int] = {PROCESS_ID: tgid, PROCESS_NAME: attachment.executable}
                self._set(PROCESS_LIBRARIES, labels | {ATTACH_STATE: state}, count)

    def _publish_deliveries(self, deliveries: Sequence[tuple[int, Delivery]]) -> None:
        """Those of one signal that have the same labels are reported as one."""
        for metric in (*_IN_FLIGHT, QUEUE_USAGE, QUEUE_LIMIT, FAILING):
            self._metrics.unset(metric, self._own)
        reported: dict[tuple[Labels, bool, bool, bool], Delivery] = {}
        for place, delivery in deliveries:
            key = _labels(place, delivery), delivery.metrics, delivery.profiles, delivery.events
            reported[key] = reported[key].plus(delivery) if key in reported else delivery
        for (labels, *_), delivery in reported.items():
            self._report_delivery(dict(labels), delivery)

    def _report_delivery(self, labels: dict[str, str | int], delivery: Delivery) -> None:
        exported, in_flight = (
            (POINTS_EXPORTED, POINTS_IN_FLIGHT)
            if delivery.metrics
            else (SAMPLES_EXPORTED, SAMPLES_IN_FLIGHT)
            if delivery.profiles
            else (EVENTS_EXPORTED, EVENTS_IN_FLIGHT)
            if delivery.events
            else (SPANS_EXPORTED, SPANS_IN_FLIGHT)
        )
        self._set(exported, labels, delivery.accepted)
        for reason, lost in delivery.lost.items():
            if lost:
                self._set(exported, labels | {names.ERROR_TYPE: reason}, lost)
        self._set(in_flight, labels, delivery.queued)
        self._set(FAILING, labels, float(delivery.failing_s))
        if delivery.queue_limit_bytes or delivery.attempts:
            self._set(QUEUE_USAGE, labels, delivery.queued_bytes)
            self._set(QUEUE_LIMIT, labels, delivery.queue_limit_bytes)
            self._set(SENT, labels, delivery.sent_bytes)
            self._set(RETRIES, labels, delivery.retries)
        for outcome, attempts in delivery.attempts.items():
            failed = {names.ERROR_TYPE: outcome} if outcome else {}
            self._report_attempts({**labels, **failed}, attempts)

    def _report_attempts(self, labels: Mapping[str, str | int], attempts: Durations) -> None:
        """What was added since the last reading."""
        key = tuple(sorted(labels.items()))
        before = self._reported.get(key, Durations())
        if attempts.counts != before.counts:
            series = self._metrics.growing(ATTEMPTS, names.SELF_SCOPE, self._own, labels)
            added = np.array(attempts.counts, np.int64) - np.array(before.counts, np.int64)
            series.fill(added, attempts.total_s - before.total_s)
            self._reported[key] = attempts

    def _add(self, metric: Metric, labels: Mapping[str, str | int], value: float) -> None:
        self._metrics.add(metric, names.SELF_SCOPE, self._own, labels, value)

    def _set(self, metric: Metric, labels: Mapping[str, str | int], value: float) -> None:
        self._metrics.set(metric, names.SELF_SCOPE, self._own, labels, value)


def _labels(place: int, delivery: Delivery) -> Labels:
    found: dict[str, str | int] = {
        COMPONENT_NAME: f"{delivery.kind}/{place}",
        COMPONENT_TYPE: delivery.kind,
    }
    if delivery.address is not None:
        found[SERVER_ADDRESS], found[SERVER_PORT] = delivery.address
    return tuple(sorted(found.items()))
