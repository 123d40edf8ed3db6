"""Steps of loops that drive no device: parted where data is asked for, else where backward passes return."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from otelgpu.families.steps.training.step import Boundary, TrainingStep
from otelgpu.families.steps.training.steps import TrainingSteps
from otelgpu.model.operations import OperationKind, Operations, operations
from otelgpu.model.stretches import Stretch
from tests.unit.families.steps.training_loops import MAIN, MS, TGID, reported, steps_of

APIS = [{1: "cudaLaunchKernel"}, {1: "gloo::allreduce", 8: "gloo::barrier"}]
LOAD, FORWARD, BACKWARD, WAIT = 20 * MS, 30 * MS, 40 * MS, 5 * MS
STEP = LOAD + FORWARD + BACKWARD + 3 * MS
WORKER = 810


def loop(steps: int = 40, *, loads: bool = True, launches: bool = False, buckets: int = 3) -> Operations:
    """A rank as PyTorch's are on CPUs; gradients are summed on threads beside the main one."""
    random = Random(1)
    rows: list[dict[str, int]] = []

    def add(kind: OperationKind, api: int, start: int, took: int, **columns: int) -> None:
        of = {"kind": kind, "api": api, "start_ns": start, "duration_ns": took, "tid": MAIN}
        rows.append(of | columns)

    now = 700 * MS
    for _ in range(steps):
        if loads:
            add(OperationKind.STRETCH, Stretch.DATA_LOADER, now, LOAD)
        begin = now + LOAD + FORWARD + random.randrange(MS)
        if launches:
            add(OperationKind.LAUNCH, 1, begin - MS, 1000, stream=7)
        end = begin + BACKWARD
        for bucket in range(buckets):
            start = begin + (bucket + 1) * BACKWARD // 8
            size = 1 << 20 if bucket else 1 << 10
            run = {"family": 1, "handle": 0x10, "size_bytes": size, "tid": WORKER + bucket % 2}
            add(OperationKind.COLLECTIVE, 1, start, end - start - MS, **run)
        add(OperationKind.STRETCH, Stretch.COMMUNICATION_WAIT, end - WAIT, WAIT)
        add(OperationKind.STRETCH, Stretch.BACKWARD, begin, BACKWARD)
        now = end + 2 * MS
    made = operations(len(rows))
    made["tgid"], made["returned"] = TGID, 1
    for row, columns in enumerate(rows):
        for name, value in columns.items():
            made[name][row] = value
    return made


def found(rows: Operations, *, batches: int = 1) -> list[TrainingStep]:
    return steps_of(reported(rows, batches=batches, steps=TrainingSteps(APIS))[1])


@pytest.mark.parametrize("buckets", [1, 3])
@pytest.mark.parametrize("batches", [1, 4])
def test_a_step_begins_where_data_is_asked_for(buckets: int, batches: int) -> None:
    steps = found(loop(buckets=buckets), batches=batches)
    assert len(steps) > 20
    for step in steps[:-1]:  # after the last one no data is asked for
        assert step.boundary is Boundary.DATA_LOADER
        assert step.collectives == buckets
        assert step.tid == MAIN
        parts = step.parts
        assert parts.total_ns == step.duration_ns
        assert (parts.data_loader_stall_ns, parts.communication_wait_ns) == (LOAD, WAIT)
        assert parts.call_ns == 0
        assert abs(parts.host_overhead_ns - (STEP - LOAD - WAIT)) < 2 * MS


def test_without_a_data_loader_it_ends_where_a_backward_pass_returns() -> None:
    steps = found(loop(loads=False))
    assert len(steps) > 20
    for step in steps:
        assert step.boundary is Boundary.BACKWARD
        assert step.parts.communication_wait_ns == WAIT
        assert step.parts.data_loader_stall_ns == 0
        assert abs(step.duration_ns - STEP) < 2 * MS


def test_of_a_program_that_drives_a_device_stretches_say_nothing() -> None:
    assert found(loop(launches=True)) == []  # no copy and no wait parts its steps


def test_without_any_of_them_there_are_no_steps() -> None:
    rows = loop()
    assert found(rows.compress(rows["kind"] == OperationKind.COLLECTIVE)) == []


def mpi_loop(*, calls: int = 1, launches: bool = False) -> Operations:
    """A rank of an MPI program: it computes, and sums with the others, on one thread; some ``calls`` in a row."""
    made = operations(40 * (calls + launches))
    made["tgid"], made["tid"], made["returned"] = TGID, MAIN, 1
    for step, rows in enumerate(made.reshape(40, -1)):
        begin = 700 * MS + step * STEP
        for call, row in enumerate(rows[:calls]):
            row["kind"], row["family"], row["api"], row["handle"] = OperationKind.COLLECTIVE, 2, 1, 0x44000000
            row["start_ns"], row["duration_ns"] = begin + call * WAIT, WAIT - MS
        for row in rows[calls:]:
            row["kind"], row["api"], row["stream"] = OperationKind.LAUNCH, 1, 7
            row["start_ns"], row["duration_ns"] = begin + 50 * MS, 1000
    return made


@pytest.mark.parametrize("calls", [1, 3])
def test_a_program_that_calls_collectives_itself_is_parted_where_they_return(calls: int) -> None:
    rows = mpi_loop(calls=calls)
    rows["size_bytes"] = np.arange(len(rows)) % calls
    steps = steps_of(reported(rows, steps=TrainingSteps([*APIS, {1: "MPI_Allreduce"}]))[1])
    assert len(steps) > 20
    for step in steps:
        assert (step.boundary, step.tid, step.collectives) == (Boundary.COLLECTIVE, MAIN, calls)
        assert (step.duration_ns, step.parts.total_ns) == (STEP, STEP)
        assert step.parts.communication_wait_ns == calls * (WAIT - MS)
        assert step.parts.host_overhead_ns == STEP - calls * (WAIT - MS)


def test_an_mpi_program_that_drives_a_device_is_parted_by_what_it_does_there() -> None:
    rows = mpi_loop(launches=True)
    assert steps_of(reported(rows, steps=TrainingSteps([*APIS, {1: "MPI_Allreduce"}]))[1]) == []


def test_what_repeats_many_times_a_millisecond_is_no_step() -> None:
    """Also after some that were: an iteration of a solver is within a step."""
    slow = 10
    rows = operations(slow + 3000)
    rows["tgid"], rows["tid"], rows["returned"] = TGID, MAIN, 1
    rows["kind"], rows["family"], rows["api"], rows["handle"] = OperationKind.COLLECTIVE, 2, 1, 0x44000000
    rows["start_ns"] = 700 * MS + np.cumsum(np.where(np.arange(len(rows)) < slow, STEP, MS // 10))
    rows["duration_ns"] = 1000
    assert len(steps_of(reported(rows, steps=TrainingSteps([*APIS, {1: "MPI_Allreduce"}]))[1])) < 80
