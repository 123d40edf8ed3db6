"""What devices did in steps of training: against a count of nanoseconds, and only of what was measured whole."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.families.steps.step import Evidence
from otelgpu.families.steps.training.device import (
    COUNTERS,
    DONE_NS,
    GRACE_NS,
    SETTLE_NS,
    WORK,
    TrainingDevices,
    parts_within,
)
from otelgpu.families.steps.training.step import Boundary, DeviceParts, StepParts, TrainingStep
from otelgpu.model.device_work import ACTIVITY, Activities, Work
from otelgpu.model.operations import OperationKind, Operations, operations
from tests.rig.examples import examples

TGID, OTHER = 800, 801
NAMES = {1: "forward_layer", 2: "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"}
S = 1_000_000_000
BEGIN, END = 100 * S, 100 * S + 1000


def counted(rows: list[tuple[int, int, int]], bounds: tuple[int, int]) -> tuple[int, ...]:
    """Nanosecond by nanosecond: compute, exposed communication, copy, idle, communication."""
    sums = [0] * 5
    for now in range(*bounds):
        kinds = {kind for start, end, kind in rows if start <= now < end}
        first = next((kind for kind in (0, 1, 2) if kind in kinds), 3)
        sums[first] += 1
        sums[4] += 1 in kinds
    return tuple(sums)


def as_tuple(parts: DeviceParts) -> tuple[int, ...]:
    return (
        parts.compute_ns,
        parts.exposed_communication_ns,
        parts.copy_ns,
        parts.idle_ns,
        parts.communication_ns,
    )


_ROW = st.tuples(st.integers(-5, 45), st.integers(0, 20), st.integers(0, 2))


@examples(50)
@given(st.lists(st.tuples(_ROW, st.integers(0, 1)), min_size=1, max_size=12), st.integers(1, 40))
def test_parts_are_those_of_a_count_of_nanoseconds(
    rows: list[tuple[tuple[int, int, int], int]], end: int
) -> None:
    work = np.zeros(len(rows), dtype=WORK)
    work["start_ns"] = [start for (start, _, _), _ in rows]
    work["end_ns"] = [start + took for (start, took, _), _ in rows]
    work["device"] = [device for _, device in rows]
    kinds = np.array([kind for (_, _, kind), _ in rows], dtype=np.intp)
    parts = parts_within(work, kinds, (0, end))
    by_device = {
        device: counted([(a, a + took, kind) for (a, took, kind), of in rows if of == device], (0, end))
        for device in {device for _, device in rows}
    }
    assert as_tuple(parts) == by_device[parts.device]
    assert parts.total_ns == end
    assert parts.idle_ns == min(each[3] for each in by_device.values())


def step(start_ns: int = BEGIN, end_ns: int = END, tgid: int = TGID) -> TrainingStep:
    return TrainingStep(
        tgid=tgid,
        tid=tgid,
        number=1,
        start_ns=start_ns,
        end_ns=end_ns,
        boundary=Boundary.H2D_COPY,
        confidence=1.0,
        parts=StepParts(),
        evidence=Evidence(),
        collectives=1,
        collective_bytes=1,
        h2d_copies=1,
        h2d_copy_bytes=1,
    )


def calls(*rows: dict[str, Any]) -> tuple[Operations, np.ndarray[Any, np.dtype[np.uint64]]]:
    """``id`` is the correlation, 0: not measured."""
    made = operations(len(rows))
    made["tgid"], made["tid"], made["kind"], made["returned"] = TGID, TGID, OperationKind.LAUNCH, 1
    made["stream"] = 7
    for at, row in enumerate(rows):
        for column, value in row.items():
            if column != "id":
                made[column][at] = value
    return made, np.array([row["id"] for row in rows], dtype=np.uint64)


def done(*rows: tuple[int, int, int], work: Work = Work.KERNEL, name: int = 1, device: int = 0) -> Activities:
    """Correlation, start and end of each."""
    made = np.zeros(len(rows), dtype=ACTIVITY)
    made["tgid"], made["work"], made["name"], made["device"] = TGID, work, name, device
    for at, (correlation, start, end) in enumerate(rows):
        made["correlation"][at], made["start_ns"][at], made["duration_ns"][at] = (
            correlation,
            start,
            end - start,
        )
    return made


def devices() -> TrainingDevices:
    """Of a process that was measured before: its first call and work are long over."""
    made = TrainingDevices(lambda tgid: tgid == TGID, lambda _, name: NAMES.get(name, ""))
    made.see_calls(*calls({"start_ns": BEGIN - 20 * S, "id": 1}))
    made.see_activities(done((1, BEGIN - 20 * S, BEGIN - 20 * S + 5)))
    return made


LATER = END + SETTLE_NS
"""When a step is reported of whose work has come."""


def test_a_step_that_was_measured_is_reported() -> None:
    seen = devices()
    seen.see_calls(*calls({"start_ns": BEGIN, "id": 2}, {"start_ns": BEGIN + 10, "id": 3, "stream": 9}))
    seen.see_activities(done((2, BEGIN + 100, BEGIN + 400)))
    seen.see_activities(done((3, BEGIN + 300, BEGIN + 600), name=2))
    seen.see_activities(done((4, BEGIN + 550, BEGIN + 700), work=Work.COPY, name=0))  # its call is not seen
    assert seen.settle(step(), LATER - 1, final=False) == (False, None)
    settled, parts = seen.settle(step(), LATER, final=False)
    assert settled and parts is not None
    assert as_tuple(parts) == (300, 200, 100, 400, 300)
    assert not any(seen.counters.values())


def without(seen: TrainingDevices, reason: str, *, now_ns: int = LATER) -> None:
    assert seen.settle(step(), now_ns, final=False) == (True, None)
    assert {name: count for name, count in seen.counters.items() if count} == {reason: 1}
    assert reason in COUNTERS


def test_a_call_between_slices_makes_a_step_unknown_at_once() -> None:
    seen = devices()
    seen.see_calls(*calls({"start_ns": BEGIN, "id": 2}, {"start_ns": BEGIN + 10, "id": 0}))
    seen.see_activities(done((2, BEGIN + 100, BEGIN + 400)))
    without(seen, "steps_beyond_device_slices", now_ns=END)


@pytest.mark.parametrize(("began", "reported"), [(0, True), (1, False)])
def test_what_was_queued_before_a_slice_is_over_when_later_work_of_its_stream_begins(
    began: int, reported: bool
) -> None:
    seen = devices()
    seen.see_calls(*calls({"start_ns": BEGIN - 500, "id": 0}, {"start_ns": BEGIN - 400, "id": 2}))
    seen.see_activities(done((2, BEGIN + began, BEGIN + 200)))
    if reported:
        settled, parts = seen.settle(step(), LATER, final=False)
        assert settled and parts is not None and parts.compute_ns == 200 - began
    else:
        without(seen, "steps_beyond_device_slices")


def test_work_of_another_stream_ends_nothing() -> None:
    for column, value in (("stream", 9), ("stream", 0)):
        seen = devices()
        seen.see_calls(
            *calls({"start_ns": BEGIN - 500, "id": 0}, {"start_ns": BEGIN - 400, "id": 2, column: value})
        )
        seen.see_activities(done((2, BEGIN - 100, BEGIN + 200)))
        without(seen, "steps_beyond_device_slices", now_ns=LATER)


def test_threads_do_not_share_a_default_stream_for_sure() -> None:
    seen = devices()
    first = {"start_ns": BEGIN - 500, "id": 0, "stream": 2}
    seen.see_calls(*calls(first, {"start_ns": BEGIN - 400, "id": 2, "stream": 2, "tid": 805}))
    seen.see_activities(done((2, BEGIN - 100, BEGIN + 200)))
    without(seen, "steps_beyond_device_slices")


def test_what_was_queued_long_ago_is_over() -> None:
    for ago, reported in ((DONE_NS, True), (DONE_NS - 1, False)):
        seen = devices()
        seen.see_calls(*calls({"start_ns": BEGIN - ago, "id": 0, "stream": 5}))
        seen.see_activities(done((2, BEGIN, BEGIN + 1)))
        assert (seen.settle(step(), LATER, final=False)[1] is not None) is reported


def test_the_last_of_many_calls_between_slices_counts_as_the_first_does() -> None:
    seen = devices()
    ago = BEGIN - DONE_NS
    seen.see_calls(*calls(*({"start_ns": ago + at * S // 10, "id": 0, "stream": 5} for at in range(1, 6))))
    later = step(BEGIN + S // 2 - 10, BEGIN + S // 2 + 10)
    seen.see_activities(done((2, later.start_ns, later.end_ns)))
    assert seen.settle(later, later.end_ns + SETTLE_NS, final=False) == (True, None)


def test_work_is_waited_for_and_what_does_not_come_is_missing() -> None:
    seen = devices()
    seen.see_calls(*calls({"start_ns": BEGIN, "id": 2}, {"start_ns": BEGIN + 10, "id": 3}))
    seen.see_activities(done((2, BEGIN + 100, BEGIN + 400)))
    assert seen.settle(step(), END + GRACE_NS - 1, final=False) == (False, None)
    without(seen, "steps_with_device_work_missing", now_ns=END + GRACE_NS)


def test_a_call_that_failed_has_no_work() -> None:
    seen = devices()
    seen.see_calls(*calls({"start_ns": BEGIN, "id": 2, "status": 1}))
    seen.see_activities(done((3, BEGIN + 100, BEGIN + 400)))
    assert seen.settle(step(), LATER, final=False)[1] is not None


def test_a_kernel_without_a_name_is_not_guessed_at() -> None:
    seen = devices()
    seen.see_activities(done((2, BEGIN + 100, BEGIN + 400), name=3))
    without(seen, "steps_with_device_work_missing")


def test_losses_make_the_steps_under_way_unknown_and_no_later_ones() -> None:
    seen = devices()
    seen.see_activities(done((2, BEGIN + 100, BEGIN + 400), (3, END + 5 * S, END + 5 * S + 7)))
    seen.lose()
    seen.prune(END, [step()])
    without(seen, "steps_with_device_records_lost")
    later = step(END + 5 * S - 1, END + 6 * S)
    assert seen.settle(later, later.end_ns + SETTLE_NS, final=False)[1] is not None


def test_a_step_before_the_first_call_that_was_seen_is_unknown() -> None:
    seen = TrainingDevices(lambda _: True, lambda _, name: NAMES.get(name, ""))
    seen.see_calls(*calls({"start_ns": BEGIN + 1, "id": 2}))
    seen.see_activities(done((2, BEGIN + 100, BEGIN + 400)))
    without(seen, "steps_beyond_device_slices")


def test_names_are_known_after_the_process_has_ended() -> None:
    names = dict(NAMES)
    seen = TrainingDevices(lambda _: True, lambda _, name: names.get(name, ""))
    seen.see_calls(*calls({"start_ns": BEGIN - S, "id": 1}))
    seen.see_activities(done((1, BEGIN + 100, BEGIN + 400)))
    seen.prune(BEGIN, [])
    seen.forget_process(TGID)
    names.clear()
    assert seen.settle(step(), END, final=False)[1] is not None
    seen.prune(END, [])
    assert not seen.measures(TGID)


def test_processes_that_measure_nothing_are_not_followed() -> None:
    seen = TrainingDevices(lambda _: True, lambda *_: "")
    seen.see_calls(*calls({"start_ns": BEGIN, "id": 0}))
    assert not seen.measures(TGID) and seen.settle(step(), END, final=False) == (True, None)
    seen.see_calls(*calls({"start_ns": BEGIN, "id": 1}))
    assert seen.measures(TGID) and not any(seen.counters.values())


@examples(4)
@given(st.integers(0, 1 << 30), st.integers(1, 7), st.integers(1, 7))
def test_what_is_reported_depends_on_no_cut(seed: int, call_cuts: int, work_cuts: int) -> None:
    """Slices come and go; the same calls and work in other batches report the same of every step."""
    random = np.random.default_rng(seed)
    begins = BEGIN + np.sort(random.integers(0, 8000, 400)) * 1_000_000
    slices = (begins // (S // 2)) % 3 != 2
    ids = np.where(slices, np.arange(10, 410), 0)
    some = [
        {"start_ns": int(begin), "id": int(number), "stream": int(stream), "tid": 800 + int(stream) % 2}
        for begin, number, stream in zip(begins, ids, random.integers(0, 6, 400), strict=True)
    ]
    work = done(
        *((row["id"], row["start_ns"] + 5, row["start_ns"] + 9_000_000) for row in some if row["id"]), name=1
    )
    steps = [step(int(a), int(b)) for a, b in pairwise(range(BEGIN, BEGIN + 8 * S, S // 10))]

    def reported(calls_cut: int, work_cut: int) -> list[DeviceParts | None]:
        seen = devices()
        for part in np.array_split(random.permutation(400), calls_cut):
            seen.see_calls(*calls(*(some[at] for at in part)))
        for part in np.array_split(random.permutation(len(work)), work_cut):
            seen.see_activities(work.take(part))
            seen.prune(BEGIN, steps)
        return [seen.settle(each, BEGIN + 20 * S, final=False)[1] for each in steps]

    once = reported(1, 1)
    assert reported(call_cuts, work_cuts) == once
    assert any(once) and not all(once)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("otelgpu.families.steps.training.device.ROWS", 10)
    seen = devices()
    seen.see_activities(done(*((at, BEGIN + 10 * at, BEGIN + 10 * at + 5) for at in range(2, 30))))
    seen.prune(END, [step()])
    assert len(seen._processes[TGID].work) == 10
    without(seen, "steps_beyond_device_slices")
