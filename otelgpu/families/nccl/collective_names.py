"""What collectives are called: functions, and the attributes and metrics that say more than their family's own do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from otelgpu.families.nccl.names import BYTES, HASH, OPERATION, RANK, RANKS, SCOPE, operation_of
from otelgpu.families.nccl.numbering import Numbered

__all__ = (
    "BYTES",
    "HASH",
    "OPERATION",
    "RANK",
    "RANKS",
    "SCOPE",
)  # the family's, by which both are joined

WAIT: Final = "nccl wait"
"""The span of the host's wait for a collective."""

PHASE: Final = "nccl.phase"
"""What a span's duration is: ``collective``, ``enqueue`` (of the host call, which only queues it), ``run`` (of a host
call that returns when the collective has ended for its rank), ``wait``."""

RUN: Final = "run"

SEQUENCE: Final = "nccl.sequence"
SEQUENCE_SOURCE: Final = "nccl.sequence.source"
RANKS_SEEN: Final = "nccl.ranks.seen"
"""Ranks of the collective whose calls the agent that reports its root span has seen."""

LATENESS: Final = "nccl.arrival.lateness"
"""Seconds from the first call of the collective that this agent saw to this rank's."""

SKEW: Final = "nccl.arrival.skew"
LAST_RANK: Final = "nccl.arrival.last_rank"
GPU_TIME: Final = "nccl.gpu.time"
"""Seconds that the collective's kernels ran, as the device measured it."""

TIME_SOURCE: Final = "nccl.time.source"
"""Where the time of a bandwidth is from: ``gpu``; ``host_wait``: from the call to the end of the wait; or ``call``,
which is as long as the collective."""

TIME_SOURCES: Final = ("host_wait", "gpu", "call")

ALGORITHM_BANDWIDTH: Final = "nccl.algorithm.bandwidth"
BUS_BANDWIDTH: Final = "nccl.bus.bandwidth"
WAIT_CALL: Final = "nccl.wait.call"
WAIT_COUNT: Final = "nccl.wait.collectives"
"""Collectives that a wait was for: it is under the last of them."""

SOURCES: Final[Mapping[Numbered, str]] = {
    Numbered.NONE: "unknown",
    Numbered.FUNCTION: "function",
    Numbered.OPERATIONS: "operations",
    Numbered.CAPTURED: "captured",
    Numbered.COUNTED: "counted",
    Numbered.FAILED: "failed",
    Numbered.CALL: "call",
}

PAIR: Final = "SendRecv"
COLLECTIVE, SEND, RECEIVE, ALONE = 0, 1, -1, 2


class Function(Struct, frozen=True):
    """What an API function does. ``way``: as :meth:`~otelgpu.families.nccl.numbering.Collectives.number` takes it."""

    name: str
    way: int
    word: int  # of its name: the same in every agent


def function_of(call: str, *, collective: bool) -> Function:
    """By its exported name: ``ncclAllReduceConfig`` is AllReduce's."""
    from hashlib import sha256  # loads OpenSSL: of those that have NCCL

    name = operation_of(call)
    way = COLLECTIVE if collective else {"Send": SEND, "Recv": RECEIVE}.get(name, ALONE)
    shared = PAIR if way in (SEND, RECEIVE) else name
    return Function(name, way, int.from_bytes(sha256(shared.encode()).digest()[:8], "big"))
