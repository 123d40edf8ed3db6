"""Tables of the documentation about profiles: what is counted when something of them is missing."""

from __future__ import annotations

from otelgpu.correlate.call_stacks import COUNTERS as CALL_COUNTERS
from otelgpu.correlate.memory import COUNTERS as MEMORY_COUNTERS
from otelgpu.signals.profile_session import REASONS
from otelgpu.signals.profile_stacks import REASONS as STACK_REASONS


def reasons() -> dict[tuple[str, str], str]:
    """What is counted, and what one count means."""
    found = {("profile", name): text for name, text in {**CALL_COUNTERS, **REASONS, **STACK_REASONS}.items()}
    # Of memory that tensors hold: the same two tables, counted for themselves.
    return found | {("torch", name): text for name, text in {**CALL_COUNTERS, **MEMORY_COUNTERS}.items()}
