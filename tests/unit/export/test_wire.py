"""The columnar span encoder, read back with opentelemetry-proto's own classes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, TracesData

from otelgpu.export import wire
from otelgpu.export.base import Payload, Signal
from otelgpu.export.protobuf import varint, varint_width, varint_words
from otelgpu.export.wire import encode_spans
from otelgpu.model.resource import resource
from otelgpu.model.spans import Attribute, SpanColumns, SpanKind, Text
from tests.rig.examples import examples
from tests.unit.export.builders import by_identity, resource_spans, some, span_batches, spans, text


@pytest.fixture(
    params=[0, wire.FEW, 1 << 20],
    ids=["templates", "as they come", "one by one"],
    autouse=True,
    scope="module",
)
def few(request: pytest.FixtureRequest) -> Iterator[None]:
    """Both ways of writing columns, whatever their length."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "FEW", request.param)
        yield


def read(payloads: Iterable[Payload]) -> TracesData:
    data = TracesData()
    for payload in payloads:
        request = ExportTraceServiceRequest.FromString(payload.body)
        data.resource_spans.extend(request.resource_spans)
    return data


def read_spans(columns: SpanColumns) -> list[Span]:
    return [
        s
        for part in read(encode_spans([columns])).resource_spans
        for scope in part.scope_spans
        for s in scope.spans
    ]


def only(attribute: Attribute, rows: int) -> list[dict[str, object]]:
    """Each span's attributes in the order of the rows, values by the name of the field that was set."""
    found = sorted(read_spans(spans(rows, attributes=(attribute,))), key=lambda span: span.span_id)
    return [
        {a.key: getattr(a.value, a.value.WhichOneof("value") or "") for a in span.attributes}
        for span in found
    ]


@given(st.lists(span_batches(), max_size=4), st.sampled_from([1, 300, 2000, 2**21]))
@examples(75)
def test_any_columns_read_back_as_protobuf_objects_made_the_plain_way(
    batches: list[SpanColumns], max_bytes: int
) -> None:
    payloads = list(encode_spans(batches, max_bytes=max_bytes))
    expected = TracesData(resource_spans=[resource_spans(columns) for columns in batches])
    assert by_identity(read(payloads)) == by_identity(expected)
    assert sum(payload.items for payload in payloads) == sum(map(len, batches))
    assert all(len(payload.body) <= max_bytes or payload.items == 1 for payload in payloads)


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1))
def test_over_long_varints_hold_any_64_bits(values: list[int]) -> None:
    column = np.array(values, dtype=np.uint64)
    width = varint_width(column)
    words = varint_words(column, width)
    rows = np.concatenate([w.view(np.uint8).reshape(len(values), -1) for w in words], axis=1)
    assert rows.shape[1] == width
    assert [decode(row.tobytes()) for row in rows] == values


def decode(data: bytes) -> int:
    assert all(byte & 0x80 for byte in data[:-1]) and not data[-1] & 0x80
    return sum((byte & 0x7F) << (7 * i) for i, byte in enumerate(data))


@given(st.integers(0, 2**64 - 1))
def test_shortest_varints_decode(value: int) -> None:
    data = varint(value)
    assert decode(data) == value
    assert len(data) == 1 or data[-1] != 0


@pytest.mark.parametrize(
    "values",
    [
        [0, 1, 127],
        [128, 16383],
        [2**14, 2**28 - 1],
        [2**28, 2**56 - 1],
        [2**56, 2**63 - 1],
        [-1, 0],
        [-(2**63), 5],
    ],
)
def test_integers_of_every_width_keep_their_value(values: list[int]) -> None:
    found = only(Attribute(key="n", values=np.array(values, dtype=np.int64)), len(values))
    assert found == [{"n": value} for value in values]


def test_an_unsigned_value_beyond_int64_wraps_to_the_same_bits() -> None:
    found = only(Attribute(key="handle", values=np.array([2**64 - 1, 2**63], dtype=np.uint64)), 2)
    assert found == [{"handle": -1}, {"handle": -(2**63)}]


def test_narrow_integer_columns_are_widened() -> None:
    assert only(Attribute(key="n", values=np.array([-3, 4], dtype=np.int16)), 2) == [{"n": -3}, {"n": 4}]  # type: ignore[arg-type]
    assert only(Attribute(key="n", values=np.array([3, 4], dtype=np.uint32)), 2) == [{"n": 3}, {"n": 4}]  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [np.int64, np.uint32, np.float64, np.bool_])
def test_a_value_that_differs_late_is_no_constant(dtype: type) -> None:
    values = np.zeros(300, dtype=dtype)
    values[250] = 1
    assert only(Attribute(key="n", values=values), 300) == [{"n": value} for value in values.tolist()]


def test_a_value_that_the_layout_reports_is_each_layouts_own() -> None:
    names = text([f"kernel {i % 3}" for i in range(300)])
    reported = np.arange(300, dtype=np.int64) % 3 * 1000
    found = read_spans(spans(300, name=names, attributes=(Attribute(key="n", values=reported),)))
    assert {(s.name, s.attributes[0].value.int_value) for s in found} == {
        ("kernel 0", 0),
        ("kernel 1", 1000),
        ("kernel 2", 2000),
    }


