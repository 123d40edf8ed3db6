"""What the driver last said of devices' memory: of how much there is, and who has it. Pure.

In: :mod:`otelgpu.model.devices`. Out: :class:`DeviceMemory` of a process's ordinal, None where nobody reads the device.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from otelgpu.model.devices import DeviceGone, DeviceReadings, ProcessDevices, Quantity

MOST_OTHERS: Final = 8


class DeviceMemory(Struct, frozen=True, kw_only=True):
    """One reading. Bytes; None: the driver does not say. ``others``: process ids and bytes, the largest first."""

    uuid: str
    age_ns: int
    total: int | None
    used: int | None
    own: int | None
    others: tuple[tuple[int, int], ...]

    @property
    def free(self) -> int | None:
        """What nobody has."""
        return None if self.total is None or self.used is None else max(self.total - self.used, 0)


class DeviceFacts:
    """Those of one session."""

    def __init__(self) -> None:
        self._ordinals: dict[int, tuple[str, ...]] = {}
        self._readings: dict[str, DeviceReadings] = {}

    def take(self, item: ProcessDevices | DeviceReadings | DeviceGone) -> None:
        """The latest counts."""
        match item:
            case ProcessDevices():
                self._ordinals[item.tgid] = item.uuids
            case DeviceReadings():
                self._readings[item.uuid] = item
            case DeviceGone():
                self._readings.pop(item.uuid, None)

    def forget(self, tgid: int) -> None:
        """Its ordinals mean nothing any more."""
        self._ordinals.pop(tgid, None)

    def memory(self, tgid: int, ordinal: int, now_ns: int) -> DeviceMemory | None:
        """Of the device that the process calls ``ordinal``; with one device there is no doubt which."""
        uuids = self._ordinals.get(tgid, ())
        if 0 <= ordinal < len(uuids):
            readings = self._readings.get(uuids[ordinal])
        else:
            readings = next(iter(self._readings.values())) if len(self._readings) == 1 else None
        if readings is None:
            return None
        had = [(each.tgid, each.memory_bytes) for each in readings.processes if each.memory_bytes is not None]
        others = sorted((each for each in had if each[0] != tgid), key=lambda each: -each[1])
        return DeviceMemory(
            uuid=readings.uuid,
            age_ns=max(now_ns - readings.time_ns, 0),
            total=readings.values.get(Quantity.MEMORY_TOTAL_BYTES),
            used=readings.values.get(Quantity.MEMORY_USED_BYTES),
            own=next((size for number, size in had if number == tgid), None),
            others=tuple(others[:MOST_OTHERS]),
        )
