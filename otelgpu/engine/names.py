"""Attribute and metric names that more than one family uses. A family's own are in its ``signals.py``.

``otelgpu.*`` is ours and documented in docs/reference/signals.md; everything else is an OpenTelemetry semantic
convention (schema 1.44.0).
"""

from __future__ import annotations

from typing import Final

COUNT: Final = "otelgpu.count"
"""How many calls a span stands for; absent when it is one."""

HOST_TIME: Final = "otelgpu.host.duration"
"""Sum of the host durations of the calls that a folded span stands for, in seconds."""

HOST_LEAST: Final = "otelgpu.host.duration.min"
"""The shortest of them, in seconds."""

HOST_MOST: Final = "otelgpu.host.duration.max"
"""The longest, in seconds."""

MERGED: Final = "otelgpu.merged"
"""True: calls of the same function under the same parent that may differ otherwise, beyond the bound of spans."""

CONTEXT_SOURCE: Final = "otelgpu.context.source"
"""How the operation was tied to its request: DESIGN.md section 5."""

PHASE: Final = "otelgpu.phase"
"""``prefill`` or ``decode``."""

DROPPED: Final = "otelgpu.operations.dropped"
"""Operations of the request that were summed but have no spans, because there were too many, of it or in all."""

UNATTRIBUTED_REASON: Final = "otelgpu.unattributed.reason"
"""Why work has no request: one of :data:`UNATTRIBUTED_REASONS`."""

UNATTRIBUTED_REASONS: Final = ("no_request", "ambiguous", "unanswered", "multiplexed", "other_task")
"""No request was known; the thread, or an event loop's process, held several at once; the request was never seen to be
answered; requests were under way in a process whose runtime interleaves them, so that its threads name none; the task
that the thread ran answered no request."""

THREAD_ID: Final = "thread.id"
ERROR_TYPE: Final = "error.type"

COMMUNICATOR_HASH: Final = "nccl.communicator.hash"
"""The communicator's ``commHash`` in hexadecimal: the same on all ranks, and in NCCL's own logs."""

COLLECTIVE_BYTES: Final = "nccl.message.size"
"""Bytes of a rank's message to a collective of any library, as its call gives them."""

COLLECTIVE_ROOT: Final = "nccl.root"
COLLECTIVE_PEER: Final = "nccl.peer"

LOSSES: Final = "otelgpu.losses"
RECORDS_LOST: Final = "otelgpu.records.lost"
UNOBSERVED: Final = "otelgpu.unobserved.duration"
LOSS_FAMILY: Final = "otelgpu.family"
LOSS_REASON: Final = "otelgpu.reason"

SELF_SCOPE: Final = "otelgpu"
"""The instrumentation scope of what this program reports of itself."""

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"
"""The semantic conventions that the attribute names follow."""
