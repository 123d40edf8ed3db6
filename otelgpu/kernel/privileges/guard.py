"""What is to be done when this process ends in whatever way, SIGKILL among them: by a child that waits for that.

For the few things that the kernel does not take back with the process: a process that was stopped, a pinned map, a
socket in the file system. Where every process of a container is killed together, the child is too. What must not wait
for this process while it lives, however it hangs, is done by the child as well.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, NamedTuple, NoReturn

from otelgpu.errors import OtelgpuError
from otelgpu.kernel.descriptors import close_all_but
from otelgpu.kernel.privileges.capabilities import Need
from otelgpu.kernel.privileges.dropping import give_up
from otelgpu.kernel.readable import is_readable

_IGNORED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Round(NamedTuple):
    """What a guard does again and again while the process lives."""

    every_s: float
    duty: Callable[[], None]


class Guard:
    """In a process of its own, ``duty`` once this one is gone, unless it was dismissed before; ``round`` until then.

    Of what is open here the child keeps ``descriptors``, and nothing else: it must not keep what it is to outlive. Of
    the privileges it keeps what ``needs`` want. It is in a session of its own, so that a terminal's signals do not
    reach it.
    """

    def __init__(
        self,
        duty: Callable[[], None],
        *,
        round: Round | None = None,
        needs: Iterable[Need] = (),
        descriptors: Iterable[int] = (),
    ) -> None:
        parent = os.pidfd_open(os.getpid())
        kept = sorted({parent, *descriptors})
        self._child = os.fork()
        if self._child == 0:
            _stand(parent, kept, needs, duty, round)
        os.close(parent)

    def stands(self) -> bool:
        """Whether the child is still there."""
        try:
            return os.waitid(os.P_PID, self._child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        except ChildProcessError:
            return False

    def dismiss(self) -> None:
        """There is nothing to be done any more; idempotent."""
        if self._child:
            with suppress(ProcessLookupError):
                os.kill(self._child, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(self._child, 0)
            self._child = 0


def _stand(
    parent: int, kept: list[int], needs: Iterable[Need], duty: Callable[[], None], round: Round | None
) -> NoReturn:
    """In the child."""
    try:
        os.setsid()
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        close_all_but(kept)
        with suppress(OtelgpuError):
            give_up(needs)
        while not is_readable(parent, round.every_s if round else None):
            if round is not None:
                round.duty()
        duty()
    finally:
        os._exit(0)
