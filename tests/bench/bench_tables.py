"""What a row of ``--export parquet:DIR`` costs: from spans in columns to a file that is whole.

Run: ``.venv/bin/python -m tests.bench.bench_tables``. Calls of collectives, in batches as ticks make them, a file every
minute's rows; the baseline is the same spans as OTLP/JSON lines (``--export file:PATH``).
"""

from __future__ import annotations

import tempfile
import time

import numpy as np
from rich.console import Console

from otelgpu.export.base import Exporter
from otelgpu.export.file.exporter import FileExporter
from otelgpu.export.parquet.exporter import ParquetExporter
from otelgpu.export.parquet.folder import Bounds
from otelgpu.families.nccl import collective_names as nccl
from otelgpu.model.resource import resource
from otelgpu.model.spans import Attribute, SpanColumns, SpanKind, constant_text
from tests.bench.programs import BenchError
from tests.bench.rows import Budget, Row, show

BATCH = 500
BUDGET_NS = 10_000.0
"""A job of 1,000 collectives a second and process: a hundredth of a core."""


def calls(first: int) -> SpanColumns:
    numbers = np.arange(first, first + BATCH)
    begin = (1_790_000_000_000_000_000 + numbers * 1_000_000).astype(np.uint64)
    identities = numbers.astype(">u8").view(np.uint8).reshape(-1, 8)
    constant = {nccl.PHASE: "enqueue", nccl.OPERATION: "AllReduce", nccl.HASH: "ab1e5eed00000001"}
    numeric = {nccl.RANK: 3, nccl.RANKS: 1024, nccl.BYTES: 4 << 20}
    return SpanColumns(
        resource=resource({"service.name": "training", "host.name": "host-7", "process.pid": 4711}),
        scope=nccl.SCOPE,
        kind=SpanKind.INTERNAL,
        trace_id=np.hstack([identities, identities]),
        span_id=identities,
        parent_span_id=np.zeros((BATCH, 8), dtype=np.uint8),
        trace_state=None,
        flags=np.ones(BATCH, dtype=np.uint32),
        start_unix_ns=begin,
        end_unix_ns=begin + np.uint64(5000),
        name=constant_text("ncclAllReduce", BATCH),
        status=np.zeros(BATCH, dtype=np.uint8),
        status_message=None,
        attributes=(
            *(Attribute(key=key, values=constant_text(value, BATCH)) for key, value in constant.items()),
            *(Attribute(key=key, values=np.full(BATCH, value)) for key, value in numeric.items()),
            Attribute(key=nccl.SEQUENCE, values=numbers),
            Attribute(key=nccl.GPU_TIME, values=np.full(BATCH, 0.003)),
        ),
    )


def cost_ns(sent: Exporter, spans: int) -> float:
    """Processor time of a span. All have to be accepted."""
    batches = [calls(first) for first in range(0, spans, BATCH)]
    began = time.process_time_ns()
    for batch in batches:
        sent.export_spans([batch])
    sent.close(10)
    taken = time.process_time_ns() - began
    if sent.stats()["spans_accepted"] != len(batches) * BATCH:
        raise BenchError(f"not all were written: {sent.stats()}")
    return taken / (len(batches) * BATCH)


def rows(quick: bool) -> list[Row]:
    spans = 20_000 if quick else 400_000
    with tempfile.TemporaryDirectory(prefix="otelgpu-bench-") as folder:
        bounds = Bounds(max_bytes=1 << 30, max_age_s=3600)
        as_table = cost_ns(ParquetExporter(f"{folder}/tables", bounds, every_s=3600), spans)
        as_lines = cost_ns(FileExporter(f"{folder}/lines.jsonl"), spans)
    return [
        Row(
            bench="tables",
            name="a call of a collective as a row of Parquet",
            value=as_table,
            unit="ns",
            baseline="as an OTLP/JSON line",
            baseline_value=as_lines,
            budget=Budget(limit=BUDGET_NS, kind="at most"),
        )
    ]


if __name__ == "__main__":
    show(rows(quick=False), Console(width=150))
