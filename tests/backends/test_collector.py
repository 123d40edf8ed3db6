"""What our exporter sends is what a real Collector has: every field of every span and metric, by its own files.

The Collector writes OTLP messages that it serializes itself; they are parsed by opentelemetry-proto and compared
with messages made from the same columns, one object a span. Nothing may be refused, by its counters and by ours.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData
from opentelemetry.proto.trace.v1.trace_pb2 import Span, TracesData

from otelgpu.engine import registry
from otelgpu.engine.names import SCHEMA_URL
from otelgpu.engine.pipeline import Pipeline
from otelgpu.export.base import Signal
from otelgpu.export.otlp.exporter import OtlpExporter, count_points
from otelgpu.export.otlp.sender import RetryPolicy
from otelgpu.export.otlp.settings import OtlpSettings
from otelgpu.model.resource import resource
from otelgpu.model.spans import SpanColumns, SpanKind, Text, in_columns
from otelgpu.sources.capture import CaptureReader
from otelgpu.symbols.demangle import short_name
from tests.backends.collector import Collector, running_collector
from tests.golden.make_capture import path_of
from tests.rig.examples import examples
from tests.unit.export.builders import by_identity, resource_spans, span_batches, spans

pytestmark = pytest.mark.long

WAYS = [(p, c) for p in ("grpc", "http/protobuf") for c in ("none", "gzip")] + [("http/protobuf", "zstd")]
FAST = RetryPolicy(initial_s=0.05, cap_s=0.2)
OTELGPU = Path(sys.executable).with_name("otelgpu")


def environment(collector: Collector, protocol: str, compression: str = "none") -> dict[str, str]:
    variables = {
        "ENDPOINT": collector.addresses[protocol],
        "PROTOCOL": protocol,
        "COMPRESSION": compression,
    }
    return {f"OTEL_EXPORTER_OTLP_{name}": value for name, value in variables.items()}


@contextmanager
def sending(collector: Collector, protocol: str, compression: str = "none") -> Iterator[OtlpExporter]:
    """An exporter to the Collector; at the end everything that it was given must have been accepted."""
    variables = environment(collector, protocol, compression)
    exporter = OtlpExporter(
        *(OtlpSettings.from_environment(variables, s) for s in (Signal.TRACES, Signal.METRICS)), retry=FAST
    )
    try:
        yield exporter
    finally:
        exporter.close(10)
    stats = exporter.stats()
    for items in ("spans", "points"):
        assert stats[f"{items}_accepted"] == stats[f"{items}_given"], stats


def took(collector: Collector, items: str) -> int:
    """How many spans or metric points it counted as accepted; it must have refused and failed to write none."""
    for trouble in ("receiver_refused", "receiver_failed", "exporter_send_failed"):
        assert collector.counted(f"{trouble}_{items}") == 0, trouble
    return collector.counted(f"receiver_accepted_{items}")


def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.01)


def all_spans(data: TracesData) -> list[Span]:
    return [span for part in data.resource_spans for scope in part.scope_spans for span in scope.spans]


def expected(batches: list[SpanColumns]) -> dict[tuple[bytes, bytes], list[bytes]]:
    """The batches by opentelemetry-proto, as :func:`received` reports them."""
    return received(TracesData(resource_spans=[resource_spans(columns) for columns in batches]))


def received(data: TracesData) -> dict[tuple[bytes, bytes], list[bytes]]:
    """Spans by resource and scope. The Collector writes an id of zeros, which is none, as none."""
    for span in all_spans(data):
        for holder in (span, *span.links):
            for field in ("trace_id", "span_id"):
                if not any(getattr(holder, field)):
                    holder.ClearField(field)
    return by_identity(data)


@pytest.mark.parametrize(("protocol", "compression"), WAYS)
def test_columns_of_any_content_arrive_unchanged(
    collector: Collector, protocol: str, compression: str
) -> None:
    with sending(collector, protocol, compression) as exporter:

        @examples(60, database=None)
        @given(st.lists(span_batches(), min_size=1, max_size=4))
        def check(batches: list[SpanColumns]) -> None:
            count, before = sum(map(len, batches)), took(collector, "spans")
            parts, written = len(collector.traces().resource_spans), len(all_spans(collector.traces()))
            exporter.export_spans(batches)
            assert exporter.flush(10)
            assert took(collector, "spans") - before == count
            until(lambda: len(all_spans(collector.traces())) >= written + count)
            new = TracesData(resource_spans=collector.traces().resource_spans[parts:])
            assert received(new) == expected(batches)
            assert all(p.schema_url == SCHEMA_URL for p in new.resource_spans)
            assert all(s.schema_url == SCHEMA_URL for p in new.resource_spans for s in p.scope_spans)

        check()
        assert took(collector, "spans") > 0


CAPTURE = path_of("llm_session")


def replayed() -> tuple[list[SpanColumns], MetricsData, int]:
    """The stored session through the pipeline: its spans, metrics, and how many points these hold."""
    reader = CaptureReader(CAPTURE)
    pipeline = Pipeline(
        {name: family for name, family in registry.families().items() if name in reader.btf},
        reader.btf,
        seed=reader.header.seed,
        own=resource(reader.header.own),
        start_unix_ns=reader.header.start_unix_ns,
        shorten=short_name,
    )
    batches = [columns for item in reader for columns in in_columns(pipeline.feed(item))]
    batches += in_columns(pipeline.finish())
    reader.close()
    return batches, *pipeline.read_metrics()


@pytest.mark.parametrize(("protocol", "compression"), WAYS)
def test_a_session_s_spans_and_metrics_arrive_unchanged(
    collector: Collector, protocol: str, compression: str
) -> None:
    batches, metrics, points = replayed()
    count = sum(map(len, batches))
    with sending(collector, protocol, compression) as exporter:
        exporter.export_spans(batches)
        exporter.export_metrics(metrics, points)
        assert exporter.flush(10)
        until(lambda: len(all_spans(collector.traces())) >= count)
        until(lambda: sum(map(count_points, collector.metrics().resource_metrics)) >= points)
        assert (took(collector, "spans"), took(collector, "metric_points")) == (count, points)
    assert received(collector.traces()) == expected(batches)
    assert collector.metrics() == metrics
    parents = {span.parent_span_id for span in all_spans(collector.traces())} - {b""}
    assert (
        len(parents & {span.span_id for span in all_spans(collector.traces())}) > 3
    )  # it is a tree there too


def test_replay_sends_the_same_from_the_command_line(collector: Collector) -> None:
    batches, metrics, _ = replayed()
    command = [str(OTELGPU), "replay", "--quiet", "--export=otlp", str(CAPTURE)]
    done = subprocess.run(
        command, env=environment(collector, "grpc"), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    collector.stop()
    assert received(collector.traces()) == expected(batches)
    names = {m.name for p in metrics.resource_metrics for s in p.scope_metrics for m in s.metrics}
    reported = {
        m.name for p in collector.metrics().resource_metrics for s in p.scope_metrics for m in s.metrics
    }
    assert names <= reported


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_bulk_is_split_to_what_the_receiver_takes(collector: Collector, protocol: str) -> None:
    """Its limits are the defaults (4 MiB a gRPC message): 100,000 spans with long names are many messages."""
    rows = 100_000
    name = Text(codes=np.arange(rows) % 50, table=tuple(f"kernel_{i}_{'x' * 100}" for i in range(50)))
    bulk = spans(rows, name=name, kind=SpanKind.CLIENT)
    with sending(collector, protocol) as exporter:
        exporter.export_spans([bulk])
        assert exporter.flush(30)
        assert took(collector, "spans") == rows
    collector.stop()
    data = collector.traces()
    assert len(data.resource_spans) > 5
    assert received(data) == expected([bulk])


def numbered(first: int, count: int) -> SpanColumns:
    """Spans whose ids are their numbers."""
    ids = np.arange(first, first + count, dtype=np.uint64).astype(">u8").view(np.uint8).reshape(-1, 8)
    return spans(count, span_id=ids)


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_what_was_sent_while_it_was_down_arrives_when_it_is_back(collector: Collector, protocol: str) -> None:
    batches = [numbered(1 + 100 * i, 100) for i in range(4)]
    with sending(collector, protocol) as exporter:
        exporter.export_spans(batches[:1])
        assert exporter.flush(10)
        collector.stop()
        for batch in batches[1:]:
            exporter.export_spans([batch])
            assert not exporter.flush(0.3)
        stats = exporter.stats()
        assert (stats["spans_accepted"], stats["spans_queued"]) == (100, 300)
        collector.start()
        assert exporter.flush(20)
        assert took(collector, "spans") == 300  # counted anew since its start: none of them twice
    collector.stop()
    assert received(collector.traces()) == expected(batches)


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_restarts_under_load_lose_nothing(collector: Collector, protocol: str) -> None:
    """A request whose answer a restart cut off is sent again: twice is allowed, never is not."""
    total, size, stop = 0, 200, threading.Event()
    with sending(collector, protocol) as exporter:

        def load() -> None:
            nonlocal total
            while not stop.wait(0.002):
                exporter.export_spans([numbered(total + 1, size)])
                total += size

        loading = threading.Thread(target=load)
        loading.start()
        try:
            for _ in range(3):
                time.sleep(0.3)
                collector.stop()
                time.sleep(0.2)
                collector.start()
        finally:
            stop.set()
            loading.join()
        assert exporter.flush(30)
    collector.stop()
    ids = {int.from_bytes(span.span_id, "big") for span in all_spans(collector.traces())}
    assert total > 10_000
    assert ids == set(range(1, total + 1))


def test_what_a_collector_that_stays_away_costs_is_counted(tmp_path: Path) -> None:
    with running_collector(tmp_path) as collector:
        variables = environment(collector, "grpc")
    exporter = OtlpExporter(
        *(OtlpSettings.from_environment(variables, s) for s in (Signal.TRACES, Signal.METRICS)),
        queue_bytes=20_000,
        retry=FAST,
    )
    for i in range(10):
        exporter.export_spans([numbered(1 + 100 * i, 100)])
    exporter.close(0.5)
    stats = exporter.stats()
    assert stats["spans_accepted"] == stats["spans_queued"] == 0
    lost = stats["spans_lost_queue_full"], stats["spans_lost_shutdown"]
    assert min(lost) > 0
    assert sum(lost) == stats["spans_given"] == 1000
