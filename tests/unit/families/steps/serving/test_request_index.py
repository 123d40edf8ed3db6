"""Which exchange an engine's request is: reported by ids or the caller's traceparent, or not at all."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.families.steps.serving import request_index as steps_index
from otelgpu.families.steps.serving.request_index import RequestIndex, forms
from otelgpu.model.engine_messages import EngineRequest
from otelgpu.model.exchange import Named, Opened, Published, Role, TraceParent
from tests.unit.model.builders import CALLER

API, PROXY, ENGINE = 5, 6, 7


def opened(
    key: int, *, tgid: int = API, role: Role = Role.SERVER, parent: TraceParent | None = None
) -> Opened:
    return Opened(key=key, tgid=tgid, tid=1, start_ns=1, role=role, parent=parent, wire_id=b"")


def named(key: int, request_id: str, *, tgid: int = API) -> Named:
    return Named(key=key, tgid=tgid, request_id=request_id, time_ns=2)


def handed(request_id: str, **fields: object) -> EngineRequest:
    made = {"time_ns": 2, "tgid": API, "tid": 1, "sent": True, "engine": "vllm"} | fields
    return EngineRequest(request_id=request_id, **made)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("internal", "external"),
    [
        ("chatcmpl-abc", "chatcmpl-abc"),
        ("chatcmpl-abc-9f3c5d7e", "chatcmpl-abc"),
        ("3_chatcmpl-abc-9f3c5d7e", "chatcmpl-abc"),
        ("cmpl-abc-1", "cmpl-abc"),
        ("cmpl-abc-1-9f3c5d7e", "cmpl-abc"),
        ("0_cmpl-abc-12-9f3c5d7e", "cmpl-abc"),
    ],
)
def test_an_engines_id_is_made_of_the_clients(internal: str, external: str) -> None:
    index = RequestIndex()
    index.open(opened(1))
    index.name(named(1, external))
    index.hand_over(handed(internal))
    assert index.exchange_of(internal) == 1
    assert index.requests_of(1) == [internal]


@pytest.mark.parametrize(
    "other", ["chatcmpl-abcd", "chatcmpl-abc-9f3c5d7", "chatcmpl-abc-9f3c5d7e1", "x_abc", ""]
)
def test_what_only_looks_like_it_is_another_request(other: str) -> None:
    index = RequestIndex()
    index.name(named(1, "chatcmpl-abc"))
    assert index.exchange_of(other) == 0


def test_two_exchanges_that_it_could_be_are_none() -> None:
    index = RequestIndex()
    index.open(opened(1))
    index.open(opened(2))
    index.name(named(1, "a"))
    index.name(named(2, "a-9f3c5d7e"))
    assert index.exchange_of("a-9f3c5d7e") == 0
    assert index.exchange_of("a") == 1


def test_the_exchange_of_the_process_that_handed_it_over_is_the_one() -> None:
    index = RequestIndex()
    for key, tgid, role in ((1, PROXY, Role.SERVER), (2, PROXY, Role.CLIENT), (3, API, Role.SERVER)):
        index.open(opened(key, tgid=tgid, role=role))
        index.name(named(key, "a", tgid=tgid))
    assert index.exchange_of("a") == 0
    index.hand_over(handed("a"))
    index.hand_over(handed("a", tgid=ENGINE, sent=False))  # that it arrived changes nothing
    assert index.exchange_of("a") == 3
    assert index.requests_of(3) == ["a"]
    assert index.requests_of(1) == []


def test_a_clients_end_is_not_the_request() -> None:
    index = RequestIndex()
    index.open(opened(1, role=Role.CLIENT))
    index.name(named(1, "a"))
    assert index.exchange_of("a") == 0


def test_the_callers_traceparent_reports_before_the_response_names_an_id() -> None:
    index = RequestIndex()
    index.open(opened(1, parent=CALLER))
    index.hand_over(handed("a", parent=CALLER))
    assert index.exchange_of("a") == 1
    index.open(opened(2, parent=CALLER))  # the same caller, at once
    assert index.exchange_of("a") == 0


def test_without_an_exchange_there_is_the_context_it_was_handed_over_under() -> None:
    index = RequestIndex()
    own = Published(trace_id=bytes(16), span_id=bytes(8), flags=1, source=1)
    assert index.context_of("a") is None
    index.hand_over(handed("a", parent=CALLER))
    assert index.context_of("a") == CALLER
    index.hand_over(handed("b", parent=CALLER, published=own))
    assert index.context_of("b") == own


def test_ids_that_only_the_response_reports_find_their_request() -> None:
    index = RequestIndex()
    index.open(opened(1))
    index.hand_over(handed("a-9f3c5d7e"))
    index.name(named(1, "a"))
    assert index.requests_of(1, also=["a", "", "b"]) == ["a-9f3c5d7e"]


def test_what_was_used_longest_ago_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps_index, "REMEMBERED", 10)
    index = RequestIndex()
    for key in range(1, 100):
        index.open(opened(key, parent=CALLER))
        index.name(named(key, f"id{key}"))
        index.hand_over(handed(f"id{key}"))
    assert (index.exchange_of("id1"), index.exchange_of("id99")) == (0, 99)


def test_exchanges_that_are_about_no_request_take_little() -> None:
    """Of a node's many, two numbers each: some 100 bytes; what came before the last 16,384 is not there any more."""
    index = RequestIndex()
    sizes = []
    tracemalloc.start()
    try:
        for last in (20_000, 40_000):
            for key in range(last - 20_000, last):
                index.open(opened((1 << 40) + key, tgid=70_000 + key))
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert sizes[1] < 2 << 20
    assert sizes[1] < sizes[0] + (1 << 19)


def test_half_of_the_exchanges_at_least_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps_index, "REMEMBERED", 10)
    index = RequestIndex()
    index.open(opened(1))
    index.name(named(1, "a"))
    for key in range(2, 6):
        index.open(opened(key))
    assert index.exchange_of("a") == 1
    for key in range(6, 12):
        index.open(opened(key))
    assert index.exchange_of("a") == 0


@given(st.text(max_size=400))
def test_any_text_has_forms_of_bounded_length_its_own_first(text: str) -> None:
    found = forms(text)
    assert len(found) <= 8
    assert len(set(found)) == len(found)
    assert all(0 < len(form) <= 256 for form in found)
    assert not text or found[0] == text[:256]
