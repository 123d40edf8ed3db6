"""Ctrl-C at any moment of a command: an exit code and no traceback, from the entry point to Python's last line."""

from __future__ import annotations

import subprocess
import sys

import pytest

BEGIN = """
import atexit, os, signal, sys, types
def interrupt():
    os.kill(os.getpid(), signal.SIGINT)
class At:
    def __init__(self, name):
        self.name = name
    def find_spec(self, name, *rest):
        if name == self.name:
            interrupt()
"""
RUN = """
from otelgpu.cli.main import main
main()
"""
COMMAND = """
from otelgpu.cli import commands
import click
@click.command()
def ps():
    try:
        interrupt()
    finally:
        print("undone")
sys.modules["otelgpu.cli.ps"] = types.ModuleType("otelgpu.cli.ps")
sys.modules["otelgpu.cli.ps"].ps = ps
"""


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BEGIN + program + RUN, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("module", ["otelgpu.cli.commands", "click", "numpy", "otelgpu.cli.ps", "msgspec"])
def test_while_modules_are_imported_it_ends_the_command(module: str) -> None:
    done = run(f"sys.meta_path.insert(0, At({module!r}))", "ps", "--help")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_once_the_command_has_begun_what_it_did_is_undone() -> None:
    done = run(COMMAND, "ps")
    assert (done.returncode, done.stdout.splitlines()) == (130, ["undone"])
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments, code", [(("--version",), 0), (("--nonsense",), 2)])
def test_when_all_is_done_it_changes_nothing(arguments: tuple[str, ...], code: int) -> None:
    done = run("atexit.register(interrupt)", *arguments)
    assert done.returncode == code
    assert "Traceback" not in done.stderr


def test_where_it_is_ignored_it_stays_so() -> None:
    """As nohup has it, and a shell without job control for what it starts in the background."""
    done = run(
        "signal.signal(signal.SIGINT, signal.SIG_IGN); sys.meta_path.insert(0, At('click'))" + COMMAND, "ps"
    )
    assert (done.returncode, done.stdout) == (0, "undone\n")
