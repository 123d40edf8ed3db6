"""Slow ranks and slow hosts: whose own work takes longer than that of the ranks that do the same. Pure."""

from __future__ import annotations

from math import lgamma
from typing import Final

import numpy as np
from msgspec import Struct

from otelgpu.diagnose.ranks.facts import COMPUTE, F64, OWN, Codes, Facts, Flags, nanmedian
from otelgpu.diagnose.ranks.peers import (
    NORMAL,
    SMOOTHED,
    WINDOW,
    Compared,
    median_of_others,
    running_median,
    runs,
)
from otelgpu.diagnose.ranks.replay import Replay
from otelgpu.diagnose.ranks.verdicts import MIXED, SLOW_HOST, SLOW_WORKER, Evidence, RankVerdict
from otelgpu.diagnose.ranks.wording import cost_of, extent, milliseconds, places

LEAST_RELATIVE: Final = float(np.log(1.015))
"""Of own time, over the peers': ranks of one model of GPU differ by 1 %."""
DEVIATIONS: Final = 4.0
"""How many standard deviations of the peers, of a running median."""
LEAST_RUN: Final = 4
"""Steps in a row: of five normal deviates the median is rarely an outlier, four times in a row never."""
LEAST_Z: Final = 6.0
"""Of the median over the flagged steps. A fleet has 1,000 ranks, and a rank many runs of steps."""
PAUSE_RELATIVE: Final = float(np.log(1.1))
"""Of a single step's own time: pauses that matter are long."""
PAUSE_DEVIATIONS: Final = 8.0
"""A single step is compared, and there are many of them."""
CHANCE: Final = 0.01
"""Runs that pauses as frequent as the other ranks' make in a job by chance: of more than that, one is no sign."""
PAUSE_SHARE: Final = 0.1
"""Of a step: what takes so long is looked at in seconds too, for short own times vary a lot in their own measure."""
LEAST_PAUSES: Final = 4
"""Single steps that are long, of one rank: as many recur, fewer happen."""
MORE_PAUSES: Final = 4.0
"""Standard deviations (of a count, and one) that a rank has more of them than the others: every rank has some."""
MANY_PAUSES: Final = 0.1
"""Share of a rank's steps from which on it does not matter that others have as many, where most of them have less."""
PERSISTENT: Final = 0.8
"""Share of the steps from which on a fault is called persistent."""
COVERED: Final = 0.8
"""Share of the excess that one kind has to have to be the cause."""
LEAST_SHARE: Final = 0.02
"""Of the time from a fault's first to its last step, that mending it saves; less is not worth an alarm."""
LEAST_RUN_SHARE: Final = 0.005
"""Of the whole run's: several that take turns cost each little."""
HIDDEN: Final = 0.2
"""Share of the joint saving that mending each alone would not bring: then the suspects hide each other."""
MATTERS: Final = 0.05
"""Share of the joint saving that is lost without one of the suspects: less, and it is not one."""
MOST_ALONE: Final = 64
"""Suspects that are mended one by one. Of more, those with most excess: a step waits for few at once."""
HOST_RANKS: Final = 0.5
"""Share of a host's ranks, two at least, that are slow for the same reason: then it is the host."""

_REACH: Final = WINDOW // 2
"""Steps before and behind a step that its running median is of."""

NEXT: Final = {
    "compute": "compare this GPU's clocks, power, temperature and throttle reasons with a peer's (nvidia-smi -q), then "
    "its kernels: otelgpu diff of both ranks' profiles",
    "host": "profile this rank's process and a peer's (otelgpu profile -p PID) and compare them with otelgpu diff: "
    "garbage collection, CPU contention, another program on its cores",
    "input": "look at this rank's data loader: its storage, its workers, its share of the CPU",
    "file": "look at this rank's files and file system: otelgpu profile -p PID shows slow reads and writes by line",
    "copy": "compare this GPU's PCIe link (nvidia-smi -q: width, generation, replays) and pinned memory with a peer's",
    MIXED: "compare a profile of this rank with a peer's: otelgpu profile -p PID on both, then otelgpu diff",
}


class _Suspect(Struct, frozen=True, kw_only=True):
    """``cells``: (step, rank), where it is slow."""

    ranks: Codes
    cells: Flags
    host: str = ""


