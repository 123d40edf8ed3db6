"""How fast spans become OTLP bytes: columns against protobuf objects against the OpenTelemetry SDK.

Run: ``.venv/bin/python -m tests.bench.bench_encode [--json] [--spans N]``. Prints rates and ratios of one run
on one core; asserts nothing. The batch: 6 attributes a span, 200 kernel names, copies and launches mixed,
1 in 50 failed, 1 in 1 000 a root. As many profile samples: 300 stacks of 20 frames, 2 attributes, linked to
100 steps, with times; against protobuf objects, for the SDK has no profiles.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections import deque
from collections.abc import Callable

import numpy as np
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans as sdk_encode
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.profiles.v1development.profiles_pb2 import Sample
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from otelgpu.export.profiles import encode_profiles
from otelgpu.export.wire import encode_spans
from otelgpu.model.profiles import (
    FrameType,
    Function,
    Line,
    Links,
    Location,
    Mapping,
    ProfileColumns,
    ValueType,
)
from otelgpu.model.resource import resource
from otelgpu.model.spans import Attribute, SpanColumns, SpanKind, Text
from tests.bench.rows import Row

NAMES = 200
STACKS, FRAMES, STEPS = 300, 20, 100
BASELINE_SPANS = 5_000


def launches(rows: int, seed: int = 1) -> SpanColumns:
    """A batch as a busy GPU server gives it."""
    rng = np.random.default_rng(seed)
    name = rng.integers(0, NAMES, rows)
    is_copy = name >= NAMES - 4
    names = [f"cudaLaunchKernel kernel_{i}_{'x' * (i % 60)}" for i in range(NAMES - 4)]
    names += [f"cudaMemcpyAsync {i}" for i in range(4)]
    start = np.uint64(1_790_000_000_000_000_000) + np.arange(rows, dtype=np.uint64) * np.uint64(1000)
    parent = rng.integers(0, 256, (rows, 8), dtype=np.uint8)
    parent[::1000] = 0
    status = np.where(rng.random(rows) < 0.02, 2, 0).astype(np.uint8)
    return SpanColumns(
        resource=resource({"service.name": "llm", "process.pid": 42, "host.name": "gpu-node-1"}),
        scope="otelgpu.cuda",
        kind=SpanKind.INTERNAL,
        trace_id=rng.integers(0, 256, (rows, 16), dtype=np.uint8),
        span_id=rng.integers(0, 256, (rows, 8), dtype=np.uint8),
        parent_span_id=parent,
        trace_state=None,
        flags=np.ones(rows, dtype=np.uint32),
        start_unix_ns=start,
        end_unix_ns=start + rng.integers(1000, 50_000, rows).astype(np.uint64),
        name=Text(codes=name, table=tuple(names)),
        status=status,
        status_message=Text(codes=(status == 2).astype(np.intp), table=("", "cudaErrorInvalidValue")),
        attributes=(
            Attribute(key="thread.id", values=rng.integers(1000, 1016, rows)),
            Attribute(key="otelgpu.count", values=rng.integers(1, 300, rows)),
            Attribute(key="cuda.stream", values=rng.integers(2**46, 2**47, rows).astype(np.uint64)),
            Attribute(key="otelgpu.context.source", values=Text(codes=name % 2, table=("thread", "step"))),
            Attribute(key="cuda.memcpy.size", values=rng.integers(1, 2**30, rows), present=is_copy),
            Attribute(key="cuda.grid.size", values=rng.integers(1, 2**20, rows), present=~is_copy),
            Attribute(
                key="cuda.memcpy.kind",
                values=Text(codes=name % 4, table=("HtoH", "HtoD", "DtoH", "DtoD")),
                present=is_copy,
            ),
            Attribute(key="gpu.share", values=rng.random(rows), present=~is_copy),
        ),
    )


def by_protobuf_objects(columns: SpanColumns) -> bytes:
    """The same spans through opentelemetry-proto messages, one object per span."""
    request = ExportTraceServiceRequest()
    spans = request.resource_spans.add().scope_spans.add().spans
    table = columns.name.table
    for i in range(len(columns)):
        span = spans.add(
            trace_id=columns.trace_id[i].tobytes(),
            span_id=columns.span_id[i].tobytes(),
            parent_span_id=columns.parent_span_id[i].tobytes(),
            flags=1,
            name=str(table[columns.name.codes[i]]),
            kind=1,  # type: ignore[arg-type]
            start_time_unix_nano=int(columns.start_unix_ns[i]),
            end_time_unix_nano=int(columns.end_unix_ns[i]),
        )
        for attribute in columns.attributes:
            if attribute.present is not None and not attribute.present[i]:
                continue
            value = span.attributes.add(key=attribute.key).value
            if isinstance(attribute.values, Text):
                value.string_value = str(attribute.values.table[attribute.values.codes[i]])
            elif attribute.values.dtype == np.float64:
                value.double_value = float(attribute.values[i])
            else:
                value.int_value = int(attribute.values[i])
    return request.SerializeToString()


def kernel_times(rows: int, seed: int = 1) -> ProfileColumns:
    """Kernels of a server under the Python stacks that launched them."""
    rng = np.random.default_rng(seed)
    start = 1_790_000_000_000_000_000
    locations = 4 * STACKS
    return ProfileColumns(
        resource=resource({"service.name": "llm", "process.pid": 42, "host.name": "gpu-node-1"}),
        scope="otelgpu.cuda",
        sample_type=ValueType(type="gpu_kernel_time", unit="nanoseconds"),
        period_type=ValueType(type="gpu", unit="kernels"),
        period=1,
        start_unix_ns=start,
        duration_ns=10_000_000_000,
        value=rng.integers(1000, 2_000_000, rows),
        time_unix_ns=np.uint64(start) + rng.integers(0, 10_000_000_000, rows).astype(np.uint64),
        stack=rng.integers(0, STACKS, rows),
        stacks=tuple(tuple(rng.integers(0, locations, FRAMES).tolist()) for _ in range(STACKS)),
        locations=tuple(
            Location(
                frame_type=FrameType.NATIVE if i % 4 else FrameType.PYTHON,
                mapping=0 if i % 4 else None,
                address=0x7F00_0000_0000 + i if i % 4 else 0,
                lines=(Line(function=i, line=i % 500),),
            )
            for i in range(locations)
        ),
        functions=tuple(
            Function(name=f"forward_{i}", system_name=f"forward_{i}", file_name=f"layer_{i % 50}.py")
            for i in range(locations)
        ),
        mappings=(
            Mapping(
                file_name="libtorch_cuda.so",
                memory_start=0x7F00_0000_0000,
                memory_limit=0x7F00_4000_0000,
                file_offset=0,
                build_id_gnu="8f3c",
                build_id_htlhash="",
            ),
        ),
        links=Links(
            codes=np.sort(rng.integers(0, STEPS, rows)),
            trace_id=rng.integers(1, 256, (STEPS, 16), dtype=np.uint8),
            span_id=rng.integers(1, 256, (STEPS, 8), dtype=np.uint8),
        ),
        attributes=(
            Attribute(key="thread.id", values=rng.integers(1000, 1016, rows)),
            Attribute(key="gpu.uuid", values=Text(codes=rng.integers(0, 8, rows), table=tuple("abcdefgh"))),
        ),
    )


def by_profile_objects(columns: ProfileColumns) -> bytes:
    """The same samples through opentelemetry-proto messages, one per identity; the tables are left out."""
    assert columns.time_unix_ns is not None
    assert columns.links is not None
    request = ExportProfilesServiceRequest()
    profile = request.resource_profiles.add().scope_profiles.add().profiles.add()
    found: dict[tuple[int, ...], Sample] = {}
    known: dict[tuple[str, object], int] = {}
    for i in range(len(columns)):
        attributes = []
        for attribute in columns.attributes:
            values = attribute.values
            value = values.table[values.codes[i]] if isinstance(values, Text) else int(values[i])
            attributes.append(known.setdefault((attribute.key, value), len(known) + 1))
        stack, link = int(columns.stack[i]) + 1, int(columns.links.codes[i]) + 1
        identity = (stack, link, *attributes)
        sample = found.get(identity)
        if sample is None:
            sample = found[identity] = profile.samples.add(
                stack_index=stack, link_index=link, attribute_indices=attributes
            )
        sample.values.append(int(columns.value[i]))
        sample.timestamps_unix_nano.append(int(columns.time_unix_ns[i]))
    return request.SerializeToString()


class _Encode(SpanExporter):
    def __init__(self) -> None:
        self.pending: list[ReadableSpan] = []

    def export(self, spans: object) -> SpanExportResult:
        self.pending.extend(spans)  # type: ignore[arg-type]
        if len(self.pending) >= 512:
            sdk_encode(self.pending).SerializeToString()
            self.pending.clear()
        return SpanExportResult.SUCCESS


def by_sdk(columns: SpanColumns) -> None:
    """The same spans through opentelemetry-sdk and its OTLP encoder, 512 at a time."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(_Encode()))
    tracer = provider.get_tracer("bench")
    table = columns.name.table
    for i in range(len(columns)):
        attributes = {
            a.key: str(a.values.table[a.values.codes[i]])
            if isinstance(a.values, Text)
            else a.values[i].item()
            for a in columns.attributes
            if a.present is None or a.present[i]
        }
        span = tracer.start_span(
            str(table[columns.name.codes[i]]), attributes=attributes, start_time=int(columns.start_unix_ns[i])
        )
        span.end(int(columns.end_unix_ns[i]))


