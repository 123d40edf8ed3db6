"""OTLP/JSON lines: the same spans as the protobuf encoding, in the Collector's form."""

from __future__ import annotations

import base64
import json
import logging
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf.json_format import ParseDict
from hypothesis import given
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from otelgpu import __version__
from otelgpu.engine.names import SCHEMA_URL
from otelgpu.export.base import ExportError
from otelgpu.export.file import exporter as module
from otelgpu.export.file.exporter import FileExporter
from otelgpu.export.wire import encode_spans
from otelgpu.model.resource import resource
from otelgpu.model.spans import Attribute, SpanColumns, SpanKind, Text
from otelgpu.otlp_json.writer import BYTES_PER_LINE, SPANS_PER_LINE, message_line, span_lines
from otelgpu.store.line_files import PIECE_BYTES
from tests.rig.examples import examples
from tests.unit.export.builders import by_identity, span_batches, spans, text


def as_protobuf(line: bytes, message: Any) -> Any:
    """OTLP/JSON to protobuf: ids are hex where protobuf's JSON mapping has base64."""
    return ParseDict(_base64_ids(json.loads(line)), message)


def _base64_ids(node: Any) -> Any:
    if isinstance(node, dict):
        return {
            key: base64.b64encode(bytes.fromhex(value)).decode()
            if key in ("traceId", "spanId", "parentSpanId")
            else _base64_ids(value)
            for key, value in node.items()
        }
    return [_base64_ids(entry) for entry in node] if isinstance(node, list) else node


@given(span_batches())
@examples(50)
def test_json_and_protobuf_encodings_of_any_columns_hold_the_same(columns: SpanColumns) -> None:
    from_json, from_protobuf = TracesData(), TracesData()
    for line, _ in span_lines(columns):
        from_json.MergeFrom(as_protobuf(line, TracesData()))
    for payload in encode_spans([columns]):
        from_protobuf.MergeFrom(TracesData.FromString(payload.body))
    assert by_identity(from_json) == by_identity(from_protobuf)


def test_a_line_is_what_the_collectors_file_exporter_writes() -> None:
    columns = spans(
        1,
        kind=SpanKind.SERVER,
        parent_span_id=np.zeros((1, 8), dtype=np.uint8),
        status=np.array([2], dtype=np.uint8),
        status_message=text(["boom"]),
        attributes=(
            Attribute(key="n", values=np.array([-5])),
            Attribute(key="d", values=np.array([1.5])),
            Attribute(key="b", values=np.array([False])),
            Attribute(key="a", values=text([("x", "y")])),
            Attribute(key="none", values=text([()])),
        ),
    )
    ((line, items),) = span_lines(columns)
    assert items == 1
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert json.loads(line) == {
        "resourceSpans": [
            {
                "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "llm"}}]},
                "schemaUrl": SCHEMA_URL,
                "scopeSpans": [
                    {
                        "scope": {"name": "otelgpu.cuda", "version": __version__},
                        "schemaUrl": SCHEMA_URL,
                        "spans": [
                            {
                                "traceId": "000102030405060708090a0b0c0d0e0f",
                                "spanId": "0000000000000001",
                                "flags": 1,
                                "name": "work",
                                "kind": 2,
                                "startTimeUnixNano": "1000",
                                "endTimeUnixNano": "1500",
                                "attributes": [
                                    {"key": "n", "value": {"intValue": "-5"}},
                                    {"key": "d", "value": {"doubleValue": 1.5}},
                                    {"key": "b", "value": {"boolValue": False}},
                                    {
                                        "key": "a",
                                        "value": {
                                            "arrayValue": {
                                                "values": [{"stringValue": "x"}, {"stringValue": "y"}]
                                            }
                                        },
                                    },
                                    {"key": "none", "value": {"arrayValue": {}}},
                                ],
                                "status": {"message": "boom", "code": 2},
                            }
                        ],
                    }
                ],
            }
        ]
    }


def test_defaults_are_left_out_but_resource_and_status_stay() -> None:
    columns = spans(1, resource=resource({}), flags=np.zeros(1, dtype=np.uint32), name=text([""]))
    ((line, _),) = span_lines(columns)
    (part,) = json.loads(line)["resourceSpans"]
    assert part["resource"] == {}
    (span,) = part["scopeSpans"][0]["spans"]
    assert set(span) == {
        "traceId",
        "spanId",
        "parentSpanId",
        "kind",
        "startTimeUnixNano",
        "endTimeUnixNano",
        "status",
    }
    assert span["status"] == {}


