"""What GPUs use, read in short intervals while somebody waits for it, and not at all otherwise.

One thread reads everything: whoever hastens it makes it read energy, one call of the driver for each GPU, every
:data:`SAMPLE_S`; all else it reads at its own slow pace. Nobody hastens, and it sleeps through.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from otelgpu.kernel import clock
from otelgpu.model.devices import DeviceInput

SAMPLE_S: Final = 0.1
"""NVML brings its counter up to date every 20 to 100 ms, by the GPU's generation: more often says no more."""

LEASE_S: Final = 1.5
"""How long one request to hurry holds: a loop that rests comes round every second."""


class Pace:
    """When the thread reads next. ``interval_s``: of the slow pace, as it is now."""

    def __init__(
        self, interval_s: Callable[[], float], clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._interval_s, self._clock_s = interval_s, clock_s
        self._changed = threading.Condition()  # guards what follows
        self._stopped = False
        self._began_s: float | None = None  # the last slow reading; None: there was none
        self._sampled_s = 0.0
        self._hurried_until_s = 0.0

    def hasten(self) -> None:
        """Read in short intervals for a while, from any thread."""
        with self._changed:
            now_s = self._clock_s()
            asleep = now_s >= self._hurried_until_s
            self._hurried_until_s = now_s + LEASE_S
            if asleep:
                self._changed.notify()

    def begin(self) -> None:
        """The slow reading is due now, whenever the last one was."""
        with self._changed:
            self._began_s = None
            self._changed.notify()

    def stop(self) -> None:
        """No more."""
        with self._changed:
            self._stopped = True
            self._changed.notify()

    def wait(self, _: float) -> bool:
        """Until it is time for anything; False: never again."""
        with self._changed:
            while not self._stopped:
                left_s = self._left_s()
                if left_s <= 0:
                    self._sampled_s = self._clock_s()
                    return True
                self._changed.wait(left_s)
            return False

    def begin_slow(self) -> bool:
        """Whether the slow reading has its turn, which then begins."""
        with self._changed:
            now_s = self._clock_s()
            due = self._stopped or self._slow_s() <= now_s
            if due:
                self._began_s = now_s
            return due

    def _slow_s(self) -> float:
        return 0.0 if self._began_s is None else self._began_s + self._interval_s()

    def _left_s(self) -> float:
        now_s = self._clock_s()
        hurried = now_s < self._hurried_until_s
        due_s = min(self._slow_s(), self._sampled_s + SAMPLE_S) if hurried else self._slow_s()
        return due_s - now_s


class _Watch(Protocol):
    @property
    def counters(self) -> Mapping[str, int]: ...

    def poll(self, now_ns: int) -> list[DeviceInput]: ...

    def sample(self, clock_ns: Callable[[], int]) -> list[DeviceInput]: ...

    def close(self) -> None: ...


class SampledWatch:
    """A watch of devices, read at two paces: a sensor of :mod:`otelgpu.processes.polling`."""

    def __init__(self, watch: _Watch, pace: Pace) -> None:
        self._watch, self._pace = watch, pace

    @property
    def counters(self) -> Mapping[str, int]:
        """The watch's."""
        return self._watch.counters

    def poll(self, now_ns: int) -> list[DeviceInput]:
        """All of it where the slow reading is due; what was used, in any case, each at the time of its reading."""
        found = self._watch.poll(now_ns) if self._pace.begin_slow() else []
        return found + self._watch.sample(clock.monotonic_ns)

    def close(self) -> None:
        """Let the driver go."""
        self._watch.close()
