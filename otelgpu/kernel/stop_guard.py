"""Ends this process where it was asked to stop and does not come round to it: by a child that sees the request too.

Python handles a signal between two of its instructions. A thread that is in a system call that does not return, or in
a page of a file system that does not answer, never gets there; nor does another thread, for want of the interpreter's
lock. The kernel's own handler writes the signal's number into a pipe all the same (signal.set_wakeup_fd).
"""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import suppress
from types import TracebackType
from typing import Final, NoReturn, Self

from otelgpu.errors import OtelgpuError
from otelgpu.kernel.descriptors import close_all_but
from otelgpu.kernel.privileges.dropping import give_up

GRACE_SECONDS: Final = 4.0
"""From the request until somebody must have noticed it; the flush that follows has bounds of its own."""

_REQUESTS: Final = (signal.SIGINT, signal.SIGTERM)
_IGNORED: Final = (*_REQUESTS, signal.SIGHUP, signal.SIGQUIT)
_STANDARD_ERROR: Final = 2
_NOTICED: Final = b"\0"
_SAYS: Final = b"otelgpu: asked to stop, but hung: killed; what was not exported yet is lost\n"


class StopGuard:
    """Within ``with``, for the main thread: who is asked to stop and does not say :meth:`noticed` in time is killed.

    To be made before there are threads: it forks. The sooner, the less memory the child keeps that this process has
    changed since: its pages are the child's alone then. :meth:`close` ends it, also where it was never entered.
    """

    def __init__(self, grace_s: float = GRACE_SECONDS) -> None:
        read, self._pipe = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        parent = os.pidfd_open(os.getpid())
        self._child = os.fork()
        if self._child == 0:
            _stand(parent, read, grace_s)
        os.close(read)
        os.close(parent)

    def __enter__(self) -> Self:
        signal.set_wakeup_fd(self._pipe, warn_on_full_buffer=False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.set_wakeup_fd(-1)
        self.close()

    def close(self) -> None:
        """End the child; idempotent."""
        if self._pipe < 0:
            return
        os.close(self._pipe)
        self._pipe = -1
        with suppress(ProcessLookupError):
            os.kill(self._child, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self._child, 0)

    def noticed(self) -> None:
        """The request is being seen to."""
        with suppress(OSError):  # full: then it has more to read than it needs; or there is no child any more
            os.write(self._pipe, _NOTICED)


def _stand(parent: int, pipe: int, grace_s: float) -> NoReturn:
    """In the child."""
    try:
        os.setsid()
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        close_all_but({parent, pipe, _STANDARD_ERROR})
        with suppress(OtelgpuError):
            give_up(())
        _watch(parent, pipe, grace_s)
    finally:
        os._exit(0)


def _watch(parent: int, pipe: int, grace_s: float) -> None:
    until_s: float | None = None
    while True:
        wait_s = None if until_s is None else max(until_s - time.monotonic(), 0)
        ready = select.select([parent, pipe], [], [], wait_s)[0]
        if parent in ready:
            return
        if pipe in ready:
            said = os.read(pipe, 4096)
            if not said or _NOTICED in said:
                return
            if until_s is None and any(number in said for number in _REQUESTS):
                until_s = time.monotonic() + grace_s
        elif until_s is not None:
            os.write(_STANDARD_ERROR, _SAYS)
            signal.pidfd_send_signal(parent, signal.SIGKILL)
            return
