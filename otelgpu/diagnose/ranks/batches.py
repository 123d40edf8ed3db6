"""Uneven batches: replicas that have more to compute, and the others wait for them. Pure."""

from __future__ import annotations

from typing import Final

import numpy as np

from otelgpu.diagnose.ranks.facts import F64, Codes, Facts
from otelgpu.diagnose.ranks.peers import EXPLAINED, Compared, deviation, running_median
from otelgpu.diagnose.ranks.replay import Replay
from otelgpu.diagnose.ranks.verdicts import DATA_IMBALANCE, Evidence, RankVerdict
from otelgpu.diagnose.ranks.wording import cost_of, places
from otelgpu.diagnose.ranks.workers import LEAST_SHARE

LEAST_EFFECT: Final = 0.02
"""Root mean square of the logs of what batches make of computing: less is no imbalance, however it correlates."""
MOST_OF_COST: Final = 0.8
"""Of what uneven batches cost, in single steps, which a running median leaves out: batches are uneven for longer."""
ONE_LANE: Final = 0.8
"""Share of the cost that one lane has to have to be named."""


def uneven_batches(
    facts: Facts, compared: Compared, replay: Replay, mended: F64
) -> tuple[list[RankVerdict], list[str]]:
    """One verdict or none, and what cannot be told. ``mended``: own time without slow ranks.

    It takes both: that the batches explain what differs (correlation alone is false: healthy stages reach 0.89), and
    that it costs something. Where single steps cost it, the rest of the batches are even: these are said.
    """
    if compared.agreement <= EXPLAINED or _largest(compared.units) < LEAST_EFFECT:
        return [], []
    before = replay.saved_s(own=mended)
    even = replay.units / np.exp(compared.units)
    saved = np.maximum(replay.saved_s(own=mended, units=even) - before, 0.0)
    if replay.share(saved) < LEAST_SHARE:
        return [], []
    lasting = running_median(saved[:, None])[:, 0]
    if lasting.sum() <= (1 - MOST_OF_COST) * saved.sum():
        more = saved - lasting
        steps = int((more > 0.5 * more.max()).sum())
        return [], [
            f"in {steps} of {len(saved)} steps some replicas compute longer than others, which costs "
            f"{replay.share(saved):.1%} of the time: larger batches, or evaluations that nothing marks; of single "
            "steps that cannot be told"
        ]
    lane = _lane(facts, compared, replay, mended, float(saved.sum()))
    ranks, hosts, role = places(facts, lane) if lane is not None else ([], [], "")
    last = len(facts.steps) - 1
    spread = float(deviation(compared.units.ravel(), 0))
    source = "the bytes of its batches" if compared.by_bytes else "what all ranks of a replica have in common"
    return [
        RankVerdict(
            klass=DATA_IMBALANCE,
            cause="compute",
            ranks=ranks,
            hosts=hosts,
            role=role,
            first_step=int(facts.steps[0]),
            last_step=int(facts.steps[last]),
            persistent=True,
            factor=float(np.exp(compared.units.max(axis=(0, 2)).mean())),
            cost=cost_of(facts, saved, 0, last),
            confidence=round(compared.agreement, 3),
            evidence=[
                Evidence(
                    name="correlation",
                    text=f"what ranks compute follows {source}: r = {compared.agreement:.2f}",
                    value=compared.agreement,
                    unit="1",
                ),
                Evidence(
                    name="spread",
                    text=f"batches differ by {spread:.1%} of their work (standard deviation)",
                    value=spread,
                    unit="1",
                ),
            ],
            next="balance tokens, not samples, over the replicas: pack or bucket sequences by length",
        )
    ], []


def _largest(effect: F64) -> float:
    """Of the lanes' root mean squares."""
    return float(np.sqrt((effect**2).mean(axis=(0, 1))).max())


def _lane(facts: Facts, compared: Compared, replay: Replay, mended: F64, total_s: float) -> Codes | None:
    """Ranks of the one lane that has nearly all of it."""
    lanes = facts.of_same(facts.lanes)
    before = replay.saved_s(own=mended).sum()
    heaviest = max(lanes, key=lambda lane: float(np.median(compared.batches[:, lane])))
    without = replay.units.copy()
    without[..., heaviest] /= np.exp(np.maximum(compared.units[..., heaviest], 0.0))
    alone = replay.saved_s(own=mended, units=without).sum() - before
    return heaviest if alone >= ONE_LANE * total_s else None
