"""Observed programs: the one that ``run`` starts, held until all that watches it is in place, and those that ran."""

from __future__ import annotations

import errno
import logging
import os
import select
import signal
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Self

from otelgpu.errors import OtelgpuError

_log = logging.getLogger("otelgpu.child")


class CannotStartError(OtelgpuError):
    """The program to observe could not be started; ``exit_code`` is what a shell gives."""

    def __init__(self, program: str, number: int) -> None:
        super().__init__(f"cannot start {program}: {os.strerror(number)}")
        self.errno = number
        self.exit_code = 127 if number == errno.ENOENT else 126


class Child:
    """A program that waits before exec until everything that watches it is in place."""

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str] | None = None) -> None:
        self._go_read, self._go_write = os.pipe()
        failed_read, failed_write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self._go_write)
                os.close(failed_read)
                if os.read(self._go_read, 1):
                    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python, and inherited across exec
                        signal.signal(ignored, signal.SIG_DFL)
                    os.execvpe(argv[0], list(argv), dict(environ if environ is not None else os.environ))
            except OSError as error:
                os.write(failed_write, str(error.errno).encode())
            finally:
                os._exit(127)
        os.close(self._go_read)
        os.close(failed_write)
        self._failed_read = failed_read
        self.pidfd = os.pidfd_open(self.pid)
        self._argv = argv

    def start(self) -> None:
        """Let it exec. Raises :class:`CannotStartError`."""
        os.write(self._go_write, b"!")
        os.close(self._go_write)
        with os.fdopen(self._failed_read, "rb") as pipe:
            failure = pipe.read()
        if failure:
            os.waitpid(self.pid, 0)
            raise CannotStartError(self._argv[0], int(failure))

    def abandon(self) -> None:
        """End it without having started the program."""
        os.close(self._go_write)
        os.waitpid(self.pid, 0)

    def signal(self, number: int) -> None:
        """Pass a signal on; nothing happens when it has ended."""
        if self.pidfd < 0:
            return
        try:
            signal.pidfd_send_signal(self.pidfd, number)
        except ProcessLookupError:
            return
        except PermissionError:
            _log.warning("signal %d is not passed on: the program runs as another user (CAP_KILL)", number)

    def wait(self) -> int:
        """The exit code as a shell gives it: 128 + n when signal n ended it."""
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        ended, self.pidfd = self.pidfd, -1  # first: a signal handler may pass one on at any time
        os.close(ended)
        return code if code >= 0 else 128 - code


WATCHED: Final = 256
"""Processes of :class:`RunningProcesses` that are watched at a time: each is a descriptor."""


class RunningProcesses:
    """Processes that ran already, as long as they run. ``fd`` is readable when one of those watched has ended."""

    def __init__(self, tgids: Iterable[int]) -> None:
        self._ends = select.epoll()
        self._watched: set[int] = set()  # pidfds
        self._rest = deque(tgids)
        self._watch()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pidfd in self._watched:
            os.close(pidfd)
        self._ends.close()

    @property
    def fd(self) -> int:
        """To wait at."""
        return self._ends.fileno()

    def some(self) -> bool:
        """Whether any of them is left."""
        while ended := self._ends.poll(0):
            for pidfd, _ in ended:
                self._ends.unregister(pidfd)
                self._watched.remove(pidfd)
                os.close(pidfd)
            self._watch()
        return bool(self._watched)

    def _watch(self) -> None:
        while self._rest and len(self._watched) < WATCHED:
            try:
                pidfd = os.pidfd_open(self._rest.popleft())
            except ProcessLookupError:
                continue
            self._watched.add(pidfd)
            self._ends.register(pidfd, select.EPOLLIN)
