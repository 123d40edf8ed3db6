"""Our own OTLP/JSON lines, of any number of hosts: steps of training, calls of collectives, trouble of hardware.

A step's span says where its time went, in sums: each becomes one row that begins with the step. Of the host's time only
what is the rank's own is taken: data-loader stall, files, host overhead. Not taken are waits and calls, in which a rank
also waits for others, and host-side copies, which wait for the device. Computing and copies are known where device time
is measured. A span that two gateways have delivered is there once, by its id.

What no span says is found by :mod:`otelgpu.store.places`: job and global rank of a process, and steps that
all ranks number alike. So what was read is kept apart (:mod:`otelgpu.store.observed`), and becomes rows of ``ops`` when
all of it is there; of files that grow, again and again, without being read again (:mod:`otelgpu.store.followed`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from otelgpu.engine.names import HOST_TIME
from otelgpu.export.parquet.rows import PEER
from otelgpu.families.nccl import collective_names as nccl
from otelgpu.families.rdma import hardware_errors
from otelgpu.families.steps import names as step_names
from otelgpu.families.steps.training import names as training
from otelgpu.families.user_probes import signals as probes
from otelgpu.model.job import JOB_ID, JOB_RANK, JOB_SIZE
from otelgpu.model.resource import HOSTS, AttributeValue
from otelgpu.otlp_json.messages import Resource, ResourceMetrics, ResourceSpans, Span
from otelgpu.otlp_json.reader import (
    METRICS,
    RESOURCES,
    SPANS,
    Reader,
    Skips,
    Unreadable,
    attributes,
    identity,
    time_ns,
)
from otelgpu.store.batches import text
from otelgpu.store.calls import PEERS, UNKNOWN
from otelgpu.store.database import Store
from otelgpu.store.files import BrokenFile, pieces
from otelgpu.store.line_files import split_lines
from otelgpu.store.observed import MOST_PROCESSES
from otelgpu.store.readers.otlp_counters import MARKS as COUNTERS
from otelgpu.store.readers.otlp_counters import Counters
from otelgpu.store.reasons import FILES_UNREADABLE, SPANS_INCOMPLETE
from otelgpu.store.sequences import sequence_of
from otelgpu.store.tables import SEQUENCE_UNKNOWN

MARKS: Final = (b'"resourceSpans"', b'"resourceMetrics"', b'"resourceProfiles"', b'"resourceLogs"')
"""One of them is in every line."""


class OtlpReading:
    """Lines into what was seen of all processes."""

    def __init__(self, store: Store) -> None:
        self.skips = Skips()
        self._store = store
        self._observed = store.observed()
        self._counters = Counters()
        self._takers = {
            training.SCOPE: self._take_step,
            nccl.SCOPE: self._take_call,
            hardware_errors.SCOPE: self._take_error,
            probes.SCOPE: self._take_probe,
        }

    def take(self, reader: Reader, lines: Iterable[bytes | None]) -> None:
        """Lines, of which None is one too long to be read. ``reader`` has the ``skips`` of this one."""
        for document in reader.documents(line if line is None or _is_wanted(line) else b"" for line in lines):
            for of_resource in document.resource_spans:
                self._take_resource(reader, of_resource)
            for of_metrics in document.resource_metrics:
                self._take_metrics(reader, of_metrics)

    def count(self) -> None:
        """Say what was left out so far."""
        self._store.rejected.update(self.skips.counts)

    def _take_resource(self, reader: Reader, of_resource: ResourceSpans) -> None:
        of_ours = [
            (self._takers[each.scope.name], each)
            for each in of_resource.scope_spans
            if each.scope.name in self._takers
        ]
        process = self._process(reader, of_resource.resource) if of_ours else None
        if process is None:
            return
        for take, of_scope in of_ours:
            for span in reader.spans(of_scope):
                try:
                    take(process, span, attributes(span.attributes))
                except KeyError as error:  # a call that failed has no rank
                    reader.skip(SPANS_INCOMPLETE, error)
                except (ValueError, OverflowError) as error:
                    reader.skip(SPANS, error)

    def _process(self, reader: Reader, resource: Resource) -> int | None:
        """Its number; None where the resource cannot be read, or there are too many."""
        try:
            described = attributes(resource.attributes)
        except Unreadable as error:
            reader.skip(RESOURCES, error)
            return None
        host = _host_of(described)
        instance = described.get("service.instance.id") or described.get("process.pid", "")
        rank, size = described.get(JOB_RANK), described.get(JOB_SIZE)
        process = self._observed.process(
            host,
            text(described.get("service.name", "")),
            text(instance),
            text(described.get(JOB_ID, "")),
            *((rank, size) if isinstance(rank, int) and isinstance(size, int) else (-1, -1)),
        )
        if process is None:
            reader.skip(RESOURCES, f"more than {MOST_PROCESSES} processes")
        return process

    def _take_metrics(self, reader: Reader, of_resource: ResourceMetrics) -> None:
        try:
            host = _host_of(attributes(of_resource.resource.attributes))
        except Unreadable as error:
            reader.skip(RESOURCES, error)
            return
        for of_scope in of_resource.scope_metrics:
            for metric in reader.metrics(of_scope):
                try:
                    for each in self._counters.take(host, metric):
                        self._observed.growths.add(
                            each.host, each.t0, each.t1, each.name, each.value, text(each.text)
                        )
                except ValueError as error:
                    reader.skip(METRICS, error)

    def _take_step(self, process: int, span: Span, described: Mapping[str, AttributeValue]) -> None:
        if span.name != training.STEP:
            return
        own = (training.DATA_LOADER_STALL, training.FILE, training.HOST_OVERHEAD)
        device = (training.DEVICE_COMPUTE, training.DEVICE_COPY)
        self._observed.steps.add(
            _span_id(span.span_id),
            process,
            _whole(described[step_names.NUMBER]),
            *_times(span),
            *(_seconds(described.get(key, 0.0)) for key in own),
            *(_seconds(described.get(key, math.nan)) for key in device),
            text(described.get(training.SLOWEST_FILE, "")),
            _link(span),
            _seconds(described.get(training.THROTTLED, 0.0)),
            _whole(described.get(training.MAJOR_FAULTS, 0)),
            _whole(described.get(training.WRITTEN_BYTES, 0)),
        )

    def _take_call(self, process: int, span: Span, described: Mapping[str, AttributeValue]) -> None:
        phase = described.get(nccl.PHASE)
        if phase == "wait":
            self._observed.waits.add(_span_id(span.parent_span_id), time_ns(span.end_time_unix_nano) * 1e-9)
        if phase == nccl.RUN:
            self._observed.waits.add(_span_id(span.span_id), time_ns(span.end_time_unix_nano) * 1e-9)
        elif phase != "enqueue":
            return
        operation, communicator = text(described[nccl.OPERATION]), text(described.get(nccl.HASH, UNKNOWN))
        rank, number = _whole(described[nccl.RANK]), _whole(described.get(nccl.SEQUENCE, SEQUENCE_UNKNOWN))
        group, sequence = communicator, sequence_of(operation, number)
        way = PEERS.get(operation, 0)
        if way:  # numbered by pair and direction
            sender, receiver = (rank, _whole(described[PEER]))[::way]
            group, sequence = f"{communicator} {sender}>{receiver}", number
        if communicator == UNKNOWN:
            group, sequence = "", SEQUENCE_UNKNOWN
        self._observed.calls.add(
            _span_id(span.span_id),
            process,
            _trace_id(span.trace_id),
            "p2p" if way else "coll",
            operation,
            communicator,
            group,
            rank,
            _whole(described.get(nccl.RANKS, 0)),
            sequence,
            time_ns(span.start_time_unix_nano) * 1e-9,
            _seconds(described.get(nccl.GPU_TIME, math.nan)),
            _whole(described.get(nccl.BYTES, 0)),
        )

    def _take_probe(self, process: int, span: Span, described: Mapping[str, AttributeValue]) -> None:
        """Of a user's own: a garbage collection, a checkpoint, an evaluation."""
        begin, end = _times(span)
        seconds = _seconds(described.get(HOST_TIME, end - begin))  # of all hits that were folded into it
        self._observed.probes.add(
            _span_id(span.span_id), process, begin, end, text(described[probes.NAME]), seconds
        )

    def _take_error(self, process: int, span: Span, described: Mapping[str, AttributeValue]) -> None:
        """An Xid or SXid: of its host, whoever's work it ended."""
        self._observed.errors.add(
            _span_id(span.span_id),
            self._observed.processes[process].host,
            *_times(span),
            _whole(described[hardware_errors.CODE]),
            text(f"{span.name}: {described.get(hardware_errors.MESSAGE, '')}"),
        )