class SlowRanks(Struct, frozen=True, kw_only=True):
    """``mended``: own time, (kind, step, rank), without what the verdicts are about."""

    verdicts: list[RankVerdict]
    flagged: Codes
    mended: F64


def slow_ranks(facts: Facts, compared: Compared, replay: Replay) -> SlowRanks:
    """All of them, by what they cost."""
    long = _long(facts, compared)
    cells = _sustained(compared, long) | _paused(long)
    suspects = _suspects(facts, compared, cells)
    chosen = _chosen(facts, compared, replay, suspects)
    verdicts = [_verdict(facts, compared, replay, each) for each in chosen]
    flagged = (
        np.unique(np.concatenate([each.ranks for each in suspects])) if suspects else np.zeros(0, np.intp)
    )
    return SlowRanks(verdicts=verdicts, flagged=flagged, mended=_mended(facts, compared, cells))


def _sustained(compared: Compared, long: Flags) -> Flags:
    """Steps in which a rank is slow, and has been or will be for a while. ``long``: single steps that are."""
    relative = running_median(compared.relative)
    sigma = np.hypot(compared.noise * SMOOTHED, compared.spread)
    bound = np.maximum(LEAST_RELATIVE, DEVIATIONS * sigma)
    with np.errstate(invalid="ignore"):
        flags = runs(relative > bound, LEAST_RUN)
        usual = np.where(long, np.nan, compared.relative) > bound
    flags &= ~_by_chance(flags, long, usual)
    for rank in np.flatnonzero(flags.any(axis=0)).tolist():
        mine = compared.relative[flags[:, rank], rank]
        middle, count = np.nanmedian(mine), np.isfinite(mine).sum()
        if middle * np.sqrt(count) < LEAST_Z * 1.25 * max(compared.noise[rank], 1e-9):
            flags[:, rank] = False
        elif flags[:, rank].mean() >= PERSISTENT:
            first, last = extent(flags[:, rank])
            flags[first : last + 1, rank] = True
    return flags


def _by_chance(flags: Flags, long: Flags, usual: Flags) -> Flags:
    """Runs that are pauses which came close together, as the other ranks' do here and there too: (step, rank).

    ``usual``: steps that are slow and no pauses. How many runs of as many pauses are to be expected is the number of
    places for them times the chance of one, and pauses begin as frequently as on the other ranks.
    """
    found = np.zeros_like(flags)
    begins = np.diff(long, axis=0, prepend=False) & long
    for rank in np.flatnonzero(flags.any(axis=0)).tolist():
        rate = (begins.sum() - begins[:, rank].sum()) / max(1, begins.size - len(begins))
        edges = np.flatnonzero(np.diff(flags[:, rank], prepend=False, append=False))
        for first, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            if 2 * usual[first:end, rank].sum() > np.count_nonzero(~long[first:end, rank]):
                continue  # it is slow without them
            seen = long[max(0, first - _REACH) : end + _REACH, rank]
            steps, pauses = len(seen), int(seen.sum())
            ways = (
                lgamma(steps + 1) - lgamma(pauses + 1) - lgamma(steps - pauses + 1)
            )  # log of a number of them
            expected = np.log(long.size) + ways + pauses * np.log(max(rate, 1e-12))
            found[first:end, rank] = pauses >= _REACH and expected > np.log(CHANCE)
    return found


def _long(facts: Facts, compared: Compared) -> Flags:
    """Single steps that are long."""
    bound = np.maximum(PAUSE_RELATIVE, PAUSE_DEVIATIONS * np.hypot(compared.noise, compared.spread))
    more_s = compared.excess.sum(axis=0)
    noise_s = NORMAL * np.nan_to_num(nanmedian(np.abs(more_s - nanmedian(more_s, axis=0)), axis=0))
    bound_s = np.maximum(PAUSE_SHARE * np.nanmedian(facts.duration_s), PAUSE_DEVIATIONS * noise_s)
    with np.errstate(invalid="ignore"):
        flags = compared.relative > bound
        flags |= (compared.relative > PAUSE_RELATIVE) & (more_s > bound_s)
    return np.asarray(flags)


