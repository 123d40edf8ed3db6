"""A collective of eight ranks, through a Collector and in Jaeger: one trace, and who came last is reported in it."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from tests.backends.collector import Collector
from tests.backends.engine_session import OTELGPU, replay
from tests.backends.jaeger import Jaeger
from tests.rig import run_ranks
from tests.rig.spans import Span, read_spans

RANKS: Final = 8
COLLECTIVES: Final = 30
LATE_RANK: Final = 3
LATE_EVERY: Final = 10
LATE_S: Final = 0.05


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recorded job of ranks, of which one comes late to every tenth collective."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to observe the ranks")
    folder = tmp_path_factory.mktemp("ranks")
    recorded = folder / "ranks.capture"
    late = (f"--late-rank={LATE_RANK}", f"--late-every={LATE_EVERY}", f"--late-us={LATE_S * 1e6:.0f}")
    run_ranks(
        "collectives",
        f"--ranks={RANKS}",
        "--communicators=1",
        f"--collectives={COLLECTIVES}",
        "--mixed=0",
        "--synchronize=1",
        *late,
        truth=folder,
        prefix=(str(OTELGPU), "record", "-o", str(recorded), f"--export=file:{recorded}.jsonl", "--"),
    )
    return recorded


def of_phase(spans: list[Span], phase: str) -> list[Span]:
    return [span for span in spans if span["attributes"].get("nccl.phase") == phase]


def last_to_arrive(spans: list[Span], root: Span) -> int:
    """Of a whole trace, which must have a span of each rank under its root: the last rank, as it is reported."""
    ranks = {span["attributes"]["nccl.rank"]: span for span in of_phase(spans, "enqueue")}
    assert sorted(ranks) == list(range(RANKS))
    assert {span["name"] for span in ranks.values()} == {"ncclAllReduce"}
    assert {span["parentSpanId"] for span in ranks.values()} == {root["spanId"]}
    assert root["attributes"]["nccl.ranks.seen"] == RANKS
    lateness = {rank: span["attributes"]["nccl.arrival.lateness"] for rank, span in ranks.items()}
    last: int = root["attributes"]["nccl.arrival.last_rank"]
    assert lateness[last] == max(lateness.values())
    assert min(lateness.values()) == 0
    return last


def test_in_jaeger_an_all_reduce_is_one_trace_of_its_ranks(
    jaeger: Jaeger, capture: Path, tmp_path: Path
) -> None:
    replay(capture, f"file:{tmp_path / 'traces.jsonl'}")
    replay(capture, f"otlp:{jaeger.address}")
    roots = of_phase(read_spans(tmp_path / "traces.jsonl"), "collective")
    assert sorted(root["attributes"]["nccl.sequence"] for root in roots) == list(range(COLLECTIVES))
    last: Counter[int] = Counter()
    for root in roots:
        spans = jaeger.trace(root["traceId"])
        (reported,) = of_phase(spans, "collective")
        assert reported["spanId"] == root["spanId"]
        rank = last_to_arrive(spans, reported)
        if reported["attributes"]["nccl.sequence"] % LATE_EVERY == LATE_EVERY - 1:
            last[rank] += 1
    assert last.most_common(1)[0][0] == LATE_RANK, last


def test_a_collector_keeps_every_ranks_span(collector: Collector, capture: Path) -> None:
    replay(capture, f"otlp:{collector.addresses['http/protobuf']}")
    collector.stop()
    spans = [s for p in collector.traces().resource_spans for scope in p.scope_spans for s in scope.spans]
    named = Counter(span.name for span in spans)
    assert named["ncclAllReduce"] == RANKS * COLLECTIVES
    assert named["AllReduce"] == COLLECTIVES
    traces = {span.trace_id for span in spans if span.name == "ncclAllReduce"}
    assert traces == {span.trace_id for span in spans if span.name == "AllReduce"}
