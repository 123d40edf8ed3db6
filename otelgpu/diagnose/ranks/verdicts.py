"""What ``otelgpu diagnose ranks --json`` says, as types. Pure. Documented in docs/reference/diagnosis.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct, field

from otelgpu.diagnose.rules.matching import KnownProblem

SLOW_WORKER: Final = "slow_worker"
SLOW_HOST: Final = "slow_host"
SLOW_COMMUNICATION: Final = "slow_communication"
STAGE_IMBALANCE: Final = "stage_imbalance"
DATA_IMBALANCE: Final = "data_imbalance"
LONE_EVALUATION: Final = "lone_evaluation"
GLOBAL_SLOWDOWN: Final = "global_slowdown"
HANG: Final = "hang"
INCONCLUSIVE: Final = "inconclusive"

CLASSES: Final[Mapping[str, str]] = {
    SLOW_WORKER: "ranks whose own work takes longer than that of the ranks that do the same",
    SLOW_HOST: "the ranks of one host: at least half of them are slow workers for the same reason",
    SLOW_COMMUNICATION: "a group whose transfers take longer than those of groups like it, with all members there",
    STAGE_IMBALANCE: "a pipeline stage that computes longer than the others, on all its ranks",
    DATA_IMBALANCE: "batches of different size: the replicas wait for the one with most to do",
    LONE_EVALUATION: "some ranks evaluate every so many steps, and the others wait meanwhile",
    GLOBAL_SLOWDOWN: "all ranks at once take longer than before, since a step",
    HANG: "a collective that some members never came to",
    INCONCLUSIVE: "nothing can be said, and what is missing",
}
"""Class → what it means."""

MIXED: Final = "mixed"
EVALUATION: Final = "evaluation"
"""Of marked steps: as `ops.name` says it of a step."""
PERIOD: Final = "period"
"""Of evidence: every how many steps."""


class Cost(Struct, frozen=True, kw_only=True):
    """What mending it saves. ``seconds_per_step`` and ``share`` of the time: from the verdict's first to its last step.

    ``gpu_hours``: of all ranks, for all of these steps.
    """

    seconds_per_step: float
    share: float
    gpu_hours: float


class Evidence(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that was seen: ``name``, its ``value`` and that of the ``peers`` in ``unit``, or ``text``."""

    name: str
    text: str
    ranks: Sequence[int] = ()
    value: float | None = None
    peers: float | None = None
    unit: str = ""


class StepLink(Struct, frozen=True, kw_only=True):
    """The span of a rank's step: identities in hexadecimal, as backends show them."""

    rank: int
    step: int
    trace_id: str
    span_id: str


class RankVerdict(Struct, frozen=True, kw_only=True):
    """One finding; an empty text or list where a thing has none. ``group``: the communicator, of its two classes.

    ``links``: the spans of steps that show it best, where the input has spans.

    Times are those of the first and the last step, by the hosts' clocks in the median.
    """

    klass: str = field(name="class")
    cause: str = ""
    ranks: Sequence[int] = ()
    hosts: Sequence[str] = ()
    role: str = ""
    group: str = ""
    first_step: int
    last_step: int
    persistent: bool
    start_unix_s: float = 0.0
    end_unix_s: float = 0.0
    factor: float | None = None
    cost: Cost | None = None
    confidence: float
    evidence: Sequence[Evidence] = ()
    links: Sequence[StepLink] = ()
    next: str


class MarkedSteps(Struct, frozen=True, kw_only=True):
    """Steps in which ranks did something beside training: ``kind`` is ``checkpoint`` or ``evaluation``.

    ``seconds``: what they take longer than the median of the others, together; ``share`` of the run's time.
    ``inferred``: no name says so, but what they computed and when.
    """

    kind: str
    ranks: Sequence[int]
    steps: int
    seconds: float
    share: float
    inferred: bool = False


class InputSummary(Struct, frozen=True, kw_only=True):
    """What was looked at."""

    ranks: int
    steps: int
    hosts: int
    rejected: Mapping[str, int]


class RanksReport(Struct, frozen=True, kw_only=True):
    """The document. ``limits``: what could not be told from this input.

    ``known``: problems that the evidence shows, whether a rank is slow or not. ``marked``: steps that are compared with
    no others.
    """

    verdicts: Sequence[RankVerdict]
    marked: Sequence[MarkedSteps] = ()
    known: Sequence[KnownProblem] = ()
    input: InputSummary
    limits: Sequence[str]
