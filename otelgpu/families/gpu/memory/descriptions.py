"""What is reported of allocations that failed for want of memory."""

from __future__ import annotations

from typing import Final

from otelgpu.engine.description_tables import TEXT, Described, Descriptions, Page
from otelgpu.model import memory_failures as event

_DESCRIBED: Final = {
    event.OUTCOME: Described(
        "`recovered`: the same thread was given as much within 3 s of its last attempt; `process_ended`; else `unmet`",
        "recovered",
    ),
    event.CAUSE: Described(
        "`request_too_large`, `other_processes`, `allocator_cache`, `own_memory` where numbers say so, else `unknown`",
        "own_memory",
    ),
    event.REQUESTED: Described("bytes that were asked for", "2147483648"),
    event.ATTEMPTS: Described("times that the thread asked for as much", "2"),
    event.UNREPORTED: Described("where there are any: failures before it that had no event", "12"),
    event.HELD: Described(
        "bytes of the device that the process held just then, of what was allocated since it was observed",
        "16106127360",
    ),
    event.HOLDERS: Described(
        "places that held most, each with its bytes: lines of Python where memory is profiled, else the caller",
        "400.0 MiB in 1 by load_weights (serve.py:31)",
    ),
    event.CACHED: Described(
        "with family `torch`: bytes that PyTorch's allocator had and no tensor used", "734003200"
    ),
    event.FREED: Described("of one that recovered: bytes that the process gave back meanwhile", "838860800"),
    event.OTHERS: Described(
        "where NVML is read: other processes on the device, and what they have", "PID 90: 512.0 MiB"
    ),
    event.DEVICE_TOTAL: Described("likewise: bytes of the device", "17179869184"),
    event.DEVICE_FREE: Described("likewise: bytes that nobody had, by the reading before it", "536870912"),
    event.DEVICE_AGE: Described("likewise: seconds from that reading to the failure", "3.1"),
    event.NEXT: Described("of one that did not recover: what to change", "end or move the other processes"),
    event.RULE: Described("likewise: a known problem, for `otelgpu diagnose explain`", "cuda-out-of-memory"),
}

DESCRIPTIONS: Final = Descriptions(
    attributes=_DESCRIBED,
    pages={
        "memory failure attributes": Page(
            header=("Attribute", "What it reports"), rows=dict.fromkeys(_DESCRIBED, (TEXT,))
        )
    },
)
