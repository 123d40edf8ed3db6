"""The event of an allocation that failed for want of memory: its name, and those of its attributes.

Who makes it: otelgpu/families/gpu/memory; who reads it: otelgpu/diagnose/memory.
"""

from __future__ import annotations

from typing import Final

EVENT: Final = "otelgpu.memory.allocation_failed"

CAUSE: Final = "otelgpu.memory.failure.cause"
OUTCOME: Final = "otelgpu.memory.failure.outcome"
REQUESTED: Final = "otelgpu.memory.failure.requested"
ATTEMPTS: Final = "otelgpu.memory.failure.attempts"
UNREPORTED: Final = "otelgpu.memory.failure.unreported"
HELD: Final = "otelgpu.memory.failure.held"
HOLDERS: Final = "otelgpu.memory.failure.holders"
CACHED: Final = "otelgpu.memory.failure.cached"
FREED: Final = "otelgpu.memory.failure.freed"
OTHERS: Final = "otelgpu.memory.failure.others"
NEXT: Final = "otelgpu.memory.failure.next"
RULE: Final = "otelgpu.memory.failure.rule"
DEVICE_TOTAL: Final = "otelgpu.memory.failure.device.total"
DEVICE_FREE: Final = "otelgpu.memory.failure.device.free"
DEVICE_AGE: Final = "otelgpu.memory.failure.device.age"

RECOVERED: Final = "recovered"
UNMET: Final = "unmet"
ENDED: Final = "process_ended"
"""Outcomes."""
