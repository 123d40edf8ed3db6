"""What a library that is loaded into a running process is asked for: ``struct live_request`` of ``inject/memory.h``."""

from __future__ import annotations

from typing import Final

import numpy as np

from otelgpu.elf.btf import Btf
from otelgpu.model.losses import Reasons

_WITHOUT: Final = {
    "cupti_not_found": "no time on the device: the process has no libcupti that fits its CUDA",
    "cupti_incomplete": "no time on the device: its libcupti lacks functions that are needed",
    "cupti_version_unknown": "no time on the device: its libcupti is older than CUDA 11.1",
    "cupti_taken": "no time on the device: another profiler of the process subscribed to CUPTI first",
    "cupti_no_permission": "no time on the device: the driver lets administrators alone profile",
    "cupti_refused": "no time on the device: CUPTI cannot work here: no driver, no profiling in this virtual GPU, "
    "or no memory",
    "cupti_forked": "no time on the device: CUPTI does not outlive fork(): a child of a process that was measured",
    "cupti_thread_failed": "no time on the device: no thread could be started in the process",
}
REASONS: Final = Reasons("cuda", _WITHOUT, unavailable=_WITHOUT)
"""Why a process has none: what one count of (``cuda``, reason) means."""

LIVE_FUNCTION: Final = "otelgpu_live_begin"
"""Of the library; it is given the request and a connected socket, and answers with ``enum live_answer``."""


def live_request(layout: Btf) -> bytes:
    """Measure with the defaults."""
    numbers, request = layout.enumerators("inject_number"), np.zeros(1, layout.dtype("live_request"))
    request["magic"], request["version"] = numbers["INJECT_MAGIC"], numbers["INJECT_VERSION"]
    return request.tobytes()
