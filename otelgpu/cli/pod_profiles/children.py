"""A child of this program that does one thing, returns some bytes, and ends; at the latest when this program does."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from otelgpu.errors import OtelgpuError
from otelgpu.kernel.privileges.confinement import end_with_parent
from otelgpu.memory_limit import end_first

_log = logging.getLogger("otelgpu.cli")

MOST_BYTES: Final = 4096
"""That are returned: less than a pipe holds, so that no child waits for its reader."""
_FAULT: Final = 70  # EX_SOFTWARE
_LOOK_S: Final = 0.05


class Ended(NamedTuple):
    """``code``: of its exit, or a signal's number, negative."""

    code: int
    returned: bytes


class ForkedChild:
    """Has what this program has: settings, privileges, standard streams. To be made while there is one thread."""

    def __init__(self, work: Callable[[], bytes]) -> None:
        parent = os.getpid()
        self._read, write = os.pipe2(os.O_CLOEXEC)
        self._pid = os.fork()
        if self._pid == 0:
            _run(work, write, parent)
        os.close(write)
        self._began_s = time.monotonic()

    @property
    def age_s(self) -> float:
        """How long ago it was made."""
        return time.monotonic() - self._began_s

    def look(self) -> Ended | None:
        """None: it has not ended. To be asked no more once it has."""
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        return self._ended(status) if pid else None

    def wait(self, seconds: float) -> Ended:
        """Until it has ended; it is killed after ``seconds``."""
        until_s = time.monotonic() + seconds
        while (ended := self.look()) is None:
            if time.monotonic() >= until_s:
                self.signal(signal.SIGKILL)
                return self._ended(os.waitpid(self._pid, 0)[1])
            time.sleep(_LOOK_S)
        return ended

    def signal(self, number: int) -> None:
        """Which it has not been waited for, so the number is its own."""
        os.kill(self._pid, number)

    def _ended(self, status: int) -> Ended:
        os.set_blocking(self._read, False)  # a child of its own may hold the other end
        try:
            returned = os.read(self._read, MOST_BYTES)
        except BlockingIOError:
            returned = b""
        os.close(self._read)
        return Ended(os.waitstatus_to_exitcode(status), returned)


def _run(work: Callable[[], bytes], write: int, parent: int) -> None:
    code = _FAULT
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        end_with_parent(parent)
        end_first()  # where memory ends: this program says what became of the child
        os.write(write, work()[:MOST_BYTES])
        code = 0
    except OtelgpuError as error:
        _log.error("%s", error)
        code = error.exit_code
    except BaseException:
        _log.exception("a child of profile-pods failed")
    finally:
        os._exit(code)
