"""Into a real Collector over gRPC, by the wall clock: our whole path, our exporter alone, and opentelemetry-sdk.

In: the waves of bench_pipeline; the columns of one of them; the same spans by opentelemetry-sdk and its OTLP
exporter. Every span is answered for: a round ends when the Collector has answered its last request, and its own
counter must have moved by what was sent. It throws the spans away, whoever sent them.

Rounds of the three take turns, so that what else the machine does meets all of them. The Collector and we have a
core each where there are two: what is measured is whichever of them is slower, and its CPU says which one that is.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from otelgpu.export.base import Signal
from otelgpu.export.otlp.exporter import OtlpExporter
from otelgpu.export.otlp.settings import OtlpSettings
from otelgpu.model.spans import SpanColumns, Text
from tests.backends.collector import MEMORY_LIMIT_MIB, Collector, missing_collector, running_collector
from tests.bench.bench_pipeline import CALLS_PER_WAVE, Bench, first_rows, opened
from tests.bench.programs import BenchError, cpu_seconds, memory_mib
from tests.bench.rows import Budget, Row, median, not_measured, spread
from tests.bench.synthetic import Wave

NAME = "collector"
ROUNDS, ROUND_S = 6, 2.0  # at least 12 seconds of each way
SDK_SPANS = 12_000
FLUSH_S = 120.0
SDK: Final = "opentelemetry-sdk + OTLP exporter"


class Way(Protocol):
    """One way of sending spans to the Collector."""

    def prepare(self) -> None:
        """What is not measured."""

    def send(self) -> int:
        """Hand the spans over; how many they are."""

    def wait(self) -> None:
        """Until the Collector has answered for all of them."""


@dataclass(slots=True)
class Meter:
    """What one way took, all rounds together."""

    way: Way
    collector: Collector
    rates: list[float] = field(default_factory=list)  # spans/s of each round
    spans: int = 0
    wall_s: float = 0.0
    own_s: float = 0.0  # CPU of this process
    collector_s: float = 0.0  # CPU of the Collector
    waited_s: float = 0.0  # nothing left to do here but wait for its answers
    collector_waited_s: float = 0.0  # its CPU meanwhile
    unaccounted: int = 0  # sent, less what its counter says

    def round(self, seconds: float) -> None:
        """Send until that has taken ``seconds``."""
        accepted = self.collector.counted("receiver_accepted_spans")
        spans, wall = 0, 0.0
        while wall < seconds:
            self.way.prepare()
            began, own, theirs = self._now()
            spans += self.way.send()
            sent, _, theirs_then = self._now()
            self.way.wait()
            ended, own_after, theirs_after = self._now()
            wall += ended - began
            self.own_s += own_after - own
            self.collector_s += theirs_after - theirs
            self.waited_s += ended - sent
            self.collector_waited_s += theirs_after - theirs_then
        self.unaccounted += spans - (self.collector.counted("receiver_accepted_spans") - accepted)
        self.rates.append(spans / wall)
        self.spans += spans
        self.wall_s += wall

    def _now(self) -> tuple[float, float, float]:
        return time.perf_counter(), time.process_time(), cpu_seconds(self.collector.pid)

    @property
    def load(self) -> str:
        """Who was busy."""
        theirs, own = self.collector_s / self.wall_s, self.own_s / self.wall_s
        return f"{theirs:.0%} of a core for the Collector, {own:.0%} for this process"

    @property
    def waiting(self) -> str:
        """Whether it was the Collector that we waited for."""
        its = self.collector_waited_s / self.waited_s
        return f"{self.waited_s / self.wall_s:.0%} of the time only its answers were waited for: it used {its:.0%} then"


def our_exporter(collector: Collector) -> OtlpExporter:
    """With the queue that users have: 64 MiB."""
    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.addresses["grpc"],
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
    }
    traces, metrics = (
        OtlpSettings.from_environment(variables, signal) for signal in (Signal.TRACES, Signal.METRICS)
    )
    return OtlpExporter(traces, metrics)


@dataclass(slots=True)
class Columns:
    """Columns → bytes → Collector."""

    exporter: OtlpExporter
    batches: Sequence[SpanColumns]

    def prepare(self) -> None:
        pass

    def send(self) -> int:
        self.exporter.export_spans(self.batches)
        return sum(map(len, self.batches))

    def wait(self) -> None:
        flushed(self.exporter)


class FromRing:
    """Ring → records → spans → bytes → Collector. Filling the ring is in it, making the records is not."""

    def __init__(self, bench: Bench, exporter: OtlpExporter) -> None:
        self._bench, self._exporter = bench, exporter
        self._wave: Wave | None = None

    def prepare(self) -> None:
        self._wave = self._bench.make(CALLS_PER_WAVE)

    def send(self) -> int:
        assert self._wave is not None
        before = self._exporter.stats()["spans_given"]
        self._bench.run(self._wave)
        return self._exporter.stats()["spans_given"] - before

    def wait(self) -> None:
        flushed(self._exporter)


class Sdk:
    """The same spans by opentelemetry-sdk: its own batches, and a queue that is large enough to lose none."""

    def __init__(self, collector: Collector, columns: SpanColumns) -> None:
        exporter = OTLPSpanExporter(endpoint=collector.addresses["grpc"], insecure=True)
        self._provider = TracerProvider()
        self._provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=len(columns)))
        self._tracer = self._provider.get_tracer("bench")
        names, table = columns.name.codes.tolist(), columns.name.table
        self._calls = [
            (str(table[names[row]]), _attributes(columns, row), int(start), int(end))
            for row, (start, end) in enumerate(zip(columns.start_unix_ns, columns.end_unix_ns, strict=True))
        ]

    def prepare(self) -> None:
        pass

    def send(self) -> int:
        for name, attributes, start, end in self._calls:
            self._tracer.start_span(name, attributes=attributes, start_time=start).end(end)
        return len(self._calls)

    def wait(self) -> None:
        if not self._provider.force_flush(int(FLUSH_S * 1000)):
            raise BenchError(f"{SDK} did not flush")

    def close(self) -> None:
        self._provider.shutdown()


def _attributes(columns: SpanColumns, row: int) -> dict[str, Any]:
    return {
        a.key: a.values.table[a.values.codes[row]] if isinstance(a.values, Text) else a.values[row].item()
        for a in columns.attributes
        if a.present is None or a.present[row]
    }


def flushed(exporter: OtlpExporter) -> None:
    """Until all is delivered. Raises :class:`BenchError` if anything was not."""
    done = exporter.flush(FLUSH_S)
    stats = exporter.stats()
    if not done or stats["spans_accepted"] != stats["spans_given"]:
        raise BenchError(f"not all spans were delivered: {stats}")


def kept_columns() -> list[SpanColumns]:
    """The spans of one wave."""
    with opened("all") as bench:
        bench.run(bench.make(CALLS_PER_WAVE))
        bench.encoder.keep = True
        bench.run(bench.make(CALLS_PER_WAVE))
        return bench.encoder.kept


@contextlib.contextmanager
def three_ways(collector: Collector) -> Iterator[tuple[Meter, Meter, Meter]]:
    """Ring, columns, SDK; each has sent something already, so that connections and caches are warm."""
    kept = kept_columns()
    exporter = our_exporter(collector)
    sdk = Sdk(collector, first_rows(max(kept, key=len), SDK_SPANS))
    try:
        with opened("all", exporter=exporter) as bench:
            ways: tuple[Way, Way, Way] = FromRing(bench, exporter), Columns(exporter, kept), sdk
            for way in ways:
                way.prepare()
                way.send()
                way.wait()
            ring, columns, theirs = (Meter(way, collector) for way in ways)
            yield ring, columns, theirs
    finally:
        exporter.close(1)
        sdk.close()


def rows(quick: bool) -> list[Row]:
    if missing := missing_collector():
        return [not_measured(NAME, "spans accepted", "spans/s", missing)]
    rounds, seconds = (1, 0.3) if quick else (ROUNDS, ROUND_S)
    with (
        tempfile.TemporaryDirectory(prefix="otelgpu-bench-") as folder,
        running_collector(Path(folder), "nop") as collector,
        three_ways(collector) as meters,
    ):
        for _ in range(rounds):
            for meter in meters:
                meter.round(seconds)
        _, peak_mib = memory_mib(collector.pid)
        refused = collector.counted("receiver_refused_spans")
    return _rows(*meters, peak_mib=peak_mib, refused=refused)


def _rows(ring: Meter, columns: Meter, sdk: Meter, *, peak_mib: float, refused: int) -> list[Row]:
    rate = median(sdk.rates)
    found = [
        Row(
            bench=NAME,
            name=name,
            value=median(meter.rates),
            unit="spans/s",
            baseline=SDK,
            baseline_value=rate,
            budget=Budget(limit=20, kind="at least", of="ratio"),
            note=f"{name}: {spread(meter.rates)}; {meter.wall_s:.0f} s; {meter.load}; {meter.waiting}. "
            f"SDK: {spread(sdk.rates)}; {sdk.wall_s:.0f} s; {sdk.load}",
        )
        for name, meter in (("from the ring, detail all", ring), ("columns", columns))
    ]
    for name, ours, theirs in (
        ("CPU here, from the ring", ring.own_s / ring.spans, sdk.own_s / sdk.spans),
        ("CPU here, columns", columns.own_s / columns.spans, sdk.own_s / sdk.spans),
        ("CPU of the Collector", columns.collector_s / columns.spans, sdk.collector_s / sdk.spans),
    ):
        found.append(
            Row(
                bench=NAME,
                name=name,
                value=ours * 1e6,
                unit="µs/span",
                baseline=SDK,
                baseline_value=theirs * 1e6,
            )
        )
    total = ring.spans + columns.spans + sdk.spans
    found.append(
        Row(
            bench=NAME,
            name="sent, not accepted by its counter",
            value=abs(ring.unaccounted) + abs(columns.unaccounted) + abs(sdk.unaccounted) + refused,
            unit="spans",
            budget=Budget(limit=0, kind="at most"),
            note=f"of {total:,} spans; the Collector refused {refused} and took at most {peak_mib:.0f} MiB "
            f"of the {MEMORY_LIMIT_MIB} at which it refuses",
        )
    )
    return found
