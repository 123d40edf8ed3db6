"""Ends this process where it was asked to stop and does not come round to it: by another process, which sees it too.

Python handles a signal between two of its instructions. A thread that is in a system call that does not return, or in
a page of a file system that does not answer, never gets there; nor does another thread, for want of the interpreter's
lock. The kernel's own handler writes the signal's number into a pipe all the same (signal.set_wakeup_fd).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

GRACE_SECONDS: Final = 4.0
"""From the request until somebody must have noticed it; the flush that follows has bounds of its own."""

_REQUESTS: Final = (signal.SIGINT, signal.SIGTERM)
_STANDARD_ERROR: Final = 2
_NOTICED: Final = b"\0"
_SAYS: Final = b"otelgpu: asked to stop, but hung: killed; what was not exported yet is lost\n"


class StopGuard:
    """Within ``with``, for the main thread: who is asked to stop and does not say :meth:`noticed` in time is killed.

    ``watch``: has another process hold a :class:`Watch` of these, a pidfd of this one, a pipe and seconds of grace.
    """

    def __init__(self, watch: Callable[[int, int, float], None], grace_s: float = GRACE_SECONDS) -> None:
        read, self._pipe = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        own = os.pidfd_open(os.getpid())
        watch(own, read, grace_s)
        os.close(read)
        os.close(own)

    def __enter__(self) -> Self:
        signal.set_wakeup_fd(self._pipe, warn_on_full_buffer=False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.set_wakeup_fd(-1)
        self.close()

    def close(self) -> None:
        """It is over; idempotent."""
        if self._pipe >= 0:
            self.noticed()  # also where another child of this process has the pipe yet
            os.close(self._pipe)
            self._pipe = -1

    def noticed(self) -> None:
        """The request is being seen to."""
        with suppress(OSError):  # full: then it has more to read than it needs; or there is no child any more
            os.write(self._pipe, _NOTICED)


class Watch:
    """The other side, in the loop of a process that waits for other things too: it polls :attr:`pipe` for reading.

    Owns both descriptors until :meth:`close`. To be closed when :meth:`read` says so.
    """

    def __init__(self, watched: int, pipe: int, grace_s: float) -> None:
        self.pipe = pipe
        self._watched, self._grace_s = watched, grace_s
        self._until_s: float | None = None

    def left_s(self) -> float | None:
        """How long there is to wait at most before :meth:`kill_if_late`; None: nobody was asked to stop."""
        return None if self._until_s is None else max(self._until_s - time.monotonic(), 0)

    def read(self) -> bool:
        """What the pipe holds; whether there is anything to watch yet."""
        said = os.read(self.pipe, 4096)
        if not said or _NOTICED in said:
            return False
        if self._until_s is None and any(number in said for number in _REQUESTS):
            self._until_s = time.monotonic() + self._grace_s
        return True

    def kill_if_late(self) -> None:
        """Who was asked to stop and has not noticed in time, and say so."""
        if self.left_s() == 0:
            self._until_s = None
            os.write(_STANDARD_ERROR, _SAYS)
            with suppress(OSError):  # it has gone just now
                signal.pidfd_send_signal(self._watched, signal.SIGKILL)

    def close(self) -> None:
        """Watch no more."""
        os.close(self.pipe)
        os.close(self._watched)