def test_columns_that_one_thing_reports_share_their_codes() -> None:
    codes = np.arange(300, dtype=np.intp) % 3
    name, twin = Text(codes=codes, table=("a", "b", "c")), Text(codes=codes, table=("x", "y", "z"))
    found = read_spans(spans(300, name=name, attributes=(Attribute(key="twin", values=twin),)))
    reported = {(s.name, s.attributes[0].value.string_value) for s in found}
    assert reported == {("a", "x"), ("b", "y"), ("c", "z")}


def test_absent_attributes_are_left_out() -> None:
    values, present = some([5, None, 7], np.int64)
    assert only(Attribute(key="n", values=values, present=present), 3) == [{"n": 5}, {}, {"n": 7}]


def test_a_text_attribute_with_an_empty_table_can_be_absent_everywhere() -> None:
    nothing = Text(codes=np.zeros(2, dtype=np.intp), table=())
    assert only(Attribute(key="t", values=nothing, present=np.zeros(2, dtype=np.bool_)), 2) == [{}, {}]


def test_a_tuple_becomes_an_array_value() -> None:
    (found,) = only(Attribute(key="t", values=text([("stop", "length")])), 1)
    assert [v.string_value for v in found["t"].values] == ["stop", "length"]  # type: ignore[attr-defined]


def test_a_root_span_has_no_parent_field() -> None:
    parents = np.array([[0] * 8, [1] * 8], dtype=np.uint8)
    found = {s.span_id[-1]: s.parent_span_id for s in read_spans(spans(2, parent_span_id=parents))}
    assert found == {1: b"", 2: b"\x01" * 8}


def test_spans_of_one_layout_keep_their_order() -> None:
    names = text([f"kernel {i % 7}" for i in range(1000)])
    ids: dict[str, list[int]] = {}
    for span in read_spans(spans(1000, name=names)):
        ids.setdefault(span.name, []).append(int.from_bytes(span.span_id, "big"))
    assert ids == {f"kernel {k}": [i + 1 for i in range(1000) if i % 7 == k] for k in range(7)}


def test_columns_that_are_views_of_a_larger_array_encode_their_own_rows() -> None:
    ids = np.arange(64, dtype=np.uint8).reshape(4, 16)[::2]
    assert [s.trace_id for s in read_spans(spans(2, trace_id=ids))] == [
        bytes(range(16)),
        bytes(range(32, 48)),
    ]


def test_one_resource_and_scope_appear_once_for_many_batches() -> None:
    (payload,) = encode_spans([spans(2), spans(3, kind=SpanKind.SERVER), spans(1, scope="otelgpu.http")])
    (part,) = ExportTraceServiceRequest.FromString(payload.body).resource_spans
    assert [(s.scope.name, len(s.spans)) for s in part.scope_spans] == [
        ("otelgpu.cuda", 5),
        ("otelgpu.http", 1),
    ]


def test_resources_that_differ_only_by_type_stay_apart() -> None:
    batches = [spans(1, resource=resource({"n": value})) for value in (1, True, 1.0)]
    assert len(read(encode_spans(batches)).resource_spans) == 3


def test_nothing_makes_no_payload() -> None:
    assert list(encode_spans([])) == []
    assert list(encode_spans([spans(0)])) == []


def test_payloads_are_filled_before_a_new_one_begins() -> None:
    payloads = list(encode_spans([spans(10_000)], max_bytes=50_000))
    assert sum(p.items for p in payloads) == 10_000
    assert all(len(p.body) <= 50_000 for p in payloads)
    assert all(len(p.body) > 49_800 for p in payloads[:-1])
    assert {p.signal for p in payloads} == {Signal.TRACES}


def test_a_span_larger_than_a_payload_goes_alone() -> None:
    payloads = encode_spans([spans(3, name=text(["a", "b" * 5000, "c"]))], max_bytes=1000)
    assert [p.items for p in payloads] == [1, 1, 1]


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"name": Text(codes=np.array([0, 2]), table=("a", "b"))}, "name"),
        ({"name": Text(codes=np.array([0, -1]), table=("a", "b"))}, "name"),
        ({"name": Text(codes=np.array([0]), table=("a",))}, "name"),
        ({"flags": np.zeros(3, dtype=np.uint32)}, "flags"),
        ({"attributes": (Attribute(key="k", values=np.zeros(1, dtype=np.int64)),)}, "k"),
        (
            {
                "attributes": (
                    Attribute(key="k", values=np.zeros(2, dtype=np.int64), present=np.ones(3, np.bool_)),
                )
            },
            "k",
        ),
    ],
)
def test_columns_that_break_their_contract_are_named(columns: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        list(encode_spans([spans(2, **columns)]))


def test_every_span_may_have_its_own_layout() -> None:
    names = text([f"unique {i}" for i in range(3000)])
    assert len({s.name for s in read_spans(spans(3000, name=names))}) == 3000
