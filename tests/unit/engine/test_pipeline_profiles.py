"""Samples through a whole session: profiles, whose links lead to spans that the same session reports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest

from otelgpu.engine import registry
from otelgpu.engine.pipeline import Pipeline
from otelgpu.model.context_sources import ContextSource
from otelgpu.model.inputs import Batch, Input, ProcessGone, Tick
from otelgpu.model.profiles import ProfileColumns
from otelgpu.model.profiling import ProfileKind, ProfileSettings
from otelgpu.model.spans import SpanBatch, in_columns
from otelgpu.sources.capture import CaptureReader
from tests.golden.make_capture import path_of
from tests.unit.engine.test_pipeline import OWN, TRACE, iterate, pipeline
from tests.unit.families.profiles.profile_builders import named, spans_of, stacks_of
from tests.unit.families.records import MS, Host, btf
from tests.unit.model.builders import Row, read_out

CPU = ProfileSettings(kinds=frozenset((ProfileKind.CPU,)), interval_s=1000.0)
PERIOD_NS = 10 * MS


@pytest.fixture
def host() -> Host:
    made = Host()
    made.accept()
    return made


def sampled(times_ns: Sequence[int], *, tid: int = 101, tgid: int = 100, **head: Any) -> Batch:
    """The clock struck at these times."""
    rows = np.zeros(len(times_ns), dtype=btf("profile").dtype("profile_sample"))
    batch = Batch(family="profile", kind="profile_sample", records=rows)
    for name, value in ({"tgid": tgid, "tid": tid, "kind": 1, "time_ns": times_ns} | head).items():
        batch.heads[name] = value
    rows["stack"], rows["value"] = 5, PERIOD_NS
    return batch


def played(
    inputs: Iterable[Input], *, profiling: ProfileSettings = CPU, **options: Any
) -> tuple[list[Row], list[ProfileColumns], Pipeline]:
    session = pipeline(profiling=profiling, **options)
    rows: list[Row] = []
    profiles: list[ProfileColumns] = []
    for item in inputs:
        rows += read_out(session.feed(item))
        profiles += session.take_profiles()
    rows += read_out(session.finish())
    return rows, profiles + session.take_profiles(), session


def linked(profiles: Sequence[ProfileColumns]) -> dict[int, str]:
    """Time since the session's clock began → the span that the observation links to, "" for none."""
    found = {}
    for columns in profiles:
        assert columns.time_unix_ns is not None
        times = (columns.time_unix_ns - np.uint64(1_700_000_000_000_000_000)).tolist()
        spans = [span.hex() if any(span) else "" for span in spans_of(columns)]
        found.update(zip(times, spans, strict=True))
    return found


