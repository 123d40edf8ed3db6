"""Steps as spans that link to their requests, requests that link back, and the phases and metrics of both."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from otelgpu.engine.folding import Parents
from otelgpu.engine.metric import Measured
from otelgpu.engine.totals import Totals
from otelgpu.families.steps.serving.engine_steps import engine_step
from otelgpu.families.steps.serving.metrics import step_metrics, utilisation
from otelgpu.families.steps.serving.phases import request_phases
from otelgpu.families.steps.serving.spans import (
    LINKS,
    StepSpans,
    request_attributes,
    request_links,
    step_parents,
    step_spans,
)
from otelgpu.families.steps.serving.steps import EndedSteps
from otelgpu.families.steps.step import (
    Evidence,
    Member,
    Membership,
    RequestSteps,
    ServedStep,
    Step,
    StepKey,
    StepPhase,
)
from otelgpu.model.context import Context
from otelgpu.model.context_sources import ContextSource
from otelgpu.model.operations import operations
from otelgpu.model.resource import resource
from otelgpu.model.spans import Attribute, Links, SpanColumns, Text
from tests.unit.model.builders import MS, calls, exchange

OFFSET = 1_000_000 * MS
ENGINE, API = resource({"service.name": "engine"}), resource({"service.name": "api"})


def context(number: int, flags: int = 1) -> Context:
    return Context(bytes([number]) * 16, bytes([number]) * 8, flags)


def member(number: int = 1, **fields: Any) -> Member:
    made = {"request_id": f"r{number}", "exchange": number, "new_tokens": 1, "phase": StepPhase.DECODE}
    return Member(**(made | fields))  # type: ignore[arg-type]


def step(*members: Member, start_ns: int = 100 * MS, **fields: Any) -> ServedStep:
    """A step of 10 ms of thread 9 of process 7."""
    evidence = Evidence(calls=3, launches=2, host_ns=9 * MS, wait_ns=6 * MS)
    made = {"membership": Membership.KNOWN, "source": ContextSource.MESSAGE} | fields
    return ServedStep(
        step=Step(
            tgid=7,
            tid=9,
            number=4,
            start_ns=start_ns,
            end_ns=start_ns + 10 * MS,
            gap_ns=MS,
            rows=3,
            evidence=made.pop("evidence", evidence),
        ),
        members=members,
        **made,
    )


def spans_of(*steps: ServedStep, contexts: dict[int, Context] | None = None, **fields: Any) -> StepSpans:
    """Two launches of each step."""
    known = {1: context(1), 2: context(2)} if contexts is None else contexts
    reported = EndedSteps(
        steps=list(steps),
        operations=calls(2 * len(steps)),
        step=np.repeat(np.arange(len(steps)), 2),
        rest=operations(0),
    )
    return step_spans(
        reported, known.get, Totals([]), lambda tgid: ENGINE, seed=3, unix_offset_ns=OFFSET, **fields
    )


def row(attributes: tuple[Attribute, ...], at: int = 0) -> dict[str, Any]:
    found = {}
    for each in attributes:
        if each.present is None or each.present[at]:
            values = each.values
            found[each.key] = (
                values.table[values.codes[at]] if isinstance(values, Text) else values[at].item()
            )
    return found


def linked(links: Links | None) -> list[tuple[int, bytes, bytes]]:
    if links is None:
        return []
    ids = zip(links.trace_id, links.span_id, strict=True)
    return [
        (span, trace.tobytes(), own.tobytes())
        for span, (trace, own) in zip(links.span.tolist(), ids, strict=True)
    ]


def only(found: StepSpans) -> SpanColumns:
    (batch,) = found.spans
    return batch


def test_a_step_is_the_root_of_its_own_trace_and_reports_what_it_gave() -> None:
    batch = only(spans_of(step(member(1, phase=StepPhase.PREFILL), member(2, new_tokens=3))))
    assert (batch.resource, batch.scope, batch.name.table) == (ENGINE, "otelgpu.engine", ("engine.step",))
    assert not batch.parent_span_id.any()
    assert (batch.start_unix_ns[0], batch.end_unix_ns[0]) == (OFFSET + 100 * MS, OFFSET + 110 * MS)
    assert row(batch.attributes) == {
        "thread.id": 9,
        "otelgpu.step.number": 4,
        "otelgpu.step.membership": "known",
        "otelgpu.step.wait.duration": 0.006,
        "otelgpu.step.gap.duration": 0.001,
        "otelgpu.context.source": "message",
        "otelgpu.step.batch_size": 2,
        "otelgpu.step.tokens": 4,
        "otelgpu.step.prefills": 1,
        "otelgpu.step.decodes": 1,
    }


def test_a_step_links_to_its_requests_with_what_each_got() -> None:
    batch = only(spans_of(step(member(1)), step(member(2, new_tokens=3), member(1), start_ns=200 * MS)))
    assert linked(batch.links) == [
        (0, bytes([1]) * 16, bytes([1]) * 8),
        (1, bytes([2]) * 16, bytes([2]) * 8),
        (1, bytes([1]) * 16, bytes([1]) * 8),
    ]
    assert batch.links is not None
    assert row(batch.links.attributes, 1) == {"otelgpu.step.tokens": 3, "otelgpu.phase": "decode"}


def test_requests_link_to_the_spans_that_steps_have() -> None:
    served = step(member(1))
    reported = only(spans_of(served))
    links = request_links([None, view(links=(served.step.key,))], seed=3)
    assert linked(links) == [(1, reported.trace_id[0].tobytes(), reported.span_id[0].tobytes())]


def test_ids_of_steps_are_their_own() -> None:
    keys = [StepKey(7, 9, 1), StepKey(7, 9, 2), StepKey(7, 8, 1), StepKey(6, 9, 1)]
    parents = step_parents(keys, 3)
    assert len({each.tobytes() for each in parents.trace_id}) == len(keys)
    assert len({each.tobytes() for each in parents.span_id}) == len(keys)
    assert not (parents.trace_id[:, 8:] == parents.span_id).all(axis=1).any()


def test_unsampled_requests_are_not_linked() -> None:
    found = spans_of(step(member(1), member(2)), contexts={1: context(1), 2: context(2, flags=0)})
    assert [trace[0] for _, trace, _ in linked(only(found).links)] == [1]
    assert row(only(found).attributes)["otelgpu.step.batch_size"] == 2


def test_a_step_of_unsampled_requests_only_is_not_reported_and_its_operations_come_back() -> None:
    found = spans_of(
        step(member(2)), step(member(1), start_ns=200 * MS), contexts={1: context(1), 2: context(2, flags=0)}
    )
    assert len(only(found)) == 1
    assert found.step.tolist() == [1, 1]
    assert set(found.operations["context_source"].tolist()) == {ContextSource.STEP}
    assert len(found.rest) == 2
    assert found.parents.trace_id[1].tobytes() == only(found).trace_id[0].tobytes()


@pytest.mark.parametrize("membership", [Membership.AMBIGUOUS, Membership.UNREPORTED])
def test_a_step_that_may_have_served_others_is_reported(membership: Membership) -> None:
    members = (member(2),) if membership is Membership.AMBIGUOUS else ()
    batch = only(spans_of(step(*members, membership=membership), contexts={2: context(2, flags=0)}))
    assert row(batch.attributes).keys().isdisjoint({"otelgpu.step.batch_size", "otelgpu.step.tokens"})
    assert batch.links is None


def test_requests_whose_exchange_was_not_seen_are_linked_by_what_they_were_handed_over_under() -> None:
    found = spans_of(step(member(0, request_id="x")), handed_over={"x": context(8)}.get)  # type: ignore[arg-type]
    assert [trace[0] for _, trace, _ in linked(only(found).links)] == [8]
    assert linked(only(spans_of(step(member(0, request_id="y")))).links) == []


def test_links_are_bounded_and_what_is_left_out_is_counted() -> None:
    members = [member(1)] * (LINKS + 5)
    batch = only(spans_of(step(member(2)), step(*members, start_ns=200 * MS)))
    assert batch.links is not None
    assert (len(batch.links.span), batch.links.dropped) == (LINKS + 1, pytest.approx([0, 5]))


def test_hints_come_with_their_evidence() -> None:
    idle = step(evidence=Evidence(host_ns=4 * MS), membership=Membership.UNREPORTED)
    batch = only(spans_of(idle, step(member(1), start_ns=200 * MS)))
    assert row(batch.attributes, 0)["otelgpu.hints"] == ("host_overhead",)
    assert row(batch.attributes, 0)["otelgpu.hint.host_overhead"] == 0.6
    assert "otelgpu.hints" not in row(batch.attributes, 1)


def view(**fields: Any) -> RequestSteps:
    """Added at 20 ms, first token by a step from 40 to 50 ms, the last step ended at 90 ms."""
    made = {
        "source": ContextSource.MESSAGE,
        "added_ns": 20 * MS,
        "first": StepKey(7, 9, 40 * MS),
        "first_start_ns": 40 * MS,
        "first_end_ns": 50 * MS,
        "last_end_ns": 90 * MS,
        "steps": 5,
        "tokens": 5,
        "unattributed": 0,
        "mean_batch_size": 2.5,
        "mean_token_share": 0.4,
        "shared_launches": 40,
        "attributed_ns": 20 * MS,
        "links": (StepKey(7, 9, 40 * MS),),
        "dropped_links": 0,
    }
    return RequestSteps(**(made | fields))  # type: ignore[arg-type]


def test_a_request_reports_its_latencies_in_seconds() -> None:
    found = row(request_attributes([view()], [10 * MS]))
    assert found == {
        "otelgpu.steps.count": 5,
        "otelgpu.steps.source": "message",
        "otelgpu.steps.shared_launches": 40,
        "gen_ai.latency.time_in_queue": pytest.approx(0.02),
        "gen_ai.latency.time_in_model_prefill": pytest.approx(0.01),
        "gen_ai.latency.time_in_model_decode": pytest.approx(0.04),
        "gen_ai.latency.time_in_model_inference": pytest.approx(0.05),
        "otelgpu.steps.mean_batch_size": 2.5,
        "otelgpu.steps.mean_token_share": 0.4,
        "otelgpu.steps.attributed_time": pytest.approx(0.02),
    }


def test_the_queue_begins_with_the_request_where_no_engine_was_seen_to_take_it() -> None:
    found = row(request_attributes([view(added_ns=0)], [10 * MS]))
    assert found["gen_ai.latency.time_in_queue"] == pytest.approx(0.03)


def test_without_the_first_tokens_step_there_are_no_latencies() -> None:
    unknown = view(
        first=None, unattributed=1, mean_batch_size=None, mean_token_share=None, attributed_ns=None
    )
    found = request_attributes([None, unknown], [10 * MS, 10 * MS])
    assert row(found, 0) == {}
    assert row(found, 1) == {
        "otelgpu.steps.count": 5,
        "otelgpu.steps.source": "message",
        "otelgpu.steps.shared_launches": 40,
        "otelgpu.steps.unattributed": 1,
    }


def phases(*views: RequestSteps | None, flags: int = 1) -> list[SpanColumns]:
    count = len(views)
    parents = Parents(
        trace_id=np.full((count, 16), 1, dtype=np.uint8),
        span_id=np.full((count, 8), 2, dtype=np.uint8),
        flags=np.full(count, flags, dtype=np.uint32),
    )
    owners = {7: ENGINE}.__getitem__
    return request_phases(
        [exchange(n + 1, tgid=5) for n in range(count)], views, parents, owners, seed=3, unix_offset_ns=OFFSET
    )


def test_phases_follow_one_another_under_the_request() -> None:
    (batch,) = phases(None, view())
    names = [batch.name.table[code] for code in batch.name.codes.tolist()]
    times = [
        (int(start) - OFFSET, int(end) - OFFSET)
        for start, end in zip(batch.start_unix_ns, batch.end_unix_ns, strict=True)
    ]
    assert (batch.resource, names) == (ENGINE, ["queue", "prefill", "decode"])
    assert times == [(20 * MS, 40 * MS), (40 * MS, 50 * MS), (50 * MS, 90 * MS)]
    assert {each.tobytes() for each in batch.parent_span_id} == {bytes([2]) * 8}
    assert len({each.tobytes() for each in batch.span_id}) == 3


def test_no_phases_without_the_first_tokens_step_or_of_what_is_not_sampled() -> None:
    assert phases(view(first=None)) == []
    assert phases(view(), flags=0) == []


def values(found: list[Measured]) -> dict[tuple[str, str], list[float]]:
    return {
        (each.metric.name, str(each.labels.get("otelgpu.phase", ""))): list(each.values) for each in found
    }


def test_steps_are_measured() -> None:
    steps = [
        step(member(1, phase=StepPhase.PREFILL), member(2, new_tokens=3)),
        step(member(1), membership=Membership.AMBIGUOUS),
        step(membership=Membership.UNREPORTED),
    ]
    found = step_metrics(steps, [None, None, 0.25])
    assert values(found) == {
        ("otelgpu.step.duration", ""): [0.01, 0.01, 0.01],
        ("otelgpu.step.batch_size", ""): [2],
        ("otelgpu.step.tokens", "prefill"): [1],
        ("otelgpu.step.tokens", "decode"): [3, 1],
        ("otelgpu.step.mbu", ""): [0.25],
    }
    assert [list(each.rows) for each in found] == [[0, 1, 2], [0], [0], [0, 1], [2]]


def test_bandwidth_is_reported_of_steps_that_only_decode() -> None:
    # 16 GB of weights in 10 ms at 3.2 TB/s: half of the peak.
    assert utilisation(step(member(1)), 16_000_000_000, 3.2e12) == pytest.approx(0.5)
    assert utilisation(step(member(1), member(2, phase=StepPhase.PREFILL)), 1, 1.0) is None
    assert utilisation(step(member(1), membership=Membership.AMBIGUOUS), 1, 1.0) is None
    assert utilisation(step(membership=Membership.UNREPORTED), 1, 1.0) is None
    assert utilisation(step(member(1)), 1, 0.0) is None


def test_others_share_by_the_tokens_that_a_step_worked_on_where_all_its_members_are_known() -> None:
    first = member(1, phase=StepPhase.PREFILL, prompt_tokens=90)
    later = member(2, new_tokens=3, prompt_tokens=50)  # whose prompt an earlier step went through
    shared = [engine_step(step(first, later)), engine_step(step(first, membership=Membership.AMBIGUOUS))]
    assert [each.members for each in shared] == [((1, 91), (2, 3)), ()]
    assert shared[0][:3] == (7, 100 * MS, 110 * MS)
