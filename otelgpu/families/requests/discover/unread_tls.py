"""TLS connections whose clear text no probe sees: how many, and of which library.

In: how many sockets of each process carry TLS, and how many of its sessions are seen (bpf/http/ciphertext.h). Out:
losses by library. Only of processes of which no session is seen at all: what a session without a socket belongs to is
not known where there are both.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from otelgpu.elf.image import ElfError
from otelgpu.kernel.loader import LoadedFamily
from otelgpu.kernel.tables import CountedTable
from otelgpu.model.inputs import Input
from otelgpu.model.losses import Reasons
from otelgpu.processes.elf_files import open_regular
from otelgpu.processes.function_finder import session_function_finder
from otelgpu.processes.linked_tls import BORINGSSL, GO, RUSTLS
from otelgpu.processes.reader.accounts import owner_of
from otelgpu.processes.reader.client import ReaderError

REASONS: Final = Reasons(
    "http",
    {
        "tls_of_go_unread": "a TLS connection of a Go program whose crypto/tls could not be probed",
        "tls_of_rustls_unread": "a TLS connection of a program that has rustls: no probe sees what it encrypts",
        "tls_of_boringssl_unread": "a TLS connection of a program that has BoringSSL: no probe sees what it encrypts",
        "tls_unread": "a TLS connection of a program whose TLS library is not known, or has no probes",
    },
)
"""What one count of (``http``, reason) means."""

LOOK_EVERY_NS: Final = 200_000_000
"""A program is named by its file, which is gone with the process."""
UNREAD_FOR_NS: Final = 5_000_000_000
"""A process without a session for so long has none: a session may be seen later than its socket."""
_REASON_OF: Final = {
    GO: "tls_of_go_unread",
    RUSTLS: "tls_of_rustls_unread",
    BORINGSSL: "tls_of_boringssl_unread",
}
_UNKNOWN: Final = "tls_unread"


class _Process(Struct):
    since_ns: int
    reason: str
    counted: int = 0


class UnreadTls:
    """A watcher: see :mod:`otelgpu.processes.discovery`. ``reason_of``: a process id → one of :data:`REASONS`."""

    def __init__(self, loaded: LoadedFamily, reason_of: Callable[[int], str]) -> None:
        self._map = loaded.map("tls_seen")
        self._seen = loaded.image.btf.dtype("tls_seen")
        self._table = CountedTable(self._map, np.dtype([("tgid", "<u4")]), self._seen)
        self._reason_of = reason_of
        self._processes: dict[int, _Process] = {}  # as many as the map has
        self._look_ns = 0
        self._last = False
        self.counters: Counter[str] = Counter(dict.fromkeys(REASONS, 0))

    def forget(self, tgid: int) -> None:
        """Count those of a process that has ended."""
        key = tgid.to_bytes(4, "little")
        value = self._map.get(key)
        process = self._processes.pop(tgid, None)
        if value is None:
            return
        self._map.delete(key)
        (seen,) = np.frombuffer(value, self._seen)
        if not seen["sessions"]:
            self._count(process or _Process(0, _UNKNOWN), int(seen["sockets"]))

    def complete(self) -> None:
        """Count all that there are, at the collection that follows."""
        self._last = True

    def collect(self, now_ns: int) -> Sequence[Input]:
        """Look at who has TLS, if it is time."""
        if now_ns < self._look_ns and not self._last:
            return ()
        self._look_ns = now_ns + LOOK_EVERY_NS
        rows = self._table.read()
        unread = rows[(rows["value"]["sessions"] == 0) & (rows["value"]["sockets"] > 0)]
        before, self._processes = self._processes, {}
        for row in unread:
            tgid = int(row["key"]["tgid"])
            process = before.get(tgid) or _Process(now_ns, self._reason_of(tgid))
            self._processes[tgid] = process
            if self._last or now_ns - process.since_ns >= UNREAD_FOR_NS:
                self._count(process, int(row["value"]["sockets"]))
        return ()

    def _count(self, process: _Process, sockets: int) -> None:
        more = sockets - process.counted
        self.counters[process.reason] += more if more >= 0 else sockets  # the map had forgotten it
        process.counted = sockets


def reason_by_program(tgid: int) -> str:
    """By the library that its program has linked into it."""
    try:
        descriptor = open_regular(f"/proc/{tgid}/exe")
    except OSError:
        return _UNKNOWN
    try:
        names = session_function_finder().linked_tls(owner_of(tgid), descriptor)
    except (ReaderError, OSError, ElfError):
        return _UNKNOWN
    finally:
        os.close(descriptor)
    return next(
        (_REASON_OF[library] for library in _REASON_OF for name in names if name.startswith(library)),
        _UNKNOWN,
    )
