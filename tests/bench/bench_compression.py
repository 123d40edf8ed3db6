"""What a span takes on the wire and of CPU: OTLP by gzip and zstd, and the same spans as Arrow record batches.

The spans are those of ``ring_to_otlp`` with ``detail all``: 13 attributes. No encoder of OTel-Arrow is to be had for
Python, so what is measured is what one would have to do at least, in batches of 16,384 spans on a stream that goes on
(dictionaries are sent once, the first batches are not counted):

* *Arrow, a column for each attribute*: what columns can be made of at all; no receiver knows it;
* *Arrow, as OTel-Arrow has it*: spans, and their attributes as rows of (parent, key, type, value), sorted by key, the
  parents as differences: the layout of its data model (data_model.md of open-telemetry/otel-arrow), without the
  tables of resource, scope, links and events, and without its service's messages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import ipc

from otelgpu.export.otlp.compression import Compression, compressor
from otelgpu.export.wire import encode_spans
from otelgpu.model.spans import Bytes, SpanColumns, Text
from tests.bench.bench_pipeline import opened
from tests.bench.rows import Row, median, spread

NAME: Final = "compression"
WAVE: Final = 20_000
_TEXT, _INT = 1, 2  # of the column `type`, as OTel-Arrow numbers them


def rows(quick: bool) -> list[Row]:
    """Bytes of a span, and nanoseconds of CPU."""
    waves = 3 if quick else 9
    with opened("all") as bench:
        bench.run(bench.make(WAVE))
        bench.encoder.keep = True
        for _ in range(waves):
            bench.run(bench.make(WAVE))
        kept = [columns for columns in bench.encoder.kept if len(columns) > 4_000]
    found = []
    for compression in Compression:
        found += _measured(f"OTLP, {compression}", kept, _otlp(compression))
    found += _measured("Arrow, a column for each attribute, zstd", kept, _Stream(_wide).send)
    found += _measured("Arrow, as OTel-Arrow has it, zstd", kept, _Stream(_spans, _attributes).send)
    return found


def _measured(name: str, kept: list[SpanColumns], send: Callable[[SpanColumns], int]) -> list[Row]:
    """Of all but the first third, by which dictionaries are known."""
    spent, sizes = [], []
    for columns in kept:
        began = time.process_time()
        size = send(columns)
        spent.append((time.process_time() - began) * 1e9 / len(columns))
        sizes.append(size / len(columns))
    first = len(kept) // 3
    note = f"{name}: {spread(spent[first:])} ns, {spread(sizes[first:])} bytes"
    return [
        Row(bench=NAME, name=f"{name}: a span", value=median(sizes[first:]), unit="bytes", note=note),
        Row(bench=NAME, name=f"{name}: CPU of a span", value=median(spent[first:]), unit="ns"),
    ]


def _otlp(compression: Compression) -> Callable[[SpanColumns], int]:
    compress = compressor(compression)
    return lambda columns: sum(len(compress(bytes(each.body))) for each in encode_spans([columns]))


class _Stream:
    """One Arrow IPC stream for each of the tables, whose buffers are compressed."""

    def __init__(self, *tables: Callable[[SpanColumns, _Stream], pa.RecordBatch]) -> None:
        self._tables = tables
        self._sinks = [pa.BufferOutputStream() for _ in tables]
        self._writers: dict[int, ipc.RecordBatchStreamWriter] = {}
        self._texts: dict[str, dict[Any, int]] = {}

    def send(self, columns: SpanColumns) -> int:
        """How many bytes these spans add."""
        added = 0
        for place, table in enumerate(self._tables):
            batch, sink = table(columns, self), self._sinks[place]
            before = sink.tell()
            if place not in self._writers:
                options = ipc.IpcWriteOptions(compression="zstd", emit_dictionary_deltas=True)
                self._writers[place] = ipc.new_stream(sink, batch.schema, options=options)
            self._writers[place].write_batch(batch)
            added += sink.tell() - before
        return added

    def numbers(self, name: str) -> dict[Any, int]:
        """The dictionary of that name: what it has so far, by number."""
        return self._texts.setdefault(name, {})

    def text(self, name: str, text: Text) -> pa.DictionaryArray:
        """A column of texts: their numbers, in a dictionary that only grows."""
        known = self.numbers(name)
        numbers = np.array([known.setdefault(each, len(known)) for each in text.table], dtype=np.uint16)
        return pa.DictionaryArray.from_arrays(pa.array(numbers[text.codes]), pa.array(list(known)))


def _ids(ids: Bytes) -> pa.Array:
    return pa.Array.from_buffers(
        pa.binary(ids.shape[1]), len(ids), [None, pa.py_buffer(np.ascontiguousarray(ids))]
    )


def _head(columns: SpanColumns, stream: _Stream) -> Iterator[tuple[str, pa.Array]]:
    yield "trace_id", _ids(columns.trace_id)
    yield "span_id", _ids(columns.span_id)
    yield "parent_span_id", _ids(columns.parent_span_id)
    yield "start", pa.array(np.diff(columns.start_unix_ns.astype(np.int64), prepend=0))
    yield "duration", pa.array((columns.end_unix_ns - columns.start_unix_ns).astype(np.int64))
    yield "name", stream.text("name", columns.name)
    yield "status", pa.array(columns.status)


def _wide(columns: SpanColumns, stream: _Stream) -> pa.RecordBatch:
    found = dict(_head(columns, stream))
    for each in columns.attributes:
        values = each.values
        found[each.key] = (
            stream.text(each.key, values) if isinstance(values, Text) else pa.array(values.astype(np.int64))
        )
    return pa.RecordBatch.from_pydict(dict(sorted(found.items())))


def _spans(columns: SpanColumns, stream: _Stream) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(dict(_head(columns, stream)))


def _attributes(columns: SpanColumns, stream: _Stream) -> pa.RecordBatch:
    """Rows of (parent, key, type, text or number), by key, then value; parents as differences within equal ones."""
    keys, kinds, parents, texts, numbers, masks = [], [], [], [], [], []
    known, names = stream.numbers("values"), stream.numbers("keys")
    for each in columns.attributes:
        rows = np.flatnonzero(each.present) if each.present is not None else np.arange(len(columns))
        is_text = isinstance(each.values, Text)
        if isinstance(each.values, Text):
            table = [known.setdefault(text, len(known)) for text in each.values.table]
            value = np.array(table, dtype=np.int64)[each.values.codes[rows]]
        else:
            value = each.values[rows].astype(np.int64)
        order = np.argsort(value, kind="stable")
        rows, value = rows[order], value[order]
        same = np.diff(value, prepend=value[:1] - 1) == 0
        difference = np.diff(rows, prepend=0)
        parents.append(np.where(same, difference, rows).astype(np.uint16))
        keys.append(np.full(len(rows), names.setdefault(each.key, len(names)), np.uint8))
        kinds.append(np.full(len(rows), _TEXT if is_text else _INT, np.uint8))
        texts.append(value if is_text else np.zeros_like(value))
        numbers.append(np.zeros_like(value) if is_text else value)
        masks.append(np.full(len(rows), is_text))
    is_text = np.concatenate(masks)
    return pa.RecordBatch.from_pydict(
        {
            "parent_id": pa.array(np.concatenate(parents)),
            "key": pa.DictionaryArray.from_arrays(pa.array(np.concatenate(keys)), pa.array(list(names))),
            "type": pa.array(np.concatenate(kinds)),
            "str": pa.DictionaryArray.from_arrays(
                pa.array(np.concatenate(texts).astype(np.uint16), mask=~is_text), pa.array(list(known))
            ),
            "int": pa.array(np.concatenate(numbers), mask=is_text),
        }
    )
