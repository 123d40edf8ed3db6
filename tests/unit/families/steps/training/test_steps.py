"""Steps of simulated loops of training: each that is reported is a true one, whole, and none is made up."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.engine.call_roles import TRAINING
from otelgpu.families.steps.training import steps as training
from otelgpu.families.steps.training.notes import COLLECTIVE, MARK, Nature
from otelgpu.families.steps.training.period import REPEATS, Searcher
from otelgpu.families.steps.training.step import Boundary, TrainingStep
from otelgpu.families.steps.training.steps import COUNTERS, EndedTraining, TrainingSteps
from otelgpu.model.files import FileCall
from otelgpu.model.operations import OperationKind, Operations, concatenate, operations
from tests.rig.examples import examples
from tests.unit.families.steps.training_loops import (
    APIS,
    COMPUTE,
    D2H,
    H2D,
    MAIN,
    MS,
    TGID,
    US,
    WATCHDOG,
    Plan,
    Run,
    S,
    engine,
    reported,
    simulate,
    steps_of,
)

DDP = Plan()
SETTLE_NS = TRAINING.settle_ns + 100 * MS


def check(run: Run, found: list[EndedTraining], *, unfound: int = 2 * REPEATS) -> list[TrainingStep]:
    """Every step is reported as it was, from a second after the period showed on; the last may end early."""
    steps = steps_of(found)
    bounds = [(step.start_ns, step.end_ns) for step in steps]
    known_ns = run.truth[unfound][0] + SETTLE_NS
    assert {each for each in run.truth[:-1] if each[0] >= known_ns} <= set(bounds)
    assert set(bounds[:-1]) <= set(run.truth)
    assert len(steps) > 5
    assert all(step.parts.total_ns == step.duration_ns for step in steps)
    return steps


@pytest.mark.parametrize(
    "plan",
    [
        DDP,
        replace(DDP, autograd=False),
        replace(DDP, layers=1),
        replace(DDP, h2d_copies=False),
        replace(DDP, read_every=7),
        replace(DDP, read_every=0),
        replace(DDP, micro=3),
        replace(DDP, shuffled=True),
        replace(DDP, log_every=5),
        replace(DDP, evaluate_every=20),
        replace(DDP, checkpoint_every=10),
        replace(DDP, kind="fsdp"),
        replace(DDP, kind="fsdp", autograd=False),
        replace(DDP, kind="fsdp", log_every=10),
        replace(DDP, kind="fsdp", evaluate_every=25),
        replace(DDP, kind="pipeline", micro=4, h2d_copies=False),
    ],
    ids=lambda plan: "-".join(f"{k}={v}" for k, v in vars(plan).items() if v != vars(DDP)[k]) or "ddp",
)
def test_boundaries_are_the_truth(plan: Plan) -> None:
    run = simulate(plan, 1)
    steps, found = reported(run.operations)
    check(run, found)
    assert steps.periods["found"] == 1


def test_files_that_are_read_for_a_batch_are_in_its_step_and_move_no_boundary() -> None:
    run = simulate(DDP, 1)
    reads = operations(len(run.truth))
    reads["kind"], reads["api"], reads["returned"] = OperationKind.FILE, FileCall.READ, 1
    reads["tgid"], reads["tid"], reads["handle"], reads["size_bytes"] = TGID, MAIN, 4711, 1000
    reads["start_ns"], reads["duration_ns"] = [start + MS for start, _ in run.truth], MS
    steps, found = reported(concatenate([run.operations, reads]))
    assert check(run, found)
    known = steps_of(found)[:-1]
    assert {(s.parts.file_ns, s.files, s.file_bytes, s.slowest_file) for s in known} == {(MS, 1, 1000, 4711)}
    assert steps.rows == 0
    assert not (np.concatenate([each.operations["kind"] for each in found]) == OperationKind.FILE).any()


def test_what_a_step_wrote_to_files_is_told_from_what_it_read() -> None:
    run = simulate(DDP, 1)
    calls = operations(3 * len(run.truth))
    calls["kind"], calls["returned"], calls["tgid"], calls["tid"] = OperationKind.FILE, 1, TGID, MAIN
    calls["api"] = [FileCall.READ, FileCall.WRITE, FileCall.SYNC] * len(run.truth)
    calls["size_bytes"], calls["duration_ns"] = [1000, 10, 0] * len(run.truth), 1000
    calls["start_ns"] = [start + MS + at * 2000 for start, _ in run.truth for at in range(3)]
    _, found = reported(concatenate([run.operations, calls]))
    known = steps_of(found)[:-1]
    assert {(s.files, s.file_bytes, s.written_bytes) for s in known} == {(3, 1010, 10)}


@pytest.mark.parametrize("kind", ["fsdp", "pipeline"])
def test_batches_with_collectives_of_their_own_are_no_steps(kind: str) -> None:
    run = simulate(replace(DDP, kind=kind, micro=4, idle_ns=30 * MS), 2)
    steps, found = reported(run.operations)
    reported_steps = check(run, found)
    assert steps.periods["widened"] == 1
    assert [each.h2d_copies for each in reported_steps] == [8] * len(reported_steps)


def test_an_evaluation_is_of_no_step() -> None:
    run = simulate(replace(DDP, evaluate_every=5), 3)
    _, found = reported(run.operations)
    steps = check(run, found)
    between = [b.start_ns - a.end_ns for a, b in pairwise(steps)]
    assert sum(gap > 0 for gap in between) == pytest.approx(len(steps) / 5, abs=1)


def test_batches_of_a_step_are_its_own_though_launches_were_not_seen_at_first() -> None:
    """As where probes are placed one after the other: copies with no launch between them look like one batch."""
    run = simulate(replace(DDP, micro=3), 1)
    calls = run.operations
    unseen = (calls["kind"] == OperationKind.LAUNCH) & (calls["start_ns"] < run.truth[REPEATS][1])
    _, found = reported(calls.compress(~unseen))
    steps = check(run, found)
    assert {each.h2d_copies for each in steps[:-1]} == {6}


@pytest.mark.parametrize("tick_ns", [20 * MS, 2 * S])
def test_a_call_that_returns_after_its_step_is_reported_is_of_no_step(tick_ns: int) -> None:
    """On another thread, and later than the call that shows the step's end: whether it was read then is chance."""
    run = simulate(DDP, 1)
    start_ns, end_ns = run.truth[35]
    late = run.operations[:1].copy()
    late["kind"], late["api"], late["family"], late["tid"] = OperationKind.LAUNCH, 1, 0, WATCHDOG
    late["start_ns"], late["duration_ns"] = (start_ns + end_ns) // 2, 2 * (end_ns - start_ns)
    _, found = reported(concatenate([run.operations, late]), tick_ns=tick_ns)
    assert sum(np.count_nonzero(each.rest["tid"] == WATCHDOG) for each in found) == 1
    mine = [each for each in steps_of(found) if each.start_ns == start_ns]
    launches = DDP.layers * DDP.launches * 2 + DDP.optimizer
    assert [each.evidence.launches for each in mine] == [launches]


