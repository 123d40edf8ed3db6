"""Device time from records to spans: under the request, its phase, or the window that its host call is in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from otelgpu.engine.attribution.owners import Attribution
from otelgpu.engine.attribution.threads import ThreadTimeline
from otelgpu.engine.attribution.unattributed import WINDOW_NS, UnattributedWindows, window_roots
from otelgpu.engine.folding import Parents
from otelgpu.engine.metrics import Metrics
from otelgpu.engine.summary import Summary
from otelgpu.engine.totals import Totals
from otelgpu.families.gpu.device_time.device_work import DeviceSession
from otelgpu.families.requests.identities import Identities
from otelgpu.families.requests.spans import SLOTS, boundaries, contexts
from otelgpu.model.device_work import ACTIVITY, Work
from otelgpu.model.inputs import FunctionNamed
from otelgpu.model.operations import OperationKind
from otelgpu.model.spans import SpanColumns
from tests.unit.families.gpu.device_time.test_names import pieces
from tests.unit.families.gpu.device_time.test_spans import VOCABULARY
from tests.unit.model.builders import LLM, MS, Row, assignment, calls, exchange, generation, read_out

REQUEST = 1
NAMES = {(100, 0xAB): 1}


class Session:
    """A session whose thread 101 works for exchange 1 from 10 to 100 ms, and who was answered by then."""

    def __init__(self, limit: int = 10) -> None:
        self.answered: dict[int, Parents] = {}
        self.timeline = ThreadTimeline()
        self.timeline.apply([assignment(10 * MS, REQUEST), assignment(100 * MS, REQUEST, begins=False)])
        windows = UnattributedWindows(Totals([]), limit=limit, runs=True)
        attribution = Attribution(self.timeline, windows, Summary(), lambda work, parents: None)
        self.reasons = attribution.reasons
        self.metrics = Metrics(0)
        self.made = DeviceSession(
            self.metrics,
            VOCABULARY,
            seed=7,
            limit=limit,
            resource_of=lambda _: LLM,
            name_of=lambda tgid, number: NAMES.get((tgid, number), 0),
        )
        self.begin()

    def begin(self) -> None:
        rows = np.zeros(1, dtype=ACTIVITY)
        rows["tgid"] = 100
        self.made.add_activities(rows, 0)

    def call(self, *ids: int, **columns: Any) -> None:
        self.made.add_calls(calls(len(ids), other=np.array(ids, np.uint64), **columns), 0)

    def work(self, *ids: int, **columns: Any) -> None:
        rows = np.zeros(len(ids), dtype=ACTIVITY)
        rows["correlation"], rows["tgid"], rows["work"], rows["name"] = ids, 100, Work.KERNEL, 0xAB
        rows["start_ns"], rows["duration_ns"] = 500 * MS + np.arange(len(ids)), 5000
        for column, value in columns.items():
            rows[column] = value
        self.made.add_activities(rows, 0)

    def reported(self, now_ns: int = 0, *, final: bool = False) -> list[Row]:
        def is_finished(keys: Any) -> Any:
            return np.array([key in self.answered for key in keys.tolist()], dtype=np.bool_)

        found = (self.timeline, self.reasons, self.answered.get, is_finished)
        return read_out(self.made.report(now_ns, *found, offset_ns=0, final=final))

    def answer(self, *, sampled: bool = True) -> tuple[list[Row], Parents]:
        done = [exchange(REQUEST, generation=generation(first_content_ns=50 * MS))]
        known = Identities(7, lambda opened: 0)
        identities = contexts(done, [known.of(each) for each in done], 7)
        spans: list[SpanColumns] = self.made.answer(
            done, boundaries(done), np.array([sampled]), identities.parents, offset_ns=0
        )
        return read_out(spans), identities.parents


def test_work_waits_for_its_request_and_goes_under_the_phase_of_its_call() -> None:
    session = Session()
    session.call(7, 8, start_ns=[40 * MS, 60 * MS])
    session.work(7, 8)
    assert session.reported() == []
    rows, parents = session.answer()
    # Both ran long after the request; the calls were made in its prefill and in its decode.
    assert {row["cuda.correlation.id"]: row.parent_id for row in rows} == {
        7: parents.span_id[SLOTS - 2].tobytes().hex(),
        8: parents.span_id[SLOTS - 1].tobytes().hex(),
    }
    assert {row.name for row in rows} == {"flash_fwd"}
    assert {row["otelgpu.context.source"] for row in rows} == {"thread"}
    assert {row.start_ns for row in rows} == {500 * MS, 500 * MS + 1}


def test_work_of_a_request_that_was_answered_is_reported_at_once() -> None:
    session = Session()
    session.answered[REQUEST] = Parents(
        trace_id=np.full((1, 16), 5, np.uint8),
        span_id=np.full((1, 8), 6, np.uint8),
        flags=np.ones(1, np.uint32),
    )
    session.call(7, start_ns=40 * MS)
    session.work(7)
    (row,) = session.reported()
    assert (row.trace_id, row.parent_id) == ("05" * 16, "06" * 8)


def test_work_without_a_request_is_in_the_window_of_its_host_call() -> None:
    session = Session()
    session.call(7, 8, start_ns=[200 * MS, WINDOW_NS - MS // 2])
    session.work(7, 8, start_ns=2 * WINDOW_NS)
    rows = session.reported()
    ends = {7: 0, 8: 1}  # the second call lasts 1 ms, into the next window
    for row in rows:
        words = [np.array([word], np.uint64) for word in (100, ends[row["cuda.correlation.id"]], 0)]
        root = window_roots(*words, seed=7)
        assert (row.trace_id, row.parent_id) == (root.trace_id.tobytes().hex(), root.span_id.tobytes().hex())
    assert len(rows) == 2
    assert {row["otelgpu.context.source"] for row in rows} == {"none"}


def test_an_unsampled_request_reports_nothing() -> None:
    session = Session()
    session.call(7, start_ns=40 * MS)
    session.work(7)
    session.reported()
    assert session.answer(sampled=False)[0] == []


def test_spans_of_one_parent_are_bounded_and_the_rest_is_counted() -> None:
    session = Session(limit=3)
    session.call(7, kind=OperationKind.GRAPH_LAUNCH, caller=7, start_ns=200 * MS)
    session.work(*[7] * 10, graph_node=np.arange(1, 11))
    rows = session.reported()
    assert [row["cuda.graph.node"] for row in sorted(rows, key=lambda row: row.start_ns)] == [1, 2, 3]
    assert session.made.counters == {"device_spans_not_reported": 7}


def test_with_no_spans_asked_for_metrics_are_all() -> None:
    session = Session(limit=0)
    session.call(7, start_ns=200 * MS)
    session.work(7)
    assert session.reported() == []
    assert session.made.counters == {}
    data, points = session.metrics.read(0)
    assert points == 2
    found = [m.name for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics]
    assert sorted(found) == ["gpu.cuda.device_time.calls", "gpu.cuda.kernel.duration"]


def test_requests_that_are_given_up_are_counted_with_their_work() -> None:
    session = Session()
    session.call(7, 8, start_ns=40 * MS)
    session.work(7, 8)
    session.reported()
    session.made.give_up([REQUEST])
    assert session.made.counters == {"device_work_unanswered": 2}
    assert session.answer()[0] == []


@pytest.mark.parametrize("ends", [False, True])
def test_what_finds_no_call_is_counted_when_it_cannot_any_more(ends: bool) -> None:
    session = Session()
    session.work(7)
    session.reported()
    if ends:
        session.made.forget_process(100)
    else:
        session.reported(final=True)
    assert session.made.counters == {"activities_without_call": 1}


def test_names_come_as_answers_of_symbol_tables_do() -> None:
    session = Session()
    assert session.made.learn_names(pieces(b"_Z6decodev", 0xAB)) == [
        FunctionNamed(tgid=100, address=0xAB, name="_Z6decodev", known=True)
    ]
