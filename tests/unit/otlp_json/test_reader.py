"""Lines of OTLP/JSON are read whoever wrote them, and what cannot be read is counted with its place."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.diagnose.collective_calls import Gatherer
from otelgpu.model.spans import SpanColumns
from otelgpu.otlp_json.messages import AnyValue
from otelgpu.otlp_json.profile_reader import read_profile_lines
from otelgpu.otlp_json.reader import (
    Reader,
    Unreadable,
    attribute_value,
    attributes,
    identity,
    int64,
    time_ns,
    uint64,
)
from otelgpu.otlp_json.writer import span_lines
from otelgpu.store.line_files import lines
from otelgpu.view.batch import Batch
from tests.rig.examples import examples
from tests.unit.export.builders import span_batches
from tests.unit.view.otlp_lines import span, traces


@examples(30)
@given(span_batches())
def test_spans_that_were_written_are_read(columns: SpanColumns) -> None:
    reader = Reader()
    read = [
        each
        for document in reader.documents(line for line, _ in span_lines(columns))
        for of_resource in document.resource_spans
        for scope in of_resource.scope_spans
        for each in reader.spans(scope)
    ]
    assert reader.skips.counts == {}
    assert [identity(each.trace_id, 16) for each in read] == [row.tobytes() for row in columns.trace_id]
    assert [identity(each.span_id, 8) for each in read] == [row.tobytes() for row in columns.span_id]
    assert [uint64(each.start_time_unix_nano) for each in read] == columns.start_unix_ns.tolist()
    # What is no text in UTF-8, half of a surrogate pair, is written as a question mark.
    keys = [
        {
            each.key.encode(errors="replace").decode()
            for each in columns.attributes
            if each.rows(len(columns))[row] is not None and each.key
        }
        for row in range(len(columns))
    ]
    assert [attributes(each.attributes).keys() for each in read] == keys


@given(st.binary(min_size=16, max_size=16))
@examples(30)
def test_ids_are_read_in_hex_of_either_case_and_in_base64(raw: bytes) -> None:
    for identifier in (raw, raw[:8]):
        texts = identifier.hex(), identifier.hex().upper(), base64.b64encode(identifier).decode()
        assert {identity(text, len(identifier)) for text in texts} == {identifier}


@pytest.mark.parametrize(
    "text", ["", "12", "x" * 32, "00 " * 10 + "00", "=" * 24, "é" * 32, "0" * 31, "0" * 33]
)
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(Unreadable):
        identity(text, 16)


@pytest.mark.parametrize("value", [7, "7", 2**63 - 1, str(2**63 - 1)])
def test_integers_are_numbers_or_text(value: int | str) -> None:
    assert int64(value) == uint64(value) == time_ns(value) == int(value)


@pytest.mark.parametrize("value", ["", "1.5", "0x1", "soon", "9" * 5000])
def test_what_is_no_integer_is_refused(value: str) -> None:
    for read in (int64, uint64, time_ns):
        with pytest.raises(Unreadable):
            read(value)


@pytest.mark.parametrize("value", [-1, "-1", 2**63])
def test_what_is_no_time_is_refused(value: int | str) -> None:
    with pytest.raises(Unreadable):
        time_ns(value)


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ({"stringValue": "x"}, "x"),
        ({"boolValue": False}, False),
        ({"intValue": "-5"}, -5),
        ({"doubleValue": 1.5}, 1.5),
        ({"doubleValue": "-Infinity"}, float("-inf")),
        ({"arrayValue": {"values": [{"stringValue": "a"}, {"intValue": 3}]}}, ("a", "3")),
        ({"bytesValue": "AAE="}, ""),
        ({"futureValue": 1}, ""),
        ({}, ""),
    ],
)
def test_values_are_those_of_the_model(given: Any, value: Any) -> None:
    read = attribute_value(msgspec.convert(given, AnyValue))
    assert (read, type(read)) == (value, type(value))


def test_attributes_without_a_key_are_left_out() -> None:
    assert attributes(b'[{"value":{"stringValue":"x"}},{"key":"a"},{"key":"b","other":[1]}]') == {
        "a": "",
        "b": "",
    }


def test_what_is_passed_over_is_counted_and_the_first_of_each_reason_has_its_place() -> None:
    reader = Reader("node-a.jsonl")
    given = [b"", b"{", traces(span(1)), None, b"  \n", b"[1]", traces(span(2) | {"name": 4})]
    documents = [list(reader.spans(scope)) for each in reader.documents(given) for scope in scopes(each)]
    assert [len(spans) for spans in documents] == [1, 0]
    assert reader.skips.counts == {"lines_unreadable": 2, "lines_cut": 1, "spans_unreadable": 1}
    assert {reason: place.line for reason, place in reader.skips.first.items()} == {
        "lines_unreadable": 2,
        "lines_cut": 4,
        "spans_unreadable": 7,
    }
    assert str(reader.skips.first["lines_unreadable"]).startswith("node-a.jsonl:2: ")


def scopes(document: Any) -> list[Any]:
    return [scope for each in document.resource_spans for scope in each.scope_spans]


def test_a_reason_is_short_whatever_the_line_says() -> None:
    reader = Reader()
    for _ in reader.documents([b'{"resourceSpans":[{"' + b"x" * 100_000 + b'":', traces(span(1))]):
        reader.skip("spans_unreadable", "y" * 100_000)
    assert all(len(place.why) <= 200 for place in reader.skips.first.values())


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_line_longer_than_the_bound_is_passed_over_and_all_others_are_read(
    tmp_path: Path, end: bytes
) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"one\n" + b"x" * 5000 + b"\ntwo\n\nthree" + end)
    with path.open("rb") as file:
        assert list(lines(file, 1000)) == [b"one", None, b"two", b"", b"three"]


@examples(60)
@given(
    given=st.lists(st.binary(max_size=30).map(lambda line: line.replace(b"\n", b"")), max_size=10),
    limit=st.integers(1, 20),
)
def test_every_line_that_is_short_enough_is_given_in_order(given: list[bytes], limit: int) -> None:
    found = list(lines(io.BytesIO(b"".join(line + b"\n" for line in given)), limit))
    assert len(found) == len(given)
    assert all(one == other for one, other in zip(found, given, strict=True) if one is not None)
    assert all(len(line) >= limit for one, line in zip(found, given, strict=True) if one is None)


_broken = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@examples(80)
@given(st.data())
def test_anything_in_any_place_of_a_document_raises_nothing(data: st.DataObject) -> None:
    document = json.loads(traces(span(1, given={"nccl.phase": "wait"}, parent=2), scope="otelgpu.nccl"))
    node: Any = document
    for _ in range(data.draw(st.integers(1, 8))):
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            break
        key = data.draw(st.sampled_from(keys))
        if not isinstance(node[key], dict | list) or data.draw(st.booleans()):
            node[key] = data.draw(_broken)
            break
        node = node[key]
    line = json.dumps(document).encode()
    batch, gatherer = Batch(Reader()), Gatherer()
    batch.take([line])
    msgspec.json.encode(batch.columns())
    gatherer.take([line])
    gatherer.columns()
    assert read_profile_lines([line]).profiles == []
