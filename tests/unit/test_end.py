"""A session that has given all back ends as it is; whatever else there is to do at a program's end is done."""

from __future__ import annotations

import subprocess
import sys
from typing import IO

import pytest

PROGRAM = """
import atexit, sys, threading, time, types
from otelgpu.cli import commands, main
import click
@click.command()
@click.argument("text")
@click.argument("code", type=int)
def ps(text, code):
    sys.stdout.write(text)
    {}
    sys.exit(code)
sys.modules["otelgpu.cli.ps"] = types.ModuleType("otelgpu.cli.ps")
sys.modules["otelgpu.cli.ps"].ps = ps
atexit.register(print, " taken apart", end="")
main.main()
"""
GIVEN_BACK = "main.all_is_given_back()"
LATE = "threading.Thread(target=lambda: (time.sleep(0.2), sys.stdout.write(' late'))).start()"


def end(
    does: str, code: int = 0, stdout: IO[str] | int = subprocess.PIPE
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM.format(does), "ps", "said", str(code)]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=60, check=False)


@pytest.mark.parametrize("code", [0, 3])
def test_what_was_said_is_written_and_the_code_is_the_program_s(code: int) -> None:
    done = end(GIVEN_BACK, code)
    assert (done.returncode, done.stdout, done.stderr) == (code, "said", "")


@pytest.mark.parametrize(
    "does, said", [("pass", "said taken apart"), (f"{GIVEN_BACK}; {LATE}", "said late taken apart")]
)
def test_where_something_is_left_python_ends_it(does: str, said: str) -> None:
    done = end(does)
    assert (done.returncode, done.stdout) == (0, said)


def test_what_cannot_be_written_is_reported() -> None:
    with open("/dev/full", "w") as full:
        done = end(GIVEN_BACK, stdout=full)
    assert done.returncode == 70
    assert "No space left on device" in done.stderr
