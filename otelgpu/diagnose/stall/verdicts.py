"""What ``otelgpu diagnose stall --json`` says, as types. Pure. Documented in docs/reference/diagnosis.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct, field

STALL: Final = "stall"
INCONCLUSIVE: Final = "inconclusive"

CLASSES: Final[Mapping[str, str]] = {
    STALL: "the thread that a program waits for stands still, time and again",
    INCONCLUSIVE: "nothing can be said, and what is missing",
}
"""Class → what it means."""


class Line(Struct, frozen=True, kw_only=True):
    """A place in Python code; ``line`` 0: not known."""

    file: str
    line: int
    function: str


class ThreadPlace(Struct, frozen=True, kw_only=True):
    """A thread of a process."""

    pid: int
    program: str
    tid: int
    name: str


class Holder(Struct, frozen=True, kw_only=True):
    """Who is waited for: what another thread did meanwhile. ``line``: None where it runs no Python."""

    tid: int
    name: str
    line: Line | None
    share: float  # of the wait, in which it was seen there


class Rhythm(Struct, frozen=True, kw_only=True):
    """When it happens. ``every``: in each so manieth of ``steps``, 0: irregularly, or no steps are known."""

    times: int
    steps: int
    every: int
    period_s: float


class Latency(Struct, frozen=True, kw_only=True):
    """How long it takes each time, in seconds."""

    median_s: float
    most_s: float


class StallCost(Struct, frozen=True, kw_only=True):
    """What mending it saves at most: ``seconds`` of the time that was observed, ``share`` of it."""

    seconds: float
    share: float


class StallEvidence(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that was seen, in words and, where it is one, as a number."""

    name: str
    text: str
    value: float | None = None
    unit: str = ""


class StallVerdict(Struct, frozen=True, kw_only=True):
    """One finding; an empty text or list, or null, where a thing has none.

    ``file``: last part of ``path``, which begins at the root directory of the process, or with ``…`` where it was cut;
    ``device``: the disk that the thread's own requests went to. ``kernel``: functions under which the thread waited,
    the innermost first. ``spans``: trace and span ids of what it delayed.
    """

    klass: str = field(name="class")
    cause: str = ""
    thread: ThreadPlace | None = None
    line: Line | None = None
    file: str = ""
    path: str = ""
    device: str = ""
    bytes: int | None = None
    latency: Latency | None = None
    rhythm: Rhythm | None = None
    kernel: Sequence[str] = ()
    holder: Holder | None = None
    cost: StallCost | None = None
    confidence: float
    evidence: Sequence[StallEvidence] = ()
    spans: Sequence[str] = ()
    next: str
    code: str = ""
    start_unix_s: float = 0.0
    end_unix_s: float = 0.0


class Spent(Struct, frozen=True, kw_only=True):
    """A row of the table: what the thread's time went into."""

    cause: str
    what: str
    times: int
    seconds: float
    share: float
    most_s: float


class StallSummary(Struct, frozen=True, kw_only=True):
    """What was looked at. ``steps`` 0: no rhythm was found; ``usual_step_s``: how long most take."""

    processes: int
    threads: int
    thread: ThreadPlace | None
    seconds: float
    beat: str
    steps: int
    usual_step_s: float
    rejected: Mapping[str, int]


class StallReport(Struct, frozen=True, kw_only=True):
    """The document. ``limits``: what could not be told from this input; ``remarks``: what is no stall, and is said."""

    verdicts: Sequence[StallVerdict]
    input: StallSummary
    table: Sequence[Spent]
    remarks: Sequence[str]
    limits: Sequence[str]
