"""Own times of ranks: medians of the last steps, by kind, with what tells ranks apart."""

from __future__ import annotations

import pytest

from otelgpu.engine.metrics import Metrics
from otelgpu.families.steps.step import Evidence
from otelgpu.families.steps.training.own_time import LAST, OWN_TIME, OwnTimes
from otelgpu.families.steps.training.step import Boundary, DeviceParts, StepParts, TrainingStep
from otelgpu.model.resource import resource

MS = 1_000_000
RANK = resource({"otelgpu.job.rank": 3, "otelgpu.job.id": "j7", "service.name": "train"})


def step(number: int, device: DeviceParts | None = None, **parts_ms: int) -> TrainingStep:
    return TrainingStep(
        tgid=7,
        tid=7,
        number=number,
        start_ns=number * 100 * MS,
        end_ns=(number + 1) * 100 * MS,
        boundary=Boundary.WAIT,
        confidence=1.0,
        parts=StepParts(**{f"{name}_ns": value * MS for name, value in parts_ms.items()}),
        evidence=Evidence(),
        collectives=1,
        collective_bytes=1,
        h2d_copies=1,
        h2d_copy_bytes=1,
        device=device,
    )


def value(metrics: Metrics, kind: str, rank: int = 3) -> float:
    labels = {"otelgpu.job.id": "j7", "otelgpu.job.rank": rank, "otelgpu.step.kind": kind}
    return metrics.value(OWN_TIME.name, None, **labels)


def test_it_stands_at_the_median_of_the_last_steps() -> None:
    metrics = Metrics(0)
    own = OwnTimes(metrics)
    for number in range(LAST):
        own.take([step(number, data_loader_stall=10)], RANK)
    own.take([step(LAST, data_loader_stall=5000)], RANK)
    assert value(metrics, "input") == pytest.approx(0.01)
    own.take([step(number, data_loader_stall=30) for number in range(LAST)], RANK)
    assert value(metrics, "input") == pytest.approx(0.03)


def test_waits_and_communication_are_in_none() -> None:
    metrics = Metrics(0)
    device = DeviceParts(
        device=0,
        compute_ns=20 * MS,
        exposed_communication_ns=70 * MS,
        copy_ns=4 * MS,
        idle_ns=0,
        communication_ns=80 * MS,
    )
    parts = {"communication_wait": 60, "other_wait": 20, "call": 5, "file": 1, "host_overhead": 2}
    OwnTimes(metrics).take([step(0, device, **parts)], RANK)
    found = {kind: value(metrics, kind) for kind in ("compute", "copy", "file", "host", "input")}
    assert found == pytest.approx({"compute": 0.02, "copy": 0.004, "file": 0.001, "host": 0.002, "input": 0})
    assert metrics.value(OWN_TIME.name) == pytest.approx(sum(found.values()))


def test_a_process_that_is_no_rank_has_none() -> None:
    metrics = Metrics(0)
    OwnTimes(metrics).take([step(0, host_overhead=2)], resource({"service.name": "train"}))
    assert not metrics.value(OWN_TIME.name)


def test_what_ended_begins_anew_under_its_number() -> None:
    metrics = Metrics(0)
    own = OwnTimes(metrics)
    own.take([step(number, host_overhead=10) for number in range(LAST)], RANK)
    own.keep(lambda tgid: False)
    own.take([step(0, host_overhead=30)], RANK)
    assert value(metrics, "host") == pytest.approx(0.03)
