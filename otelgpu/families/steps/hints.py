"""Why a stretch of work may have used its GPU little: hints, each with the evidence that raised it. Pure.

In: :class:`~otelgpu.families.steps.step.Evidence` of a step, or of a request's own calls, and how long it took. Out:
names of hints with the share that raised each. They are of host calls only, and so say what to look into, not
what the GPU did. There is none of copies from pageable memory: which addresses are pinned is not known at a copy.

Example: a step of 10 ms with 4 ms between calls, in which nothing was under way: ``host_overhead``, 0.4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct

from otelgpu.families.steps.step import Evidence


class Hint(Struct, frozen=True, kw_only=True):
    """``share`` of some whole from which on it is given, and what it is of; the description is for the manual."""

    share: Callable[[Evidence, int], float]
    least: float
    description: str


LEAST_LAUNCHES: Final = 4
"""With fewer, each may well be waited for: a graph is one launch."""


def _blocking_copies(evidence: Evidence, elapsed_ns: int) -> float:
    return _part(evidence.blocking_copy_ns, elapsed_ns)


def _synchronous_launches(evidence: Evidence, _: int) -> float:
    if evidence.launches < LEAST_LAUNCHES:
        return 0.0
    return _part(evidence.waited_launches, evidence.launches)


def _host_overhead(evidence: Evidence, elapsed_ns: int) -> float:
    return _part(elapsed_ns - evidence.host_ns, elapsed_ns)


def _part(of: int, whole: int) -> float:
    if of <= 0 or whole <= 0:
        return 0.0
    return of / whole if of < whole else 1.0


HINTS: Final[Mapping[str, Hint]] = {
    "blocking_copies": Hint(
        share=_blocking_copies,
        least=0.1,
        description="share of the time inside copies to the device that wait, and synchronisation right after a copy",
    ),
    "synchronous_launches": Hint(
        share=_synchronous_launches,
        least=0.5,
        description="share of the launches that the very next call waited for",
    ),
    "host_overhead": Hint(
        share=_host_overhead,
        least=0.3,
        description="share of the time in which the launching thread had no call under way",
    ),
}
"""Every hint that there is."""


def hints(evidence: Evidence, elapsed_ns: int) -> dict[str, float]:
    """The hints that hold, and the share that raised each."""
    return {
        name: share
        for name, hint in HINTS.items()
        if (share := hint.share(evidence, elapsed_ns)) >= hint.least
    }
