"""A verdict on memory in one sentence, for who reads no JSON. Pure."""

from __future__ import annotations

from typing import Final

from otelgpu.diagnose.memory.verdicts import INCONCLUSIVE, OUT_OF_MEMORY, MemoryVerdict
from otelgpu.model.quantities import size

_MOST_PYTHON: Final = 3


def sentence(verdict: MemoryVerdict) -> str:
    """Who, where, what, how much, and what to do."""
    if verdict.klass == INCONCLUSIVE:
        return f"Inconclusive: {verdict.evidence[0].text}"
    who = f"{verdict.program} (PID {verdict.pid})"
    device = f"device {verdict.device}" if verdict.device >= 0 else "a device"
    where = f" by {' ← '.join(verdict.python[:_MOST_PYTHON])}" if verdict.python else ""
    if verdict.cause == OUT_OF_MEMORY:
        return (
            f"Out of memory: {who} asked for {size(verdict.bytes or 0)} of {device} and did not get it "
            f"({verdict.detail.replace('_', ' ')}): {verdict.next}."
        )
    return (
        f"Memory grows: {who} holds {size(verdict.bytes or 0)} more of {device}{where}, "
        f"{size(verdict.bytes_per_s or 0.0)} a second, and frees none of it: {verdict.next}."
    )
