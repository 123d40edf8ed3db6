"""A limit of spans a second leaves out whole requests, or all their operations; metrics and sums are of all calls."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from otelgpu.engine.pipeline import Pipeline
from otelgpu.engine.span_budget import BURST_S
from otelgpu.model.inputs import Tick
from otelgpu.model.sampling import Sampler, TailRule
from otelgpu.model.settings import SignalSettings
from tests.unit.engine.test_pipeline import children, late_work, named, pipeline, played
from tests.unit.families.records import MS, Host, plain_answer, stream_end, stream_event, stream_head
from tests.unit.model.builders import Row, read_out

SECOND_NS = 1_000_000_000
OWN, WORK = 3, 7  # spans of one served request: itself with its phases, and its operations
CALLS = 8


def served(count: int) -> Host:
    host = Host()
    host.accept()
    for _ in range(count):
        host.serve(tokens=3)
    return host


def capped(per_second: int, host: Host, **settings: Any) -> tuple[list[Row], Pipeline]:
    return played(host.inputs(), settings=SignalSettings(spans_per_second=per_second, **settings))


def lost(session: Pipeline, reason: str) -> int:
    return session.summary.losses["correlate", reason]


def with_work(rows: list[Row]) -> set[str]:
    return {row.trace_id for row in rows if row.name.startswith("cuda")}


def randomness(trace_ids: Iterable[str]) -> list[int]:
    return sorted(int(each[-14:], 16) for each in trace_ids)


def test_without_a_limit_and_with_one_that_is_not_reached_all_is_reported() -> None:
    host = served(20)
    everything, _ = capped(0, host)
    rows, session = capped(100, host)
    assert rows == everything and len(rows) == 20 * (OWN + WORK)
    assert not lost(session, "capped_operations") + lost(session, "capped_requests")


def test_requests_lose_their_operations_whole_and_first_those_that_others_would_sample_out_too() -> None:
    rows, session = capped(20, served(20))
    requests = {row.trace_id: row for row in named(rows, "chat tiny")}
    detailed = with_work(rows)
    assert len(requests) == 20
    assert len(detailed) == -(-(20 * BURST_S // 2 - 20 * OWN) // WORK)
    assert len(rows) == 20 * OWN + len(detailed) * WORK
    assert randomness(detailed) == randomness(requests)[-len(detailed) :]
    assert lost(session, "capped_operations") == (20 - len(detailed)) * CALLS
    for trace_id, row in requests.items():
        assert row["cuda.launch.calls"] == 4  # sums are of all calls
        assert row.get("otelgpu.operations.dropped") == (None if trace_id in detailed else CALLS)
        assert [name for name, _ in children(rows, row)] == ["prefill", "decode"]


def test_beyond_that_requests_are_left_out_with_all_that_is_of_them() -> None:
    rows, session = capped(10, served(60))
    requests = {row.trace_id for row in named(rows, "chat tiny")}
    assert len(requests) == -(-round(10 * BURST_S * (1 - 0.125)) // OWN)
    assert len(rows) == len(requests) * OWN
    everything, _ = capped(0, served(60))
    assert randomness(requests) == randomness({row.trace_id for row in everything})[-len(requests) :]
    assert lost(session, "capped_requests") == 60 - len(requests)
    assert lost(session, "capped_operations") == len(requests) * CALLS
    assert lost(session, "unsampled_requests") == 0


@pytest.mark.parametrize("per_second", [1, 10, 20])
def test_metrics_are_of_all_calls_and_requests(per_second: int) -> None:
    host = served(40)
    (_, free), (_, limited) = capped(0, host), capped(per_second, host)
    assert lost(limited, "capped_operations")
    for name in ("gpu.cuda.kernel.launch.calls", "http.server.request.duration", "gpu.cuda.memory.copies"):
        assert limited.metrics.value(name) == free.metrics.value(name) > 0
    assert limited.summary.requests == free.summary.requests == 40


def test_failed_requests_are_before_others_and_their_operations_before_those_of_others() -> None:
    host = served(16)
    for _ in range(4):
        host.ask(stream=False)
        host.launch(0x2000)
        host.write(plain_answer(503))
    rows, _ = capped(11, host)
    failed = {row.trace_id for row in rows if row.get("error.type") == "503"}
    assert len(failed) == 4
    assert with_work(rows) >= failed
    assert len(with_work(rows) - failed) < 16
    scarce, _ = capped(1, host)
    assert {row.trace_id for row in scarce} & failed == failed


def test_a_slow_first_token_of_its_service_is_reported_though_the_sampler_left_it_out() -> None:
    host = served(10)
    host.ask()
    host.now_ns += 5 * SECOND_NS
    for sent in (stream_head(), stream_event("late"), stream_end()):
        host.write(sent)
    rule = TailRule(slow_first_token_s=0, slow_first_token_quantile=0.9)
    rows, session = capped(0, host, sampler=Sampler(ratio=0.0), tail=rule)
    (slow,) = named(rows, "chat tiny")
    assert slow["gen_ai.latency.time_to_first_token"] > 5
    assert (slow.state, lost(session, "sampled_out_requests")) == ("", 10)


def test_who_is_left_beside_a_request_that_was_left_out_does_not_say_of_how_many_it_is_one() -> None:
    host = served(60)
    half = Sampler(ratio=0.5)
    free, _ = capped(0, host, sampler=half)
    limited, session = capped(5, host, sampler=half)
    assert {row.state for row in named(free, "chat tiny")} == {"ot=th:8"}
    assert lost(session, "capped_requests") and lost(session, "sampled_out_requests")
    assert {row.state for row in named(limited, "chat tiny")} == {""}


def test_late_work_of_a_request_that_was_left_out_is_not_reported_either() -> None:
    host = served(60)
    late = late_work(host)
    rows, session = played(late, settings=SignalSettings(spans_per_second=1))
    assert lost(session, "capped_requests") and lost(session, "late_operations") == 1
    assert not with_work(rows)


def test_windows_of_unattributed_work_keep_their_sums_and_lose_their_operations_whole() -> None:
    host = Host()
    for _ in range(3):
        for tid in range(900, 920):
            host.launch(0x1000, tid=tid)
        host.now_ns += 6 * SECOND_NS
    rows, session = capped(1, host)
    roots = named(rows, "unattributed gpu work")
    assert [root["cuda.launch.calls"] for root in roots] == [20] * 3
    assert len(with_work(rows)) == 1 and len(rows) == 3 + 20
    assert lost(session, "capped_operations") == 40


def test_room_comes_back_with_time() -> None:
    host = served(20)
    session = pipeline(settings=SignalSettings(spans_per_second=20))
    rows = [row for item in host.inputs() for row in read_out(session.feed(item))]
    before = len(with_work(rows))
    list(session.feed(Tick(time_ns=host.now_ns + BURST_S * SECOND_NS)))
    host.now_ns += (BURST_S + 1) * SECOND_NS
    host.sent.clear()
    for _ in range(5):
        host.serve(tokens=3)
    later = [
        row
        for item in [*(sent.batch for sent in host.sent), Tick(time_ns=host.now_ns + MS)]
        for row in read_out(session.feed(item))
    ]
    assert before < 20 and len(with_work(later)) == 5
