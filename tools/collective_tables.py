"""Tables of docs/collectives.md, from the tables that the code works with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from otelgpu.correlate.collectives import Numbered
from otelgpu.signals import collective_names as names
from otelgpu.signals.collective_session import COUNTERS

_ALL: Final = "all"
_CALL: Final = "call"

ATTRIBUTES: Final[Mapping[str, tuple[str, str]]] = {
    names.PHASE: (
        _ALL,
        "what the span's time is: `collective`, `enqueue` (of the host call, which only queues), `wait`",
    ),
    names.OPERATION: (_ALL, "`AllReduce`, whatever form of the function was called"),
    names.HASH: (_ALL, "the communicator, the same on all ranks and in NCCL's own logs"),
    names.RANKS: (_ALL, "how many ranks it has"),
    names.SEQUENCE: (_ALL, "the collective's number among those of its communicator and function, from 0"),
    names.SEQUENCE_SOURCE: (_ALL, "where the number is from: see below"),
    names.RANK: ("call, wait", "the caller's rank"),
    names.LATENESS: (_CALL, "seconds after the first call of the collective that this agent saw"),
    names.GPU_TIME: (_CALL, "seconds that its kernels ran, as the device measured it"),
    names.ALGORITHM_BANDWIDTH: (_CALL, "bytes per second, as nccl-tests define it"),
    names.BUS_BANDWIDTH: (_CALL, "the same, of the bus"),
    names.TIME_SOURCE: (
        _CALL,
        "whose time that is: `gpu`, or `host_wait`, from the call to the end of the wait",
    ),
    names.RANKS_SEEN: ("collective", "ranks whose calls this agent saw"),
    names.SKEW: ("collective", "seconds between the first and the last of these"),
    names.LAST_RANK: ("collective", "the last of these to call"),
    names.WAIT_CALL: ("wait", "the function that waited"),
    names.WAIT_COUNT: ("wait", "collectives that it waited for: the span is under the last"),
}
"""Attribute → on which spans, and what it tells. A call has those of its family besides."""

_SOURCES: Final[Mapping[Numbered, str]] = {
    Numbered.FUNCTION: "the communicator's own count of this function (2.26 and later)",
    Numbered.COUNTED: "counted by the agent, which saw the communicator made; all pairs of ranks are",
    Numbered.OPERATIONS: "the communicator's count of all operations: other ranks' may differ",
    Numbered.NONE: "not known: the call is in a trace of its own",
    Numbered.CAPTURED: "noted into a CUDA graph, or of no elements: a trace of its own",
    Numbered.FAILED: "the call failed: a trace of its own",
}


def sources() -> list[tuple[str, str]]:
    """Each value of ``nccl.sequence.source`` and what it means."""
    return [(names.SOURCES[source], text) for source, text in _SOURCES.items()]


def reasons() -> dict[tuple[str, str], str]:
    """Room and reason → what one count means."""
    return {("collectives", reason): text for reason, text in COUNTERS.items()}
