"""Family profile for what is asked of it: which of its programs run, with which constants, by which clock.

A program is one kind's by the first word of its name (``cpu_sample``); see bpf/profile/profile.bpf.c.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final

from otelgpu.kernel import features
from otelgpu.kernel.attach import attach_tracepoints
from otelgpu.kernel.kernel_btf import lacking_names
from otelgpu.kernel.libbpf import BpfError
from otelgpu.kernel.loader import LoadedFamily
from otelgpu.kernel.perf_events import attach_clocks
from otelgpu.model.profiling import CALL_KINDS, ProfileKind, ProfileSettings

_log = logging.getLogger("otelgpu.kernel")

PROGRAMS: Final[Mapping[str, frozenset[ProfileKind]]] = {
    "cpu_": frozenset((ProfileKind.CPU, ProfileKind.PYTHON)),
    "offcpu_": frozenset((ProfileKind.OFFCPU, ProfileKind.PYTHON)),
    "waker_": frozenset((ProfileKind.OFFCPU,)),
    "syscall_": frozenset((ProfileKind.SYSCALL,)),
    "file_": frozenset((ProfileKind.FILE,)),
    "block_": frozenset((ProfileKind.BLOCK,)),
    "call_": CALL_KINDS,
}
"""How the name of a program begins → the kinds that need it."""

_USERS: Final = "user_"
SHORT_WAITS_NS: Final = 1_000_000
"""Where waits shorter than this are asked for, those that are shorter still are reported by sums of it."""
"""Of a user's probes, whatever the kinds: they are attached only where there are some."""


def possible(kinds: Collection[ProfileKind]) -> frozenset[ProfileKind]:
    """Those of ``kinds`` that this kernel has programs for; what is left out is said.

    Raises :class:`BpfError` where none is left of some.
    """
    if features.has_clock_programs():
        return frozenset(kinds)
    found = frozenset(kinds) - PROGRAMS["cpu_"]
    if left_out := ", ".join(sorted(frozenset(kinds) - found)):
        why = f"this kernel gives no samples of time on the CPU: {left_out} cannot be profiled"
        hint = "use Linux 6.1 or later"
        if not found:
            raise BpfError(why, hint=hint)
        _log.warning("%s; %s", why, hint)
    return found


def wanted(kinds: Collection[ProfileKind]) -> Callable[[str], bool]:
    """Whether a program, by its name, is for one of ``kinds`` that this kernel has programs for.

    Raises :class:`BpfError` where there is none for any.
    """
    known = possible(kinds)
    words = (_USERS, *(word for word, served in PROGRAMS.items() if not served.isdisjoint(known)))
    return lambda name: name.startswith(words)


def can_unwind() -> bool:
    """Whether stacks can be walked by tables; else the kernel follows frame pointers, and each stack says so."""
    return not lacking_names(["BPF_FUNC_loop"])


def constants(settings: ProfileSettings) -> dict[str, int]:
    """The ``const volatile`` globals of bpf/profile."""
    return {
        "unwind_loops": int(can_unwind()),
        "cpu_period_ns": 1_000_000_000 // settings.frequency_hz,
        "offcpu_least_ns": settings.off_cpu_least_us * 1000,
        "offcpu_sum_ns": SHORT_WAITS_NS if settings.off_cpu_least_us * 1000 < SHORT_WAITS_NS else 0,
        "file_slow_ns": settings.file_slow_ms * 1_000_000,
    }


class Clocks:
    """A watcher, see :mod:`otelgpu.processes.discovery`, that has samples taken."""

    def __init__(self, loaded: LoadedFamily, settings: ProfileSettings) -> None:
        self._loaded, self._settings = loaded, settings

    def start(self) -> None:
        """Raises :class:`BpfError`."""
        attach_clocks(self._loaded, self._settings.frequency_hz)


def attach_profiling(family: LoadedFamily, settings: ProfileSettings) -> None:
    """Start all that does not wait for a library to be mapped. Raises :class:`BpfError`."""
    attach_tracepoints(family)
    attach_clocks(family, settings.frequency_hz)
