"""Spans written from rows are those that columns give, whatever the rows, their runs and their parents."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from otelgpu.engine import registry, row_spans
from otelgpu.engine.folding import Folded, Parents, fold, unfolded
from otelgpu.engine.operation_spans import Vocabulary, operation_spans
from otelgpu.engine.row_spans import FormText, RowForms, RowSpans
from otelgpu.export.row_span_writer import row_writer
from otelgpu.export.wire import encode_spans
from otelgpu.model.inputs import FunctionNamed
from otelgpu.model.operations import OPERATION, OperationKind, Operations
from otelgpu.model.resource import resource
from otelgpu.model.settings import SignalSettings
from otelgpu.model.spans import in_columns
from otelgpu.spanwriter.library import library
from tests.rig.examples import examples
from tests.unit.families.records import btf

FAMILIES = [
    (found.operations.decoder(btf(name), SignalSettings()), found.operations.signals)
    for name in ("cuda", "nccl")
    if (found := registry.families()[name]).operations is not None
]
VOCABULARY = Vocabulary(
    families=FAMILIES,
    kernels=["unknown", "void a<int>()", "b()", "ünï\udc80"],
    short_kernels=["unknown", "a", "b", "ü"],
    places={
        0: FunctionNamed(
            tgid=1, address=2, name="", known=False, module="libk.so", build_id="ab12", offset=64
        )
    },
)
FORMS = RowForms(FAMILIES)
PARENTS = 3


@pytest.fixture(autouse=True, scope="module")
def built() -> None:
    assert library() is not None, "make bpf builds it"


def random_rows(draw: Any, count: int) -> Operations:
    """Of few values each, so that many are equal, and of the greatest that there are."""
    random = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    rows = np.frombuffer(random.bytes(count * OPERATION.itemsize), dtype=OPERATION).copy()
    for name, values in {
        "family": [0, 1],
        "tgid": [1, 1, 2],
        "tid": [101, 102],
        "api": [0, 1, 2, 40],
        "status": [0, 0, 1, -1],
        "returned": [0, 1, 2],
        "context_source": [0, 3, 4],
        "device": [-1, 0, 7],
        "stream": [0, 7, 1 << 63],
        "start_ns": [10**9, 10**9 + 50],
        "duration_ns": [0, 1, 3_000, 10**10],
    }.items():
        rows[name] = random.choice(np.array(values, dtype=rows.dtype[name]), count)
    for family, (_, signals) in enumerate(FAMILIES):
        mine = rows["family"] == family
        rows["kind"][mine] = random.choice(list(signals.attributes), int(mine.sum()))
    launches = rows["kind"] == OperationKind.LAUNCH
    rows["name"][launches] = random.integers(0, len(VOCABULARY.kernels), int(launches.sum()))
    rows["peer"][rows["family"] == 1] = random.choice([-1, 0, 5], int((rows["family"] == 1).sum()))
    rows["size_bytes"] = random.choice(np.array([0, 127, 128, (1 << 64) - 1], dtype=np.uint64), count)
    copies, allocations = rows["kind"] == OperationKind.COPY, rows["kind"] == OperationKind.ALLOCATION
    rows["direction"][copies] = random.integers(0, 5, int(copies.sum()))
    rows["memory"][allocations] = random.integers(0, 8, int(allocations.sum()))
    nccl = np.flatnonzero(rows["family"] == 1)
    for name, most in (("datatype", 12), ("reduction", 5), ("communicator_hash", 3)):
        rows[name][nccl] = random.integers(0, most, len(nccl))
    return rows


@st.composite
def works(draw: Any) -> Folded:
    count = draw(st.integers(1, 200))
    group = np.array(draw(st.lists(st.integers(0, PARENTS - 1), min_size=count, max_size=count)))
    work = unfolded(random_rows(draw, count), group.astype(np.int64))
    return draw(st.sampled_from([work, fold(work, limit=3), fold(work, limit=1000)]))


@st.composite
def parents(draw: Any) -> Parents:
    span_ids = np.array([[0] * 8, [1] * 8, list(range(8))], dtype=np.uint8)
    flags = draw(st.lists(st.sampled_from([0, 1, 0x301]), min_size=PARENTS, max_size=PARENTS))
    trace_ids = np.arange(16 * PARENTS, dtype=np.uint8).reshape(PARENTS, 16)
    return Parents(trace_id=trace_ids, span_id=span_ids, flags=np.array(flags, dtype=np.uint32))


def spans_of(batches: Any) -> list[tuple[str, str, Any]]:
    """All that a backend is given, in an order of its own."""
    found = []
    for payload in encode_spans(batches, max_bytes=4096):
        data = TracesData.FromString(payload.body)
        for of_resource in data.resource_spans:
            for of_scope in of_resource.scope_spans:
                for span in of_scope.spans:
                    span.attributes.sort(key=lambda attribute: attribute.key)
                    found.append((str(of_resource.resource), of_scope.scope.name, span.SerializeToString()))
    return sorted(found)


def both(work: Folded, under: Parents) -> tuple[Any, Any]:
    resources = {int(tgid): resource({"process.pid": int(tgid)}) for tgid in work.operations["tgid"]}

    def made(rows: RowForms | None) -> Any:
        return operation_spans(work, under, resources, VOCABULARY, seed=1 << 63, unix_offset_ns=-5, rows=rows)

    return made(FORMS), made(None)


@examples(60)
@given(works(), parents())
def test_rows_and_columns_give_the_same_spans(work: Folded, under: Parents) -> None:
    by_row, by_column = both(work, under)
    assert spans_of(by_row) == spans_of(by_column)


@examples(30)
@given(works(), parents())
def test_rows_can_be_looked_at_as_columns(work: Folded, under: Parents) -> None:
    """In the same order, so that a file says the same with the library and without."""
    by_row, by_column = both(work, under)
    assert [payload.body for payload in encode_spans(in_columns(by_row))] == [
        payload.body for payload in encode_spans(by_column)
    ]


@pytest.mark.parametrize(
    ("family", "kind", "column"),
    [
        (family, kind, column)
        for family, (_, signals) in enumerate(FAMILIES)
        for kind, labels in signals.labels.items()
        for column in ("api", "context_source", "status", *(label[2].name for label in labels))
    ],
)
def test_each_text_makes_a_form(family: int, kind: OperationKind, column: str) -> None:
    rows = np.zeros(2, dtype=OPERATION)
    rows["family"], rows["kind"], rows["returned"] = family, kind, 1
    rows[column] = 0, 1
    assert FORMS.finder.find(rows)[0].tolist() == [0, 1]


def test_what_a_kind_does_not_have_makes_no_form() -> None:
    rows = np.zeros(100, dtype=OPERATION)
    rows["kind"], rows["tgid"] = OperationKind.COPY, 1
    rows["name"] = rows["start_ns"] = rows["datatype"] = np.arange(100)
    form, firsts = FORMS.finder.find(rows)
    assert (form.tolist(), firsts.tolist()) == ([0] * 100, [0])


def test_many_forms_are_numbered_as_they_are_met() -> None:
    statuses = np.random.default_rng(1).permutation(20_000)
    rows = np.zeros(2 * len(statuses), dtype=OPERATION)
    rows["kind"], rows["tgid"], rows["returned"] = OperationKind.LAUNCH, 1, 1
    rows["status"] = np.concatenate([statuses, statuses[::-1]])
    form, firsts = FORMS.finder.find(rows)
    numbers = np.arange(len(statuses))
    assert firsts.tolist() == numbers.tolist()
    assert form.tolist() == [*numbers, *numbers[::-1]]


@examples(30)
@given(works(), parents(), st.lists(st.integers(0, 3000), min_size=1, max_size=8))
def test_no_more_is_written_than_there_is_room_for(work: Folded, under: Parents, rooms: list[int]) -> None:
    by_row, _ = both(work, under)
    for batch in by_row:
        if not isinstance(batch, RowSpans):
            continue
        writer, first = row_writer(batch), 0
        for room in [*rooms, writer.size_of(0)]:
            memory = np.full(room + 256, 0xAA, dtype=np.uint8)
            last, written = writer.write(memory[:room], first)
            assert first <= last <= len(writer)
            assert written <= room
            assert (memory[room:] == 0xAA).all()
            first = last
        assert first, "what size_of says is enough for one"


def test_what_is_declared_is_written_from_its_rows() -> None:
    kinds = [int(kind) for kind in FAMILIES[0][1].attributes if kind is not OperationKind.DEVICE]
    rows = np.zeros(len(kinds), dtype=OPERATION)
    rows["kind"], rows["tgid"] = kinds, 1
    under = Parents(
        trace_id=np.ones((1, 16), np.uint8), span_id=np.ones((1, 8), np.uint8), flags=np.ones(1, np.uint32)
    )
    by_row, _ = both(unfolded(rows, np.zeros(len(rows), dtype=np.int64)), under)
    assert [type(batch) for batch in by_row] == [RowSpans] * len(kinds)


def test_a_parent_that_is_none_is_refused() -> None:
    rows = np.zeros(1, dtype=OPERATION)
    rows["kind"], rows["tgid"] = OperationKind.LAUNCH, 1
    nobody = Parents(
        trace_id=np.ones((1, 16), np.uint8), span_id=np.ones((1, 8), np.uint8), flags=np.ones(1, np.uint32)
    )
    by_row, _ = both(unfolded(rows, np.ones(1, dtype=np.int64)), nobody)
    with pytest.raises(ValueError, match="a parent outside of 1"):
        list(encode_spans(by_row))


def test_what_a_form_looks_like_is_made_once() -> None:
    forms = RowForms(FAMILIES)
    rows = np.zeros(6, dtype=OPERATION)
    rows["kind"], rows["returned"], rows["status"] = (
        OperationKind.COPY,
        [0, 0, 1, 1, 1, 1],
        [0, 5, 0, 5, 6, 5],
    )
    rows["tgid"] = rows["stream"] = rows["start_ns"] = np.arange(6)
    made: list[int] = []

    def make(looks: Operations) -> list[FormText]:
        made.extend(looks["tgid"].tolist())
        status = looks["status"] * (looks["returned"] == 1)
        return [FormText(name=str(each), status=0, status_message="", attributes=()) for each in status]

    for _ in range(2):
        assert [text.name for text in forms.texts(rows, make)] == ["0", "0", "0", "5", "6", "5"]
    assert made == list(range(6)), "asked once, of all that were new then"
    assert rows["status"].tolist() == [0, 5, 0, 5, 6, 5]


def test_more_forms_than_are_kept_have_their_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_spans, "FORMS_KNOWN", 3)
    forms = RowForms(FAMILIES)
    rows = np.zeros(5, dtype=OPERATION)
    rows["kind"], rows["api"] = OperationKind.COPY, np.arange(5)

    def make(looks: Operations) -> list[FormText]:
        return [FormText(name=str(api), status=0, status_message="", attributes=()) for api in looks["api"]]

    for first, last in ((0, 2), (1, 5), (0, 5), (3, 5)):
        found = forms.texts(rows[first:last], make)
        assert [text.name for text in found] == list(map(str, range(first, last)))
