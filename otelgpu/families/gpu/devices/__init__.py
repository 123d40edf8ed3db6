"""GPUs as devices: which there are, and what they read."""

from otelgpu.engine.contract import Family, Phase
from otelgpu.families.gpu.devices.handler import DevicesHandler

FAMILY = Family(name="devices", load=None, open=DevicesHandler, phase=Phase.DEVICE_WORK)
