"""Steps of training as they are exported: every one is what the rank's own log says, and none is made up.

The ranks are processes that ``otelgpu run`` starts; their CUDA and NCCL calls are all that otelgpu has. The backward
pass of each is on a thread of its own, as PyTorch's is. The truth is in the files that the ranks write themselves.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest

from tests.kernel.observing import OTELGPU, Span, read_metrics, read_spans
from tests.rig.clocks import wall_ahead_ns
from tests.rig.ranks import TrainingTruth, run_ranks
from tests.rig.spans import ns_of

CLOCKS_NS: Final = 200_000
"""The truth is CLOCK_MONOTONIC: how well this test converts it."""

STEPS: Final = 300
LEAST: Final = 30
"""Steps that must be reported: those of the first second or so are not, and a slow machine takes longer to see it."""

PARTS: Final = ("call", "host_to_device_copy", "wait", "file", "data_loader_stall", "host_overhead")


@dataclass(frozen=True)
class Reported:
    """What was exported, and what the ranks say."""

    spans: Sequence[Span]
    truth: Sequence[TrainingTruth]
    offset_ns: int
    metrics: dict[str, list[dict[str, Any]]]

    def steps(self, rank: TrainingTruth) -> list[Span]:
        """The steps of a rank, in the order of time."""
        mine = [
            span
            for span in self.spans
            if span["name"] == "training step" and span["resource"]["process.pid"] == rank.pid
        ]
        return sorted(mine, key=lambda span: int(span["start"]))


def observed(tmp_path: Path, *options: str) -> Reported:
    traces, truth = tmp_path / "traces.jsonl", tmp_path / "truth"
    truth.mkdir()
    offset_ns = wall_ahead_ns()
    ranks = run_ranks(
        "training",
        f"--steps={STEPS}",
        "--load-us=2000",
        *options,
        truth=truth,
        prefix=(OTELGPU, "run", f"--export=file:{traces}", "--"),
    )
    return Reported(read_spans(traces), ranks.training(), offset_ns, read_metrics(traces))


@pytest.fixture(scope="module")
def plain(kernel: None, tmp_path_factory: pytest.TempPathFactory) -> Reported:
    """Two ranks; the data of the second comes late."""
    folder = tmp_path_factory.mktemp("plain")
    return observed(folder, "--ranks=2", "--late-rank=1", "--late-us=3000", "--late=data")


def in_the_log(step: Span, rank: TrainingTruth, offset_ns: int) -> int:
    """The position of the step in the log: it ends with the last call of that one, and begins with that before it."""
    start, end = step["start"] - offset_ns, step["end"] - offset_ns
    place = bisect_left([line["end_ns"] for line in rank.steps], end - CLOCKS_NS)
    truth = rank.steps[place]
    assert truth["optimizer_ns"] < end <= truth["end_ns"] + CLOCKS_NS
    assert start <= truth["start_ns"] + CLOCKS_NS
    done = [line for line in (*rank.steps, *rank.evaluations) if line["end_ns"] <= truth["start_ns"]]
    before = max(done, key=lambda line: int(line["end_ns"]))
    assert start > max(before["forward_ns"], before["optimizer_ns"])
    return place


def test_every_step_is_in_the_log(plain: Reported) -> None:
    for rank in plain.truth:
        steps = plain.steps(rank)
        assert len(steps) >= LEAST
        places = [in_the_log(step, rank, plain.offset_ns) for step in steps]
        assert places == list(range(places[0], places[0] + len(places)))
        numbers = [step["attributes"]["otelgpu.step.number"] for step in steps]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def test_what_a_step_did_is_what_the_log_says(plain: Reported) -> None:
    for rank in plain.truth:
        for step in plain.steps(rank)[:-1]:
            truth = rank.steps[in_the_log(step, rank, plain.offset_ns)]
            reported = {key.removeprefix("otelgpu.step."): value for key, value in step["attributes"].items()}
            assert reported["boundary"] == "host_to_device_copy"
            assert reported["collectives"] == truth["collectives"]
            assert reported["host_to_device_copy_bytes"] == truth["copied_bytes"]
            # The library launches a kernel of its own for each collective.
            assert reported["launches"] == truth["launches"] + truth["collectives"]
            assert sum(ns_of(reported[f"{part}.duration"]) for part in PARTS) == step["end"] - step["start"]
            assert ns_of(reported["data_loader_stall.duration"]) >= truth["load_ns"]
            assert ns_of(reported["wait.duration"]) <= truth["wait_ns"]


def test_a_rank_whose_data_is_late_is_seen_by_its_parts(plain: Reported) -> None:
    on_time, late = (plain.steps(rank) for rank in plain.truth)

    def median(steps: list[Span], part: str) -> float:
        values = sorted(step["attributes"][f"otelgpu.step.{part}.duration"] for step in steps)
        return float(values[len(values) // 2])

    assert median(late, "data_loader_stall") > median(on_time, "data_loader_stall") + 0.002
    assert median(on_time, "wait") > median(late, "wait") + 0.001


def test_the_calls_of_a_step_are_under_it(plain: Reported) -> None:
    rank = plain.truth[0]
    steps = {step["spanId"]: step for step in plain.steps(rank)}
    calls = [span for span in plain.spans if span.get("parentSpanId") in steps]
    assert calls
    for call in calls:
        step = steps[call["parentSpanId"]]
        assert step["start"] <= call["start"] <= step["end"]
        assert call["attributes"]["otelgpu.context.source"] == "step"
        assert call["traceId"] == step["traceId"]


def test_the_metrics_are_the_sums_of_the_steps(plain: Reported) -> None:
    steps = [step for rank in plain.truth for step in plain.steps(rank)]
    (name,) = {name for name in plain.metrics if name == "otelgpu.training.step.duration"}
    assert sum(int(point["count"]) for point in plain.metrics[name]) == len(steps)
    total = sum(ns_of(point["asDouble"]) for point in plain.metrics["otelgpu.training.step.time"])
    assert total == sum(step["end"] - step["start"] for step in steps)


def test_micro_batches_are_no_steps_and_evaluations_are_in_none(kernel: None, tmp_path: Path) -> None:
    reported = observed(tmp_path, "--ranks=2", "--accumulate=2", "--evaluate=25")
    for rank in reported.truth:
        steps = reported.steps(rank)
        assert len(steps) >= LEAST // 2
        for step in steps[:-1]:
            in_the_log(step, rank, reported.offset_ns)
        gaps = [after["start"] - before["end"] for before, after in pairwise(steps)]
        assert sum(gap > 0 for gap in gaps) <= len(rank.evaluations)


def test_files_that_a_step_reads_and_writes_are_its_own(
    kernel: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTELGPU_FILE_SLOW_MS", "0")
    data = tmp_path / "shard-0001.tar"
    data.write_bytes(bytes(3 << 20))
    reported = observed(
        tmp_path,
        *("--ranks=2", f"--data={data}", "--batch-bytes=1048576", "--load-us=200"),
        *(f"--checkpoint={tmp_path / 'weights.pt'}", "--checkpoint-every=5"),
    )
    saved, in_calls, seen = 0, 0.0, 0
    for rank in reported.truth:
        steps = reported.steps(rank)[:-1]
        assert len(steps) >= LEAST
        seen += len(steps)
        for step in steps:
            truth = rank.steps[in_the_log(step, rank, reported.offset_ns)]
            found = {key.removeprefix("otelgpu.step."): value for key, value in step["attributes"].items()}
            assert (found["files"], found["file_bytes"]) == (truth["files"], truth["file_bytes"])
            assert 0 < ns_of(found["file.duration"]) <= truth["file_ns"]
            in_calls += ns_of(found["file.duration"]) / truth["file_ns"]
            assert sum(ns_of(found[f"{part}.duration"]) for part in PARTS) == step["end"] - step["start"]
            assert ("written_bytes" in found) == (truth["files"] > 2)
            if truth["files"] > 2:  # it wrote and synced
                saved += 1
                assert 0 < found["written_bytes"] < found["file_bytes"]
                assert found["slowest_file"] in ("weights.pt", data.name)
            else:
                assert found["slowest_file"] == data.name
    assert saved >= LEAST // 5
    assert in_calls > seen / 5  # the truth has the traps of the calls in it
    by_part = reported.metrics["otelgpu.training.step.time"]
    assert sum(p["asDouble"] for p in by_part if p["attributes"]["otelgpu.step.part"] == "file") > 0
    calls = reported.metrics["otelgpu.file.call.duration"]
    assert {point["attributes"]["otelgpu.file.operation"] for point in calls} == {"read", "write", "sync"}
