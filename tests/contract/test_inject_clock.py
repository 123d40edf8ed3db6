"""The clock of the in-process library, on a machine that holds it up between its two readings."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_thread_that_is_held_up_while_it_reads_both_clocks_reports_no_false_times(tmp_path: Path) -> None:
    program = tmp_path / "clock"
    source = Path(__file__).parent / "data" / "inject_clock.c"
    command = [
        "cc",
        "-O2",
        "-Wall",
        "-Werror",
        "-Wno-unknown-pragmas",
        "-D__TARGET_ARCH_x86",
        f"-I{ROOT}/bpf",
        f"-I{ROOT}/otelgpu/inject",
    ]
    subprocess.run([*command, "-o", program, source], check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    asked = int(done.stdout.split()[1])
    assert (
        714 < asked < 1000
    )  # in the first half of a millisecond, and twice at each of 28 anchors and hold-ups
