"""What names of collectives and their calls mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from otelgpu.engine.description_tables import TEXT, Described, Descriptions, MetricTable, Page, Table
from otelgpu.families.nccl import collective_names as names
from otelgpu.families.nccl.metrics import METRICS
from otelgpu.families.nccl.numbering import Numbered

_SOURCES: Final[Mapping[Numbered, str]] = {
    Numbered.FUNCTION: "the communicator's own count of this function (2.26 and later)",
    Numbered.COUNTED: "counted by the agent, which saw the communicator made; all pairs of ranks are",
    Numbered.OPERATIONS: "the communicator's count of all operations: other ranks' may differ",
    Numbered.CALL: "the call's own, among all of its communicator (gloo)",
    Numbered.NONE: "not known: the call is in a trace of its own",
    Numbered.CAPTURED: "noted into a CUDA graph, or of no elements: a trace of its own",
    Numbered.FAILED: "the call failed: a trace of its own",
}

DESCRIPTIONS: Final = Descriptions(
    attributes={
        "nccl.operation": Described("The function without `nccl` and without its variants.", "AllReduce"),
        "nccl.communicator": Described("Its address in the process.", "93824992411648"),
        "nccl.communicator.ranks": Described("How many ranks it has.", "8"),
        "nccl.rank": Described("The caller's.", "3"),
        "nccl.datatype": Described("Of the elements.", "float16"),
        "nccl.reduction": Described("Of collectives that reduce.", "sum"),
        "nccl.stream": Described("The CUDA stream it was queued on.", "94240113729536"),
        "nccl.device.index": Described("The communicator's CUDA device.", "3"),
        "nccl.group": Described("Number, on its thread, of the group that the call is a member of.", "12"),
        "nccl.group.calls": Described("Calls that the group is made of.", "48"),
        "nccl.registered.size": Described("Bytes of a buffer that was registered.", "1073741824"),
        "nccl.phase": Described(
            "what the span's time is: `collective`, `enqueue` (of the host call, which only queues), `run` "
            "(of one that returns when the collective has ended for its rank: gloo, MPI), `wait`"
        ),
        "nccl.sequence": Described(
            "the collective's number among those of its communicator and function, from 0"
        ),
        "nccl.sequence.source": Described("where the number is from: see below"),
        "nccl.arrival.lateness": Described(
            "seconds after the first call of the collective that this agent saw"
        ),
        "nccl.gpu.time": Described("seconds that its kernels ran, as the device measured it"),
        "nccl.algorithm.bandwidth": Described("bytes per second, as nccl-tests define it"),
        "nccl.bus.bandwidth": Described("the same, of the bus"),
        "nccl.time.source": Described(
            "whose time that is: `gpu`; `host_wait`, from the call to the end of the wait; or `call`"
        ),
        "nccl.ranks.seen": Described("ranks whose calls this agent saw"),
        "nccl.arrival.skew": Described("seconds between the first and the last of these"),
        "nccl.arrival.last_rank": Described("the last of these to call"),
        "nccl.wait.call": Described("the function that waited"),
        "nccl.wait.collectives": Described("collectives that it waited for: the span is under the last"),
    },
    metrics=(MetricTable(scope=names.SCOPE, metrics=METRICS, page="collective metrics"),),
    pages={
        "collective attributes": Page(
            header=(
                "Attribute",
                "On",
                "Meaning",
            ),
            rows={
                "nccl.phase": (
                    "all",
                    TEXT,
                ),
                "nccl.operation": (
                    "all",
                    "`AllReduce`, whatever form of the function was called",
                ),
                "nccl.communicator.hash": (
                    "all",
                    "the communicator, the same on all ranks and in NCCL's own logs",
                ),
                "nccl.communicator.ranks": (
                    "all",
                    "how many ranks it has",
                ),
                "nccl.sequence": (
                    "all",
                    TEXT,
                ),
                "nccl.sequence.source": (
                    "all",
                    TEXT,
                ),
                "nccl.rank": (
                    "call, wait",
                    "the caller's rank",
                ),
                "nccl.arrival.lateness": (
                    "call",
                    TEXT,
                ),
                "nccl.gpu.time": (
                    "call",
                    TEXT,
                ),
                "nccl.algorithm.bandwidth": (
                    "call",
                    TEXT,
                ),
                "nccl.bus.bandwidth": (
                    "call",
                    TEXT,
                ),
                "nccl.time.source": (
                    "call",
                    TEXT,
                ),
                "nccl.ranks.seen": (
                    "collective",
                    TEXT,
                ),
                "nccl.arrival.skew": (
                    "collective",
                    TEXT,
                ),
                "nccl.arrival.last_rank": (
                    "collective",
                    TEXT,
                ),
                "nccl.wait.call": (
                    "wait",
                    TEXT,
                ),
                "nccl.wait.collectives": (
                    "wait",
                    TEXT,
                ),
            },
        ),
    },
    tables={
        "collective sources": Table(
            header=("`nccl.sequence.source`", "Where the number is from"),
            rows=lambda: [(f"`{names.SOURCES[source]}`", text) for source, text in _SOURCES.items()],
        )
    },
)