def during(host: Host) -> list[int]:
    """Times in every ms since the process began to serve."""
    return list(range(1_000 * MS, host.now_ns + 5 * MS, MS // 2))


def test_observations_of_a_request_link_to_its_span_and_others_to_none(host: Host) -> None:
    host.serve(tokens=3)
    inputs = host.inputs()
    times = during(host)
    rows, profiles, _ = played([*inputs[:-1], sampled(times), *inputs[-1:]])
    (request,) = [row for row in rows if row.name == "chat tiny"]
    expected = {
        time_ns: request.span_id
        if request.start_ns <= time_ns + 1_700_000_000_000_000_000 < request.end_ns
        else ""
        for time_ns in times
    }
    found = linked(profiles)
    # The assignment begins and ends within the calls that read and wrote, up to their length from the span's ends.
    inside = {t for t, span in expected.items() if span}
    assert {t for t, span in found.items() if span} == {
        t for t, span in found.items() if span == request.span_id
    }
    assert len({t for t, span in found.items() if span} ^ inside) <= 8
    assert len([t for t, span in found.items() if span]) > 20


@pytest.mark.parametrize("tick_every", [1, 3, 1000])
def test_every_link_leads_to_a_span_of_the_session(host: Host, tick_every: int) -> None:
    for turn in range(6):
        host.serve(tokens=2, **({"traceparent": f"00-{TRACE}-{'ab' * 8}-0{turn % 2}"} if turn % 3 else {}))
        host.launch()
    host.ask()  # which is never answered
    host.launch(times=3)
    sent = sorted(
        [(each.submitted_ns, each.batch) for each in host.sent]
        + [(time_ns, sampled([time_ns])) for time_ns in during(host)],
        key=lambda each: each[0],
    )
    inputs: list[Input] = list(host.preamble())
    for place, (time_ns, batch) in enumerate(sent):
        inputs.append(batch)
        if place % tick_every == 0:
            inputs.append(Tick(time_ns=time_ns))
    rows, profiles, _ = played([*inputs, Tick(time_ns=host.now_ns + MS)])
    reported = {row.span_id for row in rows}
    links = {span for span in linked(profiles).values() if span}
    assert links <= reported
    assert len(links) == 4, "two of the six were not sampled"


def test_observations_of_an_engine_s_step_link_to_its_span(host: Host) -> None:
    session = pipeline(profiling=CPU)
    iterate(host, session)
    inputs, times = host.inputs(), during(host)
    rows: list[Row] = []
    for item in [*inputs[:-1], sampled(times, tid=200), *inputs[-1:]]:
        rows += read_out(session.feed(item))
    rows += read_out(session.finish())
    steps = {row.span_id for row in rows if row.name == "engine.step"}
    assert steps and {span for span in linked(session.take_profiles()).values() if span} == steps


def test_what_a_process_published_is_linked_as_it_is(host: Host) -> None:
    ids = {"trace_id": np.full(16, 1, np.uint8), "span_id": np.full(8, 2, np.uint8)}
    batch = sampled([1_001 * MS], context_source=int(ContextSource.THREAD_CONTEXT), trace_flags=1, **ids)
    _, profiles, _ = played([*host.preamble(), batch, Tick(time_ns=1_002 * MS)])
    assert list(linked(profiles).values()) == ["02" * 8]


def test_profiles_that_nobody_asked_for_are_not_made(host: Host) -> None:
    batch = sampled([1_001 * MS])
    _, profiles, session = played(
        [*host.preamble(), named(5, "f", tgid=100), batch, Tick(time_ns=1_002 * MS)],
        profiling=ProfileSettings(),
    )
    assert profiles == [] and not any(family == "profile" for family, _ in session.summary.losses)


def test_stacks_are_reported_by_name_under_the_process_s_resource(host: Host) -> None:
    inputs = [*host.preamble(), sampled([1_001 * MS]), named(5, "leaf", "main", tgid=100)]
    _, (only,), _ = played([*inputs, Tick(time_ns=1_002 * MS)])
    assert stacks_of(only) == {("leaf", "main"): PERIOD_NS}
    assert only.resource.get("service.name") == "llm"


def test_what_is_missing_is_counted_in_the_metric_of_losses(host: Host) -> None:
    _, _, session = played([*host.preamble(), sampled([1_001 * MS]), Tick(time_ns=1_002 * MS)])
    session.finish()
    assert session.summary.losses["profile", "stack_not_kept"] == 1


def test_a_process_that_ends_and_its_number_given_again_are_two(host: Host) -> None:
    host.serve()
    inputs: list[Input] = [*host.inputs(), named(5, "old", tgid=100), sampled([host.now_ns])]
    gone = ProcessGone(tgid=100, time_ns=host.now_ns + MS)
    inputs += [gone, Tick(time_ns=host.now_ns + 2 * MS), Tick(time_ns=host.now_ns + 3 * MS)]
    inputs += [named(5, "new", tgid=100), sampled([host.now_ns + 4 * MS]), Tick(time_ns=host.now_ns + 5 * MS)]
    _, profiles, _ = played(inputs)
    assert sum(int(each.value.sum()) for each in profiles) == 2 * PERIOD_NS


@pytest.mark.parametrize(
    ("session", "kinds"),
    [("llm_session", {"SERVER"}), ("training_job", {"INTERNAL"})],
)
def test_observations_at_every_record_of_a_stored_session_link_to_what_it_reports(
    session: str, kinds: set[str]
) -> None:
    """A sample of the thread at the time of each record: requests and steps of training."""
    reader = CaptureReader(path_of(session))
    known = {name: family for name, family in registry.families().items() if name in reader.btf}
    made = Pipeline(
        {**known, "profile": registry.families()["profile"]},
        {**reader.btf, "profile": btf("profile")},
        seed=reader.header.seed,
        own=OWN,
        start_unix_ns=reader.header.start_unix_ns,
        profiling=CPU,
    )
    reported: dict[bytes, str] = {}
    profiles: list[ProfileColumns] = []
    count = 0

    def see(spans: Iterable[SpanBatch]) -> None:
        for columns in in_columns(spans):
            reported.update(dict.fromkeys(map(bytes, columns.span_id), columns.kind.name))

    for item in reader:
        if isinstance(item, Batch) and item.family != "process" and len(item.records):
            heads = item.heads
            rows = np.zeros(len(heads), dtype=btf("profile").dtype("profile_sample"))
            sample = Batch(family="profile", kind="profile_sample", records=rows)
            for name in ("time_ns", "tgid", "tid"):
                sample.heads[name] = heads[name]
            sample.heads["kind"] = 1
            rows["value"] = 1
            count += len(rows)
            see(made.feed(sample))
        see(made.feed(item))
        profiles += made.take_profiles()
    see(made.finish())
    profiles += made.take_profiles()
    reader.close()
    links = [span for columns in profiles for span in spans_of(columns) if any(span)]
    assert sum(len(columns) for columns in profiles) == count
    assert set(links) <= reported.keys()
    assert len(links) > count / 10
    assert {reported[span] for span in links} == kinds
