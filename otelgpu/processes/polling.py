"""What is read at a slow pace, on threads of its own: hardware that hangs holds up nobody.

A family that reads something beside its probes has a package ``poll`` with a module-level ``POLLING``, an instance
of :class:`Polling`. What a sensor finds waits, bounded, to be collected. Of more, what is read again soon is dropped
first.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Final, Generic, Protocol, TypeVar, runtime_checkable

from msgspec import Struct

from otelgpu.model.inputs import Input
from otelgpu.model.settings import Settings

STUCK_NS: Final = 60_000_000_000
"""A driver that has not answered for so long is stuck."""

T = TypeVar("T")


class Poller(Protocol):
    """Reads from when it is opened, until it is stopped."""

    @property
    def counters(self) -> Mapping[str, int]:
        """Losses by reason, since the start."""

    def collect(self, now_ns: int, users: Set[int]) -> Sequence[Input]:
        """What was found since the last call; never waits for hardware. ``users``: processes with probed libraries."""

    def stop(self) -> None:
        """Read once more, and no more after that."""


@runtime_checkable
class Adjusts(Protocol):
    """One whose settings may change while it reads."""

    def adjust(self, settings: Settings) -> None:
        """Read as these have it from now on."""


@runtime_checkable
class Announces(Protocol):
    """One that finds what is not to wait until a loop that rests comes round by itself."""

    def announce(self, found: Callable[[], None]) -> None:
        """Call ``found``, from any thread, whenever there is such a thing to collect."""


@runtime_checkable
class Hastens(Protocol):
    """One that reads some of it in short intervals, as long as somebody waits for it."""

    def hasten(self) -> None:
        """Somebody does; it is said again and again, as long as it is so."""


class Look(Struct, frozen=True, kw_only=True):
    """What was read once. ``note``: why that is not all, or nothing; "" when it is."""

    inputs: Sequence[Input] = ()
    note: str = ""


class Polling(Struct, frozen=True, kw_only=True):
    """``losses``: under which name its losses are reported; ``open`` gives None where the settings say not to read.

    ``look``: of devices that processes are on, reads all of it once, now; it may block, and never raises.
    """

    losses: str
    open: Callable[[Settings], Poller | None]
    look: Callable[[], Look] | None = None


class Sensor(Protocol[T]):
    """What is polled from a thread: ``poll`` may block, and never raises."""

    @property
    def counters(self) -> Mapping[str, int]:
        """By reason, since the start."""

    def poll(self, now_ns: int) -> list[T]:
        """What is new as of ``now_ns``, CLOCK_MONOTONIC."""

    def close(self) -> None:
        """Let everything go; idempotent."""


class Polled(Generic[T]):
    """``wait`` is called between polls with the seconds that the last one took; False ends them.

    ``room``: how many findings wait at most. ``readings``: the types of those that may be dropped.
    """

    def __init__(
        self,
        sensor: Sensor[T],
        name: str,
        wait: Callable[[float], bool],
        *,
        room: int,
        readings: tuple[type, ...],
    ) -> None:
        self._sensor, self._wait = sensor, wait
        self._room, self._readings = room, readings
        self._lock = threading.Lock()  # of what follows
        self._ready: list[T] = []
        self._counters: Mapping[str, int] = {}
        self._dropped = 0
        self._first = threading.Event()
        self.found: Callable[[], None] = lambda: None
        """Called from its thread when there is something new that is more than a reading."""
        self.asked_ns = 0  # when the poll under way began; 0: none is
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def counters(self) -> Counter[str]:
        """The sensor's, and ``readings_dropped``."""
        with self._lock:
            return Counter(self._counters) + Counter(readings_dropped=self._dropped)

    def take(self) -> list[T]:
        """What was found since this was last asked."""
        with self._lock:
            found, self._ready = self._ready, []
            return found

    def wait_for_first(self, seconds: float) -> None:
        """Until the first poll is over, at most so long; not at all where there is no thread."""
        if self.thread.is_alive():
            self._first.wait(seconds)

    def is_stuck(self, now_ns: int) -> bool:
        """Whether the poll under way has taken too long. ``now_ns``: CLOCK_MONOTONIC."""
        asked_ns = self.asked_ns
        return bool(asked_ns) and now_ns - asked_ns > STUCK_NS

    def _run(self) -> None:
        took_s = 0.0
        while self._wait(took_s):
            took_s = self._poll()
        self._poll()  # what came up to the end
        self._sensor.close()

    def _poll(self) -> float:
        """Once; the seconds it took."""
        began_ns = time.monotonic_ns()
        self.asked_ns = began_ns
        found = self._sensor.poll(began_ns)
        self.asked_ns = 0
        with self._lock:
            self._counters = dict(self._sensor.counters)
            self._keep(found)
        self._first.set()
        if not all(isinstance(item, self._readings) for item in found):
            self.found()
        return (time.monotonic_ns() - began_ns) / 1e9

    def _keep(self, found: list[T]) -> None:
        self._ready += found
        if len(self._ready) > self._room:
            kept = [item for item in self._ready if not isinstance(item, self._readings)][-self._room :]
            self._dropped += len(self._ready) - len(kept)
            self._ready = kept


def paused(stopping: threading.Event, interval_s: Callable[[], float]) -> Callable[[float], bool]:
    """A ``wait`` for polls at an interval, the first at once, until ``stopping``."""
    started = False

    def wait(took_s: float) -> bool:
        nonlocal started
        pause_s = max(interval_s() - took_s, 0.0) if started else 0.0
        started = True
        return not stopping.wait(pause_s)

    return wait
