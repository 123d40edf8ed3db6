"""When `otelgpu top` is a program, what it loads for that, and the process in which it observes."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from otelgpu.cli.commands import cli
from otelgpu.cli.top import start
from otelgpu.cli.top.observer import Channel, Observer
from otelgpu.cli.top.start import is_program
from otelgpu.errors import OtelgpuError
from otelgpu.render.top.frames import Failure, Frame, decoded, encoded

ROOT = Path(__file__).parents[2]
EMPTY = Frame(seconds=1.0, unix_s=0.0, views={})


STREAMS = ("stdin", "stdout", "stderr")


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """All three are one terminal, as a shell starts a program; pytest has `sys`'s own for itself."""
    control, line = pty.openpty()
    with os.fdopen(line, "r+b", buffering=0) as terminal:
        made = SimpleNamespace(**dict.fromkeys(STREAMS, terminal))
        monkeypatch.setattr(start, "sys", made)
        monkeypatch.setenv("TERM", "xterm-256color")
        yield made
    os.close(control)


@pytest.mark.usefixtures("streams")
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["top"], True),
        (["top", "nccl", "-p", "7"], True),
        (["top", "--once"], False),
        (["top", "cuda", "--json"], False),
        (["top", "--help"], False),
        (["check"], False),
        ([], False),
    ],
)
def test_it_is_a_program_unless_something_else_is_asked_for(arguments: list[str], expected: bool) -> None:
    assert is_program(arguments) is expected


@pytest.mark.parametrize("lacking", STREAMS)
def test_where_a_stream_is_no_terminal_it_is_none(lacking: str, streams: SimpleNamespace) -> None:
    with open(os.devnull, "r+b", buffering=0) as nothing:
        setattr(streams, lacking, nothing)
        assert not is_program(["top"])


@pytest.mark.usefixtures("streams")
@pytest.mark.parametrize("term", ["dumb", "", None])
def test_on_a_terminal_that_is_steered_by_nothing_it_is_none(
    term: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if term is None:
        monkeypatch.delenv("TERM")
    else:
        monkeypatch.setenv("TERM", term)
    assert not is_program(["top"])


def test_only_the_program_loads_what_draws_it() -> None:
    code = """
import sys
from importlib import import_module
from otelgpu.cli.commands import _Lazy
for module in set(_Lazy._MODULES.values()) | {"top.start", "top.plain"}:
    import_module(f"otelgpu.cli.{module}")
print("textual" in sys.modules)
from otelgpu.cli.top import app
print("textual" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.stdout.split() == ["False", "True"], done.stderr


def test_who_draws_loads_nothing_that_observes() -> None:
    code = "import sys, otelgpu.cli.top.start, otelgpu.cli.top.app; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    loaded = set(done.stdout.split())
    assert "otelgpu.cli.top.app" in loaded, done.stderr
    assert not loaded & {"numpy", "elftools", "google.protobuf", "otelgpu.agent", "otelgpu.engine.pipeline"}


@contextmanager
def observing(work: Callable[[Channel], Any]) -> Iterator[Observer]:
    observer = Observer(work)
    try:
        yield observer
    finally:
        observer.end()
        os.close(observer.reports)
        os.close(observer.log)


def everything(pipe: int) -> bytes:
    found = b""
    while more := os.read(pipe, 65_536):
        found += more
    return found


def wrong_usage(channel: Channel) -> None:
    cli.main(["top", "--frames"], prog_name="otelgpu", standalone_mode=False, obj=channel)


def cannot(channel: Channel) -> None:
    raise OtelgpuError("cannot load", hint="do this")


def broken(channel: Channel) -> None:
    raise LookupError("fault")


@pytest.mark.parametrize(
    ("work", "text", "exit_code"),
    [
        (wrong_usage, "No such option", click.UsageError.exit_code),
        (cannot, "otelgpu: cannot load\ndo this", 1),
        (broken, "otelgpu: internal error: LookupError('fault')", 70),
    ],
    ids=["usage", "refusal", "fault"],
)
def test_what_goes_wrong_is_reported(work: Callable[[Channel], None], text: str, exit_code: int) -> None:
    with observing(work) as observer:
        failure = decoded(everything(observer.reports))
    assert isinstance(failure, Failure)
    assert text in failure.text
    assert failure.exit_code == exit_code


def test_what_it_writes_is_in_the_log_and_its_end_is_asked_for() -> None:
    def work(channel: Channel) -> None:
        os.write(2, b"a line\n")
        os.write(1, b"another\n")
        channel.send(EMPTY)
        select.select([channel.closed], [], [])
        channel.send(EMPTY)

    observer = Observer(work)
    assert os.read(observer.reports, 65_536) == encoded(EMPTY)
    observer.end()
    assert everything(observer.reports) == encoded(EMPTY)  # the one that followed
    assert everything(observer.log) == b"a line\nanother\n"


def test_who_does_not_read_gets_no_more_and_then_whole_lines() -> None:
    reading, writing = os.pipe()
    closed, _ = os.pipe()
    channel = Channel(writing, closed)
    sent = 0
    while channel.is_ready():
        channel.send(EMPTY)
        sent += 1
    found = b""
    while not channel.is_ready():
        found += os.read(reading, 4096)
    os.close(writing)
    found += everything(reading)
    assert found == encoded(EMPTY) * sent
