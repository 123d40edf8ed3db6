"""How busy the parts of a GPU, or of a MIG device, were since the last reading: NVML's performance monitoring (GPM).

In: the binding (module ``pynvml``) and a device's handle. Out: whole numbers by quantity. GPUs of Hopper and newer have
it. A call takes 0.6 ms (H200).
Reference: nvml.h; docs.nvidia.com/deploy/nvml-api, "GPM Functions".

Example: a sample at 0 s, one at 10 s: the second reading has the means of those ten seconds, the first has nothing.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from contextlib import suppress
from typing import Any, Final

from msgspec import Struct

from otelgpu.families.gpu.devices.poll.questions import GPM, Handle
from otelgpu.model.devices import Quantity

LEAST_NS: Final = 100_000_000
"""Between two samples: the driver has nothing to say of less."""
NOT_PLAUSIBLE: Final = -1
"""In place of what is no number."""


class _Sample(Struct, frozen=True):
    taken_ns: int
    buffer: Any  # of the driver's


class Gpm:
    """Samples of one open NVML, one for each device; for one thread."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._samples: dict[str, _Sample] = {}

    def read(
        self, uuid: str, handle: Handle, now_ns: int, *, instance: int | None = None
    ) -> dict[Quantity, int]:
        """Means since the last call for the device: nothing at the first. Raises ``pynvml.NVMLError``.

        ``handle``: of a GPU; ``instance``: of which of its GPU instances (MIG); None: of all of it.
        """
        nvml, before = self._nvml, self._samples.get(uuid)
        if before is None and not nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
        if before is not None and now_ns - before.taken_ns < LEAST_NS:
            return {}
        buffer = nvml.nvmlGpmSampleAlloc()
        try:
            if instance is None:
                nvml.nvmlGpmSampleGet(handle, buffer)
            else:
                nvml.nvmlGpmMigSampleGet(handle, instance, buffer)
        except nvml.NVMLError:
            self._free(buffer)
            raise
        self._samples[uuid] = _Sample(now_ns, buffer)
        if before is None:
            return {}
        try:
            return self._between(before.buffer, buffer)
        finally:
            self._free(before.buffer)

    def keep(self, uuids: Collection[str]) -> None:
        """Forget all other devices."""
        for uuid in self._samples.keys() - uuids:
            self._free(self._samples.pop(uuid).buffer)

    def close(self) -> None:
        """Forget all, before NVML is closed."""
        self.keep(())

    def _between(self, before: Any, after: Any) -> dict[Quantity, int]:
        nvml = self._nvml
        question = nvml.c_nvmlGpmMetricsGet_t(
            version=nvml.NVML_GPM_METRICS_GET_VERSION, numMetrics=len(GPM), sample1=before, sample2=after
        )
        for asked, (name, _) in zip(question.metrics, GPM.values(), strict=False):
            asked.metricId = getattr(nvml, name)
        nvml.nvmlGpmMetricsGet(question)
        return {
            quantity: round(answer.value * scale) if math.isfinite(answer.value) else NOT_PLAUSIBLE
            for answer, (quantity, (_, scale)) in zip(question.metrics, GPM.items(), strict=False)
            if answer.nvmlReturn == nvml.NVML_SUCCESS
        }

    def _free(self, buffer: Any) -> None:
        with suppress(self._nvml.NVMLError):  # the driver let go of all of them
            self._nvml.nvmlGpmSampleFree(buffer)