@examples(6)
@given(
    st.builds(
        Plan,
        kind=st.sampled_from(["ddp", "fsdp", "pipeline"]),
        layers=st.integers(2, 5),
        launches=st.integers(1, 4),
        autograd=st.booleans(),
        read_every=st.sampled_from([0, 1, 3]),
        log_every=st.sampled_from([0, 4]),
        checkpoint_every=st.sampled_from([0, 9]),
    ),
    st.integers(0, 1 << 32),
    st.sampled_from([30 * MS, 250 * MS, 1000 * MS]),
)
def test_steps_are_whole_and_add_up(plan: Plan, seed: int, tick_ns: int) -> None:
    run = simulate(plan, seed)
    _, found = reported(run.operations, tick_ns=tick_ns, seed=seed % 97)
    check(run, found)
    rows = concatenate([each.operations for each in found])
    starts = np.concatenate(
        [[each.steps[step].start_ns for step in each.step.tolist()] for each in found]
    ).astype(np.uint64)
    assert (rows["start_ns"] >= starts).all()


def test_how_the_input_was_cut_changes_nothing() -> None:
    run = simulate(replace(DDP, kind="fsdp", micro=4, steps=30, evaluate_every=12, idle_ns=30 * MS), 5)
    cuts = ((40 * MS, 1), (70 * MS, 3), (1000 * MS, 5))
    results = [steps_of(reported(run.operations, tick_ns=t, batches=b, seed=b)[1]) for t, b in cuts]
    assert len(results[0]) > 20
    assert results[0] == results[1] == results[2]


