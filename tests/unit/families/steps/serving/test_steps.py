"""Steps of simulated engines: each is found, and its members are exactly what it gave, or said not to be known."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.engine.call_roles import SERVING
from otelgpu.families.steps.serving.membership import Matcher, StepMessage
from otelgpu.families.steps.serving.request_steps import Gained, attribute_tokens
from otelgpu.families.steps.serving.steps import COUNTERS, EndedSteps, EngineSteps
from otelgpu.families.steps.step import Membership, ServedStep, StepKey, StepPhase
from otelgpu.model.context import UNSETTLED
from otelgpu.model.context_sources import ContextSource
from otelgpu.model.engine_messages import EngineItem, EngineOutput, EngineRequest
from otelgpu.model.exchange import Named, Opened, Role
from otelgpu.model.operations import Operations, concatenate, operations
from tests.rig.examples import examples
from tests.unit.families.steps.steps_engines import (
    APIS,
    D2H,
    H2D,
    MS,
    RULES,
    SENDER,
    TGID,
    TID,
    US,
    Plan,
    Run,
    Truth,
    call,
    reported,
    simulate,
)
from tests.unit.model.builders import exchange, generation

SYNC = Plan()
ASYNC = Plan(asynchronous=True)


def steps_of(found: list[EndedSteps]) -> list[ServedStep]:
    return [step for each in found for step in each.steps]


def given_by(step: ServedStep) -> dict[str, int]:
    return {member.request_id: member.new_tokens for member in step.members}


def check(run: Run, found: list[EndedSteps]) -> list[ServedStep]:
    """Steps are the truth's, one for one; members are, or are said not to be known."""
    steps = steps_of(found)
    assert [(each.step.start_ns, each.step.end_ns) for each in steps] == [
        (truth.start_ns, truth.end_ns) for truth in run.truth
    ]
    assert [each.step.evidence.launches for each in steps] == [truth.launches for truth in run.truth]
    assert [each.step.number for each in steps] == list(range(1, len(steps) + 1))
    for step, truth in zip(steps, run.truth, strict=True):
        check_members(step, truth)
    return steps


def check_members(step: ServedStep, truth: Truth) -> None:
    given_tokens = given_by(step)
    match step.membership:
        case Membership.KNOWN:
            assert given_tokens == truth.given
            assert step.source is ContextSource.MESSAGE
        case Membership.UNREPORTED:
            assert not truth.given
            assert not step.members
        case Membership.AMBIGUOUS:
            assert given_tokens.items() <= truth.given.items()
    for member in step.members:
        assert member.phase is (StepPhase.PREFILL if member.request_id in truth.first else StepPhase.DECODE)


def known(steps: list[ServedStep]) -> float:
    return sum(each.membership is not Membership.AMBIGUOUS for each in steps) / len(steps)


@pytest.mark.parametrize(
    "plan",
    [
        SYNC,
        ASYNC,
        replace(SYNC, graphs=True),
        replace(ASYNC, waiter=SENDER),
        replace(SYNC, clients=3),
        replace(ASYNC, clients=3),
        replace(SYNC, stalls=0.3),
        replace(SYNC, events=True, silent=0.3, stats=True),
        replace(ASYNC, events=True, silent=0.3, stats=True),
        replace(ASYNC, stalls=0.3, stats=True, silent=0.3),
        replace(SYNC, idle=0.3),
    ],
    ids=str,
)
def test_every_member_is_known_where_every_step_sends_messages(plan: Plan) -> None:
    for seed in range(3):
        run = simulate(plan, seed)
        assert known(check(run, reported(run)[1])) == 1.0


