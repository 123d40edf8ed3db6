"""`diagnose stall` on live programs: the example, and the gallery of programs whose fault is known."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from otelgpu.diagnose.stall.verdicts import INCONCLUSIVE
from tests.gallery.cases import CASES, Case
from tests.gallery.run import NOTHING, Said, diagnose
from tests.kernel.observing import OTELGPU
from tests.rig import ROOT

pytestmark = [pytest.mark.long, pytest.mark.alone(reason="who waits for a CPU stands still indeed")]

TRIES = 3
"""Of a program: on a machine on which others work, what stalls may be shorter than what they cost it."""
MOST_MISSED = 3
"""Of all programs with a fault, whose cause was not named first in any try, which comes about on a busy machine."""
missed: list[str] = []
"""What was named in its place. Of the healthy nothing may ever be said."""


def said_of(name: str, case: Case) -> Said:
    for _ in range(TRIES - 1):
        said = diagnose(name, case)
        if said.cause == (case.cause or NOTHING):
            return said
    return diagnose(name, case)


@pytest.mark.parametrize("name", CASES)
def test_the_cause_is_named_first_and_nothing_is_said_of_the_healthy(name: str) -> None:
    said, wanted = said_of(name, CASES[name]), CASES[name].cause or NOTHING
    if wanted == NOTHING:
        assert said.cause in (NOTHING, INCONCLUSIVE), said.text
        return
    if said.cause != wanted:
        missed.append(f"{name}: {said.cause}")
        assert len(missed) <= MOST_MISSED, f"{missed}: {said.text}"
        return
    for each in CASES[name].says:
        if not each.startswith("every"):  # a gap more, of a busy machine, is no n-th step
            assert each in said.sentence


def test_the_example_is_explained_in_one_sentence(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    page = tmp_path / "report.html"
    example = [sys.executable, "examples/slow_ai_simulator.py", "--folder", str(tmp_path)]
    for _ in range(TRIES):
        done = subprocess.run(
            [OTELGPU, "diagnose", "stall", "--force", "-o", str(page), "--", *example],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if "checkpoint.bin" in done.stdout.partition("\n")[0]:
            break
    assert done.returncode == 3, done.stdout + done.stderr
    sentence = done.stdout.splitlines()[0]
    assert sentence.startswith("Stall: python")
    for each in (
        "main thread (TID ",
        "writes 50.0 MB to checkpoint.bin at slow_ai_simulator.py:32 save, which takes ",
        " of 20 steps (every ",
        "vfs_write ← ksys_write",
        "write it in another thread",
    ):
        assert each in sentence
    assert page.read_text().count("checkpoint.bin") >= 2


def test_a_running_program_is_looked_at_until_somebody_says_enough(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "tests.gallery.programs", "sleep", str(tmp_path)]
    with subprocess.Popen(program, cwd=ROOT) as running:
        command = [OTELGPU, "diagnose", "stall", "-p", str(running.pid), "-d", "60"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as looking:
            assert looking.stderr is not None and "profiling process" in looking.stderr.readline()
            time.sleep(1.5)
            looking.send_signal(signal.SIGINT)
            output, errors = looking.communicate(timeout=30)
            assert looking.returncode in (0, 3, 4), errors
            assert "Traceback" not in errors
            assert f"(PID {running.pid})" in output
        assert running.wait(timeout=60) == 0
