"""Resources and batches."""

from __future__ import annotations

import numpy as np
import pytest

from otelgpu.model.exchange import TraceParent
from otelgpu.model.operations import OPERATION
from otelgpu.model.resource import resource
from tests.unit.families.records import Host
from tests.unit.model.builders import exchange, generation


def test_resources_are_equal_whatever_the_order_of_their_attributes() -> None:
    a, b = resource({"x": 1, "a": "b"}), resource({"a": "b", "x": 1})
    assert (a, hash(a), a.get("x"), a.get("y")) == (b, hash(b), 1, None)


@pytest.mark.parametrize(("flags", "sampled"), [(0, False), (1, True), (2, False), (3, True)])
def test_sampled_is_the_lowest_flag(flags: int, sampled: bool) -> None:
    assert TraceParent(trace_id=bytes(16), span_id=bytes(8), flags=flags).sampled is sampled


def test_heads_are_found_wherever_the_head_is_nested() -> None:
    host = Host(tgid=77)
    host.accept()
    host.read(b"GET / HTTP/1.1\r\n\r\n")
    host.launch()
    assert [sent.batch.heads["tgid"].tolist() for sent in host.sent] == [[77]] * 3


def test_an_operation_uses_its_bytes() -> None:
    used = np.zeros(OPERATION.itemsize, dtype=np.bool_)
    for form, offset, *_ in (OPERATION.fields or {}).values():
        used[offset : offset + form.itemsize] = True
    assert np.flatnonzero(~used).tolist() == []


def test_times_to_first_and_per_token_are_those_of_the_convention() -> None:
    streamed = exchange(generation=generation())
    assert streamed.time_to_first_token_s == pytest.approx(0.02)
    assert streamed.time_per_output_token_s == pytest.approx((0.09 - 0.02) / 4)


@pytest.mark.parametrize(
    "fields", [{"first_content_ns": 0}, {"output_tokens": 1}, {"output_tokens": 0}, {"output_tokens": None}]
)
def test_there_is_no_time_per_token_without_a_second_token(fields: dict[str, int | None]) -> None:
    assert exchange(generation=generation(**fields)).time_per_output_token_s is None


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ""),
        ({"status_code": 404}, ""),
        ({"status_code": 500}, "500"),
        ({"status_code": 500, "error": "invalid_http"}, "invalid_http"),
        ({"status_code": 500, "error": "capture_gap"}, "500"),
        ({"status_code": 200, "error": "response_not_seen"}, ""),
        ({"status_code": 0, "error": "connection_closed"}, "connection_closed"),
    ],
)
def test_an_error_on_the_connection_goes_before_the_status(fields: dict[str, object], expected: str) -> None:
    assert exchange(**fields).error_type == expected
