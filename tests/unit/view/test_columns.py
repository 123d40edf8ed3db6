"""Spans in OTLP/JSON are what the page's own program reads from the columns, however they are cut into batches."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rig.examples import examples
from tests.unit.view.otlp_lines import START, metrics, span, traces
from tests.unit.view.page_program import SPANS, PageProgram, batch

TEXT = st.text(max_size=6)
# Of a number that JavaScript does not hold, the text is kept: that is another test.
VALUES = st.one_of(
    TEXT, st.booleans(), st.integers(-(2**53), 2**53), st.floats(-(2**53), 2**53, allow_nan=False)
)
ATTRIBUTES = st.dictionaries(TEXT, st.one_of(VALUES, st.lists(VALUES, max_size=2)), max_size=3)
TIMES = st.integers(0, 10**15)


@st.composite
def spans(draw: st.DrawFn) -> list[dict[str, Any]]:
    ids = draw(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 9)), unique=True, min_size=2, max_size=8))
    return [
        span(
            number,
            draw(TEXT),
            trace=trace,
            at=draw(TIMES),
            ns=draw(TIMES),
            given=draw(ATTRIBUTES),
            kind=draw(st.integers(0, 5)),
            status={"code": draw(st.integers(0, 2)), "message": draw(TEXT)},
            links=[
                {"traceId": f"{of:032x}", "spanId": f"{to:016x}", "attributes": []}
                for of, to in draw(st.lists(st.sampled_from(ids), max_size=2))
            ],
            events=[{"timeUnixNano": str(START + draw(TIMES)), "name": draw(TEXT)}],
            droppedLinksCount=draw(st.integers(0, 2)),
            **draw(st.sampled_from([{}, {"parent": ids[0][1]}, {"parent": 77}])),
        )
        for trace, number in ids
    ]


def plain(given: dict[str, Any]) -> Any:
    kind, content = next(iter(given.items()))
    if kind == "arrayValue":
        return [plain(each) for each in content["values"]]
    return int(content) if kind == "intValue" else content


def attributes(reported: list[dict[str, Any]]) -> list[list[Any]]:
    return [[each["key"], plain(each["value"])] for each in reported]


@examples(25)
@given(given=spans(), cut=st.integers(0, 8))
def test_what_the_page_reads_is_what_the_file_said(
    program: PageProgram, given: list[dict[str, Any]], cut: int
) -> None:
    parts = [part for part in (given[:cut], given[cut:]) if part]
    found = program.ask(
        SPANS, [batch(traces(*part, **{"service.name": "llm", "host.cpus": 8})) for part in parts]
    )
    rows = {(each["traceId"], each["spanId"]): row for row, each in enumerate(given)}
    assert found == [
        {
            "trace": each["traceId"],
            "id": each["spanId"],
            "parent": each.get("parentSpanId", ""),
            "parentRow": -1
            if each.get("parentSpanId") == each["spanId"]
            else rows.get((each["traceId"], each.get("parentSpanId", "")), -1),
            "name": each["name"],
            "kind": each["kind"],
            "start": each["startTimeUnixNano"],
            "end": each["endTimeUnixNano"],
            "error": each["status"]["code"] == 2,
            "message": each["status"]["message"],
            "scope": "otelgpu.http",
            "resource": [["service.name", "llm"], ["host.cpus", 8]],
            "attributes": attributes(each["attributes"]),
            "links": [[link["traceId"], link["spanId"], []] for link in each["links"]],
            "events": [[event["name"], event["timeUnixNano"], []] for event in each["events"]],
            "dropped": {"links": each["droppedLinksCount"]} if each["droppedLinksCount"] else {},
        }
        for each in given
    ]


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({"intValue": str(2**60)}, {"$": str(2**60)}),
        ({"intValue": 7}, 7),
        ({"doubleValue": "NaN"}, {"$": "nan"}),
        ({"doubleValue": "-Infinity"}, {"$": "-inf"}),
        ({"bytesValue": "AAE="}, {"$": "AAE= (base64)"}),
        ({"kvlistValue": {"values": [{"key": "a", "value": {"boolValue": True}}]}}, {"$": "{'a': True}"}),
        ({"arrayValue": {}}, []),
        ({}, {"$": ""}),
    ],
)
def test_values_that_javascript_does_not_hold_are_text(program: PageProgram, given: Any, shown: Any) -> None:
    columns = batch(traces(span(1) | {"attributes": [{"key": "key", "value": given}]}, span(2)))
    assert program.ask("[...model.attributes(0)]", [columns]) == [["key", shown]]


def test_a_span_that_is_reported_twice_is_one(program: PageProgram) -> None:
    line = traces(span(1, links=[{"traceId": "0" * 31 + "1", "spanId": "0" * 15 + "2"}]), span(2))
    asked = "[model.length, model.counters.get('spans_repeated'), model.links.get(0).length, model.rowsOfTrace[0]]"
    assert program.ask(asked, [batch(line), batch(line)]) == [2, 2, 1, [0, 1]]


def test_a_span_of_a_later_batch_gets_its_earlier_children(program: PageProgram) -> None:
    batches = [batch(traces(span(2, parent=1), span(3, parent=2))), batch(traces(span(1), span(4, parent=9)))]
    assert program.ask("[0, 1, 2, 3].map((row) => model.parent(row))", batches) == [2, 0, -1, -1]


def test_spans_in_a_ring_end_the_drawing_of_their_trace(program: PageProgram) -> None:
    lines = program.ask(
        "linesOf(model, 0, new Set()).map((line) => line.row)",
        [batch(traces(span(1, parent=2), span(2, parent=1)))],
    )
    assert sorted(lines) == [0, 1]


@pytest.mark.parametrize(
    "broken", [b"{", b"\xff\xfe", b"[" * 100_000, b'{"resourceSpans": 3}', b"null", b'"x"']
)
def test_lines_that_are_no_otlp_are_counted(broken: bytes) -> None:
    columns = batch(traces(span(1)), broken, b"  ", traces(span(2)))
    assert columns["counters"] == {"lines": 2, "lines_unreadable": 1}


@pytest.mark.parametrize(
    "broken",
    [
        {"traceId": "12"},
        {"spanId": "x" * 16},
        {"startTimeUnixNano": "-5"},
        {"endTimeUnixNano": str(2**70)},
        {"startTimeUnixNano": "soon"},
        {"attributes": [{"key": 3}]},
        {"links": [{"traceId": "", "spanId": ""}]},
        {"attributes": [{"key": "a", "value": {"intValue": "1e9"}}]},
    ],
)
def test_a_span_that_cannot_be_read_costs_no_other(program: PageProgram, broken: dict[str, Any]) -> None:
    columns = batch(traces(span(1, "before"), span(2) | broken, span(3, "after")))
    assert columns["counters"] == {"lines": 1, "spans_unreadable": 1}
    assert program.ask("[model.name(0), model.name(1)]", [columns]) == ["before", "after"]


def test_a_span_that_ends_before_it_starts_is_a_moment(program: PageProgram) -> None:
    columns = batch(traces(span(1, ns=-5), span(2)))
    assert columns["counters"]["spans_end_before_start"] == 1
    assert program.ask("model.duration(0)", [columns]) == 0


# -- metrics ---------------------------------------------------------------------------------------------


def losses(value: int, at: int, *, begun: int = 0, temporality: int = 2) -> bytes:
    words = [{"key": "otelgpu.family", "value": {"stringValue": "cuda"}}]
    words += [{"key": "otelgpu.reason", "value": {"stringValue": "ring_full"}}]
    point = {
        "attributes": words,
        "startTimeUnixNano": str(begun),
        "timeUnixNano": str(at),
        "asInt": str(value),
    }
    return metrics(
        {"name": "otelgpu.losses", "sum": {"dataPoints": [point], "aggregationTemporality": temporality}}
    )


def gaps(point: dict[str, Any]) -> bytes:
    points = {"dataPoints": [point], "aggregationTemporality": 2}
    return metrics({"name": "otelgpu.gen_ai.server.time_between_chunks", "histogram": points})


@pytest.mark.parametrize(
    ("lines", "count"),
    [
        ([losses(3, 10), losses(5, 20)], 5),
        ([losses(3, 10), losses(5, 20, begun=15)], 8),  # another session, counting anew
        ([losses(3, 10, temporality=1), losses(5, 20, temporality=1)], 8),
    ],
)
def test_losses_are_summed_as_they_are_reported(program: PageProgram, lines: list[bytes], count: int) -> None:
    for batches in ([batch(*lines)], [batch(line) for line in lines]):
        reported = program.ask("lossesOf(model)", batches)
        assert reported == [{"family": "cuda", "reason": "ring_full", "host": "", "count": count}]


def test_gaps_are_of_the_histograms_last_points(program: PageProgram) -> None:
    def reported(*counts: int) -> bytes:
        return gaps({"bucketCounts": [str(count) for count in counts], "explicitBounds": [0.01, 0.1]})

    of = "histogramOf(model, LISTS[0].histograms[0].metric)"
    asked = f"[{of}.counts, bucketQuantile({of}, 0.5), bucketQuantile({of}, 0.99)]"
    [counts, median, late] = program.ask(
        asked, [batch(reported(1, 1, 0), reported(4, 4, 1)), batch(reported(4, 4, 2))]
    )
    assert counts == [4, 4, 2]
    assert median == pytest.approx(0.01 + 0.09 / 4)
    assert late is None  # past the last bound


def test_a_metric_that_cannot_be_read_is_counted() -> None:
    wrong = gaps({"bucketCounts": ["1"], "explicitBounds": [1, 2]})
    assert batch(wrong, losses(1, 1))["counters"] == {"lines": 2, "metrics_unreadable": 1}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cudaMalloc", "memory"),
        ("cuMemAlloc_v2", "memory"),
        ("cudaFreeAsync", "memory"),
        ("cuMemcpyHtoDAsync_v2", "copy"),
        ("cudaMemsetAsync", "copy"),
        ("cudaLaunchKernel axpy", "launch"),
        ("cuGraphLaunch", "launch"),
        ("cuStreamSynchronize_ptsz", "sync"),
        ("cudaEventRecord", "call"),
    ],
)
def test_calls_are_of_the_kind_that_their_names_report(program: PageProgram, name: str, kind: str) -> None:
    assert (
        program.ask("kindOf(model, 0)", [batch(traces(span(1, name), span(2), scope="otelgpu.cuda"))]) == kind
    )
