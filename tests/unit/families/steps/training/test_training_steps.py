"""Steps of training as spans, metrics and what collectives link to; and all of it is in the manual."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from otelgpu.engine.metrics import Metrics
from otelgpu.engine.totals import Totals
from otelgpu.families.steps.serving.engine_steps import StepsReport
from otelgpu.families.steps.training import names as training_names
from otelgpu.families.steps.training.descriptions import DESCRIPTIONS
from otelgpu.families.steps.training.metrics import DURATION, METRICS, PARTS, TIME
from otelgpu.families.steps.training.step import StepParts
from otelgpu.families.steps.training.steps import TrainingSteps
from otelgpu.families.steps.training.training_steps import TrainingSession
from otelgpu.model.context import UNSETTLED, Context
from otelgpu.model.context_sources import ContextSource
from otelgpu.model.operations import concatenate
from otelgpu.model.resource import resource
from otelgpu.model.spans import SpanColumns, Text
from tests.rig.spans import ns_of
from tests.unit.families.steps.training_loops import APIS, MS, TGID, Plan, Run, simulate

PAGE = DESCRIPTIONS.pages["training attributes"].rows

OFFSET = 1_000_000 * MS
RANK = resource({"service.name": "rank"})


class Observed:
    """All that is reported of a simulated rank."""

    def __init__(self, seed: int = 3) -> None:
        self.run: Run = simulate(Plan(), 1)
        self.metrics = Metrics(0)
        self.session = TrainingSession(
            TrainingSteps(APIS), self.metrics, Totals([]), lambda _: RANK, seed=seed
        )
        rows = self.run.operations
        ends = rows["start_ns"] + rows["duration_ns"]
        found: list[StepsReport | None] = []
        self.taken = 0
        last = int(ends.max())
        for now in range(100 * MS, last + 200 * MS, 100 * MS):
            fed = rows.compress((ends > now - 100 * MS) & (ends <= now))
            self.taken += int(np.count_nonzero(self.session.take(fed)))
            found.append(self.session.report(now, offset_ns=OFFSET, final=False))
        self.during = self.session.step_at(TGID, 1, last)
        found.append(self.session.report(last, offset_ns=OFFSET, final=True))
        self.reported = [each for each in found if each is not None]
        self.batches: list[SpanColumns] = [batch for each in self.reported for batch in each.spans]


@pytest.fixture(scope="module")
def observed() -> Observed:
    return Observed()


def column(observed: Observed, key: str) -> list[Any]:
    found: list[Any] = []
    for batch in observed.batches:
        (attribute,) = (each for each in batch.attributes if each.key == key)
        assert attribute.present is None
        values = attribute.values
        found += (
            [values.table[code] for code in values.codes] if isinstance(values, Text) else values.tolist()
        )
    return found


def test_steps_are_roots_of_traces_of_their_own(observed: Observed) -> None:
    for batch in observed.batches:
        assert (batch.resource, batch.scope, batch.name.table) == (
            RANK,
            "otelgpu.training",
            ("training step",),
        )
        assert not batch.parent_span_id.any()
    traces = np.concatenate([batch.trace_id for batch in observed.batches])
    assert len(np.unique(traces, axis=0)) == len(traces) > 10
    bounds = [
        (int(start) - OFFSET, int(end) - OFFSET)
        for batch in observed.batches
        for start, end in zip(batch.start_unix_ns, batch.end_unix_ns, strict=True)
    ]
    assert set(bounds) <= set(observed.run.truth)


def test_the_parts_add_up_to_the_span(observed: Observed) -> None:
    parts = ("call", "host_to_device_copy", "wait", "data_loader_stall", "host_overhead")
    seconds = [column(observed, f"otelgpu.step.{part}.duration") for part in parts]
    sums = np.sum([[ns_of(value) for value in each] for each in seconds], axis=0)
    durations = np.concatenate([batch.end_unix_ns - batch.start_unix_ns for batch in observed.batches])
    assert (sums == durations).all()


def test_calls_are_under_their_steps(observed: Observed) -> None:
    for reported in observed.reported:
        assert (reported.work.operations["context_source"] == ContextSource.STEP).all()
        spans = np.concatenate([batch.span_id for batch in reported.spans]) if reported.spans else None
        if spans is not None:
            assert (reported.parents.span_id == spans).all()
            assert reported.work.group.max() < len(spans)
    returned = sum(len(reported.work) + len(reported.rest) for reported in observed.reported)
    assert returned == observed.taken
    assert len(concatenate([reported.work.operations for reported in observed.reported])) > 100


def test_a_collective_links_to_the_step_that_is_reported(observed: Observed) -> None:
    batch = observed.batches[0]
    start = int(batch.start_unix_ns[0]) - OFFSET
    context = observed.session.step_at(TGID, 5, start + 1)
    assert context == Context(batch.trace_id[0].tobytes(), batch.span_id[0].tobytes(), 1)
    assert observed.session.step_at(TGID, 5, observed.run.truth[0][0]) is None
    assert observed.during is UNSETTLED


def test_ids_are_those_of_the_seed(observed: Observed) -> None:
    again, other = Observed(), Observed(seed=4)
    assert (again.batches[0].trace_id == observed.batches[0].trace_id).all()
    assert (other.batches[0].trace_id != observed.batches[0].trace_id).any()


def test_metrics_are_sums_of_the_steps(observed: Observed) -> None:
    seconds = observed.metrics.value(DURATION.name)
    durations = sum(int((batch.end_unix_ns - batch.start_unix_ns).sum()) for batch in observed.batches)
    assert seconds == pytest.approx(durations * 1e-9)
    by_part = [observed.metrics.value(TIME.name, None, **{training_names.PART: part}) for part in PARTS]
    assert sum(ns_of(each) for each in by_part) == durations == ns_of(observed.metrics.value(TIME.name))


def test_every_part_has_a_name() -> None:
    assert len(PARTS) == len(StepParts.__struct_fields__)


def test_all_names_are_in_the_manual(observed: Observed) -> None:
    text = (Path(__file__).parents[5] / "docs" / "reference" / "steps.md").read_text()
    reported = {each.key for batch in observed.batches for each in batch.attributes}
    named = {value for name, value in vars(training_names).items() if name.isupper()}
    assert reported - PAGE.keys() <= {"otelgpu.hints", "otelgpu.hint.host_overhead"}
    wanted = (reported | named | PAGE.keys()) - {training_names.SCOPE}
    assert sorted(name for name in wanted if f"`{name}`" not in text) == []
    assert [metric.name for metric in METRICS if not metric.name.startswith("otelgpu.training.step.")] == []
