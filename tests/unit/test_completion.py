"""What a shell is told at a Tab, through the script that `otelgpu completion` prints."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from otelgpu.cli.commands import cli

OTELGPU = str(Path(sys.executable).with_name("otelgpu"))


def asked(*words: str) -> dict[str, str]:
    """The environment in which bash asks what the last word of a command line may be."""
    return {
        "_OTELGPU_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }


def completed(*words: str) -> list[str]:
    """The last word of a command line, as bash is told to complete it."""
    told = CliRunner().invoke(cli, [], env=asked(*words), prog_name="otelgpu")
    assert not told.stderr
    return words_of(told.stdout)


def completed_by_program(*words: str) -> list[str]:
    """The same by another process, which knows of this one."""
    environment = {**os.environ, **asked(*words)}
    told = subprocess.run([OTELGPU], env=environment, capture_output=True, text=True, timeout=60)
    assert not told.stderr
    return words_of(told.stdout)


def words_of(told: str) -> list[str]:
    return [line.partition(",")[2] for line in told.splitlines() if line]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("comp",), ["completion"]),
        (("attach", "--famil"), ["--families"]),
        (("attach", "--families", "cuda,ht"), ["cuda,http"]),
        (("attach", "--families", "http,ht"), []),
        (("run", "--export", "otl"), ["otlp", "otlp:"]),
        (("run", "--detail", "o"), ["ops"]),
        (("profile", "-t", "cpu,off"), ["cpu,offcpu"]),
        (("agent", "--profiles", "py"), ["python"]),
        (("completion", "f"), ["fish"]),
    ],
)
def test_words_are_completed(words: tuple[str, ...], found: list[str]) -> None:
    assert completed("otelgpu", *words) == found


def test_processes_are_named_and_kernel_threads_are_not() -> None:
    own = str(os.getpid())
    assert own in completed_by_program("otelgpu", "attach", "-p", own)
    assert f"{own},{own}" in completed_by_program("otelgpu", "attach", "-p", f"{own},{own}")
    assert "2" not in completed_by_program("otelgpu", "attach", "-p", "2")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_script_is_one_that_its_shell_reads(shell: str) -> None:
    script = subprocess.run([OTELGPU, "completion", shell], capture_output=True, text=True, timeout=60)
    assert script.returncode == 0
    assert "_OTELGPU_COMPLETE" in script.stdout
    if (program := shutil.which(shell)) is not None:
        subprocess.run([program, "-n"], input=script.stdout, text=True, check=True, timeout=60)


def test_a_shell_that_has_no_script_is_an_error_that_says_so() -> None:
    environment = {**os.environ, "SHELL": "/bin/tcsh"}
    told = subprocess.run(
        [OTELGPU, "completion"], env=environment, capture_output=True, text=True, timeout=60
    )
    assert told.returncode == 1
    assert "'tcsh', is not one of bash, zsh, fish" in told.stderr
