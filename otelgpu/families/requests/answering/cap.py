"""What there is room for of requests that were answered: their own spans, and their operations. Pure.

In: requests that are to be reported, and what they would cost. Out: those that are. What is left out is so whole: a
request with all that was done for it, or all its operations. Who is wanted most goes first, and of the others those of
the traces that every node and every sampler keeps longest.

Where any request is left out for want of room, those beside it say no more of how many they are one
(:func:`~otelgpu.model.sampling.without_threshold`): that would count too few.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from otelgpu.engine.attribution.pending import SLOTS
from otelgpu.engine.operation_spans import FoldedWork
from otelgpu.engine.span_budget import Claim, SpanBudget
from otelgpu.families.requests.identities import CAPPED, Identity
from otelgpu.families.requests.spans import ExchangeContexts
from otelgpu.model.context import SAMPLED
from otelgpu.model.exchange import Exchange
from otelgpu.model.sampling import randomness, without_threshold

_PHASES: Final = 2
"""Spans of the phases of a request that has some."""


class RequestCap:
    """One session's, which is asked where the ``budget`` is limited. ``drop(key, identity, reason)`` leaves one out."""

    def __init__(self, budget: SpanBudget, drop: Callable[[int, Identity, str], Identity]) -> None:
        self.budget, self._drop = budget, drop

    def choose(
        self,
        exchanges: Sequence[Exchange],
        identities: list[Identity],
        wanted: Sequence[bool],
        boundary: npt.NDArray[np.uint64],
    ) -> list[Identity]:
        """The requests as there is room for them; ``boundary``: of those with phases, where they part."""
        sampled = np.array([identity.context.flags & SAMPLED for identity in identities], dtype=np.bool_)
        own = np.array([identity.own for identity in identities], dtype=np.int64)
        costs = own + _PHASES * (boundary != 0)
        claims = (Claim.WANTED_REQUEST, Claim.REQUEST)
        admitted = self._admit(claims, costs, sampled, identities, wanted)
        if admitted.all():
            return identities
        return [
            replace(identity, state=without_threshold(identity.state))
            if kept
            else self._drop(exchange.key, identity, CAPPED)
            for exchange, identity, kept in zip(exchanges, identities, admitted.tolist(), strict=True)
        ]

    def cut(
        self, work: FoldedWork | None, reported: ExchangeContexts, wanted: Sequence[bool]
    ) -> tuple[FoldedWork | None, npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
        """The operations that there is room for, whose they are, and of each request how many calls are left out."""
        m = len(reported.identities)
        units = np.arange(m * SLOTS) // SLOTS
        claims = (Claim.WANTED_WORK, Claim.WORK)
        costs = work.sizes(units, m) if work is not None else np.zeros(m, dtype=np.int64)
        admitted = self._admit(claims, costs, reported.sampled, reported.identities, wanted)
        work, left_out = work.cut(units, admitted) if work is not None else (None, costs)
        return work, admitted & reported.sampled, left_out

    def _admit(
        self,
        claims: tuple[Claim, Claim],
        costs: npt.NDArray[np.int64],
        sampled: npt.NDArray[np.bool_],
        identities: Sequence[Identity],
        wanted: Sequence[bool],
    ) -> npt.NDArray[np.bool_]:
        """Which there is room for, the wanted ones first; those that are not sampled ask for none."""
        bits = [randomness(identity.context.trace_id, identity.state) for identity in identities]
        order = np.array(sorted(range(len(bits)), key=bits.__getitem__, reverse=True), dtype=np.intp)
        order = order[sampled[order]]
        first = np.array(wanted, dtype=np.bool_)[order]
        admitted = ~sampled
        for claim, asking in zip(claims, (order[first], order[~first]), strict=True):
            admitted |= self.budget.admit(claim, costs, asking)
        return admitted
