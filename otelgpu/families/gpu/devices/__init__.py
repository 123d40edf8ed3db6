"""GPUs as devices: which there are, and what they read."""

from __future__ import annotations

from otelgpu.engine.contract import Family, Handler, Phase
from otelgpu.engine.services import Services


def _open(services: Services) -> Handler:
    from otelgpu.families.gpu.devices.handler import DevicesHandler

    return DevicesHandler(services)


FAMILY = Family(name="devices", load=None, open=_open, phase=Phase.DEVICE_WORK)
