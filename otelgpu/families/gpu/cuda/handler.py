"""Records of family cuda that are no calls: what devices did, as CUPTI measured it. Pure."""

from __future__ import annotations

from otelgpu.engine.facts import DeviceActivities, DeviceActivityNames
from otelgpu.engine.services import Services
from otelgpu.model.device_work import ACTIVITY
from otelgpu.model.inputs import Batch


class CudaHandler:
    """Passes them on in terms that all vendors share."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def take(self, batch: Batch) -> None:
        """Calls are decoded elsewhere."""
        if batch.kind == "cuda_activity":
            self._services.emit(DeviceActivities(batch.records.view(ACTIVITY)))
        elif batch.kind == "cuda_activity_name":
            self._services.emit(DeviceActivityNames(batch.records))