def test_every_operation_that_was_taken_comes_out_once() -> None:
    run = simulate(replace(DDP, evaluate_every=6, idle_ns=40 * MS), 6)
    rows = run.operations
    steps, given_back, taken = TrainingSteps(APIS), [], 0
    ends = rows["start_ns"] + rows["duration_ns"]
    for now in range(100 * MS, int(ends.max()) + 200 * MS, 100 * MS):
        fed = rows.compress((ends > now - 100 * MS) & (ends <= now))
        taken += int(np.count_nonzero(steps.take(fed)))
        each = steps.report(now)
        given_back += [each.operations, each.rest]
    last = steps.report(now + 1, final=True)
    returned = concatenate([*given_back, last.operations, last.rest])
    assert taken == len(returned) == len(np.unique(returned["start_ns"]))
    assert steps.rows == 0


def test_an_engine_that_splits_its_model_makes_no_steps() -> None:
    rows = engine(steps=200, seed=1)
    steps, found = reported(rows)
    assert steps_of(found) == []
    assert steps.periods["found"] == 0


def test_what_serves_must_leave_no_doubt() -> None:
    """An engine whose collectives have several sizes is taken for training unless it is known to serve."""
    rows = engine(steps=200, seed=1, sizes=(1 << 16, 1 << 18))
    assert steps_of(reported(rows)[1])
    serving = TrainingSteps(APIS, serves=lambda tgid: True)
    assert steps_of(reported(rows, steps=serving)[1]) == []
    run = simulate(DDP, 1)
    serving = TrainingSteps(APIS, serves=lambda tgid: True)
    check(run, reported(run.operations, steps=serving)[1])  # its backward pass is on another thread


def test_an_engines_process_is_not_looked_at() -> None:
    rows = simulate(DDP, 1).operations
    steps = TrainingSteps(APIS, is_engine=lambda tgid: tgid == TGID)
    assert steps_of(reported(rows, steps=steps)[1]) == []


@pytest.mark.parametrize("seed", range(2))
def test_random_traffic_has_no_period(seed: int) -> None:
    run = simulate(DDP, seed)
    rows = run.operations
    moving = np.flatnonzero(rows["family"] == 1)
    rows["size_bytes"][moving] = [Random(seed).randrange(1, 1 << 30) for _ in moving] + np.arange(len(moving))
    _, found = reported(rows)
    assert steps_of(found) == []
    assert not any(len(each.rest) for each in found)


def test_a_period_is_lost_and_found_again() -> None:
    first = simulate(DDP, 1).operations
    then = simulate(replace(DDP, layers=5, kind="fsdp"), 2)
    shift = np.uint64(int(first["start_ns"].max()) + S)
    second = then.operations
    second["start_ns"] += shift
    steps, found = reported(concatenate([first, second]))
    assert (steps.periods["found"], steps.counters["training_periods_lost"]) == (2, 1)
    numbers = [step.number for step in steps_of(found)]
    assert numbers == sorted(set(numbers))
    late = [step for step in steps_of(found) if step.start_ns >= shift + 2 * S]
    assert {(step.start_ns - int(shift), step.end_ns - int(shift)) for step in late[:-1]} <= set(then.truth)
    assert len(late) > 10


def test_a_lost_record_costs_few_steps() -> None:
    run = simulate(DDP, 1)
    rows = run.operations
    moving = np.flatnonzero(rows["family"] == 1)
    rows = np.delete(rows, moving[[75, 96]])
    steps, found = reported(rows)
    assert steps.periods["found"] == 1
    bounds = {(step.start_ns, step.end_ns) for step in steps_of(found)[:-1]}
    assert len(bounds - set(run.truth)) <= 2
    assert len(bounds) >= 40 - 15 - 4


def test_the_step_of_a_time_is_known_once_it_has_ended() -> None:
    run = simulate(DDP, 1)
    rows, ends = run.operations, run.operations["start_ns"] + run.operations["duration_ns"]
    steps = TrainingSteps(APIS)
    answers = set()
    for now in range(100 * MS, int(ends.max()), 100 * MS):
        steps.take(rows.compress((ends > now - 100 * MS) & (ends <= now)))
        steps.report(now)
        answers.add(steps.step_at(TGID, now))
    assert answers == {None, -1}
    starts = {start for start, _ in run.truth}
    for start, end in run.truth[25:35]:
        assert steps.step_at(TGID, start) == steps.step_at(TGID, end - 1) == start
    assert steps.step_at(TGID, run.truth[0][0]) is None
    assert steps.step_at(TGID + 1, run.truth[30][0]) is None
    assert len(starts) == 40


