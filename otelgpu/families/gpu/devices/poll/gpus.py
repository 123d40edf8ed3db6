"""What is read of GPUs, and which of them each process means by its ordinals.

In: readings of :mod:`otelgpu.families.gpu.devices.poll.poller`; processes with probed libraries. Out: both, in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from otelgpu.families.gpu.devices.discover import DeviceFollower
from otelgpu.families.gpu.devices.poll.poller import DevicePoller
from otelgpu.model.inputs import Input
from otelgpu.model.settings import Settings


class GpuPoller:
    """A poller: see :mod:`otelgpu.processes.polling`."""

    def __init__(self, interval_s: float) -> None:
        self._poller = DevicePoller(interval_s)
        self._follower = DeviceFollower()
        self._users: Set[int] = frozenset()
        self._poller.start()

    @property
    def counters(self) -> Mapping[str, int]:
        """By reason, since the start."""
        return self._poller.counters

    def collect(self, now_ns: int, users: Set[int]) -> list[Input]:
        """What was read, and what is new of the devices of ``users``."""
        if users - self._users:
            self._poller.want()
        self._users = frozenset(users)
        devices = self._poller.collect(now_ns)
        self._follower.take(devices)
        return [*devices, *self._follower.follow(users, now_ns)]

    def hasten(self) -> None:
        """Read what GPUs use in short intervals, for a while: somebody waits for it."""
        self._poller.hasten()

    def adjust(self, settings: Settings) -> None:
        """Read in another rhythm; to read no more, or to begin, takes a new start."""
        if interval_ms := settings.get("device_interval_ms", 0):
            self._poller.interval_s = interval_ms / 1e3

    def stop(self) -> None:
        """Read once more, and no more after that."""
        self._poller.stop()
