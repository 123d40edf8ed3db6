"""GPUs as devices, read by NVML at a slow pace."""

from __future__ import annotations

from typing import Final

from otelgpu.model.settings import Settings
from otelgpu.processes.polling import Look, Poller, Polling


def _open(settings: Settings) -> Poller | None:
    from otelgpu.families.gpu.devices.poll.gpus import GpuPoller  # and with it the vendor's binding

    interval_ms = settings.get("device_interval_ms", 0)
    return GpuPoller(interval_ms / 1e3) if interval_ms else None


def _look() -> Look:
    from otelgpu.families.gpu.devices.poll.poller import look

    return look()


POLLING: Final = Polling(losses="devices", open=_open, look=_look)