def _paused(long: Flags) -> Flags:
    """Of single steps that are long, those of ranks that have several."""
    count = long.sum(axis=0)
    others = (count.sum() - count) / max(1, len(count) - 1)
    is_more = count > others + MORE_PAUSES * np.sqrt(others + 1)
    usual = np.nan_to_num(median_of_others(count.astype(np.float64)))
    is_many = (count >= MANY_PAUSES * len(long)) & (count > usual + MORE_PAUSES * np.sqrt(usual + 1))
    if is_many.mean() > 0.5:  # a busy machine's: no rank is unlike the others
        is_many[:] = False
    return np.asarray(long & (count >= LEAST_PAUSES) & (is_more | is_many))


def _suspects(facts: Facts, compared: Compared, cells: Flags) -> list[_Suspect]:
    """Ranks, and where half of a host's are slow for one reason, that host."""
    ranks = np.flatnonzero(cells.any(axis=0))
    causes = {int(rank): _cause(compared, cells_of(cells, np.array([rank])))[0] for rank in ranks}
    found, taken = [], set()
    hosts = facts.of_same(facts.hosts)
    for host in hosts if len(hosts) > 1 else []:
        slow = [int(rank) for rank in host if int(rank) in causes]
        if len(slow) < max(2, HOST_RANKS * len(host)) or len({causes[rank] for rank in slow}) > 1:
            continue
        common = cells[:, slow].sum(axis=1) >= 0.5 * len(slow)
        if common.sum() >= 0.5 * cells[:, slow].any(axis=1).sum():
            who = np.array(slow)
            found.append(_Suspect(ranks=who, cells=cells_of(cells, who), host=facts.hosts[slow[0]]))
            taken |= set(slow)
    alone = [np.array([rank]) for rank in ranks if int(rank) not in taken]
    return found + [_Suspect(ranks=who, cells=cells_of(cells, who)) for who in alone]


def cells_of(cells: Flags, ranks: Codes) -> Flags:
    """Those of these ranks alone."""
    kept = np.zeros_like(cells)
    kept[:, ranks] = cells[:, ranks]
    return kept


def _steps(cells: Flags) -> Flags:
    """In which any rank is slow."""
    return np.asarray(cells.any(axis=1))


def _together(suspects: list[_Suspect]) -> Flags:
    return np.asarray(np.any([each.cells for each in suspects], axis=0))


def _mended(facts: Facts, compared: Compared, cells: Flags) -> F64:
    """Own time, if in these cells the ranks did as their peers do."""
    more = np.nan_to_num(np.maximum(compared.excess, 0.0)) * cells
    more[COMPUTE] *= np.exp(compared.batches)
    return np.asarray(facts.own - more)


def _chosen(
    facts: Facts, compared: Compared, replay: Replay, suspects: list[_Suspect]
) -> list[tuple[_Suspect, F64]]:
    """Those that are worth a verdict, each with what mending it saves; in one where they hide each other."""
    if not suspects:
        return []

    def saved(cells: Flags) -> F64:
        return replay.saved_s(own=_mended(facts, compared, cells))

    everything = _together(suspects)
    joint = saved(everything)
    suspects = _largest(compared, suspects)
    alone = [saved(each.cells) for each in suspects]
    worth = [_is_worth(facts, seconds, each.cells) for each, seconds in zip(suspects, alone, strict=True)]
    by_themselves = sum(seconds.sum() for seconds, good in zip(alone, worth, strict=True) if good)
    if joint.sum() - by_themselves <= HIDDEN * joint.sum() or not _is_worth(facts, joint, everything):
        pairs = zip(suspects, alone, worth, strict=True)
        found = [(each, seconds) for each, seconds, good in pairs if good]
        return sorted(found, key=lambda pair: -float(pair[1].sum()))
    matter = [
        each
        for each in suspects
        if joint.sum() - saved(everything & ~each.cells).sum() >= MATTERS * joint.sum()
    ]
    matter = matter or suspects
    hosts = {each.host for each in matter}
    joined = _Suspect(
        ranks=np.concatenate([each.ranks for each in matter]),
        cells=_together(matter),
        host=hosts.pop() if len(hosts) == 1 else "",
    )
    return [(joined, saved(joined.cells))]


def _largest(compared: Compared, suspects: list[_Suspect]) -> list[_Suspect]:
    """As many as are replayed one by one."""
    if len(suspects) <= MOST_ALONE:
        return suspects
    more = np.nan_to_num(np.maximum(compared.excess, 0.0)).sum(axis=0)
    by_size = sorted(suspects, key=lambda each: -float(more[each.cells].sum()))
    return by_size[:MOST_ALONE]


