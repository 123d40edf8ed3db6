"""Each rank against those that do the same work: robust statistics over (step, rank). Pure.

Log own time = role + batch + rank + step + rest, by medians (median polish), so that a slow rank, a slow stage, an
uneven batch and a slow step are told from each other.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct

from otelgpu.diagnose.ranks.facts import COMPUTE, F64, Codes, Facts, Flags

NORMAL: Final = 1.4826
"""Median absolute deviation × this = standard deviation, where it is a normal distribution's."""
WINDOW: Final = 5
"""Steps of a running median: what lasts for one or two steps is a pause, not a slow rank."""
SMOOTHED: Final = 0.54
"""Standard deviation of the median of `WINDOW` values, in those of one."""
EXPLAINED: Final = 0.8
"""Correlation above which the batches explain what ranks compute."""
MANY: Final = 1_000
"""Ranks of a role beyond which one is not left out of the spread of all."""
LEAST_VARIATION: Final = 1e-3
"""Of the bytes of batches: what is copied alike in every step does not say how large they are."""
LEAST_KNOWN: Final = 0.9
"""Share of the steps of ranks whose bytes are known."""
STEADY: Final = 0.5
"""What a lane has of an effect in nine of ten steps, in its median: as much is steady."""
LEAST_S: Final = 1e-9
LEAST_SIDE: Final = 5
"""Steps before and behind a change."""
LEVELS: Final = 4.0
"""Standard deviations of a step from its neighbours, by which two levels of a rank differ that is alone in its role."""
LEAST_NOISE: Final = 0.005
"""Of a step's own time: no machine is more even."""


class Compared(Struct, frozen=True, kw_only=True):
    """``relative``: (step, rank), log of own time over that of its peers, with the batches' effect taken out.

    ``batches``: (step, rank), log of what the size of its batch made of its computing; ``units``: (unit, step, rank),
    the same of each unit. ``agreement``: how well they explain it, whether ``by_bytes`` or by what a lane shares.
    ``excess``: (kind, step, rank), seconds more than the peers. ``noise`` of a step, ``spread`` between healthy ranks:
    of the others, for each rank.
    """

    relative: F64
    batches: F64
    units: F64
    by_bytes: bool
    agreement: float
    excess: F64
    noise: F64
    spread: F64


def compare(facts: Facts) -> Compared:
    """All ranks."""
    roles = facts.of_same(facts.roles)
    sizes, by_bytes, agreement = _batches(facts, roles)
    batches = _of_steps(facts, sizes)
    own = facts.own.copy()
    own[COMPUTE] /= np.exp(batches)
    total = np.log(np.maximum(own.sum(axis=0), LEAST_S))
    usual = _usual_steps(total) if any(len(role) == 1 for role in roles) else np.ones_like(total, dtype=bool)
    relative = _against_role(total, roles, usual)
    excess = np.zeros_like(own)
    for role in roles:
        if len(role) > 1:
            excess[:, :, role] = own[:, :, role] - median_of_others(own[:, :, role])
        else:
            excess[:, :, role] = own[:, :, role] - median(np.where(usual, own, np.nan), 1)[:, None, role]
    noise, spread = _noise(relative, roles)
    return Compared(
        relative=relative,
        batches=batches,
        units=sizes,
        by_bytes=by_bytes,
        agreement=agreement,
        excess=excess,
        noise=noise,
        spread=spread,
    )


def _of_steps(facts: Facts, sizes: F64) -> F64:
    """Of all units of a step together."""
    normal = (facts.compute_units / np.exp(sizes)).sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.nan_to_num(np.log(facts.own[COMPUTE] / normal), posinf=0.0, neginf=0.0))


def median_of_others(values: F64) -> F64:
    """Along the last axis: for each one, the median of the others; NaN are none of them, and of none it is NaN."""
    size = values.shape[-1]
    order = np.argsort(values, axis=-1, kind="stable")
    ordered = np.take_along_axis(values, order, axis=-1)
    position = np.empty_like(order)
    np.put_along_axis(position, order, np.broadcast_to(np.arange(size), order.shape), axis=-1)
    known = np.isfinite(values)
    others = known.sum(axis=-1, keepdims=True) - known
    low, high = np.maximum(others - 1, 0) // 2, others // 2
    low, high = low + (known & (low >= position)), high + (known & (high >= position))
    top = size - 1
    found = (
        np.take_along_axis(ordered, np.minimum(low, top), axis=-1)
        + np.take_along_axis(ordered, np.minimum(high, top), axis=-1)
    ) / 2
    return np.where(others > 0, found, np.nan)


