"""The clock that CPU samples come by: one perf event per CPU, and a BPF program that runs when it strikes.

The clock is the kernel's own (``PERF_COUNT_SW_CPU_CLOCK``, a timer), which machines without a PMU have too. Events
are opened for the CPUs that are online; one that comes online later is not sampled until the next session.
Source: perf_event_open(2), include/uapi/linux/perf_event.h.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Final

from otelgpu.kernel.libbpf import BpfError, Link, detach_all
from otelgpu.kernel.loader import LoadedFamily

LEAST_HZ: Final = 19
MOST_HZ: Final = 997
ONLINE: Final = Path("/sys/devices/system/cpu/online")
_PERF_EVENT_OPEN: Final = 298  # x86-64
_TYPE_SOFTWARE: Final = 1
_CPU_CLOCK: Final = 0
_BY_FREQUENCY: Final = 1 << 10
_EXCLUDE_IDLE: Final = 1 << 7
_DISABLED: Final = 1
_CLOSE_ON_EXEC: Final = 8
_MOST_CPUS: Final = 8192  # CONFIG_NR_CPUS of the largest kernels


class _Attributes(ctypes.Structure):
    """struct perf_event_attr, its first published size (PERF_ATTR_SIZE_VER0): 64 bytes."""

    _fields_ = [
        ("type", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        ("config", ctypes.c_uint64),
        ("sample_frequency", ctypes.c_uint64),
        ("sample_type", ctypes.c_uint64),
        ("read_format", ctypes.c_uint64),
        ("flags", ctypes.c_uint64),
        ("wakeup_events", ctypes.c_uint32),
        ("breakpoint_type", ctypes.c_uint32),
        ("config1", ctypes.c_uint64),
    ]


def parse_cpus(text: str) -> list[int]:
    """``0-3,8`` → ``[0, 1, 2, 3, 8]`` (cpulist of sysfs); parts that are no numbers are passed over."""
    found: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and (last or first).isdecimal():
            found += range(int(first), min(int(last or first), _MOST_CPUS) + 1)
    return found


def open_clock(cpu: int, frequency_hz: int) -> int:
    """The descriptor of a clock of one CPU that strikes ``frequency_hz`` times a second; it does not run yet.

    Raises :class:`BpfError`.
    """
    attributes = _Attributes(
        type=_TYPE_SOFTWARE,
        size=ctypes.sizeof(_Attributes),
        config=_CPU_CLOCK,
        sample_frequency=frequency_hz,
        flags=_BY_FREQUENCY | _EXCLUDE_IDLE | _DISABLED,
    )
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.syscall(
        _PERF_EVENT_OPEN,
        ctypes.byref(attributes),
        ctypes.c_int(-1),
        ctypes.c_int(cpu),
        ctypes.c_int(-1),
        ctypes.c_ulong(_CLOSE_ON_EXEC),
    )
    if descriptor < 0:
        number = ctypes.get_errno()
        raise BpfError(
            f"cannot open a clock on CPU {cpu}: {os.strerror(number)}",
            errno=number,
            hint="perf events need CAP_PERFMON, and /proc/sys/kernel/perf_event_paranoid may forbid them",
        )
    return int(descriptor)


def attach_clocks(family: LoadedFamily, frequency_hz: int) -> int:
    """Run the family's ``perf_event`` programs at ``frequency_hz`` on every CPU that is online; how many CPUs.

    The links, which own the events, belong to the family from then on. All or none: raises :class:`BpfError`.
    """
    if not LEAST_HZ <= frequency_hz <= MOST_HZ:
        raise BpfError(f"{frequency_hz} Hz is out of range", hint=f"use {LEAST_HZ} to {MOST_HZ} Hz")
    programs = [program for program in family.programs if program.probes == "perf_event"]
    if not programs:
        return 0
    cpus = parse_cpus(ONLINE.read_text())
    links: list[Link] = []
    try:
        for cpu in cpus:
            for program in programs:
                links.append(program.attach_perf_event(open_clock(cpu, frequency_hz)))
    except BpfError:
        detach_all(links)
        raise
    family.links += links
    return len(cpus)
