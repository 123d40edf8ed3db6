"""Exchanges → names, attributes and measurements of the semantic conventions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes, http_attributes

from otelgpu.families.requests import exchange_signals as signals
from otelgpu.families.requests.exchange_signals import measurements, span_name
from otelgpu.families.requests.routes import template
from otelgpu.model.exchange import Endpoint, Exchange, Role, Rpc
from otelgpu.model.spans import Text
from tests.unit.model.builders import exchange, generation


def attributes(given: Exchange) -> dict[str, Any]:
    """Those of one exchange."""
    found: dict[str, Any] = {}
    for attribute in signals.attributes([given], [template(given.path)]):
        values = attribute.values
        if attribute.present is None or attribute.present[0]:
            text = isinstance(values, Text)
            found[attribute.key] = values.table[values.codes[0]] if text else values[0].item()
    return found


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/", "/"),
        ("/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/users/42/files", "/v1/users/*/files"),
        ("/a/b/c/d/e/f", "/a/b/c/d/*"),
        ("/blob/" + "x" * 25, "/blob/*"),
        ("/x/3f2504e0-4f89-11d3-9a0c-0305e82c3301", "/x/*"),
        ("/v123/x", "/*/x"),
        ("", "/"),
        ("*", "/"),
    ],
)
def test_what_varies_in_a_path_is_replaced(path: str, expected: str) -> None:
    assert template(path) == expected


@pytest.mark.parametrize("role", [Role.SERVER, Role.CLIENT])
def test_a_call_of_grpc_has_a_method_and_no_route(role: Role) -> None:
    method = "inference.GRPCInferenceService/ModelInfer"
    rpc = Rpc(system="grpc", method=method, status="OK", requests=1, responses=1, failed=False)
    found = attributes(exchange(path=f"/{method}", role=role, rpc=rpc))
    assert (found["rpc.method"], found["url.path"]) == (method, f"/{method}")
    assert not found.keys() & {"http.route", "url.template"}


@given(st.text(max_size=60))
def test_a_template_is_short_whatever_the_path(path: str) -> None:
    assert template(path).startswith("/")
    assert len(template(path)) <= 5 * 25 + 2


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"method": "GET", "path": "/health"}, "GET /health"),
        ({"method": "BREW", "path": "/pot"}, "HTTP /pot"),
        ({"generation": generation()}, "chat tiny"),
        ({"generation": generation(operation="text_completion")}, "text_completion tiny"),
        ({"generation": generation(request_model="")}, "POST /v1/chat/completions"),
    ],
)
def test_span_names_are_of_low_cardinality(fields: dict[str, Any], expected: str) -> None:
    given = exchange(**fields)
    assert span_name(given, template(given.path)) == expected


def test_the_conventions_own_keys_are_used() -> None:
    found = attributes(exchange(generation=generation()))
    values = [*vars(http_attributes).values(), *vars(gen_ai_attributes).values()]
    conventions = {value for value in values if isinstance(value, str)}
    ours = {
        key for key in found if key.startswith(("gen_ai.", "http.")) and not key.startswith("gen_ai.latency.")
    }
    assert ours - conventions == set()


def test_a_generation_is_described() -> None:
    found = attributes(exchange(generation=generation()))
    assert found["gen_ai.usage.input_tokens"] == 7
    assert found["gen_ai.response.finish_reasons"] == ("stop",)
    assert found["gen_ai.latency.time_to_first_token"] == pytest.approx(0.02)
    assert "otelgpu.gen_ai.usage.estimated" not in found


def test_counted_tokens_are_marked_as_an_estimate() -> None:
    assert (
        attributes(exchange(generation=generation(usage_reported=False)))["otelgpu.gen_ai.usage.estimated"]
        is True
    )


def test_what_was_never_seen_is_left_out() -> None:
    nowhere = Endpoint(address="", port=0)
    found = attributes(
        exchange(
            status_code=0,
            server=nowhere,
            client=nowhere,
            user_agent="",
            first_byte_ns=0,
            error="connection_closed",
        )
    )
    assert not any(
        key.startswith(("server.", "client.", "user_agent", "http.response.status")) for key in found
    )
    assert "otelgpu.http.time_to_first_byte" not in found
    assert found["error.type"] == "connection_closed"


def test_an_unknown_method_is_other() -> None:
    assert attributes(exchange(method="BREW"))["http.request.method"] == "_OTHER"


def measured(given: Exchange) -> dict[str, float]:
    return {
        reported.metric.name: value
        for reported in measurements([given], [template(given.path)])
        for value in reported.values
    }


def test_a_plain_request_is_only_measured_as_http() -> None:
    assert measured(exchange()) == {"http.server.request.duration": pytest.approx(0.09)}


def test_a_streamed_generation_is_measured_in_four_ways() -> None:
    assert measured(exchange(generation=generation())) == {
        "http.server.request.duration": pytest.approx(0.09),
        "gen_ai.server.request.duration": pytest.approx(0.09),
        "gen_ai.server.time_to_first_token": pytest.approx(0.02),
        "gen_ai.server.time_per_output_token": pytest.approx(0.0175),
    }


@pytest.mark.parametrize("fields", [{"status_code": 500}, {"status_code": 429}, {"error": "invalid_http"}])
def test_token_times_are_of_successful_responses_only(fields: dict[str, Any]) -> None:
    assert set(measured(exchange(generation=generation(), **fields))) == {
        "http.server.request.duration",
        "gen_ai.server.request.duration",
    }


def test_no_measurement_is_labelled_with_what_a_client_can_vary_at_will() -> None:
    wild = exchange(
        generation=generation(), path="/x/1", user_agent="wild", client=Endpoint(address="9.9.9.9", port=1)
    )
    text = repr([reported.labels for reported in measurements([wild], [template(wild.path)])])
    assert not any(word in text for word in ("/x/1", "wild", "9.9.9.9"))


def test_requests_of_unknown_methods_are_measured_as_one_series_in_their_order() -> None:
    given = [
        exchange(method=method, end_ns=end_ns) for method, end_ns in (("BREW", 3), ("GET", 4), ("WHEN", 5))
    ]
    found = measurements(given, [template(each.path) for each in given])
    assert [(each.labels["http.request.method"], list(each.rows)) for each in found] == [
        ("_OTHER", [0, 2]),
        ("GET", [1]),
    ]
