"""Readings of GPUs in a session: they become metrics as they come. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from otelgpu.engine.services import Services
from otelgpu.families.gpu.devices.metrics import DeviceMetrics
from otelgpu.model.devices import DeviceGone, DeviceReadings, DeviceSeen, ProcessDevices


class DevicesHandler:
    """What GPUs read."""

    def __init__(self, services: Services) -> None:
        session = services.session
        self._devices = DeviceMetrics(session.metrics, session.own, session.processes.known)
        take = self._devices.take
        services.listen(DeviceSeen, take)
        services.listen(DeviceReadings, take)
        services.listen(DeviceGone, take)
        services.listen(ProcessDevices, take)

    @property
    def counters(self) -> Mapping[str, int]:
        """What could not be read, by reason."""
        return self._devices.counters

    def end_process(self, tgid: int, time_ns: int) -> None:
        """It calls no device any more."""
        self._devices.forget_process(tgid)
