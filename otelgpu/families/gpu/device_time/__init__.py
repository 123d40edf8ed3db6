"""What devices did, as they measured it themselves: spans beside the calls that caused it. Pure."""

from __future__ import annotations

from otelgpu.engine.contract import Family, Handler, Phase
from otelgpu.engine.services import Services


def _open(services: Services) -> Handler:
    from otelgpu.families.gpu.device_time.handler import DeviceTimeHandler

    return DeviceTimeHandler(services)


FAMILY = Family(name="device_time", load=None, open=_open, phase=Phase.DEVICE_WORK)
