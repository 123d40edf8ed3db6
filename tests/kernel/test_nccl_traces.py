"""``otelgpu run`` around a job of ranks: a collective is one trace, in which its last rank is reported."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from tests.kernel.observing import OTELGPU, Span, read_metrics, read_spans
from tests.rig import RankTruth, run_ranks
from tests.rig.priority import FIRST
from tests.rig.ranks import COLLECTIVES, FUNCTIONS, NcclVersion

LATE_S, LATE_RANK = 0.05, 5
Key = tuple[str, str, int]  # communicator, operation, sequence


def observed(folder: Path, *options: str, version: NcclVersion = "2.28.9") -> tuple[list[RankTruth], Path]:
    """Run program_collectives under otelgpu: what its ranks say, and the file of what was seen.

    A rank that others hold up for two seconds is late, and not in its collective's skew.
    """
    seen = folder / "seen.jsonl"
    command = (*FIRST, OTELGPU, "run", f"--export=file:{seen}", "--")
    ranks = run_ranks("collectives", *options, truth=folder, prefix=command, version=version)
    return ranks.collectives(version), seen


def reported_by(truth: list[RankTruth]) -> dict[Key, set[int]]:
    """The ranks of each collective, as the program has it."""
    found: dict[Key, set[int]] = defaultdict(set)
    for rank in truth:
        for index, communicator in enumerate(rank.communicators):
            for call in rank.of(index):
                operation = FUNCTIONS[call["function"]].removeprefix("nccl")
                found[f"{communicator.hash:016x}", operation, int(call["sequence"])].add(communicator.rank)
    return found


def key_of(span: Span) -> Key:
    attributes = span["attributes"]
    return (
        attributes["nccl.communicator.hash"],
        attributes["nccl.operation"],
        attributes["nccl.sequence"],
    )


def phase(spans: list[Span], name: str) -> list[Span]:
    return [span for span in spans if span["attributes"].get("nccl.phase") == name]


@pytest.mark.parametrize(
    ("version", "options"),
    [
        ("2.28.9", ("--collectives=499",)),
        # How 2.21.5 makes the hash of a child is not known here.
        ("2.21.5", ("--collectives=101", "--split=0")),
    ],
    ids=["2.28.9", "2.21.5"],
)
def test_a_collective_is_one_trace_with_a_span_of_each_rank(
    tmp_path: Path, version: NcclVersion, options: tuple[str, ...]
) -> None:
    truth, seen = observed(tmp_path, "--ranks=8", "--communicators=3", *options, version=version)
    spans = read_spans(seen)
    expected = {key: ranks for key, ranks in reported_by(truth).items() if key[1] in COLLECTIVE_NAMES}
    roots = {span["traceId"]: span for span in phase(spans, "collective")}
    assert len(roots) == len(phase(spans, "collective"))
    assert {key_of(span) for span in roots.values()} == set(expected)

    ranks: dict[Key, list[int]] = defaultdict(list)
    pids = {rank.rank: rank.pid for rank in truth}
    for span in phase(spans, "enqueue"):
        if span["attributes"]["nccl.operation"] not in COLLECTIVE_NAMES:
            continue
        root = roots[span["traceId"]]
        assert key_of(span) == key_of(root)
        assert span["parentSpanId"] == root["spanId"]
        assert root["start"] <= span["start"]
        ranks[key_of(span)].append(span["attributes"]["nccl.rank"])
    assert {key: sorted(found) for key, found in ranks.items()} == {
        key: sorted(found) for key, found in expected.items()
    }
    assert {span["resource"]["process.pid"] for span in roots.values()} <= {pids[0], pids[1]}
    assert all(
        span["attributes"]["nccl.ranks.seen"] == len(expected[key_of(span)]) for span in roots.values()
    )


COLLECTIVE_NAMES = {name.removeprefix("nccl") for name in FUNCTIONS[:COLLECTIVES]}


def test_the_last_to_arrive_is_reported(tmp_path: Path) -> None:
    late = (f"--late-rank={LATE_RANK}", "--late-every=10", f"--late-us={LATE_S * 1e6:.0f}")
    options = ("--ranks=8", "--communicators=1", "--collectives=60", "--mixed=0", "--synchronize=1")
    truth, seen = observed(tmp_path, *options, *late)
    spans = read_spans(seen)
    calls = {rank.rank: rank.of(0) for rank in truth}
    late_s = dict.fromkeys(calls, 0.0)
    for root in phase(spans, "collective"):
        sequence = root["attributes"]["nccl.sequence"]
        # A rank came between the two times that it read around its call.
        earliest = {rank: int(mine["start_ns"][sequence]) for rank, mine in calls.items()}
        latest = {rank: int(mine["end_ns"][sequence]) for rank, mine in calls.items()}
        assert latest[root["attributes"]["nccl.arrival.last_rank"]] >= max(earliest.values())
        skew_ns = round(root["attributes"]["nccl.arrival.skew"] * 1e9)
        assert skew_ns >= max(earliest.values()) - min(latest.values())
        assert skew_ns <= max(latest.values()) - min(earliest.values())
        for span in phase(spans, "enqueue"):
            if span["traceId"] == root["traceId"] and sequence % 10 == 9:
                late_s[span["attributes"]["nccl.rank"]] += span["attributes"]["nccl.arrival.lateness"]
    assert late_s[LATE_RANK] == max(late_s.values()) > 3 * LATE_S
    # Who came in time waits for the late rank where it synchronises.
    waited = dict.fromkeys(calls, 0)
    for span in phase(spans, "wait"):
        waited[span["attributes"]["nccl.rank"]] += span["end"] - span["start"]
    assert waited[LATE_RANK] == min(waited.values())
    counted = {
        point["resource"]["process.pid"]: int(point["asInt"]) for point in read_metrics(seen)["nccl.calls"]
    }
    assert counted == {rank.pid: 60 for rank in truth}
