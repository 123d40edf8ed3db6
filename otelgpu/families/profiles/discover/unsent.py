"""Programs of family profile that write, when they are asked, what is in no sample yet.

A thread that waits, and quick system calls that no sample stands for, are known to the kernel's maps alone until
something ends. ``iter/task`` programs (``offcpu_report``, ``syscall_report``) put them into the ring as samples;
what they wrote is then accounted for, so that sums over a session are exact whenever its last samples were asked for.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import Final

from otelgpu.kernel.clock import monotonic_ns
from otelgpu.kernel.libbpf import BpfError, Link
from otelgpu.kernel.loader import LoadedFamily

_log = logging.getLogger("otelgpu.discover")

REASONS: Final[Mapping[str, str]] = {
    "waits_not_reported": "the kernel did not let a program run that reports waits: a profile lacks them",
}
"""What is counted, and what one count means."""


class UnsentSamples:
    """A watcher: see :mod:`otelgpu.processes.discovery`. Closed with the family."""

    def __init__(self, loaded: LoadedFamily, interval_s: float) -> None:
        """``interval_s``: how often they are asked. Raises :class:`BpfError` where the kernel refuses one."""
        self.counters: Counter[str] = Counter()
        self._interval_ns = int(interval_s * 1e9)
        self._asked_ns = monotonic_ns()
        self._last = False
        self._links: list[Link] = [
            program.attach() for program in loaded.programs if program.section.startswith("iter/")
        ]
        loaded.links += self._links

    def ask(self, now_ns: int) -> None:
        """Have all of it put into the ring, where it is time or the end."""
        if not self._last and now_ns - self._asked_ns < self._interval_ns:
            return
        self._asked_ns, self._last = now_ns, False
        try:
            for link in self._links:
                link.iterate()
        except BpfError as error:
            self.counters["waits_not_reported"] += 1
            _log.debug("%s", error)

    def complete(self) -> None:
        """It is asked in the collection that follows."""
        self._last = True
