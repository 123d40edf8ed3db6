"""Less detail when a ring cannot hold it: what is recorded is decided here, what is not is counted in the kernel.

In: how full a family's ring is and what it lost, each time before it is drained. Out: the level of detail that
its programs keep to (``detail`` of its ``enum <family>_detail``, from everything to the least), and the calls
that they counted instead of recording. Every call is in a record, in a count, or in a counter of losses.
"""

from __future__ import annotations

import logging
import struct
from collections import Counter
from collections.abc import Collection
from typing import Final

import numpy as np
from msgspec import Struct

from otelgpu.kernel.clock import monotonic_ns
from otelgpu.kernel.libbpf import possible_cpus
from otelgpu.kernel.loader import LoadedFamily
from otelgpu.model.inputs import CallsCounted
from otelgpu.model.losses import Reasons

REASONS: Final = Reasons(
    "cuda",
    {
        "detail_lowered": "there was more than the ring could hold: from then on calls were counted, not recorded",
        "detail_raised": "it became calm: more is recorded again",
    },
)
"""What one count of (``cuda``, reason) means."""

_log = logging.getLogger("otelgpu.kernel")

_NEARLY_FULL: Final = 0.75
_CALM: Final = 0.25
_CALM_NS: Final = 5_000_000_000  # for so long, before more is recorded again
_CALM_MOST_NS: Final = 80_000_000_000
_COUNTED: Final = "calls_counted"
_COUNTED_FOR_OTHERS: Final = "calls_counted_for_others"


class DetailLevel(Struct, kw_only=True):
    """Which level a ring's state asks for: down at once, up again after a calm; each relapse doubles the calm."""

    least: int
    level: int = 0
    _calm_since_ns: int = 0
    _calm_ns: int = _CALM_NS
    _raised_ns: int | None = None  # when more was recorded again

    def start_at(self, level: int, now_ns: int) -> None:
        """Go on from a level that something else chose."""
        self.level, self._calm_since_ns = level, now_ns

    def decide(self, now_ns: int, fullness: float, lost: int) -> int:
        """The level from now on. ``fullness`` is 0 to 1, ``lost`` records since the last call."""
        if lost or fullness >= _NEARLY_FULL:
            self._calm_since_ns = now_ns
            if self.level < self.least:
                self.level += 1
                if self._raised_ns is not None and now_ns - self._raised_ns < 2 * self._calm_ns:
                    self._calm_ns = min(2 * self._calm_ns, _CALM_MOST_NS)
                self._raised_ns = None
        elif fullness > _CALM:
            self._calm_since_ns = now_ns
        elif self.level and now_ns - self._calm_since_ns >= self._calm_ns:
            self.level -= 1
            self._calm_since_ns = self._raised_ns = now_ns
        elif not self.level and now_ns - (self._raised_ns or 0) > 4 * _CALM_MOST_NS:
            self._calm_ns = _CALM_NS
        return self.level


class Overload:
    """Keeps one family's detail to what its ring can hold."""

    def __init__(self, loaded: LoadedFamily) -> None:
        btf = loaded.image.btf
        self._loaded = loaded
        self._levels = {number: name for name, number in btf.enumerators(f"{loaded.family}_detail").items()}
        self._detail = DetailLevel(least=max(self._levels))
        self._key = btf.dtype("counted_key")
        self._apis = {
            number: name.removeprefix("API_")
            for name, number in btf.enumerators(f"{loaded.family}_api").items()
        }
        self._specs = loaded.image.constants("specs", "spec")  # by function
        self._ring_full = btf.enumerators("counter")["COUNTER_RING_FULL"]
        self._lost = 0
        self._reported: Counter[tuple[int, int]] = Counter()  # by process and function
        self._ever = False
        self._value_bytes = 8 * possible_cpus()
        self.counters: Counter[str] = Counter()

    @property
    def family(self) -> str:
        """The family's name."""
        return self._loaded.family

    @staticmethod
    def is_for(loaded: LoadedFamily) -> bool:
        """Whether the family's programs can do with less."""
        return loaded.image.btf.has_enum(f"{loaded.family}_detail")

    def adjust(self, now_ns: int) -> None:
        """Look at the ring; call it before each drain."""
        ring, before = self._loaded.ring, self._detail.level
        lost = self._loaded.counter(self._ring_full)
        level = self._detail.decide(now_ns, ring.pending_bytes() / ring.size, lost - self._lost)
        self._lost = lost
        if level != before:
            self._set(before, level)

    def force(self, level: int) -> None:
        """Set a level whatever the ring's state; :meth:`adjust` goes on from there."""
        before = self._detail.level
        self._detail.start_at(level, monotonic_ns())
        self._set(before, level)

    def _set(self, before: int, level: int) -> None:
        self._ever |= level > 0
        self._loaded.set_variable("detail", level)
        name = self._levels[level].lower().replace("_", " ")
        if level > before:
            self.counters["detail_lowered"] += 1
            _log.warning("%s: too much to record, %s from now on; calls are counted", self.family, name)
        else:
            self.counters["detail_raised"] += 1
            _log.warning("%s: calm again, %s from now on", self.family, name)

    def counted(self, gone: Collection[int] = ()) -> list[CallsCounted]:
        """Calls that were counted since the last time; processes that are ``gone`` are forgotten after it."""
        if not self._ever:
            return []
        found: list[CallsCounted] = []
        table = self._loaded.map(_COUNTED)
        for raw in table.list_keys():
            key = np.frombuffer(raw, self._key)[0]
            tgid = int(key["tgid"])
            found += self._grown(tgid, int(key["api"]), self._sum(_COUNTED, raw))
            if tgid in gone:
                table.delete(raw)
                del self._reported[tgid, int(key["api"])]
        for api in self._apis:
            found += self._grown(0, api, self._sum(_COUNTED_FOR_OTHERS, struct.pack("<I", api)))
        return found

    def _sum(self, table: str, key: bytes) -> int:
        raw = self._loaded.map(table).get(key, value_bytes=self._value_bytes)
        return int(np.frombuffer(raw or b"", dtype="<u8").sum())

    def _grown(self, tgid: int, api: int, total: int) -> list[CallsCounted]:
        grown = total - self._reported[tgid, api]
        if not grown:
            return []
        self._reported[tgid, api] = total
        family, kind = self._loaded.family, int(self._specs[api]["kind"])
        return [CallsCounted(tgid=tgid, family=family, kind=kind, api=self._apis[api], count=grown)]
