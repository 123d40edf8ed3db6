"""From ring bytes to OTLP bytes on one core: the live source's own collection, the pipeline, the encoder.

Nothing is left out but the kernel's part and the network: the ring is drained and split by kind, processes and
kernel names are looked after, calls are joined to 1 000 open requests, metrics and the summary are fed, spans
are made and encoded. CPU time. The baseline is opentelemetry-sdk making and encoding the same spans.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from otelgpu.engine import registry
from otelgpu.engine.contract import Family
from otelgpu.engine.facts import TrafficParsed
from otelgpu.engine.pipeline import Pipeline
from otelgpu.export.base import Exporter
from otelgpu.export.wire import encode_spans
from otelgpu.kernel import clock
from otelgpu.kernel.loader import read_image
from otelgpu.kernel.scope import Scope
from otelgpu.model.inputs import Batch
from otelgpu.model.resource import resource
from otelgpu.model.settings import Detail, SignalSettings
from otelgpu.model.spans import SpanBatch, SpanColumns, Text, in_columns
from otelgpu.session import Session
from otelgpu.sources.live import LiveSettings, LiveSource
from otelgpu.symbols.demangle import short_name
from tests.bench.bench_encode import by_sdk, rate
from tests.bench.programs import Load, running_load
from tests.bench.rows import Budget, Row, median, spread
from tests.bench.synthetic import Reported, RingMemory, Wave, reported_family, wave

NAME = "ring_to_otlp"
CALLS_PER_WAVE = 120_000
BASELINE_SPANS = 3_000
DISTINCT_LAUNCHES = 1_000
SIX: Final = frozenset(("cuda.device.index", "cuda.stream", "cuda.size"))
"""With thread, source of the context, API and kernel name: the six attributes of DESIGN.md's budget."""
DETAILS: Final[tuple[Detail, ...]] = ("all", "ops")


@dataclass(slots=True)
class Encoder:
    """An exporter that encodes as the OTLP one does, and sends nothing."""

    spans: int = 0
    bytes: int = 0
    kept: list[SpanColumns] = field(default_factory=list)
    keep: bool = False

    def export_spans(self, batches: Iterable[SpanBatch]) -> None:
        if self.keep:
            batches = list(batches)
            self.kept += in_columns(batches)
        for payload in encode_spans(batches):
            self.spans += payload.items
            self.bytes += len(payload.body)

    def export_metrics(self, data: object, items: int) -> None:
        pass

    def export_profiles(self, batches: object) -> None:
        pass

    def flush(self, deadline_s: float) -> bool:
        return True

    def close(self, deadline_s: float) -> None:
        pass

    def stats(self) -> Mapping[str, int]:
        return {}

    def deliveries(self) -> tuple[()]:
        return ()


class Bench:
    """A live source over simulated ring memory, and all that comes after it."""

    def __init__(
        self,
        load: Load,
        detail: Detail,
        distinct_launches: int | None = None,
        exporter: Exporter | None = None,
        *,
        few_attributes: bool = False,
    ) -> None:
        """``exporter``: where spans go instead of to an :class:`Encoder`."""
        self.tgid = load.pid
        self._distinct_launches = distinct_launches
        self._functions = load.ask("kernels")
        self._reported = Reported()
        self.encoder = Encoder()
        families = {"cuda": with_few_attributes() if few_attributes else registry.families()["cuda"]}
        self.source = LiveSource(families, Scope(processes=(load.pid,)), LiveSettings(ring_bytes={}))
        self.source.observe(load.pid)
        self._cuda = self.source._loaded["cuda"]
        self._real_ring = self._cuda.ring
        self._memory = RingMemory()
        self._cuda.ring = self._memory.ring
        pipeline = Pipeline(
            {**families, "http": reported_family(self._reported)},
            {**self.source.btf, "http": read_image("http").btf},
            seed=1,
            own=resource({"service.name": "otelgpu"}),
            start_unix_ns=0,
            settings=SignalSettings(detail=detail),
            shorten=short_name,
        )
        self.session = Session(pipeline, [exporter or self.encoder], metric_interval_s=None)
        self.session.take([clock.anchor()])
        self._number = 0
        self._ended_ns = 0

    def make(self, calls: int) -> Wave:
        """A wave that has just ended."""
        self._number += 1
        # Waves do not overlap: calls of the one before would be reported as late ones of answered requests.
        time.sleep(max(self._ended_ns + calls * 1000 - clock.monotonic_ns(), 0) * 1e-9)
        self._ended_ns = clock.monotonic_ns()
        begin = self._ended_ns - calls * 1000
        return wave(
            self._cuda.image,
            self.tgid,
            self._functions,
            calls,
            begin,
            self._number,
            distinct_launches=self._distinct_launches,
        )

    def run(self, made: Wave) -> float:
        """CPU seconds that a wave takes from the ring to bytes; filling the ring is not counted."""
        spent = 0.0
        room = self._memory.room(made.records.shape[1])
        parts = [made.records[i : i + room] for i in range(0, len(made.records), room)]
        for position, part in enumerate(parts):
            self._memory.fill(part)
            last = position == len(parts) - 1
            assignments = made.assignments if position == 0 else ()
            self._reported.next = TrafficParsed(
                assignments=assignments, exchanges=made.exchanges if last else ()
            )
            began = time.process_time()
            self.session.take([Batch(family="http", kind="reported", records=np.zeros(0, dtype="V1"))])
            self.session.take(self.source.collect())
            spent += time.process_time() - began
        return spent

    def close(self) -> None:
        self._cuda.ring = self._real_ring
        self.source.close()


