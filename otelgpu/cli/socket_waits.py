"""On which sockets threads wait, while something is recorded: looked at up to ten times a second, from outside.

In: processes. Out: by thread, the peers of the sockets in whose calls it was seen to stand. A peer is looked up when
its socket is seen for the first time, for by the end it may be gone. A call on several sockets at once (``poll``,
``epoll_wait``) names none.

Format: proc_pid_syscall(5): the number of the call, and its arguments, of which the first is the descriptor.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Final

from otelgpu.diagnose.stall.surroundings import SocketWait
from otelgpu.families.profiles.syscall_names import syscall_name
from otelgpu.processes.kernel_files import kernel_text
from otelgpu.processes.listing import cpu_use
from otelgpu.processes.socket_peers import Peer, peer_of

EVERY_S: Final = 0.1
"""Where that is no more than :data:`MOST_CPU`; else less often, to once in :data:`SELDOM_S`."""
SELDOM_S: Final = 1.0
MOST_CPU: Final = 0.02
"""Of one. A thread costs 0.1 ms each time, on a busy machine."""
MOST_THREADS: Final = 64
"""Of a process, the first of its list: the main thread is one."""
MOST_SOCKETS: Final = 16
"""Whose peers are looked up: each takes a walk through the tables of all network namespaces."""
_ON_SOCKETS: Final = frozenset(
    (
        "read",
        "readv",
        "recvfrom",
        "recvmsg",
        "recvmmsg",
        "write",
        "writev",
        "sendto",
        "sendmsg",
        "sendmmsg",
        "connect",
    )
)
_SOCKET: Final = re.compile(r"socket:\[(\d+)\]")
_CALL: Final = re.compile(r"(\d{1,9}) 0x([0-9a-f]{1,16}) .*", re.DOTALL)


class SocketWaits:
    """Looks from :meth:`start` to :meth:`stop`."""

    def __init__(self, *, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._looks: dict[tuple[int, int], Counter[int]] = defaultdict(Counter)  # thread → socket → times
        self._peers: dict[tuple[int, int], tuple[Peer, str] | None] = {}  # by process and socket
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, pids: Iterable[int]) -> None:
        """After privileges were given up: a thread keeps those that it begins with."""
        chosen = tuple(pids)
        self._thread = threading.Thread(
            target=self._look_on, args=(chosen,), name="otelgpu-sockets", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """No more looks; those that there were stay."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join()

    def _look_on(self, pids: tuple[int, ...]) -> None:
        pause_s = EVERY_S
        while not self._ending.wait(pause_s):
            began = time.thread_time()
            for pid in pids:
                self.look(pid)
            pause_s = min(max(EVERY_S, (time.thread_time() - began) / MOST_CPU), SELDOM_S)

    def look(self, pid: int) -> None:
        """Once, at the threads of one process."""
        try:
            with os.scandir(self._proc / str(pid) / "task") as entries:
                threads = [int(each.name) for each in islice(entries, MOST_THREADS)]
        except OSError:
            return  # it has ended
        for tid in threads:
            socket = self._socket(pid, tid)
            if socket is not None:
                self._looks[pid, tid][socket] += 1
                if (pid, socket) not in self._peers and len(self._peers) < MOST_SOCKETS:
                    self._peers[pid, socket] = self._peer(pid, socket)

    def _socket(self, pid: int, tid: int) -> int | None:
        """Its inode, where the thread stands in a call on one."""
        process = self._proc / str(pid)
        call = _CALL.fullmatch(kernel_text(process / "task" / str(tid) / "syscall"))
        if call is None or syscall_name(int(call[1])) not in _ON_SOCKETS:
            return None
        try:
            link = _SOCKET.fullmatch(os.readlink(process / "fd" / str(int(call[2], 16))))
        except OSError:
            return None
        return int(link[1]) if link is not None else None

    def _peer(self, pid: int, socket: int) -> tuple[Peer, str] | None:
        peer = peer_of(pid, socket, proc=self._proc)
        use = cpu_use(peer.pid, proc=self._proc) if peer is not None and peer.pid else None
        return None if peer is None else (peer, use.comm if use is not None else "")

    def seen(self, pid: int) -> list[SocketWait]:
        """Of the threads of one process, by thread and then the most looks first."""
        return [
            SocketWait(
                tid=tid,
                looks=count,
                all_looks=looks.total(),
                address=found[0].address,
                pid=found[0].pid,
                name=found[1],
                elsewhere=found[0].elsewhere,
            )
            for (process, tid), looks in sorted(self._looks.items())
            if process == pid
            for socket, count in looks.most_common()
            if (found := self._peers.get((pid, socket))) is not None
        ]
