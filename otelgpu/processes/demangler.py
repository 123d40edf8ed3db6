"""Readable names of the functions of observed processes, made where nothing can come of it: by a worker.

libstdc++'s demangler does not return for some names (``_ZNDTsrCGRGVR``), and whoever launches a kernel chooses its
name. So what libstdc++ would see is asked of a :class:`~otelgpu.processes.reader.client.Reader`. A name on which the
worker ends stays as it is, for good; whose names they are pays for the time.

    demangle = Demangler()
    demangle("_Z4axpyfPfS_", 4711)  → "axpy(float, float*, float*)"
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from functools import cache
from typing import Final

from otelgpu.processes.reader.accounts import Owners
from otelgpu.processes.reader.client import Limits, Reader, ReaderError
from otelgpu.processes.reader.forker import Forker, session_forker
from otelgpu.processes.reader.messages import question
from otelgpu.processes.reader.server import Confinement
from otelgpu.symbols.demangle import MAX_NAME_LENGTH, demangle

_MODULES: Final = ("otelgpu.symbols.libstdcxx",)
_LIMITS: Final = Limits(busy_s=0.05, wall_s=0.5, advance_s=0.2, failure_s=5.0)
"""A name takes some 20 µs, the worst that are let through to libstdc++ some 10 ms; all others wait for who asks."""

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

    def __init__(self, limits: Limits = _LIMITS, *, forker: Forker | None = None) -> None:
        self._reader = Reader(limits, Confinement(modules=_MODULES), forker=forker)
        self._known: OrderedDict[str, str] = OrderedDict()
        self._owners = Owners()

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
            answer = self._reader.ask(self._owners.of(tgid), demangled, name)
        except ReaderError as error:
            if error.reason not in ("worker_died", "worker_timed_out"):
                return name  # it was not tried
            answer = name
        if len(name) <= _KEPT_CHARACTERS or answer is name:
            self._known[name] = answer
            if len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return answer

    def close(self) -> None:
        """End the worker."""
        self._reader.close()


@cache
def session_demangler() -> Demangler:
    """The one of this program. To be asked for before there are threads: the first time, it forks."""
    return Demangler(forker=session_forker())
