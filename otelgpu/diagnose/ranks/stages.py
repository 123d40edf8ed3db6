"""Stages of a pipeline of which one computes longer than the others. Pure."""

from __future__ import annotations

from typing import Final

import numpy as np

from otelgpu.diagnose.ranks.facts import COMPUTE, F64, Codes, Facts
from otelgpu.diagnose.ranks.peers import Compared, deviation, median
from otelgpu.diagnose.ranks.replay import Replay
from otelgpu.diagnose.ranks.verdicts import STAGE_IMBALANCE, Evidence, RankVerdict
from otelgpu.diagnose.ranks.wording import cost_of, milliseconds, places
from otelgpu.diagnose.ranks.workers import LEAST_SHARE

LEAST_FACTOR: Final = 1.04
"""Over the median of the other stages: layers come in whole numbers, and one more or less is not for mending."""
DEVIATIONS: Final = 4.0
"""Of the stages' ranks from each other."""


def uneven_stages(facts: Facts, compared: Compared, replay: Replay, mended: F64) -> list[RankVerdict]:
    """Heavy stages, the one that costs most first. ``mended``: own time without slow ranks.

    Only of a pipeline: elsewise ranks with different roles are meant to do different things.
    """
    if not replay.schedule.piped:
        return []
    stages = [stage.ranks for stage in replay.schedule.stages]
    compute = mended[COMPUTE] / np.exp(compared.batches)
    usual = np.array([float(np.nanmedian(compute[:, stage])) for stage in stages])
    spread = float(np.max([deviation(np.log(np.maximum(median(compute[:, s], 0), 1e-9)), 0) for s in stages]))
    before = replay.saved_s(own=mended)
    found = []
    for place, stage in enumerate(stages):
        others = float(np.median(np.delete(usual, place)))
        factor = usual[place] / max(others, 1e-12)
        if factor < max(LEAST_FACTOR, np.exp(DEVIATIONS * spread)):
            continue
        even = mended.copy()
        even[COMPUTE][:, stage] /= factor
        saved = np.maximum(replay.saved_s(own=even) - before, 0.0)
        if replay.share(saved) >= LEAST_SHARE:
            found.append(_verdict(facts, stage, factor, (usual[place], others), saved))
    return sorted(found, key=lambda verdict: -verdict.cost.gpu_hours if verdict.cost else 0.0)


def _verdict(
    facts: Facts, stage: Codes, factor: float, seconds: tuple[float, float], saved: F64
) -> RankVerdict:
    ranks, hosts, role = places(facts, stage)
    last = len(facts.steps) - 1
    return RankVerdict(
        klass=STAGE_IMBALANCE,
        cause="compute",
        ranks=ranks,
        hosts=hosts,
        role=role,
        first_step=int(facts.steps[0]),
        last_step=int(facts.steps[last]),
        persistent=True,
        factor=factor,
        cost=cost_of(facts, saved, 0, last),
        confidence=0.95 if len(stage) > 1 else 0.6,  # of one rank it can as well be that rank
        evidence=[
            Evidence(
                name="stage",
                text=f"{role} computes {milliseconds(seconds[0])} a step, the other stages {milliseconds(seconds[1])}",
                ranks=ranks,
                value=seconds[0],
                peers=seconds[1],
                unit="s",
            )
        ],
        next=f"move layers from {role} to another stage, or give it fewer of what is only there (embedding, loss)",
    )
