"""How many spans a second are sent: a bucket that fills evenly, and who may still take from it when it runs low. Pure.

In: time, what is to be reported with what it would cost, and the spans that were made. Out: what is reported of it.
A claim is admitted whole or not at all, and while more than a share of the bucket is left: the lower that share, the
longer a kind of claim goes on. Who is admitted may take more than that, so that large claims are no worse off
than small ones, and the shares are what keeps them from taking what is meant for the others.

What is admitted is set aside until the tick ends, and every span that leaves is paid for, whoever made it. So what
nobody claims (steps, collectives, windows of unattributed work) is counted too, and the others make room for it.

Example: 2,000 a second fill a bucket of 20,000. A burst of requests with 500 operations each has all of them until
10,000 are left, failed ones until 5,000 are; then each has its own span and no operations, and with 2,500 left only
those that failed have one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Final

import numpy as np
import numpy.typing as npt

from otelgpu.engine.folding import Parents
from otelgpu.model.losses import Reasons
from otelgpu.model.sampling import RANDOM_BITS
from otelgpu.model.spans import SpanBatch

BURST_S: Final = 10
"""Seconds of which a quiet session saves what it did not send."""
CAPPED_OPERATIONS: Final = "capped_operations"
REASONS: Final = Reasons(
    "correlate",
    {
        CAPPED_OPERATIONS: "a call that has no span for `traces_spans_per_second`: its request, step or window has it "
        "in its sums, and metrics have it",
    },
    intended=(CAPPED_OPERATIONS,),
)
"""What one count of (``correlate``, reason) means."""
_SECOND_NS: Final = 1_000_000_000


class Claim(Enum):
    """What asks for spans; the value is the share of the bucket that it leaves to those before it."""

    WANTED_REQUEST = 0.0  # a failed or slow request's own span, and its phases
    REQUEST = 0.125
    WANTED_WORK = 0.25  # the operations of one of those
    WORK = 0.5


def by_randomness(parents: Parents) -> npt.NDArray[np.intp]:
    """The order in which traces are kept, by :func:`~otelgpu.model.sampling.randomness`: on all nodes the same."""
    last = np.ascontiguousarray(parents.trace_id[:, 8:]).view(">u8").reshape(-1)
    return np.argsort(~(last & np.uint64(RANDOM_BITS)), kind="stable")


class SpanBudget:
    """One session's. ``per_second``: 0 for no limit, and then nobody need ask."""

    def __init__(self, per_second: int = 0) -> None:
        self.per_second = per_second
        self._left = float(per_second * BURST_S)
        self._set_aside = 0
        self._filled_ns = 0

    def keep(self, per_second: int) -> None:
        """Another limit from here on, with a full bucket where there was none."""
        before, self.per_second = self.per_second, per_second
        most = float(per_second * BURST_S)
        self._left = min(self._left, most) if before else most

    def fill(self, now_ns: int) -> None:
        """A tick begins: what was set aside in the last one has been paid for."""
        most = self.per_second * BURST_S
        since_ns = now_ns - self._filled_ns if self._filled_ns else 0
        self._left = min(self._left + self.per_second * since_ns / _SECOND_NS, most)
        self._filled_ns, self._set_aside = now_ns, 0

    def admit(
        self, claim: Claim, costs: npt.NDArray[np.int64], order: npt.NDArray[np.intp]
    ) -> npt.NDArray[np.bool_]:
        """Which of n claims are admitted, and set aside: shape (n,). ``order``: who asks, the first one first."""
        admitted = np.zeros(len(costs), dtype=np.bool_)
        asked = costs[order]
        left = self._left - self._set_aside - (np.cumsum(asked) - asked)
        admitted[order] = left > claim.value * self.per_second * BURST_S
        self._set_aside += int(costs[admitted].sum())
        return admitted

    def paid(self, spans: Iterable[SpanBatch]) -> Iterator[SpanBatch]:
        """The same spans, which are paid for as they are taken. Debts are of one bucket at most."""
        for batch in spans:
            self._left = max(self._left - len(batch), -self.per_second * BURST_S)
            yield batch
