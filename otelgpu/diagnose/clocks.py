"""The clocks of all hosts, from what they share: one robust least-squares fit of offset and drift. Pure.

In: when each of several hosts saw the end of the same event, by its own clock; a collective ends on all ranks at nearly
the same time, for none can have its result before the last has given its part. Out: of each host how far its clock is
ahead of its group's first host, how fast it gains, and how sure that is.

``end(host, event) = E(event) + a(host) + b(host) · t + noise``. E is eliminated: of each event's ends only how they
differ counts. All a and b are solved at once, so hosts that share no event agree through others, however few events
connect them. Ends that are far off count less (Cauchy's weights, iterated). Without a long time between events b is not
determined, and is held near 0 by what real clocks do. Hosts that no chain of events connects cannot be compared. That a
host always learns of the end later than others cannot be told from its clock.

Source of the method: iteratively reweighted least squares (Holland and Welsch, 1977), with Cauchy's weights, whose
constant 2.385 has 95 % of the efficiency of least squares where the noise is normal.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

F64 = npt.NDArray[np.float64]
Codes = npt.NDArray[np.intp]

_ITERATIONS: Final = 100
_AGREED_NS: Final = 1.0
_CAUCHY: Final = 2.385
_LEAST_WEIGHT: Final = 1e-6
"""Of an end that is far off: what no other tells still comes from it."""
_OF_NORMAL: Final = 1.4826
"""Standard deviation over median absolute deviation."""
_LEAST_NOISE_NS: Final = 10.0
_DRIFT_NS_PER_S: Final = 1e5
"""What real clocks gain: 100 ppm, one standard deviation."""
_RIDGE: Final = 1e-9
"""Of what the ends say about drift: where all are of one time they say nothing, and b is 0."""


class Clocks(Struct, frozen=True, kw_only=True):
    """Of H hosts; NaN where a host shares no event with another.

    ``group``: the first of the hosts that each can be compared with. ``offset_ns``: ahead of that one's, at
    ``middle_ns``; ``drift_ns_per_s``: what it gains on it, 1,000 are 1 ppm. ``sigma_ns``: standard error of the first
    plus the second up to the end that is furthest from there.
    ``spread_ns``: half of the host's ends lie within it (interquartile range). ``ends``: how many gave it.
    """

    group: Codes
    offset_ns: F64
    drift_ns_per_s: F64
    sigma_ns: F64
    spread_ns: F64
    ends: Codes
    middle_ns: float

    def corrected(self, host: Codes, time_ns: F64) -> F64:
        """Times by the clock of the group's first host; as they are where a host can be compared with none."""
        elapsed_s = (time_ns - self.middle_ns) * 1e-9
        return (
            time_ns
            - np.nan_to_num(self.offset_ns)[host]
            - np.nan_to_num(self.drift_ns_per_s)[host] * elapsed_s
        )

    def uncertainty_ns(self) -> F64:
        """Three standard errors of each; NaN where a host can be compared with none."""
        return 3.0 * self.sigma_ns


class _Ends(Struct, frozen=True, kw_only=True):
    """N ends of ``events`` events. ``gap``: ns from the event's mean; ``t``: in units of ``unit_s``, −1 to 1.

    ``cell``: of each end its (event, host), of which there may be several ends. ``meetings``: the hosts of an event
    (k), and the cells of all events of just these hosts (m, k).
    """

    host: Codes
    event: Codes
    gap: F64
    t: F64
    unit_s: float
    hosts: int
    events: int
    cell: Codes
    meetings: list[tuple[Codes, Codes]]


