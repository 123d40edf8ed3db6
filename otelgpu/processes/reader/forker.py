"""The agent's side of the process that forks workers: one may do so for several readers.

Each process that is forked keeps for itself what this one changes of its pages afterwards, some 12 MiB, and what it
imports. Readers of one program therefore share a forker, and their workers its pages.
"""

from __future__ import annotations

import os
import signal
import socket
from contextlib import suppress
from functools import cache
from typing import Final

import msgspec

from otelgpu.kernel.privileges.capabilities import Need
from otelgpu.processes.reader import server

_OF_SESSION: Final = (
    "otelgpu.processes.function_finder",
    "otelgpu.processes.memory",
    "otelgpu.processes.demangler",
    "lz4.block",
    "zstandard",
    "otelgpu.symbols.libstdcxx",
)
"""What workers of a session's readers run, first what is asked first; families say what they add (:meth:`prepare`)."""


class Forker:
    """To be made before there are threads: it forks. ``needs``: the privileges that it keeps, and its workers.

    ``modules``: imported there before it gives the others up, since workers may not look where packages are.
    """

    def __init__(self, needs: tuple[Need, ...] = (), modules: tuple[str, ...] = ()) -> None:
        self.needs = needs
        self.number, self._control = server.start(needs, modules)

    def connect(self, limits: server.Confinement) -> socket.socket:
        """One more reader's: what is sent there is answered with a worker, which has these limits.

        An OSError where the forker is gone is raised by who asks there.
        """
        assert limits.needs == self.needs, "workers have the privileges of who forks them"
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, suppress(OSError):
            told = server.Told(limits.modules, limits.memory_bytes, limits.cpu_seconds, limits.descriptors)
            socket.send_fds(self._control, [msgspec.msgpack.encode(told)], [theirs.fileno()])
        return ours

    def watch(self, watched: int, pipe: int, grace_s: float) -> None:
        """Have it hold a :class:`~otelgpu.kernel.stop_guard.Watch`: a process of its own for that takes 14 MiB."""
        told = server.Told(grace_s=grace_s)
        with suppress(OSError):
            socket.send_fds(self._control, [msgspec.msgpack.encode(told)], [watched, pipe])

    def prepare(self, *modules: str) -> None:
        """Have more modules imported. In the first second of its life, while it has its privileges yet."""
        with suppress(OSError):
            self._control.send(msgspec.msgpack.encode(server.Told(modules)))

    def close(self) -> None:
        """End it, and with it its workers; idempotent."""
        self._control.close()
        if self.number:
            with suppress(ProcessLookupError):
                os.kill(self.number, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(self.number, 0)
            self.number = 0


@cache
def session_forker() -> Forker:
    """The one of this program. To be asked for before there are threads: the first time, it forks."""
    return Forker(modules=_OF_SESSION)
