"""The seed example: a training loop that stalls is diagnosed by `otelgpu profile -t all`, as its own clock has it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rig import ROOT


@pytest.mark.alone(reason="what is late in naming the stacks of a short program has nothing to read any more")
def test_the_stall_of_a_training_loop_is_diagnosed(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    done = subprocess.run(
        [sys.executable, "-m", "examples.demo_profile", "--steps", "33", "--output", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "160"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "The diagnosis agrees with the loop's own clock." in done.stdout
    assert (tmp_path / "profile.html").stat().st_size > 10_000
