"""A step: one iteration of an engine that drives a GPU, and the requests that it gave tokens to.

Times are CLOCK_MONOTONIC nanoseconds of the host. What a GPU did meanwhile is not in here: a step is known by its
host calls, of which the last is the wait for its results.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct

from otelgpu.model.context_sources import ContextSource


class StepKey(NamedTuple):
    """What distinguishes a step from all others of a host, known before its requests are."""

    tgid: int
    tid: int  # the thread that launched its work
    start_ns: int


class StepPhase(StrEnum):
    """What a step did for a request: ``otelgpu.phase``."""

    PREFILL = "prefill"  # its first token: the prompt was completed
    DECODE = "decode"
    UNKNOWN = "unknown"  # its first token that was seen, of a request that was not seen to begin


class Membership(StrEnum):
    """What is known of the requests of a step: ``otelgpu.step.membership``."""

    KNOWN = "known"  # the members are exactly those that the step gave tokens to
    AMBIGUOUS = "ambiguous"  # some message may be of this step or of another: there may be more members
    UNREPORTED = (
        "unreported"  # no message reports tokens of it: a part of a prompt, or an engine that sends none
    )


class Evidence(Struct, frozen=True, kw_only=True):
    """What the host calls of a stretch of work show of how it used the GPU; sums over calls."""

    calls: int = 0
    launches: int = 0  # of kernels and graphs
    host_ns: int = 0  # inside calls, of the thread that launched
    wait_ns: int = 0  # of all threads, in synchronisation and in copies to the host that wait
    blocking_copies: int = 0  # to the device, that came back only when they were done
    blocking_copy_ns: int = 0  # in those, and in synchronisation right after a copy to the device
    waited_launches: int = 0  # launches that the very next call waited for


class Step(Struct, frozen=True, kw_only=True):
    """One iteration: from its first launch, copy or fill to the return of the wait for its results.

    With asynchronous scheduling a step's work is queued before the results of the one before are waited for: its
    ``start_ns`` is then before that one's ``end_ns``.
    """

    tgid: int
    tid: int
    number: int  # of the thread's steps, from 1
    start_ns: int
    end_ns: int
    gap_ns: int  # in which the thread had no step under way before this one; 0 where they overlap, or unknown
    rows: int  # operations that were kept
    evidence: Evidence

    @property
    def key(self) -> StepKey:
        """What it is told from others by."""
        return StepKey(self.tgid, self.tid, self.start_ns)

    @property
    def duration_ns(self) -> int:
        """From its first call to its results: host time, of which the GPU was busy for an unknown part."""
        return self.end_ns - self.start_ns


class Member(NamedTuple):
    """A request that a step gave tokens to."""

    request_id: str  # the engine's; "" where no message names it
    exchange: int  # Exchange.key; 0 where nobody knows
    new_tokens: int
    phase: StepPhase
    prompt_tokens: int = 0  # where the engine was told how many

    @property
    def tokens_worked_on(self) -> int:
        """Those that it got, and in its prefill those of its prompt, which the step went through for them."""
        return self.new_tokens + (self.prompt_tokens if self.phase is StepPhase.PREFILL else 0)


class ServedStep(Struct, frozen=True, kw_only=True):
    """A step with all that will be known of its requests."""

    step: Step
    members: tuple[Member, ...]
    membership: Membership
    source: ContextSource  # MESSAGE, STEP (time order), or NONE without members

    @property
    def tokens(self) -> int:
        """Those that the members got."""
        return sum(member.new_tokens for member in self.members)

    def count(self, phase: StepPhase) -> int:
        """Members in a phase."""
        return sum(member.phase is phase for member in self.members)


class RequestSteps(Struct, frozen=True, kw_only=True):
    """The steps that served a request, as far as they are known when it has been answered."""

    source: ContextSource  # MESSAGE or STEP
    added_ns: int  # when it was handed to the engine; 0: not seen
    first: StepKey | None  # the step that gave its first token; None: not known
    first_start_ns: int  # of that step; 0: not known
    first_end_ns: int
    last_end_ns: int  # of the last known step
    steps: int
    tokens: int  # in those
    unattributed: int  # outputs of which the step is not known
    mean_batch_size: float | None  # over the steps whose members are all known
    mean_token_share: float | None  # the request's part of a step's tokens, over the same steps
    shared_launches: (
        int  # of its steps, whoever else they served; with several choices, of those in ``links``
    )
    attributed_ns: int | None  # sum over the same steps of duration x token share: an estimate
    links: tuple[StepKey, ...]  # the first of them
    dropped_links: int
