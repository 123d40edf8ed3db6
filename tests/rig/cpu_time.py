"""CPU time of a process as the kernel counts it. Format: ``/proc/PID/stat``, proc(5)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_TICKS: Final = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int, *, children: bool = False) -> float:
    """Seconds, user and system, of all threads of a process; ``children``: and of its children that have ended.

    Raises OSError where there is no such process.
    """
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11 : 15 if children else 13])) / _TICKS
