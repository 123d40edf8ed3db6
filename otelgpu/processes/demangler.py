"""Readable names of the functions of observed processes, made where nothing can come of it: by a worker.

libstdc++'s demangler does not return for some names (``_ZNDTsrCGRGVR``), and whoever launches a kernel chooses its
name. So what libstdc++ would see is asked of a :class:`~otelgpu.processes.reader.client.Reader`. A name on which the
worker ends stays as it is, for good; whose names they are pays for the time.

    demangle = Demangler()
    demangle("_Z4axpyfPfS_", 4711)  → "axpy(float, float*, float*)"
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from functools import cache
from typing import Final

from otelgpu.processes.reader.accounts import NOBODYS, Owner, owner_of
from otelgpu.processes.reader.client import Limits, Reader, ReaderError
from otelgpu.processes.reader.messages import question
from otelgpu.symbols.demangle import MAX_NAME_LENGTH, demangle

_LIMITS: Final = Limits(busy_s=0.1, wall_s=2.0, advance_s=1.0)
"""A name takes some 20 µs, the worst that are let through to libstdc++ some 10 ms."""

_GONE: Final[Owner] = ("", -1)
"""Who pays for names of processes that have ended."""

_OWNER_S: Final = 1.0
"""For so long a process's owner is not asked for again: names come in hundreds."""

_KEPT: Final = 1 << 14
_KEPT_CHARACTERS: Final = 256
"""Longer names are asked for each time: what holds them is bounded by number."""

_MANGLED: Final = "_Z"
"""What libstdc++ takes apart begins so, or holds it behind ``__device_stub__``."""


@question()
def demangled(name: str) -> str:
    """As :func:`otelgpu.symbols.demangle.demangle`, and no sooner."""
    return demangle(name)


class Demangler:
    """Asks a reader of its own, and remembers the answers."""

    def __init__(self, limits: Limits = _LIMITS) -> None:
        demangle("_Z1fv")  # libstdc++ is loaded before the worker is shut in
        self._reader = Reader(limits)
        self._known: OrderedDict[str, str] = OrderedDict()
        self._owner: tuple[int, float, Owner] = (0, 0.0, _GONE)

    @property
    def counters(self) -> Counter[str]:
        """The reader's: names that have no answer, by reason."""
        return self._reader.counters

    def __call__(self, name: str, tgid: int) -> str:
        """The readable form of a name of process ``tgid``; ``name``, cut to MAX_NAME_LENGTH, where there is none."""
        if _MANGLED not in name or len(name) > MAX_NAME_LENGTH:
            return demangle(name)
        known = self._known.get(name)
        if known is not None:
            self._known.move_to_end(name)
            return known
        try:
            answer = self._reader.ask(self._owner_of(tgid), demangled, name)
        except ReaderError as error:
            if error.reason not in ("worker_died", "worker_timed_out"):
                return name  # it was not tried
            answer = name
        if len(name) <= _KEPT_CHARACTERS or answer is name:
            self._known[name] = answer
            if len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return answer

    def _owner_of(self, tgid: int) -> Owner:
        known, until_s, owner = self._owner
        now_s = time.monotonic()
        if tgid != known or now_s > until_s:
            found = owner_of(tgid)
            owner = _GONE if found == NOBODYS else found
            self._owner = (tgid, now_s + _OWNER_S, owner)
        return owner

    def close(self) -> None:
        """End the worker."""
        self._reader.close()


@cache
def session_demangler() -> Demangler:
    """The one of this program. To be asked for before there are threads: the first time, it forks."""
    return Demangler()
