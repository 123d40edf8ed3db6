"""What devices did in steps of training, from CUPTI in the ranks: it is what the fake device did.

Calls and device time come from the in-process source, collectives from probes. The device runs each kernel for as long
as it is told to, copies at a set rate, and a collective from when all ranks have reached it; so what a step took on it
is known from the rank's log.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from otelgpu.families.steps.training.metrics import DEVICE_PARTS
from tests.kernel.observing import OTELGPU, Span, read_metrics, read_spans
from tests.kernel.test_training_steps import LEAST, Reported, in_the_log
from tests.rig.clocks import wall_ahead_ns
from tests.rig.ranks import TrainingTruth, run_ranks
from tests.rig.spans import ns_of

KERNEL_US: Final = 200
LATE_US: Final = 5_000
PARTS: Final = tuple(f"{part}.duration" for part in DEVICE_PARTS)
DEVICE: Final = "otelgpu.step.device."


def observed(tmp_path: Path, *options: str, **environment: str) -> Reported:
    traces, truth = tmp_path / "traces.jsonl", tmp_path / "truth"
    truth.mkdir()
    offset_ns = wall_ahead_ns()
    ranks = run_ranks(
        "training",
        "--ranks=2",
        "--steps=150",
        *options,
        truth=truth,
        env={
            "FAKE_CUDART_DRIVER": "libcuda.so.1",
            "FAKE_CUDART_KERNEL_US": str(KERNEL_US),
            "FAKE_CUDART_COPY_GB_PER_S": "1",
            **environment,
        },
        prefix=(
            *(OTELGPU, "run", "--source=inject", "--device-time", "--families=cuda,nccl"),
            *(f"--export=file:{traces}", "--"),
        ),
    )
    return Reported(read_spans(traces), ranks.training(), offset_ns, read_metrics(traces))


def parts_of(step: Span) -> dict[str, int]:
    """By name, those of the device; times in nanoseconds."""
    return {
        key.removeprefix(DEVICE): ns_of(value) if key.endswith(".duration") else int(value)
        for key, value in step["attributes"].items()
        if key.startswith(DEVICE)
    }


def check(reported: Reported, rank: TrainingTruth, steps: Sequence[Span]) -> None:
    """Of steps that report of the device. Few may have bounds of no step: a thread of a loaded machine may be stopped
    between a call's return and its record for longer than records are waited for.
    """
    known = 0
    for step in steps:
        parts = parts_of(step)
        assert sum(parts[part] for part in PARTS) == step["end"] - step["start"]
        try:
            truth = rank.steps[in_the_log(step, rank, reported.offset_ns)]
        except AssertionError:
            continue
        known += 1
        assert parts["index"] == rank.rank
        assert parts["compute.duration"] == truth["launches"] * KERNEL_US * 1000
        assert parts["copy.duration"] == pytest.approx(truth["copied_bytes"], abs=10)  # a byte a nanosecond
        assert 0 < parts["exposed_communication.duration"] <= parts["communication.duration"]
    assert known >= len(steps) * 0.9


@pytest.fixture(scope="module")
def whole(kernel: None, tmp_path_factory: pytest.TempPathFactory) -> Reported:
    """The budget is large, so that all is measured; the data of rank 1 comes late."""
    return observed(
        tmp_path_factory.mktemp("whole"),
        *("--late-rank=1", f"--late-us={LATE_US}", "--late=device"),
        OTELGPU_INJECT_CUPTI_RATE="1000000",
    )


def test_device_parts_are_what_the_device_did(whole: Reported) -> None:
    for rank in whole.truth:
        steps = whole.steps(rank)
        assert len(steps) >= LEAST
        reported = [step for step in steps[:-1] if parts_of(step)]
        assert len(reported) >= len(steps) * 0.9, whole.metrics.get("otelgpu.losses")
        check(whole, rank, reported)


def test_who_waits_for_a_late_device_has_communication_exposed(whole: Reported) -> None:
    """The kernels of the collectives wait on the device for those of the other rank."""

    def median(rank: TrainingTruth) -> int:
        exposed = [parts_of(step).get("exposed_communication.duration", 0) for step in whole.steps(rank)]
        return sorted(exposed)[len(exposed) // 2]

    on_time, late = whole.truth
    assert median(on_time) > median(late) + LATE_US * 1000 // 2


def test_the_metrics_are_the_sums_of_the_steps(whole: Reported) -> None:
    found: dict[str, int] = {}
    for point in whole.metrics["otelgpu.training.step.device.time"]:
        part = point["attributes"]["otelgpu.step.part"]
        found[part] = found.get(part, 0) + ns_of(point["asDouble"])
    every = [parts_of(step) for rank in whole.truth for step in whole.steps(rank) if parts_of(step)]
    assert found == {part.removesuffix(".duration"): sum(parts[part] for parts in every) for part in PARTS}


def test_steps_between_slices_have_no_parts_and_no_part_of_them(kernel: None, tmp_path: Path) -> None:
    """The budget is short of what is done in half of the time."""
    reported = observed(tmp_path, OTELGPU_INJECT_CUPTI_RATE="1000")
    counts: dict[bool, int] = {True: 0, False: 0}
    for rank in reported.truth:
        steps = reported.steps(rank)
        with_parts = [step for step in steps if parts_of(step)]
        check(reported, rank, with_parts)
        counts[True] += len(with_parts)
        counts[False] += len(steps) - len(with_parts)
    assert min(counts.values()) > 10
