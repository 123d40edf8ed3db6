"""All rules, in the order in which one explains away the other. Pure.

Uneven batches are taken out before ranks are compared, slow ranks before stages and batches are judged, so that what
one rule has explained is no evidence for the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from otelgpu.diagnose.ranks.batches import uneven_batches
from otelgpu.diagnose.ranks.coincidences import observations, with_coincidences
from otelgpu.diagnose.ranks.communication import slow_groups, some_are_slow
from otelgpu.diagnose.ranks.evaluations import find_evaluations, lone_evaluations, marked_by, trained
from otelgpu.diagnose.ranks.facts import Facts, Query, gather
from otelgpu.diagnose.ranks.hangs import hangs
from otelgpu.diagnose.ranks.missing import too_little, unexplained
from otelgpu.diagnose.ranks.peers import compare
from otelgpu.diagnose.ranks.replay import replay_of
from otelgpu.diagnose.ranks.slowdowns import global_slowdown
from otelgpu.diagnose.ranks.stages import uneven_stages
from otelgpu.diagnose.ranks.step_links import with_links
from otelgpu.diagnose.ranks.verdicts import INCONCLUSIVE, InputSummary, MarkedSteps, RanksReport, RankVerdict
from otelgpu.diagnose.ranks.wording import milliseconds, numbered
from otelgpu.diagnose.ranks.workers import slow_ranks
from otelgpu.diagnose.rules.matching import in_evidence
from otelgpu.diagnose.rules.rule import Rule


def diagnose(query: Query, *, rejected: Mapping[str, int], limits: list[str]) -> RanksReport:
    """``query`` runs the queries of this folder; the others come from who read the input."""
    return report_on(gather(query), query, rejected=rejected, limits=limits)


def report_on(
    facts: Facts, query: Query, *, rejected: Mapping[str, int], limits: list[str], rules: Sequence[Rule] = ()
) -> RanksReport:
    """The same of facts that were gathered. ``rules``: of problems that are looked for in the evidence."""
    stopped = hangs(query("pending"), facts.calls, facts.host_of)
    evaluations = find_evaluations(facts, query)
    alone, compared = lone_evaluations(facts, evaluations), trained(facts, evaluations)
    verdicts, more = judge(compared)
    if stopped or alone:
        others = sorted([*alone, *(each for each in verdicts if each.klass != INCONCLUSIVE)], key=_order)
        verdicts = [*stopped, *others]
    marked = [*facts.marked, *marked_by(facts, evaluations)]
    seen = observations(query("observations"))
    return RanksReport(
        verdicts=[with_links(with_coincidences(_timed(facts, each), seen), query) for each in verdicts],
        marked=marked,
        known=in_evidence(rules, seen),
        input=InputSummary(
            ranks=len(facts.host_of),
            steps=len(compared.steps),
            hosts=len(set(facts.host_of.values())),
            rejected=dict(sorted(rejected.items())),
        ),
        limits=[*limits, *facts.limits, *(_uncompared(each) for each in marked), *more],
    )


def _timed(facts: Facts, verdict: RankVerdict) -> RankVerdict:
    first, last = np.searchsorted(facts.steps, [verdict.first_step, verdict.last_step])
    if last >= len(facts.steps) or verdict.first_step < 0:  # dumps of collectives say no steps
        return verdict
    return replace(verdict, start_unix_s=float(facts.begin_s[first]), end_unix_s=float(facts.end_s[last]))


def judge(facts: Facts) -> tuple[list[RankVerdict], list[str]]:
    """Verdicts, the most costly first, and what cannot be told."""
    lacking = too_little(facts)
    if lacking is not None:
        return [lacking], []
    compared, replay = compare(facts), replay_of(facts)
    slow = slow_ranks(facts, compared, replay)
    slowdowns, limits = global_slowdown(facts, compared, replay)
    batches, single = uneven_batches(facts, compared, replay, slow.mended)
    verdicts = [
        *slow.verdicts,
        *batches,
        *uneven_stages(facts, compared, replay, slow.mended),
        *slow_groups(facts, replay),
        *slowdowns,
    ]
    limits += [*single, *_limits(facts)]
    if not verdicts:
        lacking = unexplained(facts, explained=bool(len(slow.flagged)) or some_are_slow(facts))
        return ([lacking] if lacking is not None else []), limits
    return sorted(verdicts, key=_order), limits


def _order(verdict: RankVerdict) -> float:
    return -verdict.cost.gpu_hours if verdict.cost else 0.0


def _limits(facts: Facts) -> list[str]:
    limits = []
    if "compute" not in facts.kinds:
        limits.append("no device time: slow computing cannot be told")
    if not facts.groups:
        limits.append("no collectives: slow communication cannot be told")
    elif not any(group.name for group in facts.groups):
        limits.append("the groups of collectives have no names: slow communication cannot be told")
    if any(group.kind == "p2p" for group in facts.groups) and len(set(facts.roles)) == 1:
        limits.append(
            "ranks send to each other, and their stages are not known: they are compared as if alike"
        )
    missing = max((group.missing for group in facts.groups), default=0)
    if missing:
        limits.append(f"{missing} ranks or more are not in the input, by the sizes of their groups")
    alone = [role for role in facts.of_same(facts.roles) if len(role) == 1]
    if alone and len(facts.ranks) > 1:
        limits.append(
            f"{len(alone)} roles have one rank: whether it or its role is slow cannot be told, only that it changed"
        )
    return limits


def _uncompared(marked: MarkedSteps) -> str:
    """What these steps cost is said though no rank is slow for it."""
    steps = "1 step" if marked.steps == 1 else f"{marked.steps} steps"
    kind = f"{marked.kind}, as what was computed shows," if marked.inferred else marked.kind
    return (
        f"{kind} in {steps} ({numbered(marked.ranks)}): compared with no others; together "
        f"{milliseconds(marked.seconds)} longer than they would take, {marked.share:.1%} of the time"
    )
