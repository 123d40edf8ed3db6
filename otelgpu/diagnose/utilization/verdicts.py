"""What ``otelgpu diagnose utilization --json`` says, as types. Pure. Documented in docs/reference/utilization.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct, field

from otelgpu.diagnose.stall.verdicts import Line, Spent, StallEvidence, ThreadPlace

LOW_UTILIZATION: Final = "low_utilization"
INCONCLUSIVE: Final = "inconclusive"

CLASSES: Final[Mapping[str, str]] = {
    LOW_UTILIZATION: "GPU time is lost, and why",
    INCONCLUSIVE: "nothing can be said, and what is missing",
}
"""Class → what it means."""


class GpuTimeLost(Struct, frozen=True, kw_only=True):
    """What the change saves at most: ``seconds`` of GPU time, ``share`` of that of the device while it was watched.

    ``basis``: how it is known when the device was idle: ``device times``, ``calls`` or ``devices``.
    """

    seconds: float
    share: float
    basis: str


class UtilizationVerdict(Struct, frozen=True, kw_only=True):
    """One finding; an empty text or list, or null, where a thing has none. ``file``: last part of its path."""

    klass: str = field(name="class")
    cause: str = ""
    process: ThreadPlace | None = None
    line: Line | None = None
    file: str = ""
    cost: GpuTimeLost | None = None
    confidence: float
    evidence: Sequence[StallEvidence] = ()
    spans: Sequence[str] = ()
    next: str
    code: str = ""
    start_unix_s: float = 0.0
    end_unix_s: float = 0.0


class Figure(Struct, frozen=True, kw_only=True):
    """A figure of the job. ``value``: null where it is not known, and ``text`` says what is missing."""

    name: str
    value: float | None
    unit: str
    text: str


class UtilizationSummary(Struct, frozen=True, kw_only=True):
    """What was looked at. ``devices``: models by index; ``calls``: of CUDA."""

    processes: int
    thread: ThreadPlace | None
    seconds: float
    devices: Sequence[str]
    calls: int
    idle_share: float | None
    idle_basis: str
    rejected: Mapping[str, int]


class Fact(Struct, frozen=True, kw_only=True):
    """What a job ran on or with, to be compared. ``value``: null of a text; ``group``: see job_facts.GROUPS."""

    group: str
    name: str
    text: str = ""
    value: float | None = None
    unit: str = ""


class UtilizationReport(Struct, frozen=True, kw_only=True):
    """The document. ``table``: what the thread did while the device was idle; ``limits``: what cannot be told.

    ``facts``: what ``otelgpu diff`` compares.
    """

    verdicts: Sequence[UtilizationVerdict]
    input: UtilizationSummary
    figures: Sequence[Figure]
    table: Sequence[Spent]
    remarks: Sequence[str]
    limits: Sequence[str]
    facts: Sequence[Fact] = ()
