"""Shares of CPU time against what the functions themselves measured with their thread's clock, to two points."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from otelgpu.model.profiling import ProfileKind
from otelgpu.model.samples import SampleKind
from tests.kernel.observing import Watch
from tests.kernel.profiled import PYTHON, Profiled, compiled, profiled

POINTS = 0.02
FUNCTIONS = ("burns_sixty", "burns_thirty", "burns_ten")

PROGRAM = Path(__file__).parent / "data" / "known_shares.py"


def shares(taken: Profiled) -> dict[str, tuple[float, float]]:
    """Function → (its share by samples, its true share)."""
    samples = taken.of_kind(SampleKind.CPU)
    sampled = {name: int(taken.under(samples, name)["value"].sum()) for name in FUNCTIONS}
    true = {name: sum(each.ns for each in taken.known[name]) for name in FUNCTIONS}
    return {
        name: (sampled[name] / sum(sampled.values()), true[name] / sum(true.values())) for name in FUNCTIONS
    }


@pytest.mark.parametrize("language", ["C", "Python"])
def test_shares_of_cpu_time_are_true_to_two_points(
    watch: Callable[..., Watch], tmp_path: Path, language: str
) -> None:
    taken = profiled(watch, ProfileKind.CPU, frequency_hz=997)
    taken.run([compiled(tmp_path), "cpu"] if language == "C" else [PYTHON, PROGRAM])
    for name, (sampled, true) in shares(taken).items():
        assert abs(sampled - true) < POINTS, (name, sampled, true)
    # No time is lost, and none is counted twice; what is more is the rest of the program.
    total = int(taken.of_kind(SampleKind.CPU)["value"].sum())
    true_ns = sum(each.ns for name in FUNCTIONS for each in taken.known[name])
    assert 0.97 < total / true_ns < 1.15
    assert len(np.unique(taken.under(taken.of_kind(SampleKind.CPU), "burns_sixty")["tid"])) == 2