def deviation_of_others(values: F64) -> F64:
    """For each of a vector, the standard deviation of the others; of very many, of all: one is nothing among these."""
    if len(values) > MANY:
        return np.full(len(values), deviation(values, 0))
    off = np.abs(values[None, :] - median_of_others(values)[:, None])
    np.fill_diagonal(off, np.nan)
    return NORMAL * median(off, 1)


def running_median(values: F64, window: int = WINDOW) -> F64:
    """Along the first axis, over fewer values at the ends; NaN are left out."""
    half, count = window // 2, len(values)
    smooth = np.empty_like(values)
    if count >= window:
        windows = np.lib.stride_tricks.sliding_window_view(values, window, axis=0)
        smooth[half : count - half] = median(windows, axis=-1)
    for place in {*range(min(half, count)), *range(max(0, count - half), count)}:
        smooth[place] = median(values[max(0, place - half) : place + half + 1], axis=0)
    return smooth


def median(values: F64, axis: int) -> F64:
    """Without NaN; NaN of nothing."""
    empty = np.isnan(values).all(axis=axis, keepdims=True)
    filled = np.where(empty, 0.0, values)
    quick = np.median(filled, axis=axis) if not np.isnan(filled).any() else np.nanmedian(filled, axis=axis)
    return np.where(np.squeeze(empty, axis=axis), np.nan, quick)


def deviation(values: F64, axis: int) -> F64:
    """The standard deviation, as the median absolute one says."""
    middle = np.expand_dims(median(values, axis), axis)
    return NORMAL * median(np.abs(values - middle), axis)


def split_of(values: F64) -> int:
    """Where two levels fit best, `LEAST_SIDE` values long at least: the first one of the second."""
    count = len(values)
    sums, squares = np.cumsum(values), np.cumsum(values**2)
    left = np.arange(1, count)
    right = count - left
    rest = squares[-1] - sums[:-1] ** 2 / left - (sums[-1] - sums[:-1]) ** 2 / right
    rest[: LEAST_SIDE - 1], rest[count - LEAST_SIDE :] = np.inf, np.inf
    return int(rest.argmin()) + 1


def _usual_steps(logs: F64) -> Flags:
    """(step, rank): those in which a rank takes as long as usual: the lower of two levels, where there are two."""
    usual = np.ones_like(logs, dtype=bool)
    if len(logs) < 2 * LEAST_SIDE:
        return usual
    noise = deviation(logs - running_median(logs), 0)
    for rank in np.flatnonzero(np.isfinite(logs).all(axis=0)).tolist():
        first = split_of(logs[:, rank])
        rise = np.median(logs[first:, rank]) - np.median(logs[:first, rank])
        if abs(rise) > LEVELS * max(noise[rank], LEAST_NOISE):
            usual[:, rank] = (np.arange(len(logs)) < first) == (rise > 0)
    return usual


def _against_role(logs: F64, roles: list[Codes], usual: Flags) -> F64:
    """Where a role has one rank only: against its own usual, and how the other roles changed from theirs."""
    relative = np.full_like(logs, np.nan)
    changes = logs - median(np.where(usual, logs, np.nan), 0)
    for role in roles:
        if len(role) > 1:
            relative[:, role] = logs[:, role] - median_of_others(logs[:, role])
        elif logs.shape[1] > 1:
            relative[:, role] = (changes - median_of_others(changes))[:, role]
    return relative


def _noise(relative: F64, roles: list[Codes]) -> tuple[F64, F64]:
    """Of each rank's peers, without itself: a slow rank's own is not normal."""
    ranks = relative.shape[1]
    noise, spread = np.zeros(ranks), np.zeros(ranks)
    single = deviation(relative - running_median(relative), 0)
    usual = median(relative, 0)
    for role in roles:
        if len(role) == 1:
            noise[role] = single[role]
            continue
        noise[role] = median_of_others(single[role])
        spread[role] = deviation_of_others(usual[role])
    return noise, spread