def with_few_attributes() -> Family:
    """Family cuda, whose calls report only :data:`SIX`."""
    family = registry.families()["cuda"]
    assert family.operations is not None
    signals = family.operations.signals
    few = {
        kind: tuple(attribute for attribute in reported if attribute.key in SIX)
        for kind, reported in signals.attributes.items()
    }
    return replace(family, operations=replace(family.operations, signals=replace(signals, attributes=few)))


@contextlib.contextmanager
def opened(
    detail: Detail,
    distinct_launches: int | None = None,
    exporter: Exporter | None = None,
    *,
    few_attributes: bool = False,
) -> Iterator[Bench]:
    with running_load() as load:
        bench = Bench(load, detail, distinct_launches, exporter, few_attributes=few_attributes)
        try:
            yield bench
        finally:
            bench.close()


def _rates(
    detail: Detail, rounds: int, distinct_launches: int | None = None, *, few_attributes: bool = False
) -> tuple[list[float], list[float], list[SpanColumns]]:
    """Records/s and spans/s of each round, and the spans of one."""
    with opened(detail, distinct_launches, few_attributes=few_attributes) as bench:
        bench.run(bench.make(CALLS_PER_WAVE))  # names, caches, first-time imports
        records, spans = [], []
        for _ in range(rounds):
            made = bench.make(CALLS_PER_WAVE)
            before = bench.encoder.spans
            spent = bench.run(made)
            records.append(CALLS_PER_WAVE / spent)
            spans.append((bench.encoder.spans - before) / spent)
        bench.encoder.keep = True
        bench.run(bench.make(20_000))
        return records, spans, bench.encoder.kept


def rows(quick: bool) -> list[Row]:
    """``detail all`` makes a span of every call; ``ops`` (the default) folds runs of equal calls."""
    found: list[Row] = []
    rounds = 2 if quick else 11
    _, spans, kept = _rates("all", rounds, few_attributes=True)
    part = first_rows(max(kept, key=len), BASELINE_SPANS)
    reported = sum(attribute.present is None for attribute in part.attributes)
    found.append(
        Row(
            bench=NAME,
            name="detail all, six attributes, spans",
            value=median(spans),
            unit="spans/s",
            baseline="opentelemetry-sdk + encoder",
            baseline_value=rate(partial(by_sdk, part), len(part), 5),
            budget=Budget(limit=2e6, kind="at least"),
            note=f"detail all, {reported} attributes on every span: {spread(spans)}; best {max(spans):,.0f}",
        )
    )
    sdk = 0.0
    for detail in DETAILS:
        records, spans, kept = _rates(detail, rounds)
        if not sdk:
            part = first_rows(max(kept, key=len), BASELINE_SPANS)
            sdk = rate(partial(by_sdk, part), len(part), 5)
        found += [
            Row(
                bench=NAME,
                name=f"detail {detail}, spans",
                value=median(spans),
                unit="spans/s",
                baseline="opentelemetry-sdk + encoder",
                baseline_value=sdk,
                note=f"detail {detail}: {spread(spans)}; best {max(spans):,.0f}",
            ),
            Row(bench=NAME, name=f"detail {detail}, records", value=median(records), unit="records/s"),
        ]
        records, _, _ = _rates(detail, rounds, DISTINCT_LAUNCHES)
        name = f"detail {detail}, repeating launches"
        found.append(
            Row(
                bench=NAME,
                name=f"{name}, records",
                value=median(records),
                unit="records/s",
                note=f"{name}: {DISTINCT_LAUNCHES:,} distinct ones; {spread(records)}",
            )
        )
    return found


def first_rows(columns: SpanColumns, rows: int) -> SpanColumns:
    """The first rows of a batch."""

    def cut(values: Any) -> Any:
        return replace(values, codes=values.codes[:rows]) if isinstance(values, Text) else values[:rows]

    attributes = tuple(
        replace(a, values=cut(a.values), present=None if a.present is None else a.present[:rows])
        for a in columns.attributes
    )
    per_span = ("trace_id", "span_id", "parent_span_id", "flags", "start_unix_ns", "end_unix_ns", "name")
    changed = {name: cut(getattr(columns, name)) for name in (*per_span, "status")}
    message = None if columns.status_message is None else cut(columns.status_message)
    return replace(columns, attributes=attributes, status_message=message, **changed)