def _is_worth(facts: Facts, saved_s: F64, cells: Flags) -> bool:
    first, last = extent(_steps(cells))
    whole = float(saved_s.sum()) / max(float(np.nansum(facts.duration_s)), 1e-12)
    return cost_of(facts, saved_s, first, last).share >= LEAST_SHARE and whole >= LEAST_RUN_SHARE


def _cause(compared: Compared, cells: Flags) -> tuple[str, float]:
    """The kind that has most of the excess, or `MIXED`, and its share."""
    more = (np.nan_to_num(np.maximum(compared.excess, 0.0)) * cells).sum(axis=(1, 2))
    most = int(more.argmax())
    share = float(more[most] / max(more.sum(), 1e-12))
    return (OWN[most] if share >= COVERED else MIXED), share


def _verdict(facts: Facts, compared: Compared, replay: Replay, chosen: tuple[_Suspect, F64]) -> RankVerdict:
    suspect, saved_s = chosen
    cells = suspect.cells
    cause, covered = _cause(compared, cells)
    steps = _steps(cells)
    first, last = extent(steps)
    ranks, hosts, role = places(facts, suspect.ranks)
    mine, peers = _times(facts, compared, cells, cause)
    what = "own time" if cause == MIXED else cause
    evidence = [
        Evidence(
            name="own_time",
            text=f"{what} a step: {milliseconds(mine)}, of its peers {milliseconds(peers)}",
            ranks=ranks,
            value=mine,
            peers=peers,
            unit="s",
        ),
        Evidence(
            name="coverage", text=f"{covered:.0%} of what it takes longer is {what}", value=covered, unit="1"
        ),
        *came_last(facts, suspect.ranks),
    ]
    return RankVerdict(
        klass=SLOW_HOST if suspect.host else SLOW_WORKER,
        cause=cause,
        ranks=ranks,
        hosts=hosts,
        role=role,
        first_step=int(facts.steps[first]),
        last_step=int(facts.steps[last]),
        persistent=bool((last + 1 - first) >= PERSISTENT * len(steps)),
        factor=mine / peers if peers > 0 else None,
        cost=cost_of(facts, saved_s, first, last),
        confidence=_confidence(compared, cells),
        evidence=evidence,
        next=NEXT[cause],
    )


def _times(facts: Facts, compared: Compared, cells: Flags, cause: str) -> tuple[float, float]:
    """Seconds a step of the cause's kind in the median of the cells: of these ranks, and of their peers."""
    kinds = list(range(len(OWN))) if cause == MIXED else [OWN.index(cause)]
    own = np.stack(
        [facts.own[kind] / (np.exp(compared.batches) if kind == COMPUTE else 1.0) for kind in kinds]
    )
    mine = own.sum(axis=0)[cells]
    more = compared.excess[kinds].sum(axis=0)[cells]
    return float(np.nanmedian(mine)), max(0.0, float(np.nanmedian(mine - more)))


def _confidence(compared: Compared, cells: Flags) -> float:
    """Share of the cells in which the rank took longer than each rank that is not suspected."""
    suspected = np.asarray(cells.any(axis=0))
    normal = np.where(suspected[None, :], np.nan, compared.relative)
    known = np.asarray(np.isfinite(normal).any(axis=1))
    if not known.any():
        return 0.5
    longest = np.where(known, np.max(np.where(np.isfinite(normal), normal, -np.inf), axis=1), np.nan)
    with np.errstate(invalid="ignore"):
        above = np.asarray(compared.relative > longest[:, None])
    return round(float(np.mean(above[cells])), 3)


def came_last(facts: Facts, ranks: Codes) -> list[Evidence]:
    """In how many of their groups' collectives these ranks were the ones that the others waited for."""
    last = calls = 0
    for group in facts.groups:
        if group.kind == "coll" and len(group.ranks) > 1:
            mine = np.isin(group.ranks, ranks)
            if mine.any() and not mine.all():
                last, calls = last + int(group.came_last[mine].sum()), calls + group.calls
    if not calls:
        return []
    share = last / calls
    return [
        Evidence(
            name="came_last",
            text=f"last to come to {share:.0%} of {calls} collectives of its groups",
            value=share,
            unit="1",
        )
    ]