def solve(end_ns: F64, host: Codes, event: Codes, hosts: int) -> Clocks:
    """N ends, by their host's clock, with the host (below ``hosts``) and the event of each. NaN: none was seen."""
    seen = np.flatnonzero(np.isfinite(end_ns))
    seen = seen[_is_shared(host[seen], event[seen], hosts)]
    group = _groups(host[seen], event[seen], hosts)
    ends = np.bincount(host[seen], minlength=hosts)
    free = np.flatnonzero(
        group != np.arange(hosts)
    )  # the first of each group is what the others are compared to
    unknown = np.full(hosts, np.nan)
    middle_ns = float(np.mean(end_ns[seen])) if len(seen) else 0.0
    offset, drift, sigma, spread = np.zeros(hosts), np.zeros(hosts), np.zeros(hosts), unknown.copy()
    if len(free):
        given = _prepared(end_ns[seen] - middle_ns, host[seen], event[seen], hosts)
        fitted, covariance, residual = _fit(given, free)
        offset[free], drift[free] = fitted[0], fitted[1] / given.unit_s
        sigma[free] = _furthest(covariance, given.t)
        spread = _quantiles(residual, given.host, hosts, 0.75) - _quantiles(residual, given.host, hosts, 0.25)
    alone = ends == 0
    return Clocks(
        group=group,
        offset_ns=np.where(alone, unknown, offset),
        drift_ns_per_s=np.where(alone, unknown, drift),
        sigma_ns=np.where(alone, unknown, sigma),
        spread_ns=spread,
        ends=ends,
        middle_ns=middle_ns,
    )


def _furthest(covariance: F64, t: F64) -> F64:
    """Standard errors of a + b · t, at the first or last t, whichever is larger."""
    hosts = len(covariance) // 2
    of_offset, of_drift = np.diag(covariance)[:hosts], np.diag(covariance)[hosts:]
    of_both = np.diag(covariance[:hosts, hosts:])
    at_ends = [of_offset + 2 * each * of_both + each**2 * of_drift for each in (t.min(), t.max())]
    return np.asarray(np.sqrt(np.maximum(np.maximum(*at_ends), 0)), dtype=np.float64)


