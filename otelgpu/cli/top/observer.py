"""A process of its own that observes, so that what draws needs no privilege, and neither waits for the other.

It is a copy of this one, made while that has one thread. Reports come through one pipe, what it logs through another;
it ends when the third has no writer any more, however this process ended. Who draws may be stopped (SIGSTOP): then
no frames are made, for a pipe that nobody reads takes no more.
"""

from __future__ import annotations

import fcntl
import io
import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NoReturn

import click

from otelgpu.errors import OtelgpuError
from otelgpu.render.top.frames import Failure, Report, encoded

PIPE_BYTES: Final = 1 << 20
"""Asked for: a frame of some thousand rows."""
ENDING_S: Final = 10.0
"""That it has to take its probes away; then it is killed, and the kernel takes them."""
_LAST_WORDS_S: Final = 5.0


class Channel:
    """To who draws. ``closed`` is readable when that has ended."""

    def __init__(self, reports: int, closed: int) -> None:
        self.closed = closed
        self._reports = reports
        self._waiting = b""
        os.set_blocking(reports, False)

    def is_ready(self) -> bool:
        """Whether all that was sent has gone."""
        with suppress(BlockingIOError):
            while self._waiting:
                self._waiting = self._waiting[os.write(self._reports, self._waiting) :]
        return not self._waiting

    def send(self, report: Report) -> None:
        """Some of it may wait until :meth:`is_ready` is asked."""
        self._waiting += encoded(report)
        self.is_ready()

    def finish(self) -> None:
        """Send the rest, if somebody reads it within some seconds."""
        until = time.monotonic() + _LAST_WORDS_S
        while not self.is_ready() and time.monotonic() < until:
            select.select([], [self._reports], [], 0.1)


class Observer:
    """Does ``work`` from here on. ``reports`` and ``log`` are to be read; whoever does closes them."""

    def __init__(self, work: Callable[[Channel], object]) -> None:
        self.reports, reports = os.pipe()
        self.log, log = os.pipe()
        closed, self._open = os.pipe()
        with suppress(OSError):  # more than this user may have
            fcntl.fcntl(reports, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._child = os.fork()
        if self._child == 0:
            for other in (self.reports, self.log, self._open):
                os.close(other)
            _observe(work, reports, log, closed)
        for its in (reports, log, closed):
            os.close(its)

    def end(self) -> None:
        """Ask for its end, and wait for it."""
        os.close(self._open)
        with suppress(ChildProcessError, ProcessLookupError):
            ended = os.pidfd_open(self._child)
            if not select.select([ended], [], [], ENDING_S)[0]:
                os.kill(self._child, signal.SIGKILL)
            os.close(ended)
            os.waitpid(self._child, 0)


def _observe(work: Callable[[Channel], object], reports: int, log: int, closed: int) -> NoReturn:
    """Be that process."""
    try:
        os.setpgid(0, 0)  # keys that the terminal makes signals of are for who draws
        os.set_blocking(log, False)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        channel = Channel(reports, closed)
        with suppress(BrokenPipeError):  # nobody draws any more
            if (failure := _failure(work, channel)) is not None:
                channel.send(failure)
            channel.finish()
    finally:
        os._exit(0)


def _failure(work: Callable[[Channel], object], channel: Channel) -> Failure | None:
    """Why it did not work, as :func:`otelgpu.cli.commands.run` reports it."""
    try:
        work(channel)
    except click.ClickException as error:
        said = io.StringIO()
        error.show(said)
        return Failure(text=said.getvalue().rstrip("\n"), exit_code=error.exit_code)
    except OtelgpuError as error:
        return Failure(text=f"otelgpu: {error}", exit_code=error.exit_code)
    except BrokenPipeError:
        raise
    except Exception as error:
        return Failure(text=f"otelgpu: internal error: {error!r}", exit_code=70)
    return None
