"""What ``otelgpu diagnose memory --json`` says, as types. Pure. Documented in docs/reference/device-memory.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct, field

from otelgpu.diagnose.stall.verdicts import Line

MEMORY: Final = "memory"
INCONCLUSIVE: Final = "inconclusive"

OUT_OF_MEMORY: Final = "out_of_memory"
GROWTH: Final = "growth"

CAUSES: Final[Mapping[str, str]] = {
    OUT_OF_MEMORY: "an allocation failed, and the program did not get it in another way",
    GROWTH: "a place in the code allocates and frees nothing: a leak, or a cache that fills",
}
"""Cause of a verdict of class ``memory`` → what it means."""


class MemoryEvidence(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that was seen, in words and, where it is one, as a number."""

    name: str
    text: str
    value: float | None = None
    unit: str = ""


class MemoryVerdict(Struct, frozen=True, kw_only=True):
    """One finding; an empty text or list, or null, where a thing has none.

    ``device``: its ordinal in the process, -1: not known. ``bytes``: that were asked for, or that grew. ``detail``: of
    ``out_of_memory`` why: see ``otelgpu.memory.failure.cause``; ``rule``: the known problem that it is.
    """

    klass: str = field(name="class")
    cause: str = ""
    detail: str = ""
    pid: int = 0
    program: str = ""
    device: int = -1
    line: Line | None = None
    python: Sequence[str] = ()
    stack: Sequence[str] = ()
    bytes: int | None = None
    bytes_per_s: float | None = None
    category: str = ""
    rule: str = ""
    confidence: float
    evidence: Sequence[MemoryEvidence] = ()
    next: str
    start_unix_s: float = 0.0
    end_unix_s: float = 0.0


class CategoryHeld(Struct, frozen=True, kw_only=True):
    """One category at one time. ``evidence``: frames that say so, those of most bytes first."""

    category: str
    bytes: int
    share: float
    evidence: Sequence[str]


class HeldAt(Struct, frozen=True, kw_only=True):
    """A device's memory at a time: the categories add up to ``bytes``, which are ``ledger`` and ``older`` together.

    ``ledger``: what was seen to be given by the driver and not taken back; ``older``: what a framework's allocator took
    before that was observed. ``charged``: what the driver says that the process has, null where it is not read;
    ``context``: that less ``bytes``: the context of CUDA and its modules, and whatever else was not seen.
    """

    time_unix_s: float
    when: str  # "last look", "exit" or "peak"
    bytes: int
    ledger: int
    older: int
    reserved: int
    charged: int | None
    context: int | None
    categories: Sequence[CategoryHeld]


class PlaceHeld(Struct, frozen=True, kw_only=True):
    """A place that holds memory at the peak. ``passed``: bytes that it allocated while it was observed.

    ``lifetime_s``: of what it gave back, in the mean, by the bytes that it held and those that passed (Little's law);
    null where it gave nothing back. ``kind``: of memory, "" of a tensor's. ``python``: the innermost lines of Python.
    """

    level: str
    bytes: int
    allocations: int | None
    passed: int
    lifetime_s: float | None
    category: str
    evidence: str
    kind: str
    line: Line | None
    python: Sequence[str]
    stack: Sequence[str]


class DeviceHeld(Struct, frozen=True, kw_only=True):
    """One device of one process. ``total``, ``free``: of the device, null where it is not read."""

    pid: int
    program: str
    device: int
    total: int | None
    free: int | None
    now: HeldAt
    peak: HeldAt
    places: Sequence[PlaceHeld]


class MemorySummary(Struct, frozen=True, kw_only=True):
    """What was looked at."""

    processes: int
    snapshots: int
    seconds: float
    failures: int
    recovered: int
    rejected: Mapping[str, int]


class MemoryReport(Struct, frozen=True, kw_only=True):
    """The document. ``limits``: what could not be told from this input; ``remarks``: what is no fault, and is said."""

    verdicts: Sequence[MemoryVerdict]
    input: MemorySummary
    devices: Sequence[DeviceHeld]
    remarks: Sequence[str]
    limits: Sequence[str]