@examples(60)
@given(
    st.builds(
        Plan,
        steps=st.integers(1, 40),
        asynchronous=st.booleans(),
        events=st.booleans(),
        waiter=st.sampled_from([TID, SENDER]),
        clients=st.integers(1, 3),
        connections=st.booleans(),
        graphs=st.booleans(),
        step_ns=st.sampled_from([(MS // 5, MS), (2 * MS, 8 * MS), (20 * MS, 90 * MS)]),
        stalls=st.sampled_from([0.0, 0.2, 0.8]),
        idle=st.sampled_from([0.0, 0.2]),
        silent=st.sampled_from([0.0, 0.2]),
        stats=st.booleans(),
        arrivals=st.sampled_from([0.1, 0.5]),
    ),
    st.integers(0, 1 << 32),
    st.sampled_from([3 * MS, 100 * MS, 2000 * MS]),
)
def test_a_membership_is_the_truth_or_is_not_known(plan: Plan, seed: int, tick_ns: int) -> None:
    run = simulate(plan, seed)
    check(run, reported(run, tick_ns=tick_ns, seed=seed % 97)[1])


def test_steps_without_output_leave_unknown_only_what_could_be_either() -> None:
    shares = []
    for seed in range(4):
        run = simulate(replace(SYNC, steps=60, silent=0.1, idle=0.1, step_ns=(20 * MS, 90 * MS)), seed)
        shares.append(known(check(run, reported(run)[1])))
    assert sum(shares) / len(shares) > 0.8


def test_without_connections_what_clients_got_is_known_or_said_not_to_be() -> None:
    shares = []
    for seed in range(4):
        run = simulate(replace(ASYNC, clients=3, connections=False), seed)
        shares.append(known(check(run, reported(run)[1])))
    assert sum(shares) / len(shares) > 0.5


@pytest.mark.parametrize("plan", [SYNC, ASYNC], ids=["sync", "async"])
def test_what_a_thread_does_is_of_the_step_that_it_began_last(plan: Plan) -> None:
    run = simulate(replace(plan, idle=0.5), 3)
    steps, _ = reported(run)
    truth = run.truth
    for step, following in zip(truth, [*truth[1:], None], strict=True):
        found = steps.step_at(TGID, TID, step.start_ns + 1)
        assert isinstance(found, StepKey)
        assert found.start_ns == step.start_ns
        if following is not None and following.start_ns > step.end_ns + 1:
            assert steps.step_at(TGID, TID, step.end_ns + 1) is None  # between two steps
    assert steps.step_at(TGID, TID, truth[-1].end_ns + 1) is UNSETTLED  # the next one may have begun
    assert steps.step_at(TGID, TID + 99, truth[0].start_ns) is UNSETTLED
    assert steps.step_at(TGID + 1, TID, truth[0].start_ns) is None


def test_every_operation_comes_out_once() -> None:
    run = simulate(replace(ASYNC, steps=30, idle=0.2), 5)
    _, found = reported(run)
    steps = concatenate([each.operations for each in found])
    rest = concatenate([each.rest for each in found])
    out = concatenate([steps, rest])
    assert sorted(out["start_ns"].tolist()) == sorted(concatenate(run.rows)["start_ns"].tolist())
    assert len(rest) == 0


def one_step(start_ns: int, *, tid: int = TID, handle: int = 9) -> Operations:
    """Copy in, two launches, copy out, synchronise: ends 3 ms after it began."""
    return concatenate(
        [
            call(3, start_ns, tid=tid, direction=H2D, stream=9),
            call(1, start_ns + 100 * US, tid=tid, stream=9),
            call(1, start_ns + 200 * US, tid=tid, stream=9),
            call(3, start_ns + 300 * US, tid=tid, direction=D2H, stream=9),
            call(5, start_ns + 400 * US, 2600 * US, tid=tid, handle=handle),
        ]
    )


def request(time_ns: int = 90 * MS, request_id: str = "a", **fields: object) -> EngineRequest:
    made = {"tgid": TGID, "tid": 1, "sent": False, "engine": "vllm"} | fields
    return EngineRequest(time_ns=time_ns, request_id=request_id, **made)  # type: ignore[arg-type]


def output(time_ns: int, *ids: str, connection: int = 1, **fields: object) -> EngineOutput:
    items = tuple(EngineItem(request_id=each, new_tokens=1) for each in ids)
    made = {"tgid": TGID, "tid": SENDER, "sent": True, "engine": "vllm", "items": items} | fields
    return EngineOutput(time_ns=time_ns, connection=connection, **made)  # type: ignore[arg-type]


def watched() -> EngineSteps:
    """A session in which process TGID takes requests."""
    steps = EngineSteps([APIS], rules=RULES)
    steps.report(1)
    steps.hear([request()])
    return steps


def ends(steps: EngineSteps, *rows: Operations) -> list[tuple[int, int, int]]:
    """Start, end and launches of each step that the rows make."""
    steps.take(concatenate(rows))
    reported_steps = steps.report(100_000 * MS, final=True).steps
    return [(s.step.start_ns, s.step.end_ns, s.step.evidence.launches) for s in reported_steps]


def test_a_wait_for_a_host_to_device_copy_ends_no_step_of_a_thread_that_reads_results() -> None:
    begun = [call(3, 200 * MS, direction=H2D, stream=4), call(5, 201 * MS, handle=4)]
    step = one_step(202 * MS)
    assert ends(watched(), one_step(100 * MS), *begun, step) == [
        (100 * MS, 103 * MS, 2),
        (200 * MS, 205 * MS, 2),
    ]


def test_a_step_without_results_ends_with_its_event_and_not_with_a_host_to_device_copy() -> None:
    copied = [call(3, 200 * MS, direction=H2D, stream=4), call(6, 201 * MS, handle=5, stream=4)]
    queued = [call(7, 202 * MS, handle=5), call(1, 203 * MS, stream=9), call(6, 204 * MS, handle=6, stream=9)]
    assert ends(watched(), one_step(100 * MS), *copied, *queued, call(7, 205 * MS, MS, handle=6)) == [
        (100 * MS, 103 * MS, 2),
        (200 * MS, 206 * MS, 1),
    ]


def test_an_event_on_another_stream_than_the_results_ends_no_step() -> None:
    queued = [
        call(1, 100 * MS),
        call(3, 101 * MS, direction=D2H, stream=9),
        call(6, 102 * MS, handle=6, stream=4),
    ]
    assert ends(watched(), *queued, call(7, 103 * MS, handle=6)) == []


def test_a_wait_for_another_stream_ends_no_step() -> None:
    assert ends(watched(), one_step(100 * MS), one_step(200 * MS, handle=4)) == [(100 * MS, 103 * MS, 2)]


def test_a_thread_that_reads_nothing_ends_its_steps_with_any_wait_for_launches() -> None:
    rows = [call(1, 100 * MS), call(8, 101 * MS), call(8, 102 * MS), call(1, 103 * MS), call(8, 104 * MS)]
    assert ends(watched(), *rows) == [
        (100 * MS, 101 * MS + 5 * US, 1),
        (103 * MS, 104 * MS + 5 * US, 1),
    ]


def test_an_event_that_was_not_seen_to_be_recorded_ends_no_step() -> None:
    assert ends(watched(), call(1, 100 * MS), call(7, 101 * MS, handle=5)) == []


def test_failed_calls_end_and_begin_nothing() -> None:
    step = one_step(100 * MS)
    step["status"][-1] = 700
    assert ends(watched(), step) == []


@pytest.mark.parametrize("ticks", [(), (101 * MS,)])
def test_what_is_captured_begins_no_step_and_is_none_of_its_launches(ticks: tuple[int, ...]) -> None:
    """Of the thread that captures; ticks: also where it is seen in parts."""
    captured = [call(9, 99 * MS, stream=9), call(1, 100 * MS, stream=9), call(10, 102 * MS, stream=9)]
    another = call(1, 101 * MS, tid=SENDER, stream=4)
    end = call(8, 103 * MS, tid=SENDER)
    steps = watched()
    steps.take(concatenate([*captured, another, end, one_step(200 * MS)]))
    for now in ticks:
        assert steps.report(now).steps == []
    found = steps.report(100_000 * MS, final=True)
    assert [(s.step.tid, s.step.start_ns, s.step.evidence.launches) for s in found.steps] == [
        (SENDER, 101 * MS, 1),
        (TID, 200 * MS, 2),
    ]
    assert found.rest["start_ns"].tolist() == [99 * MS, 100 * MS, 102 * MS]


def test_waits_while_nothing_but_captured_work_was_queued_end_no_step() -> None:
    steps = watched()
    for row in (call(9, 99 * MS), call(1, 100 * MS), call(10, 101 * MS), call(8, 102 * MS)):
        steps.take(row)
        assert steps.report(int(row["start_ns"][0]) + MS).steps == []
    assert steps.report(100_000 * MS, final=True).steps == []


def test_the_wait_of_another_thread_is_of_the_step_it_ends() -> None:
    steps = watched()
    steps.take(
        concatenate(
            [
                call(1, 100 * MS, stream=9),
                call(3, 101 * MS, direction=D2H, stream=9),
                call(6, 102 * MS, handle=77, stream=9),
                call(1, 103 * MS, stream=9),
                call(7, 104 * MS, 9 * MS, tid=SENDER, handle=77),
            ]
        )
    )
    found = steps.report(100_000 * MS, final=True)
    assert [(s.step.tid, s.step.end_ns, s.step.rows) for s in found.steps] == [(TID, 113 * MS, 4)]
    assert found.steps[0].step.evidence.wait_ns == 9 * MS
    assert found.rest["start_ns"].tolist() == [103 * MS]


def test_gaps_between_steps_are_reported_where_they_do_not_overlap() -> None:
    steps = watched()
    steps.take(concatenate([one_step(100 * MS), one_step(110 * MS)]))
    assert [s.step.gap_ns for s in steps.report(100_000 * MS, final=True).steps] == [0, 7 * MS]


def test_processes_that_serve_nothing_keep_their_operations() -> None:
    steps = EngineSteps([APIS], rules=RULES)
    assert not steps.take(one_step(100 * MS)).any()
    assert len(steps.report(100_000 * MS, final=True).steps) == 0


@pytest.mark.parametrize("waited", [False, True])
def test_only_a_wait_before_a_process_is_watched_may_have_ended_a_step_that_was_not_seen(
    waited: bool,
) -> None:
    """The first message could be of that step; the next could then be of the first, and so on."""
    steps = EngineSteps([APIS], rules=RULES)
    steps.report(1)
    before = [call(1, 80 * MS), call(3, 81 * MS, direction=H2D)] + [call(8, 82 * MS)] * waited
    assert not steps.take(concatenate(before)).any()
    steps.hear([request(90 * MS)])
    rows = [one_step(100 * MS), one_step(110 * MS)]
    assert steps.take(concatenate(rows)).all()
    steps.hear([output(108 * MS, running=1), output(114 * MS, "a")])
    found = steps.report(9_000 * MS).steps
    assert [s.membership for s in found] == (
        [Membership.AMBIGUOUS, Membership.AMBIGUOUS] if waited else [Membership.UNREPORTED, Membership.KNOWN]
    )


def test_what_no_step_ends_is_given_back() -> None:
    steps = watched()
    assert steps.take(call(1, 100 * MS)).all()
    assert len(steps.report(100 * MS + SERVING.longest_ns // 2).rest) == 0
    assert len(steps.report(101 * MS + SERVING.longest_ns).rest) == 1


def test_operations_beyond_the_bound_are_not_taken_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("otelgpu.families.steps.serving.steps.OPERATIONS_HELD", 12)
    steps = watched()
    assert steps.take(one_step(100 * MS)).all()
    assert not steps.take(one_step(200 * MS)).any()
    assert steps.counters["operations_not_kept"] == 5
    assert len(steps.report(100_000 * MS, final=True).steps) == 1
    assert steps.take(one_step(300 * MS)).all()  # there is room again


def test_an_engine_leaves_as_much_as_it_has_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("otelgpu.families.steps.serving.steps.OPERATIONS_HELD", 100)
    steps = watched()
    steps.hear([request(tgid=TGID + 1, request_id="b")])
    taken = [bool(steps.take(one_step((100 + number) * MS)).all()) for number in range(20)]
    assert taken == [True] * 10 + [False] * 10
    other = one_step(200 * MS, tid=TID + 1)
    other["tgid"] = TGID + 1
    assert steps.take(other).all()


def test_a_process_that_ended_is_reported_at_once() -> None:
    steps = watched()
    steps.take(one_step(100 * MS))
    steps.forget_process(TGID)
    assert len(steps.report(110 * MS).steps) == 1
    assert not steps.take(one_step(200 * MS)).any()


def test_absurd_times_hold_nothing_up() -> None:
    steps = watched()
    rows = one_step(100 * MS)
    rows["start_ns"][0], rows["duration_ns"][1] = (1 << 64) - 1, (1 << 64) - 1
    steps.take(rows)
    found = [steps.report(200 * MS), steps.report(100_000 * MS)]
    assert sum(len(each.operations) + len(each.rest) for each in found) == 5


def test_messages_of_no_known_step_leave_what_they_may_be_of_ambiguous() -> None:
    steps = watched()
    steps.take(one_step(100 * MS))
    steps.hear([output(104 * MS, "a"), output(105 * MS, "a")])  # two steps, one of which was not seen
    (step,) = steps.report(5_000 * MS, final=True).steps
    assert step.membership is Membership.AMBIGUOUS
    assert steps.counters["messages_without_step"] == 1


def test_after_a_contradiction_an_idle_gap_makes_members_known_again() -> None:
    steps = watched()
    steps.take(concatenate([one_step(100 * MS), one_step(900 * MS), one_step(1_900 * MS)]))
    steps.hear([output(104 * MS, "a"), output(105 * MS, "a"), output(904 * MS, "a"), output(1_904 * MS, "a")])
    found = steps.report(9_000 * MS, final=True).steps
    assert [each.membership for each in found][1:] == [Membership.KNOWN] * 2


def test_several_threads_with_steps_leave_members_unknown() -> None:
    steps = watched()
    steps.take(concatenate([one_step(100 * MS), one_step(101 * MS, tid=9)]))
    steps.hear([output(105 * MS, "a")])
    found = steps.report(5_000 * MS, final=True).steps
    assert {each.membership for each in found} == {Membership.AMBIGUOUS}
    assert steps.counters["messages_several_threads"] == 1


def test_every_counter_is_explained() -> None:
    run = simulate(replace(SYNC, silent=0.5, step_ns=(MS, 2 * MS)), 1)
    steps, _ = reported(run)
    assert set(steps.counters) == set(COUNTERS)


# -- requests -------------------------------------------------------------------------------------


def served(*, internal: str = "chatcmpl-1-0a1b2c3d", steps: int = 3) -> EngineSteps:
    """Exchange 1 of process 5, chatcmpl-1, got a token of each of some steps of engine TGID, every 100 ms."""
    made = EngineSteps([APIS], rules=RULES)
    made.report(1)
    made.open([Opened(key=1, tgid=5, tid=5, start_ns=80 * MS, role=Role.SERVER, parent=None, wire_id=b"")])
    made.name([Named(key=1, tgid=5, request_id="chatcmpl-1", time_ns=85 * MS)])
    made.hear([request(90 * MS, internal), request(89 * MS, internal, sent=True, tgid=5)])
    for number in range(1, steps + 1):
        made.take(one_step(number * 100 * MS))
        made.hear([output(number * 100 * MS + 4 * MS, internal)])
    made.report((steps * 100 + 10) * MS)
    return made


def test_a_request_knows_the_steps_that_served_it_as_soon_as_it_is_answered() -> None:
    steps = served()
    view = steps.answer(exchange(1, tgid=5, start_ns=80 * MS, end_ns=305 * MS))
    assert view is not None
    assert (view.source, view.steps, view.tokens, view.unattributed) == (ContextSource.MESSAGE, 3, 3, 0)
    assert (view.added_ns, view.first_start_ns, view.first_end_ns, view.last_end_ns) == (
        89 * MS,
        100 * MS,
        103 * MS,
        303 * MS,
    )
    assert [key.start_ns for key in view.links] == [100 * MS, 200 * MS, 300 * MS]
    # The last step may serve another client yet.
    assert (view.mean_batch_size, view.mean_token_share, view.attributed_ns) == (1.0, 1.0, 6 * MS)
    assert view.shared_launches == 6


def test_what_is_matched_by_now_is_known_before_steps_are_reported() -> None:
    steps = served(steps=1)
    steps.take(one_step(200 * MS))
    steps.hear([output(204 * MS, "chatcmpl-1-0a1b2c3d")])
    steps.match(210 * MS)
    view = steps.answer(exchange(1, tgid=5, start_ns=80 * MS))
    assert view is not None
    assert view.steps == 2


def test_a_request_of_two_shares_its_steps() -> None:
    steps = served(steps=1)
    steps.hear([request(150 * MS, "chatcmpl-2-0a1b2c3d")])
    for number in (2, 3):
        steps.take(one_step(number * 100 * MS))
        steps.hear([output(number * 100 * MS + 4 * MS, "chatcmpl-1-0a1b2c3d", "chatcmpl-2-0a1b2c3d")])
    steps.report(5_000 * MS)
    view = steps.answer(exchange(1, tgid=5, start_ns=80 * MS))
    assert view is not None
    assert view.mean_batch_size == pytest.approx(5 / 3)
    assert view.mean_token_share == pytest.approx(2 / 3)
    assert view.attributed_ns == 6 * MS


def test_links_are_bounded_and_the_rest_is_counted() -> None:
    view = served(steps=140).answer(exchange(1, tgid=5, start_ns=80 * MS))
    assert view is not None
    assert (view.steps, len(view.links), view.dropped_links) == (140, 128, 12)


def test_a_request_that_was_not_seen_to_begin_has_no_prefill() -> None:
    steps = EngineSteps([APIS], rules=RULES)
    steps.report(1)
    steps.name([Named(key=1, tgid=5, request_id="a", time_ns=1)])
    steps.hear([output(50 * MS, "b")])  # watched from here on
    steps.take(one_step(200 * MS))
    steps.hear([output(204 * MS, "a")])
    (step,) = steps.report(5_000 * MS, final=True).steps
    assert [member.phase for member in step.members] == [StepPhase.UNKNOWN]
    view = steps.answer(exchange(1, tgid=5))
    assert view is not None
    assert view.first is None


def test_choices_of_one_request_are_one() -> None:
    steps = served(internal="0_cmpl-1-0a1b2c3d", steps=1)
    steps.name([Named(key=1, tgid=5, request_id="cmpl-1", time_ns=85 * MS)])
    steps.hear([request(90 * MS, "1_cmpl-1-0a1b2c3d")])
    steps.take(one_step(200 * MS))
    steps.hear([output(204 * MS, "0_cmpl-1-0a1b2c3d", "1_cmpl-1-0a1b2c3d")])
    steps.report(5_000 * MS)
    view = steps.answer(exchange(1, tgid=5, start_ns=80 * MS))
    assert view is not None
    assert (view.steps, view.tokens, view.shared_launches) == (2, 3, 4)
    assert view.first_start_ns == 100 * MS


def streaming(*times_ms: int) -> object:
    return generation(content_times_ns=array("Q", [each * MS for each in times_ms]))


def in_process() -> EngineSteps:
    """Process TGID serves HTTP and drives a GPU itself: steps end at 103, 203, 303 ms."""
    steps = EngineSteps([APIS], rules=RULES)
    steps.report(1)
    steps.open(
        [Opened(key=3, tgid=TGID, tid=5, start_ns=90 * MS, role=Role.SERVER, parent=None, wire_id=b"")]
    )
    steps.take(concatenate([one_step(number * 100 * MS) for number in (1, 2, 3)]))
    steps.report(400 * MS)
    return steps


def test_without_messages_tokens_are_of_the_last_step_that_ended_before_them() -> None:
    steps = in_process()
    view = steps.answer(
        exchange(3, tgid=TGID, start_ns=90 * MS, end_ns=400 * MS, generation=streaming(104, 205, 206))
    )
    assert view is not None
    assert (view.source, view.steps, view.tokens) == (ContextSource.STEP, 2, 3)
    assert (view.first_start_ns, view.first_end_ns, view.last_end_ns) == (100 * MS, 103 * MS, 203 * MS)
    found = steps.report(9_000 * MS).steps
    assert [[(m.exchange, m.new_tokens, m.phase) for m in each.members] for each in found] == [
        [(3, 1, StepPhase.PREFILL)],
        [(3, 2, StepPhase.DECODE)],
        [],
    ]
    assert [each.membership for each in found] == [
        Membership.AMBIGUOUS,
        Membership.AMBIGUOUS,
        Membership.UNREPORTED,
    ]


def test_a_step_that_ended_before_the_request_gave_it_nothing() -> None:
    view = in_process().answer(exchange(3, tgid=TGID, start_ns=150 * MS, generation=streaming(160)))
    assert view is None


def test_of_an_engine_that_sends_messages_time_order_reports_nothing() -> None:
    steps = in_process()
    steps.hear([output(350 * MS, "someone")])
    assert steps.answer(exchange(3, tgid=TGID, start_ns=90 * MS, generation=streaming(104))) is None


def test_tokens_by_time_order() -> None:
    assert attribute_tokens([], [10]).tolist() == []
    assert attribute_tokens([5, 10, 12, 25], [10, 20, 30]).tolist() == [-1, 0, 0, 1]
    assert attribute_tokens([5], []).tolist() == [-1]


@examples(30)
@given(st.data())
def test_whatever_comes_every_operation_goes_and_nothing_raises(data: st.DataObject) -> None:
    """Hostile processes: any calls at any time on few threads, any messages, ticks anywhere."""
    steps = watched()
    times = st.integers(0, 3_000 * MS) | st.sampled_from([0, (1 << 64) - 1, 1 << 63])
    fed, now, out = 0, 2, 0
    for _ in range(data.draw(st.integers(1, 5))):
        rows = [
            call(
                data.draw(st.sampled_from(list(APIS))),
                data.draw(times),
                data.draw(st.sampled_from([0, 1, MS, (1 << 64) - 1])),
                tid=data.draw(st.integers(1, 3)),
                handle=data.draw(st.integers(0, 3)),
                stream=data.draw(st.integers(0, 3)),
                direction=data.draw(st.sampled_from([D2H, H2D, 255])),
            )
            for _ in range(data.draw(st.integers(0, 12)))
        ]
        fed += len(rows)
        assert not rows or steps.take(concatenate(rows)).all()
        ids = data.draw(st.lists(st.sampled_from(["", "a", "b", "a-00000000"]), max_size=3))
        steps.hear([output(data.draw(times), *ids, connection=data.draw(st.integers(0, 2)))])
        steps.hear([request(data.draw(times), data.draw(st.sampled_from(["", "a", "b"])))])
        now += data.draw(st.integers(0, 2_000 * MS))
        found = steps.report(now)
        out += len(found.operations) + len(found.rest)
    found = steps.report(now + 1, final=True)
    assert all(0 <= each.step.start_ns <= each.step.end_ns < 1 << 62 for each in found.steps)
    assert out + len(found.operations) + len(found.rest) == fed
    assert steps.take(operations(0)).tolist() == []


def test_a_wait_covers_what_was_recorded_before_it_began() -> None:
    """Another thread waits for an event while it is recorded again for the next step."""
    steps = watched()
    queued = [
        (
            call(1, at, stream=9),
            call(3, at + MS, direction=D2H, stream=9),
            call(6, at + 2 * MS, handle=7, stream=9),
        )
        for at in (100 * MS, 110 * MS)
    ]
    waits = [call(7, 105 * MS, 20 * MS, tid=SENDER, handle=7), call(7, 126 * MS, MS, tid=SENDER, handle=7)]
    steps.take(concatenate([*(row for rows in queued for row in rows), *waits]))
    found = steps.report(100_000 * MS, final=True).steps
    assert [(s.step.start_ns, s.step.end_ns, s.step.evidence.launches) for s in found] == [
        (100 * MS, 125 * MS, 1),
        (110 * MS, 127 * MS, 1),
    ]


def test_a_step_is_closed_when_no_message_can_be_of_it_any_more() -> None:
    matcher = Matcher(SERVING, Counter(), 0)
    for at in (100, 200):
        matcher.add_step(at * MS, (at + 3) * MS)
    sent = [
        output(104 * MS, "a", connection=1),
        output(204 * MS, "b", connection=2),
        output(205 * MS, "a", connection=1),
    ]
    found = matcher.match([StepMessage(each, (Gained(),), (StepPhase.DECODE,), 0) for each in sent], 206 * MS)
    assert [(each.reporting.message.connection, each.step) for each in found] == [(1, 0), (1, 1)]
    assert not matcher.is_closed(0)  # the second message may be of it
    (late,) = matcher.match([], 204 * MS + SERVING.settle_ns)
    assert (late.reporting.message.connection, late.step) == (2, 1)
    assert (matcher.is_closed(0), matcher.is_closed(1)) == (True, False)


def test_a_server_that_sends_no_messages_is_no_engine() -> None:
    """What it does is not held: it is reported with what is nobody's."""
    steps = EngineSteps([APIS])
    steps.open([Opened(key=1, tgid=TGID, tid=TID, start_ns=1, role=Role.SERVER, parent=None, wire_id=b"")])
    assert not steps.take(concatenate([call(1, 1 * MS), call(5, 2 * MS)])).any()
