"""What each request got of an engine's steps, until its exchange has been answered. Pure.

In: requests as they are handed to engines, the steps that gave them tokens, and later who else those served. Out:
:class:`~otelgpu.families.steps.step.RequestSteps`. Bounded: per request, sums and the first steps only; of requests,
those that were heard of last.

A request's first token distinguishes prefill from decode. The step that gave it is its prefill; parts of a long
prompt that earlier steps worked on gave nothing, cannot be seen, and count as time in the queue.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from otelgpu.families.steps.step import Membership, RequestSteps, ServedStep, Step, StepKey, StepPhase
from otelgpu.model.context_sources import ContextSource

REQUESTS: Final = 16_384
LINKS: Final = 128
"""Steps that a request's span links to; OpenTelemetry SDKs keep as many links of a span."""


class Shares(Struct):
    """A request's part of the steps whose members are all known: sums over those."""

    steps: int = 0
    batch: int = 0
    share: float = 0.0
    attributed_ns: float = 0.0

    def add(self, served: ServedStep, tokens: int) -> None:
        """A step that gave the request ``tokens``."""
        if served.membership is Membership.KNOWN and served.tokens and tokens:
            share = tokens / served.tokens
            self.steps += 1
            self.batch += len(served.members)
            self.share += share
            self.attributed_ns += share * served.step.duration_ns


class Gained(Struct):
    """What one request got."""

    added_ns: int = 0
    prompt_tokens: int = 0  # 0: not known
    heard: bool = False  # some output of it was seen
    first: Step | None = None
    last_end_ns: int = 0
    steps: int = 0
    tokens: int = 0
    unattributed: int = 0
    launches: int = 0
    links: dict[StepKey, int] = field(default_factory=dict)  # the first steps, and the launches of each
    shares: Shares = field(default_factory=lambda: Shares())
    recent: dict[StepKey, int] = field(default_factory=dict)  # steps not reported yet, and its tokens of each
    exchange: int = 0  # which it is about, once that is known

    def phase(self) -> StepPhase:
        """What the next output of the request is of."""
        if self.heard:
            return StepPhase.DECODE
        return StepPhase.PREFILL if self.added_ns else StepPhase.UNKNOWN

    def give(self, step: Step, tokens: int, phase: StepPhase) -> None:
        """A step gave it tokens."""
        if phase is StepPhase.PREFILL:
            self.first = step
        if step.end_ns > self.last_end_ns:
            self.last_end_ns = step.end_ns
        self.tokens += tokens
        key, recent = step.key, self.recent
        if key in recent:
            recent[key] += tokens
            return
        launches = step.evidence.launches
        self.steps += 1
        self.launches += launches
        recent[key] = tokens
        if len(self.links) < LINKS:
            self.links[key] = launches

    def settle(self, served: ServedStep) -> None:
        """No more will be known of the members of a step that served it."""
        self.shares.add(served, self.recent.pop(served.step.key, 0))


class RequestSteppings:
    """What the requests of all engines got, by the engines' ids."""

    def __init__(self) -> None:
        self._gained: OrderedDict[str, Gained] = OrderedDict()

    def of(self, request_id: str) -> Gained:
        """What a request has got; nothing, of one that is new."""
        gained = self._gained.get(request_id)
        if gained is None:
            gained = self._gained[request_id] = Gained()
            if len(self._gained) > REQUESTS:
                self._gained.popitem(last=False)
        else:
            self._gained.move_to_end(request_id)
        return gained

    def knows(self, request_id: str) -> bool:
        """Whether a request was heard of."""
        return request_id in self._gained

    def find(self, request_ids: Iterable[str]) -> list[Gained]:
        """What those requests got that were heard of."""
        return [self._gained[each] for each in request_ids if each in self._gained]


def view_of(
    gained: Sequence[Gained],
    source: ContextSource,
    served: Callable[[StepKey], ServedStep | None] = lambda key: None,
) -> RequestSteps | None:
    """All that an exchange got, by one request or several (choices, prompts); None where it is nothing.

    ``served``: a step that was not reported yet, if all its members are known already.
    """
    if not any(each.heard for each in gained):
        return None
    firsts = [each.first for each in gained if each.first is not None]
    first = min(firsts, key=lambda step: step.end_ns) if len(firsts) == len(gained) else None
    links = {key: launches for each in gained for key, launches in each.links.items()}
    several = len(gained) > 1  # which then share steps
    steps = max(len(links), *(each.steps for each in gained)) if several else gained[0].steps
    shares = Shares()
    for each in gained:
        _add_shares(shares, each, served)
    return RequestSteps(
        source=source,
        added_ns=min((each.added_ns for each in gained if each.added_ns), default=0),
        first=first.key if first is not None else None,
        first_start_ns=first.start_ns if first is not None else 0,
        first_end_ns=first.end_ns if first is not None else 0,
        last_end_ns=max(each.last_end_ns for each in gained),
        steps=steps,
        tokens=sum(each.tokens for each in gained),
        unattributed=sum(each.unattributed for each in gained),
        mean_batch_size=shares.batch / shares.steps if shares.steps else None,
        mean_token_share=shares.share / shares.steps if shares.steps and not several else None,
        shared_launches=sum(links.values()) if several else gained[0].launches,
        attributed_ns=round(shares.attributed_ns) if shares.steps else None,
        links=tuple(links)[:LINKS],
        dropped_links=max(steps - LINKS, 0),
    )


def _add_shares(into: Shares, gained: Gained, served: Callable[[StepKey], ServedStep | None]) -> None:
    into.steps += gained.shares.steps
    into.batch += gained.shares.batch
    into.share += gained.shares.share
    into.attributed_ns += gained.shares.attributed_ns
    for key, tokens in gained.recent.items():
        step = served(key)
        if step is not None:
            into.add(step, tokens)


def attribute_tokens(content_times_ns: Sequence[int], step_ends_ns: Sequence[int]) -> npt.NDArray[np.intp]:
    """By time order: the position of the last step that ended before each token was written; -1: of none.

    A step ends when its results have been waited for, so that the rule holds for asynchronous scheduling too. Both
    ascend. Where a write is held up until the next step has ended, the answer is one step late: it is less certain
    than a message, and marked so (``otelgpu.context.source`` "step").

    >>> attribute_tokens([5, 12, 13, 25], [10, 20, 30]).tolist()
    [-1, 0, 0, 1]
    """
    return np.array([bisect_right(step_ends_ns, time_ns) - 1 for time_ns in content_times_ns], dtype=np.intp)
