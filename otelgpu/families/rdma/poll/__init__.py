"""RDMA ports, queue pairs and the kernel log, read at a slow pace."""

from __future__ import annotations

from typing import Final

from otelgpu.model.settings import Settings
from otelgpu.processes.polling import Poller, Polling


def _open(settings: Settings) -> Poller | None:
    from otelgpu.families.rdma.poll.poller import FabricPoller

    interval_ms = settings.get("fabric_interval_ms", 0)
    if not interval_ms:
        return None
    poller = FabricPoller(interval_ms / 1e3)
    poller.start()
    return poller


POLLING: Final = Polling(losses="fabric", open=_open)
