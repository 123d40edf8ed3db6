"""Steps of training whose device time is measured: they wait for it, and report it in attributes and metrics."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from otelgpu.engine.metrics import Metrics
from otelgpu.engine.totals import Totals
from otelgpu.families.steps.training.device import SETTLE_NS
from otelgpu.families.steps.training.metrics import DEVICE_COMMUNICATION, DEVICE_PARTS, DEVICE_TIME
from otelgpu.families.steps.training.steps import TrainingSteps
from otelgpu.families.steps.training.training_steps import TrainingSession
from otelgpu.model.device_work import ACTIVITY, Activities, Work, causes_work
from otelgpu.model.operations import OperationKind, concatenate
from otelgpu.model.resource import resource
from tests.rig.spans import ns_of
from tests.unit.families.steps.training_loops import APIS, MS, TGID, US, Plan, S, simulate

TICK = 100 * MS
NAMES = {1: "forward_layer(float*)", 2: "ncclDevKernel_AllReduce_Sum_f32_RING_LL"}
DEVICE = "otelgpu.step.device."
KEYS = tuple(f"{part}.duration" for part in DEVICE_PARTS)


def exported(key: str, value: float) -> int:
    """A number of a device; of times the nanoseconds."""
    return ns_of(value) if key.endswith(".duration") else int(value)


class Measured:
    """A rank; each of its calls is followed by work of 3 us, which is reported ``late_ns`` after it was done.

    Collectives' work lasts for 18 us; no call of theirs is seen to launch it.
    """

    def __init__(self, late_ns: int, *, unmeasured: tuple[int, int] = (0, 0)) -> None:
        self.run = simulate(Plan(steps=60), 5)
        rows = self.run.operations
        self.metrics = Metrics(0)
        self.session = TrainingSession(
            TrainingSteps(APIS),
            self.metrics,
            Totals([]),
            lambda _: resource({}),
            seed=1,
            kernel_name=lambda _, name: NAMES.get(name, ""),
        )
        outside = (rows["start_ns"] >= unmeasured[0]) & (rows["start_ns"] < unmeasured[1])
        reported = np.where(causes_work(rows) & ~outside, np.arange(1, len(rows) + 1), 0).astype(np.uint64)
        self.work = self._work(reported)
        ends = rows["start_ns"] + rows["duration_ns"]
        done = self.work["start_ns"] + self.work["duration_ns"] + late_ns
        self.spans: list[tuple[int, int, dict[str, Any]]] = []
        self.reported_at: list[int] = []
        self.taken = self.returned = 0
        last = int(ends.max()) + 4 * S
        for now in range(TICK, last, TICK):
            self.session.see_activities(self.work.compress((done > now - TICK) & (done <= now)))
            fed = (ends > now - TICK) & (ends <= now)
            self.session.see_calls(rows.compress(fed), reported[fed])
            self.taken += int(np.count_nonzero(self.session.take(rows.compress(fed))))
            self._report(now, final=False)
        self._report(last, final=True)

    def _work(self, reported: np.ndarray[Any, np.dtype[np.uint64]]) -> Activities:
        rows = self.run.operations
        moves = rows["kind"] == OperationKind.COLLECTIVE
        chosen = np.flatnonzero((reported != 0) | moves)
        work = np.zeros(len(chosen), dtype=ACTIVITY)
        mine = rows[chosen]
        work["tgid"], work["work"] = TGID, Work.KERNEL
        work["start_ns"] = mine["start_ns"] + 2 * US
        work["duration_ns"], work["name"] = 3 * US, 1
        work["correlation"] = np.where(moves[chosen], len(rows) + 1 + chosen, reported[chosen])
        work["duration_ns"][moves[chosen]], work["name"][moves[chosen]] = 18 * US, 2
        copies = mine["kind"] == OperationKind.COPY
        work["work"][copies], work["name"][copies] = Work.COPY, 0
        return work

    def _report(self, now: int, *, final: bool) -> None:
        reported = self.session.report(now, offset_ns=0, final=final)
        if reported is None:
            return
        self.returned += len(reported.work) + len(reported.rest)
        starts = np.concatenate(
            [np.zeros(0, dtype=np.uint64), *(each.start_unix_ns for each in reported.spans)]
        )
        ends = np.concatenate([np.zeros(0, dtype=np.uint64), *(each.end_unix_ns for each in reported.spans)])
        called = reported.work.operations["start_ns"]
        assert ((called >= starts[reported.work.group]) & (called < ends[reported.work.group])).all()
        for batch in reported.spans:
            tables = {each.key: each for each in batch.attributes if each.key.startswith(DEVICE)}
            for at in range(len(batch.name.codes)):
                values = {
                    key.removeprefix(DEVICE): exported(key, each.values[at])  # type: ignore[index]
                    for key, each in tables.items()
                    if each.present is None or each.present[at]
                }
                self.spans.append((int(batch.start_unix_ns[at]), int(batch.end_unix_ns[at]), values))
                self.reported_at.append(now)


@pytest.mark.parametrize("late_ns", [0, S])
def test_parts_of_the_device_are_in_the_spans_and_the_metrics(late_ns: int) -> None:
    seen = Measured(late_ns)
    assert len(seen.spans) > 30 and seen.spans == sorted(seen.spans, key=lambda span: span[0])
    assert seen.returned == seen.taken
    for (start, end, values), reported_at in zip(seen.spans, seen.reported_at, strict=True):
        work = seen.work.compress((seen.work["start_ns"] >= start) & (seen.work["start_ns"] < end))
        assert values["index"] == 0
        assert sum(values[key] for key in KEYS) == end - start
        assert values["communication.duration"] == 18 * US * np.count_nonzero(work["name"] == 2)
        assert values["exposed_communication.duration"] <= values["communication.duration"]
        assert 0 < values["compute.duration"] <= 3 * US * np.count_nonzero(work["name"] == 1)
        assert values["copy.duration"] == 3 * US * np.count_nonzero(work["work"] == Work.COPY)
        assert reported_at >= end + SETTLE_NS or reported_at == seen.reported_at[-1]
    for part, key in zip(DEVICE_PARTS, KEYS, strict=True):
        total = sum(values[key] for _, _, values in seen.spans)
        assert ns_of(seen.metrics.value(DEVICE_TIME.name, None, **{"otelgpu.step.part": part})) == total
    moved = sum(values["communication.duration"] for _, _, values in seen.spans)
    assert 0 < sum(values["exposed_communication.duration"] for _, _, values in seen.spans) < moved
    assert ns_of(seen.metrics.value(DEVICE_COMMUNICATION.name)) == moved
    assert not any(seen.session.counters.values())


def test_steps_between_slices_have_no_parts_and_are_reported_all_the_same() -> None:
    whole = Measured(0)
    outside = whole.run.truth[30][0] + 1, whole.run.truth[40][0]
    seen = Measured(0, unmeasured=outside)
    assert [span[:2] for span in seen.spans] == [span[:2] for span in whole.spans]
    for (start, end, values), (_, _, wanted) in zip(seen.spans, whole.spans, strict=True):
        # The last call before a slice may have left work until the slice's first.
        assert values == ({} if end > outside[0] and start <= outside[1] else wanted)
    lacking = sum(not values for _, _, values in seen.spans)
    assert lacking in (10, 11)
    assert seen.session.counters["steps_beyond_device_slices"] == lacking


def test_work_that_never_comes_delays_a_step_and_is_no_part() -> None:
    seen = Measured(60 * S)
    assert len(seen.spans) > 30 and not any(values for _, _, values in seen.spans)
    assert seen.session.counters["steps_with_device_work_missing"] == len(seen.spans)
    assert seen.returned == seen.taken


def test_too_many_operations_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("otelgpu.families.steps.training.training_steps.OPERATIONS_HELD", 10)
    seen = Measured(S)
    at = [reported_at - end for (_, end, _), reported_at in zip(seen.spans, seen.reported_at, strict=True)]
    assert len(at) > 30 and max(at[:-1]) < SETTLE_NS


def test_processes_that_measure_nothing_do_not_wait() -> None:
    """One of two: each has its own operations, whoever waits."""
    run = simulate(Plan(steps=40), 6)
    rows = concatenate([run.operations, run.operations])
    rows["tgid"][len(run.operations) :] = TGID + 1
    reported = np.where(causes_work(rows) & (rows["tgid"] == TGID), np.arange(1, len(rows) + 1), 0).astype(
        np.uint64
    )
    session = TrainingSession(
        TrainingSteps(APIS), Metrics(0), Totals([]), lambda tgid: resource({"p": tgid}), seed=1
    )
    ends = rows["start_ns"] + rows["duration_ns"]
    late: dict[int, int] = {}
    for now in range(TICK, int(ends.max()) + 5 * S, TICK):
        fed = (ends > now - TICK) & (ends <= now)
        session.see_calls(rows.compress(fed), reported[fed])
        session.take(rows.compress(fed))
        step = session.report(now, offset_ns=0, final=False)
        if step is None or not step.spans:
            continue
        owners = [
            int(str(dict(batch.resource.attributes)["p"])) for batch in step.spans for _ in batch.name.codes
        ]
        parents = {bytes(one): owner for one, owner in zip(step.parents.span_id, owners, strict=True)}
        assert len(parents) == len(owners)
        for row, of in zip(step.work.operations, step.work.group, strict=True):
            assert int(row["tgid"]) == owners[of]
        for batch in step.spans:
            tgid = int(str(dict(batch.resource.attributes)["p"]))
            late[tgid] = max(late.get(tgid, 0), now - int(batch.end_unix_ns.max()))
    assert late[TGID + 1] < S < SETTLE_NS < late[TGID]
