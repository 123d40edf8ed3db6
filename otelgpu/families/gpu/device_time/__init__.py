"""What devices did, as they measured it themselves: spans beside the calls that caused it. Pure."""

from otelgpu.engine.contract import Family, Phase
from otelgpu.families.gpu.device_time.handler import DeviceTimeHandler

FAMILY = Family(name="device_time", load=None, open=DeviceTimeHandler, phase=Phase.DEVICE_WORK)