def rate(work: Callable[[], object], spans: int, repeat: int) -> float:
    """Spans or samples per CPU second (the machine may be shared) of the best of ``repeat`` runs."""
    best = float("inf")
    for _ in range(repeat):
        began = time.process_time()
        work()
        best = min(best, time.process_time() - began)
    return spans / best


def measure(spans: int) -> dict[str, float]:
    """All ways, the slow two of spans on fewer of them."""
    batch, few = launches(spans), launches(min(spans, BASELINE_SPANS))
    payloads = encode_spans([batch])
    samples = kernel_times(spans)
    return {
        "bytes_per_span": sum(len(p.body) for p in payloads) / spans,
        "columns": rate(lambda: deque(encode_spans([batch]), maxlen=0), spans, 15),
        "protobuf_objects": rate(lambda: by_protobuf_objects(few), len(few), 3),
        "sdk_and_encoder": rate(lambda: by_sdk(few), len(few), 2),
        "bytes_per_sample": sum(len(p.body) for p in encode_profiles([samples])) / spans,
        "samples": rate(lambda: deque(encode_profiles([samples]), maxlen=0), spans, 15),
        "sample_objects": rate(lambda: by_profile_objects(samples), spans, 3),
    }


def rows(quick: bool) -> list[Row]:
    """The encoder alone, next to the other two ways."""
    result = measure(20_000 if quick else 50_000)
    return [
        Row(
            bench="encode",
            name="columns to OTLP bytes",
            value=result["columns"],
            unit="spans/s",
            baseline=baseline,
            baseline_value=result[key],
        )
        for key, baseline in (
            ("protobuf_objects", "protobuf objects"),
            ("sdk_and_encoder", "opentelemetry-sdk + encoder"),
        )
    ] + [
        Row(
            bench="encode",
            name="profile samples to OTLP bytes",
            value=result["samples"],
            unit="samples/s",
            baseline="protobuf objects",
            baseline_value=result["sample_objects"],
        )
    ]


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--spans", type=int, default=50_000)
    options = parser.parse_args()
    result = measure(options.spans)
    if options.json:
        print(
            json.dumps({"bench": "encode", "machine": platform.platform(), "spans": options.spans, **result})
        )
        return
    print(f"{'encoder':<20}{'spans/s':>12}{'columns are':>14}")
    for name in ("columns", "protobuf_objects", "sdk_and_encoder"):
        print(f"{name:<20}{result[name]:>12,.0f}{result['columns'] / result[name]:>13.1f}x")
    print(f"{result['bytes_per_span']:.0f} bytes per span, batches of {options.spans}")
    print(f"{'profile encoder':<20}{'samples/s':>12}{'columns are':>14}")
    for name in ("samples", "sample_objects"):
        print(f"{name:<20}{result[name]:>12,.0f}{result['samples'] / result[name]:>13.1f}x")
    print(f"{result['bytes_per_sample']:.0f} bytes per sample, batches of {options.spans}")


if __name__ == "__main__":
    main()