def _batches(facts: Facts, roles: list[Codes]) -> tuple[F64, bool, float]:
    """What the batches' sizes explain of computing each unit, whether bytes say so, and how well.

    Units that all ranks of a lane take longer for are larger. Where bytes are known, they decide whether that is so of
    a whole step of a lane: it could be the lane's host as well.
    """
    compute = facts.own[COMPUTE]
    shared = np.zeros_like(facts.compute_units)
    if not (compute > 0).any():
        return shared, False, 0.0
    relative = _off_middle(np.log(np.maximum(facts.compute_units, LEAST_S)), roles)
    mates = np.full_like(relative, np.nan)
    for lane in facts.of_same(facts.lanes):
        if len(lane) > 1:
            mates[..., lane] = median_of_others(relative[..., lane])
    known = np.isfinite(mates)
    agreement = _correlation(relative[known], mates[known]) if known.any() else 0.0
    with np.errstate(invalid="ignore"):
        same = np.sign(relative) == np.sign(mates)
        smaller = np.sign(relative) * np.minimum(np.abs(relative), np.abs(mates))
    shared = np.nan_to_num(np.where(same, smaller, 0.0))
    sizes = _sizes(facts, roles)
    if sizes is None:
        return shared - _of_hosts(facts, shared.mean(axis=0)), False, agreement
    slope, explained = _fit(sizes, _off_middle(np.log(np.maximum(compute, LEAST_S))[None], roles)[0])
    shared -= shared.mean(axis=0)
    if explained > EXPLAINED:
        shared += sizes * slope
    return shared, True, max(explained, agreement if len(shared) > 1 else 0.0)


def _sizes(facts: Facts, roles: list[Codes]) -> F64 | None:
    """(step, rank), log of the bytes of its batch over the normal one; None: they are not known."""
    known = facts.moved > 0
    if known.sum() < LEAST_KNOWN * np.isfinite(facts.own[COMPUTE]).sum():
        return None
    sizes = _off_middle(np.log(np.where(known, facts.moved, np.nan))[None], roles)[0]
    return sizes if np.sqrt(np.mean(sizes**2)) > LEAST_VARIATION else None


def _off_middle(logs: F64, roles: list[Codes]) -> F64:
    """(unit, step, rank) over the median of the role in each step, this rank's among them: the batch of normal size."""
    relative = np.zeros_like(logs)
    for role in roles:
        mine = logs[..., role]
        middle = median(mine.swapaxes(0, 1).reshape(mine.shape[1], -1), 1)
        relative[..., role] = mine - middle[:, None]
    return np.nan_to_num(relative)


def _of_hosts(facts: Facts, shared: F64) -> F64:
    """What a lane within one host always has is the host's, not its batches': these differ from step to step."""
    steady = np.zeros_like(shared)
    for lane in facts.of_same(facts.lanes):
        if len({facts.hosts[rank] for rank in lane}) == 1:
            low, middle = np.quantile(shared[:, lane], [0.1, 0.5], axis=0)
            steady[:, lane] = np.where(low > STEADY * middle, np.maximum(low, 0.0), 0.0)
    return steady


def _fit(sizes: F64, relative: F64) -> tuple[float, float]:
    """Slope through zero of the logs, and their correlation: over the middle of them, so that no slow rank bends it."""
    if not np.any(sizes):
        return 0.0, 0.0
    usual = np.abs(relative - median(relative, 0)) < 1.0
    slope = float((sizes * relative)[usual].sum() / max((sizes * sizes)[usual].sum(), 1e-12))
    rest = relative - np.clip(slope, 0.0, 2.0) * sizes
    rest -= median(rest, 0)
    within = np.abs(rest) < 4 * max(float(deviation(rest.ravel(), 0)), 1e-3)
    return float(np.clip(slope, 0.0, 2.0)), _correlation(sizes[within], (rest + slope * sizes)[within])


def _correlation(one: F64, other: F64) -> float:
    if one.size < 2 or one.std() < 1e-9 or other.std() < 1e-9:
        return 0.0
    return float(np.corrcoef(one, other)[0, 1])


def runs(flags: Flags, least: int) -> Flags:
    """Along the first axis: only where at least so many follow each other."""
    padded = np.pad(flags, [(1, 1), *[(0, 0)] * (flags.ndim - 1)]).astype(np.int8)
    change = np.diff(padded, axis=0)
    kept = np.zeros_like(flags)
    columns = change.reshape(change.shape[0], -1)
    out = kept.reshape(kept.shape[0], -1)
    for column in np.flatnonzero(columns.any(axis=0)).tolist():
        begins, ends = np.flatnonzero(columns[:, column] == 1), np.flatnonzero(columns[:, column] == -1)
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            if end - begin >= least:
                out[begin:end, column] = True
    return kept
