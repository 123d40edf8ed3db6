"""What this program knows of itself, read where somebody wants it reported and judged where somebody asks how it is.

In: a source and a session that work, and each turn of the loop. Out: series under the program's own resource, and
the reasons, if any, why it is not alive or not ready. The loop's thread calls everything but the judgements.
"""

from __future__ import annotations

import os
import resource as rusage
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from otelgpu.engine.self_telemetry import AgentStats, Cost, SelfMetrics
from otelgpu.memory_limit import MemoryLimit, resident_bytes
from otelgpu.model.inputs import Batch, Input
from otelgpu.model.self_telemetry import RingFill
from otelgpu.session import Session
from otelgpu.sources.joint import Source

STALLED_SECONDS: Final = 30.0
"""The loop is stuck when it has not come round for so long, and its interval, whatever it waits for."""
UNDELIVERED_SECONDS: Final = 300.0
"""A destination is down when it has accepted nothing for so long, though there was something."""


class SelfWatch:
    """Of one session. ``interval_s`` is the longest that the loop waits by itself, where something comes."""

    def __init__(
        self,
        source: Source,
        session: Session,
        *,
        interval_s: float,
        memory_limit: MemoryLimit | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.interval_s = interval_s
        self.reloads: Counter[str] = Counter(applied=0, refused=0)
        self._source, self._session, self._clock = source, session, clock
        self._memory_limit = memory_limit
        self._metrics = SelfMetrics(session.metrics, session.own)
        self._water = HighWater("export", "scrape")
        self._lags = Lags("export", "scrape")
        self._began = self._turned = self._drained = clock()
        self._first = True
        self._stopping = False

    def turned(self, began: float, inputs: Iterable[Input], *, rested_s: float = 0.0) -> None:
        """The rings were drained, beginning at ``began``, and what was in them has been reported.

        ``rested_s``: so long was to be waited.
        """
        now = self._clock()
        counted: Counter[tuple[str, str]] = Counter()
        for item in inputs:
            if isinstance(item, Batch):
                counted[item.family, item.kind] += len(item.records)
        for (family, record), count in counted.items():
            self._metrics.count_records(family, record, count)
        self._metrics.turned(None if self._first else now - self._turned, now - began)
        if not self._first:
            self._lags.late(began - self._drained - max(self.interval_s, rested_s))
        self._turned, self._drained, self._first = now, began, False

    def publish(self, reader: str) -> None:
        """Bring the series up to date for ``reader``, "export" or "scrape"."""
        self._metrics.publish(
            AgentStats(
                uptime_s=self._clock() - self._began,
                lag_s=self._lags.take(reader),
                cost=read_cost(),
                rings=self._water.take(reader, self._source.rings),
                tracked=self._session.tracked,
                attachments=self._source.attachments.items(),
                deliveries=self._session.deliveries(),
                reloads=self.reloads,
                memory_limit_bytes=self._memory_limit.limit_bytes if self._memory_limit is not None else 0,
                memory_level=self._memory_limit.level if self._memory_limit is not None else 0,
            )
        )

    def stop(self) -> None:
        """The end has begun."""
        self._stopping = True

    # -- judgements, from any thread --------------------------------------------------------------

    def not_live(self) -> list[str]:
        """See :class:`otelgpu.export.health.Health`."""
        stalled_s = self._clock() - self._turned
        if self._stopping or stalled_s <= STALLED_SECONDS + self.interval_s:
            return []
        return [f"the rings have not been drained for {stalled_s:.0f} s{_where()}"]

    def not_ready(self) -> list[str]:
        """See :class:`otelgpu.export.health.Health`."""
        found = ["the session is ending"] if self._stopping else self.not_live()
        for place, delivery in self._session.deliveries():
            if delivery.failing_s >= UNDELIVERED_SECONDS:
                found.append(
                    f"{delivery.kind}/{place} has accepted no {delivery.signal} for {delivery.failing_s:.0f} s; "
                    f"{delivery.queued} wait"
                )
        return found

    def conditions(self) -> list[str]:
        """See :class:`otelgpu.export.health.Health`."""
        return self._memory_limit.conditions if self._memory_limit is not None else []


class HighWater:
    """The most that was in each ring since each of several readers asked, though a ring forgets when it is read."""

    def __init__(self, *readers: str) -> None:
        self._most: dict[str, Counter[str]] = {reader: Counter() for reader in readers}

    def take(self, reader: str, fills: Mapping[str, RingFill]) -> dict[str, RingFill]:
        """``fills`` as the rings have them now, and for ``reader`` since it asked last."""
        for most in self._most.values():
            for name, fill in fills.items():
                most[name] = max(most[name], fill.high_water)
        own, self._most[reader] = self._most[reader], Counter()
        return {name: RingFill(high_water=own[name], limit=fill.limit) for name, fill in fills.items()}


class Lags:
    """How late the loop came at most, since each of several readers asked. Seconds."""

    def __init__(self, *readers: str) -> None:
        self._most = dict.fromkeys(readers, 0.0)

    def late(self, seconds: float) -> None:
        """It came so much later than it was to; below 0 it came early, being woken."""
        for reader, most in self._most.items():
            self._most[reader] = max(most, seconds)

    def take(self, reader: str) -> float:
        """For ``reader``, since it asked last."""
        most, self._most[reader] = self._most[reader], 0.0
        return most


def _where() -> str:
    """The innermost function of ours that the main thread is in, as text to append; "" for that thread itself."""
    main = threading.main_thread()
    frame = None if main is threading.current_thread() else sys._current_frames().get(main.ident or 0)
    while frame is not None:
        package, dot, module = frame.f_globals.get("__name__", "").partition(".")
        if package == "otelgpu" and dot:
            return f": in {frame.f_code.co_name} of {module}, line {frame.f_lineno}"
        frame = frame.f_back
    return ""


def read_cost() -> Cost:
    """What this process has taken so far, all of its threads together."""
    used = rusage.getrusage(rusage.RUSAGE_SELF)
    return Cost(
        user_s=used.ru_utime,
        system_s=used.ru_stime,
        resident_bytes=resident_bytes(),
        descriptors=len(os.listdir("/proc/self/fd")) - 1,  # one is of the listing
        threads=threading.active_count(),
    )