def read(store: Store, paths: Sequence[Path]) -> None:
    """See the module. A file that cannot be read to its end is read as far as it can."""
    reading = OtlpReading(store)
    for path in paths:
        try:
            reading.take(Reader(path.name, reading.skips), split_lines(pieces(path)))
        except BrokenFile:
            store.rejected[FILES_UNREADABLE] += 1
    reading.count()


def _is_wanted(line: bytes) -> bool:
    return MARKS[0] in line or (MARKS[1] in line and any(mark in line for mark in COUNTERS))


def _host_of(described: Mapping[str, AttributeValue]) -> str:
    return next((text(described[key]) for key in HOSTS if described.get(key)), "")


def _times(span: Span) -> tuple[float, float]:
    return time_ns(span.start_time_unix_nano) * 1e-9, time_ns(span.end_time_unix_nano) * 1e-9


def _trace_id(written: str) -> int:
    """Its halves, xor: to be compared, and shown to nobody."""
    found = identity(written, 16)
    return int.from_bytes(found[:8], "big") ^ int.from_bytes(found[8:], "big")


def _span_id(written: str) -> int:
    return int.from_bytes(identity(written, 8), "big")


def _link(span: Span) -> str:
    """As of ``step_spans``. Raises ValueError where an identity is none."""
    return f"{identity(span.trace_id, 16).hex()}-{identity(span.span_id, 8).hex()}"


def _whole(value: AttributeValue) -> int:
    """Raises ValueError for what is no integer."""
    if isinstance(value, int):
        return value
    raise ValueError(f"{value!r} is no integer")


def _seconds(value: AttributeValue) -> float:
    """Raises ValueError for what is no number."""
    if isinstance(value, int | float):
        return float(value)
    raise ValueError(f"{value!r} is no number")
