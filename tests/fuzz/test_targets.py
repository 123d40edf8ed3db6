"""Each fuzz target holds on its seeds, and for some seconds on what a fuzzer makes of them."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS

SECONDS = int(os.environ.get("OTELGPU_FUZZ_SECONDS", "2"))
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_takes_its_seeds_whole_and_cut(name: str) -> None:
    target = TARGETS[name]
    seeds = target.read_seeds()
    assert seeds
    for seed in seeds:
        target.run(seed)
        for length in range(0, len(seed), max(len(seed) // 50, 1)):
            target.run(seed[:length])


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_holds_under_the_fuzzer(name: str) -> None:
    if importlib.util.find_spec("atheris") is None:
        pytest.skip(
            f"atheris has no package for Python {sys.version_info.major}.{sys.version_info.minor} here"
        )
    command = [sys.executable, "-m", "tests.fuzz", name, "--seconds", str(SECONDS)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS + 60, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "stat::number_of_executed_units" in done.stderr