def test_a_step_reports_what_it_did() -> None:
    run = simulate(DDP, 1)
    step = steps_of(reported(run.operations)[1])[3]
    sizes = sum((1 << 20) * (1 + bucket % 3) for bucket in range(DDP.layers))
    assert (step.collectives, step.collective_bytes) == (DDP.layers, sizes)
    assert (step.h2d_copies, step.h2d_copy_bytes) == (2, 3 << 19)
    assert step.evidence.launches == 2 * DDP.layers * DDP.launches + DDP.optimizer
    assert (step.boundary, step.confidence, step.tgid, step.tid) == (Boundary.H2D_COPY, 1.0, TGID, MAIN)
    assert step.parts.data_loader_stall_ns >= 25 * MS
    assert step.parts.other_wait_ns >= MS


def test_too_many_operations_are_passed_on_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "OPERATIONS_HELD", 60)
    run = simulate(DDP, 1)
    steps, found = reported(run.operations, tick_ns=20 * MS)
    assert steps.counters["operations_not_kept"] > 0
    assert steps.counters["training_steps_incomplete"] > 0
    assert {(step.start_ns, step.end_ns) for step in steps_of(found)} <= set(run.truth)


def test_a_process_that_ends_is_reported_and_forgotten() -> None:
    run = simulate(DDP, 1)
    rows, last = run.operations, int(run.operations["start_ns"].max())
    steps = TrainingSteps(APIS)
    ends = rows["start_ns"] + rows["duration_ns"]
    for now in range(200 * MS, last, 200 * MS):
        steps.take(rows.compress((ends > now - 200 * MS) & (ends <= now)))
        steps.report(now)
    held = steps.rows
    steps.forget_process(TGID)
    end = steps.report(now)
    assert len(end.operations) + len(end.rest) == held > 0
    assert steps.rows == 0
    assert steps.step_at(TGID, run.truth[30][0]) is None


def test_a_loop_that_stops_is_reported_in_bounded_time() -> None:
    run = simulate(DDP, 1)
    _, found = reported(run.operations.compress(run.operations["start_ns"] < run.truth[30][0] + MS))
    assert steps_of(found)[-1].end_ns <= run.truth[30][0] + MS


def test_absurd_times_hold_nothing_up() -> None:
    run = simulate(DDP, 1)
    rows = run.operations
    odd = rows[::97].copy()
    odd["start_ns"] = np.uint64((1 << 64) - 5)
    odd["tid"] = MAIN
    later = odd.copy()
    later["start_ns"], later["duration_ns"] = 1 << 62, 7 * US
    steps = TrainingSteps(APIS)
    ends = rows["start_ns"] + rows["duration_ns"]
    found = []
    for number, now in enumerate(range(100 * MS, int(ends.max()) + 200 * MS, 100 * MS)):
        steps.take(
            concatenate([rows.compress((ends > now - 100 * MS) & (ends <= now)), odd[number : number + 1]])
        )
        steps.take(later[number : number + 1])
        found.append(steps.report(now))
    check(run, [*found, steps.report(now, final=True)])
    assert steps.rows == 0


def test_collectives_are_reported_elsewhere() -> None:
    run = simulate(DDP, 1)
    rows: Operations = run.operations
    steps = TrainingSteps(APIS)
    steps.take(rows)
    steps.report(int(rows["start_ns"].max()))
    again = rows.copy()
    again["start_ns"] += np.uint64(10 * S)
    taken = steps.take(again)
    assert taken.any()
    assert not taken[rows["family"] == 1].any()


@pytest.mark.parametrize(("repeats", "found"), [(2, False), (3, True)])
def test_a_period_is_believed_when_it_was_seen_three_times(repeats: int, found: bool) -> None:
    """Two sums of two sizes on another thread than the copies', as often as it says, and then others."""
    collectives = np.zeros(2 * repeats + 4, dtype=COLLECTIVE)
    collectives["symbol"] = [90, 91, 92, *([5, 6] * repeats), 7]
    collectives["ordinal"] = np.arange(len(collectives))
    collectives["nature"], collectives["tid"] = Nature.REDUCE, 2
    collectives["h2d_copies"][3::2] = True
    marks = np.zeros(repeats + 1, dtype=MARK)
    marks["stretch"], marks["h2d_copy"], marks["size_bytes"] = np.arange(3, 2 * repeats + 4, 2), True, 64
    reported = Searcher(surely=False).find(collectives, marks, 0)
    assert (reported is not None) == found
    if reported is not None:
        assert (reported[0], reported[1].length, reported[1].cuts) == (9, 2, 1)


def test_counters_are_there_from_the_start() -> None:
    assert set(TrainingSteps(APIS).counters) == set(COUNTERS)
    assert (COMPUTE, H2D, D2H) == (7, 1, 2)