def _is_shared(host: Codes, event: Codes, hosts: int) -> npt.NDArray[np.bool_]:
    """Of events that several hosts saw the end of."""
    cells = np.unique(event * hosts + host)
    return (np.bincount(cells // hosts) > 1)[event]


def _groups(host: Codes, event: Codes, hosts: int) -> Codes:
    """The first host of those that events connect each with."""
    group = np.arange(hosts)
    cells = np.unique(event * hosts + host)
    same = np.diff(cells // hosts) == 0
    edges = np.unique((cells[:-1] % hosts * hosts + cells[1:] % hosts)[same])
    changed = bool(len(edges))
    while changed:
        before = group.copy()
        for one, other in zip((edges // hosts).tolist(), (edges % hosts).tolist(), strict=True):
            group[[one, other]] = min(group[one], group[other])
        changed = bool((group != before).any())
    return group


def _prepared(end_ns: F64, host: Codes, event: Codes, hosts: int) -> _Ends:
    _, codes = np.unique(event, return_inverse=True)
    events = int(codes.max()) + 1
    mean = np.bincount(codes, end_ns) / np.bincount(codes)
    cells, cell = np.unique(codes * hosts + host, return_inverse=True)
    unit_ns = max(float(np.abs(end_ns).max()), 1.0)
    return _Ends(
        host=host,
        event=codes,
        gap=end_ns - mean[codes],
        t=end_ns / unit_ns,
        unit_s=unit_ns * 1e-9,
        hosts=hosts,
        events=events,
        cell=cell,
        meetings=list(_meetings(cells, hosts)),
    )


def _meetings(cells: Codes, hosts: int) -> Iterator[tuple[Codes, Codes]]:
    """Cells, in order, by who meets: events of the same hosts are one matrix."""
    event = cells // hosts
    begins = np.flatnonzero(np.diff(event, prepend=-1))
    lengths = np.diff(begins, append=len(cells))
    for length in np.unique(lengths).tolist():
        places = begins[lengths == length][:, None] + np.arange(length)
        members, which = np.unique(cells[places] % hosts, axis=0, return_inverse=True)
        order = np.argsort(which.ravel(), kind="stable")
        parts = np.split(places[order], np.flatnonzero(np.diff(which.ravel()[order])) + 1)
        yield from zip(members, parts, strict=True)


def _fit(ends: _Ends, free: Codes) -> tuple[tuple[F64, F64], F64, F64]:
    """Of the hosts ``free`` a and b, by the unit of time, their covariance (a first), and what the ends are off by."""
    weight, residual = np.ones(len(ends.gap)), ends.gap
    noise_ns = float(np.std(ends.gap)) or _LEAST_NOISE_NS
    columns = np.concatenate([free, ends.hosts + free])
    normal = np.zeros((0, 0))
    found = np.zeros(len(columns))
    for _ in range(_ITERATIONS):
        before = found
        normal, moment = _normal_equations(ends, weight)
        normal = normal[np.ix_(columns, columns)]
        drifts = np.arange(len(free), len(columns))
        normal[drifts, drifts] += (noise_ns / (_DRIFT_NS_PER_S * ends.unit_s)) ** 2 + _RIDGE * len(ends.gap)
        found = np.linalg.solve(normal, moment[columns])
        residual = _residual(ends, weight, columns, found)
        freedom = max(len(ends.gap) - ends.events - len(columns), 1)
        noise_ns = _OF_NORMAL * float(np.median(np.abs(residual))) * np.sqrt(len(ends.gap) / freedom)
        noise_ns = max(noise_ns, _LEAST_NOISE_NS)
        off = np.minimum(np.abs(residual) / (_CAUCHY * noise_ns), _LEAST_WEIGHT**-0.5)
        weight = 1.0 / (1.0 + off**2)
        if np.abs(found - before).max() < _AGREED_NS:
            break
    covariance = np.asarray(np.linalg.inv(normal) * noise_ns**2, dtype=np.float64)
    return (found[: len(free)], found[len(free) :]), covariance, residual


def _normal_equations(ends: _Ends, weight: F64) -> tuple[F64, F64]:
    """Of a and b of all hosts (a first), without the events' own times: (2H, 2H) and (2H,)."""
    hosts = ends.hosts
    normal, moment = np.zeros((2 * hosts, 2 * hosts)), np.zeros(2 * hosts)
    at, powers = np.arange(hosts), (np.ones(len(ends.t)), ends.t)
    for place, power in enumerate(powers):
        moment[place * hosts : (place + 1) * hosts] = np.bincount(ends.host, weight * power * ends.gap, hosts)
        for other, again in enumerate(powers):
            normal[place * hosts + at, other * hosts + at] = np.bincount(
                ends.host, weight * power * again, hosts
            )
    mean = np.bincount(ends.event, weight * ends.gap) / np.bincount(ends.event, weight)
    of_cells = [np.bincount(ends.cell, weight * power) for power in powers]
    event_of = np.zeros(len(of_cells[0]), dtype=np.intp)
    event_of[ends.cell] = ends.event
    for members, cells in ends.meetings:
        here = np.concatenate([each[cells] for each in of_cells], axis=1)  # (m, 2k)
        places = np.concatenate([members, hosts + members])
        normal[np.ix_(places, places)] -= here.T @ (here / here[:, : len(members)].sum(axis=1)[:, None])
        moment[places] -= here.T @ mean[event_of[cells[:, 0]]]
    return normal, moment


def _residual(ends: _Ends, weight: F64, columns: Codes, found: F64) -> F64:
    clock = np.zeros(2 * ends.hosts)
    clock[columns] = found
    left = ends.gap - clock[ends.host] - clock[ends.hosts + ends.host] * ends.t
    return left - (np.bincount(ends.event, weight * left) / np.bincount(ends.event, weight))[ends.event]


def _quantiles(values: F64, codes: Codes, size: int, part: float) -> F64:
    """Of the values of each code; NaN of none. Interpolates as numpy does."""
    ordered = values[np.lexsort((values, codes))]
    lengths = np.bincount(codes, minlength=size)
    place = np.cumsum(lengths) - lengths + (lengths - 1) * part
    found = np.full(size, np.nan)
    there = lengths > 0
    low, high = (np.asarray(to(place[there]), dtype=np.intp) for to in (np.floor, np.ceil))
    found[there] = ordered[low] + (ordered[high] - ordered[low]) * (place[there] - low)
    return found
