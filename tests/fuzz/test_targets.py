"""Each fuzz target holds on its seeds, and for some seconds on what a fuzzer makes of them."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS

SECONDS = int(os.environ.get("OTELGPU_FUZZ_SECONDS", "2"))
ROOT = Path(__file__).parents[2]
MOST_S = 240 + 2 * SECONDS * len(TARGETS)  # a busy machine instruments for minutes


@pytest.fixture(scope="module")
def said() -> Mapping[str, tuple[str, str]]:
    """Of each target, whether it held, and what the fuzzer says: of one run, which instruments once."""
    if importlib.util.find_spec("atheris") is None:
        pytest.skip(
            f"atheris has no package for Python {sys.version_info.major}.{sys.version_info.minor} here"
        )
    command = [sys.executable, "-m", "tests.fuzz", "--seconds", str(SECONDS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=MOST_S, check=False)
    assert done.stdout, done.stderr[-4000:]
    said = {}
    for part in done.stdout.split("\n== ")[1:]:
        heading, text = part.split("\n", 1)
        name, verdict = heading.split(": ")
        said[name] = verdict, text
    return said


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_takes_its_seeds_whole_and_cut(name: str) -> None:
    target = TARGETS[name]
    seeds = target.read_seeds()
    assert seeds
    for seed in seeds:
        target.run(seed)
        for length in range(0, len(seed), max(len(seed) // 50, 1)):
            target.run(seed[:length])


@pytest.mark.timeout(MOST_S)
@pytest.mark.parametrize("name", TARGETS)
def test_a_target_holds_under_the_fuzzer(name: str, said: Mapping[str, tuple[str, str]]) -> None:
    verdict, text = said[name]
    assert verdict == "held", text[-4000:]
    assert "stat::number_of_executed_units" in text