def test_doubles_that_json_lacks_are_words() -> None:
    values = np.array([math.nan, math.inf, -math.inf])
    ((line, _),) = span_lines(spans(3, attributes=(Attribute(key="d", values=values),)))
    found = json.loads(line)["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert [s["attributes"][0]["value"]["doubleValue"] for s in found] == ["NaN", "Infinity", "-Infinity"]


def test_metrics_lines_read_back_with_exemplar_ids_in_hex() -> None:
    data = MetricsData()
    metric = data.resource_metrics.add().scope_metrics.add().metrics.add(name="m", unit="s")
    metric.histogram.aggregation_temporality = 2  # type: ignore[assignment]
    point = metric.histogram.data_points.add(count=2**63, time_unix_nano=2**63, explicit_bounds=[0.5])
    point.exemplars.add(trace_id=bytes(range(16)), span_id=bytes(range(8)), as_double=0.25)
    line = message_line(data)
    assert as_protobuf(line, MetricsData()) == data
    found = json.loads(line)["resourceMetrics"][0]["scopeMetrics"][0]["metrics"][0]["histogram"]
    assert found["aggregationTemporality"] == 2
    assert found["dataPoints"][0]["count"] == str(2**63)
    assert found["dataPoints"][0]["exemplars"][0]["traceId"] == "000102030405060708090a0b0c0d0e0f"


def test_lines_are_appended_and_bounded(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text("{}\n")
    exporter = FileExporter(str(path))
    exporter.export_spans([spans(SPANS_PER_LINE + 1), spans(0)])
    lines = path.read_bytes().splitlines()
    assert [len(json.loads(x)["resourceSpans"][0]["scopeSpans"][0]["spans"]) for x in lines[1:]] == [
        SPANS_PER_LINE,
        1,
    ]
    assert exporter.stats()["spans_accepted"] == SPANS_PER_LINE + 1
    exporter.close(1)
    exporter.close(1)
    exporter.export_spans([spans(2)])
    assert exporter.stats()["spans_lost_shutdown"] == 2


def test_a_line_holds_no_more_bytes_than_readers_take_at_once() -> None:
    each = "é" * 50_000  # 100,000 bytes
    columns = spans(50, attributes=(Attribute(key="prompt", values=text([each] * 50)),))
    lines = list(span_lines(columns))
    assert [items for _, items in lines] == [20, 20, 10]
    assert all(len(line) < BYTES_PER_LINE + 1000 < PIECE_BYTES for line, _ in lines)
    numbers = [
        span["spanId"]
        for line, _ in lines
        for span in json.loads(line)["resourceSpans"][0]["scopeSpans"][0]["spans"]
    ]
    assert len(numbers) == len(set(numbers)) == 50 and numbers == sorted(numbers)
    ((_, items),) = span_lines(
        spans(1, attributes=(Attribute(key="prompt", values=text(["x" * (3 << 20)])),))
    )
    assert items == 1


def test_a_full_disk_is_counted_and_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("/dev/full is missing")
    caplog.set_level(logging.INFO, "otelgpu.export")
    exporter = FileExporter("/dev/full")
    for _ in range(3):
        exporter.export_spans([spans(2)])
    stats = exporter.stats()
    assert (stats["spans_given"], stats["spans_accepted"], stats["spans_lost_write_failed"]) == (6, 0, 6)
    (record,) = caplog.records
    assert "No space left on device" in record.getMessage()
    exporter.close(1)


def test_a_line_that_was_cut_short_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.jsonl"
    exporter = FileExporter(str(path))
    exporter.export_spans([spans(1)])
    whole = path.read_bytes()
    write = os.write

    def half(fd: int, data: Any) -> int:
        monkeypatch.setattr(os, "write", fail)
        return write(fd, bytes(data)[:20])

    def fail(fd: int, data: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", half)
    exporter.export_spans([spans(1)])
    assert path.read_bytes() == whole
    monkeypatch.setattr(os, "write", write)
    exporter.export_spans([spans(1)])
    assert path.read_bytes() == whole * 2
    assert exporter.stats()["spans_lost_write_failed"] == 1
    exporter.close(1)


def test_columns_that_break_their_contract_are_counted(tmp_path: Path) -> None:
    exporter = FileExporter(str(tmp_path / "out.jsonl"))
    exporter.export_spans([spans(2, name=Text(codes=np.array([0, 5]), table=("a",))), spans(1)])
    stats = exporter.stats()
    assert (stats["spans_lost_unencodable"], stats["spans_accepted"], stats["spans_given"]) == (2, 1, 3)
    exporter.close(1)


def test_a_path_that_cannot_be_opened_is_an_error_with_advice(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="cannot write to") as caught:
        FileExporter(str(tmp_path / "missing" / "out.jsonl"))
    assert "directory" in caught.value.hint


def test_trouble_that_comes_and_goes_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    exporter, write, fails = FileExporter(str(tmp_path / "out.jsonl")), os.write, [True, False] * 3

    def now_and_then(fd: int, data: Any) -> int:
        if fails and fails.pop(0):
            raise OSError(28, "No space left on device")
        return write(fd, data)

    monkeypatch.setattr(os, "write", now_and_then)
    for _ in range(6):
        exporter.export_spans([spans(1)])
    assert ["cannot write" in record.getMessage() for record in caplog.records] == [True]
    monkeypatch.setattr(module, "SETTLED_S", 0.0)
    exporter.export_spans([spans(1)])
    exporter.export_spans([spans(1)])
    assert [record.getMessage().startswith("writing to") for record in caplog.records] == [False, True]
