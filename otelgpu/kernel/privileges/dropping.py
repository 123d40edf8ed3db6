"""Takes up the privileges that the program was given, and gives up those that a session needs no more.

The kernel keeps capabilities by thread. So both are done while there is one thread, and threads that start later
inherit what it has; :mod:`otelgpu.kernel.quiet_imports` keeps numpy from starting others before that. What the
program to be observed was given is not touched: it was forked before it is given up.

Source: capabilities(7), capset(2), prctl(2), Documentation/userspace-api/no_new_privs.rst.
"""

from __future__ import annotations

import ctypes
import logging
import os
import struct
import time
from collections.abc import Iterable
from typing import Final

from otelgpu.errors import OtelgpuError
from otelgpu.kernel.privileges.capabilities import (
    SPLIT_FROM_ADMIN,
    Capability,
    Need,
    held,
    held_by_threads,
    names,
)

_log = logging.getLogger("otelgpu.privileges")

_VERSION: Final = 0x20080522  # _LINUX_CAPABILITY_VERSION_3
_SETS: Final = "=6I"  # cap_user_data_t twice: effective, permitted and inheritable, low bits first
_PR_CAPBSET_DROP: Final = 24
_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_CAP_AMBIENT: Final = 47
_PR_CAP_AMBIENT_CLEAR_ALL: Final = 4
_BITS: Final = 64
_ENDING_S: Final = 1.0


def take_up() -> None:
    """Make effective what is permitted, which root's is already. To be called first; raises nothing.

    A program file should only permit its capabilities (``setcap …=p``). The kernel refuses to execute one that makes
    them effective as well (``=ep``) where not all of them may be given, and then nobody says which is missing.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = struct.pack("=Ii", _VERSION, 0), ctypes.create_string_buffer(struct.calcsize(_SETS))
    if libc.capget(header, sets) == 0:
        words = list(struct.unpack(_SETS, sets))
        words[0::3] = words[1::3]
        libc.capset(header, struct.pack(_SETS, *words))


def give_up(needs: Iterable[Need]) -> None:
    """Keep of the capabilities what ``needs`` want and this process has; of the ways to others, none.

    Sets no_new_privs, empties the ambient and inheritable sets and, where CAP_SETPCAP allows it, the bounding set.
    To be called when files are open that only more privileges can open. Raises :class:`OtelgpuError`.
    """
    wanted = frozenset[Capability]().union(*(need.capabilities for need in needs))
    own = held()
    kept = sum(1 << capability for capability in wanted) & own.permitted
    if any(capability in SPLIT_FROM_ADMIN and not kept >> capability & 1 for capability in wanted):
        kept |= 1 << Capability.SYS_ADMIN & own.permitted
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "set no_new_privs")
    _check(libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0), "empty the ambient set")
    if own.has(Capability.SETPCAP):
        for number in range(_BITS):
            if own.bounding >> number & 1:
                _check(libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0), f"drop capability {number}")
    _check(libc.capset(struct.pack("=Ii", _VERSION, 0), _sets(kept)), "set capabilities")
    reported = names(each for each in Capability if kept >> each & 1) or "none"
    _log.info("privileges given up; kept: %s", reported)
    if others := _others_with_more(kept):
        _log.warning("threads that were there before keep their privileges: %s", others)


def _others_with_more(kept: int) -> list[int]:
    """Threads that were not started since; one that has ended may be seen for a moment yet."""
    until = time.monotonic() + _ENDING_S
    while True:
        found = [thread for thread, its in held_by_threads() if its.permitted & ~kept]
        if not found or time.monotonic() >= until:
            return found
        time.sleep(0.01)


def _sets(kept: int) -> bytes:
    low, high = kept & 0xFFFF_FFFF, kept >> 32
    return struct.pack(_SETS, low, low, 0, high, high, 0)


def _check(result: int, what: str) -> None:
    if result:
        raise OtelgpuError(
            f"cannot {what}: {os.strerror(ctypes.get_errno())}",
            hint="set drop_privileges: false to go on with all that this process was given",
        )
