"""Processes whose events did not come: what they do now is read from /proc instead.

A container has a share of the ring of process events (bpf/process); beyond it, and where the ring was full, the kernel
notes the process only. Each is looked at once, at once; one that goes on is looked at ever more seldom, so that who
maps and forks without end costs little, and those beside it nothing.
"""

from __future__ import annotations

import struct
from typing import Final

from otelgpu.kernel.loader import LoadedFamily
from otelgpu.model.losses import Reasons

REASONS: Final = Reasons(
    "process",
    {
        "process_share_spent": "a process or container made more process events (exec, fork, mapping) than its share: "
        "it is looked at in /proc instead, ever more seldom while it goes on",
        "missed_processes_full": "too many processes made more events than their share: all are looked at in /proc",
    },
)
"""What one count of (``process``, reason) means."""

FIRST_PAUSE_NS: Final = 1_000_000_000
LONGEST_PAUSE_NS: Final = 60_000_000_000
ALL_PAUSE_NS: Final = 5_000_000_000
MOST_AT_ONCE: Final = 64
"""Processes that one collection looks at; the others wait for the next."""
_FULL: Final = "missed_processes_full"
_TGID: Final = struct.Struct("<I")


class MissedEvents:
    """Those of family ``process``."""

    def __init__(self, process: LoadedFamily) -> None:
        self._table = process.map("missed_processes")
        self._full = process.image.btf.enumerators("process_counter")[f"COUNTER_{_FULL.upper()}"]
        self._exec = 1 << process.image.btf.enumerators("process_kind")["PROCESS_EXEC"]
        self._process = process
        self._full_before = 0
        self._next_all_ns = 0
        self._pauses: dict[int, tuple[int, int]] = {}  # tgid → (not looked at before, pause after that)

    def take(self, now_ns: int) -> list[tuple[int, bool]]:
        """Processes to look at now, which have lost events since; and whether an exec is among these."""
        due: list[tuple[int, bool]] = []
        for key in self._table.list_keys():
            tgid = _TGID.unpack(key)[0]
            at_ns, pause_ns = self._pauses.get(tgid, (0, FIRST_PAUSE_NS))
            if now_ns < at_ns:
                continue
            if len(due) == MOST_AT_ONCE:
                break
            kinds = (self._table.get(key) or b"\0")[0]
            self._table.delete(key)  # before it is looked at: what is lost meanwhile is noted anew
            self._pauses[tgid] = now_ns + pause_ns, min(2 * pause_ns, LONGEST_PAUSE_NS)
            due.append((tgid, bool(kinds & self._exec)))
        self._forget(now_ns)
        return due

    def take_all(self, now_ns: int) -> bool:
        """Whether all processes are to be looked at: of some nobody knows that they lost events."""
        if now_ns < self._next_all_ns:
            return False
        full = self._process.counter(self._full)
        if full == self._full_before:
            return False
        self._full_before, self._next_all_ns = full, now_ns + ALL_PAUSE_NS
        return True

    def _forget(self, now_ns: int) -> None:
        """Who was quiet for as long as its pause begins anew."""
        for tgid in [tgid for tgid, (at_ns, pause_ns) in self._pauses.items() if at_ns + pause_ns < now_ns]:
            del self._pauses[tgid]
