"""Collectives of several hosts on one clock, and what that clock is worth. Pure.

In: calls of collectives with the ends of their waits. Out: each host's clock offset with its spread; per rank how
late it called, corrected by that; bandwidth per communicator. Which rank is slow is not said, for a call of the host
shows only when work was queued: :mod:`otelgpu.diagnose.ranks` looks at what each rank did itself.

Clocks. A collective ends on all ranks at nearly the same time, for none can have its result before the last has given
its part. The offset of a host's clock is therefore estimated as the median over collectives of (end of a rank of the
host - median end of the collective's ranks), repeated with corrected ends until hosts agree that share no collective
but are connected by others. Only hosts that are so connected can be compared. The estimate is of one offset for all
of the data: a clock that drifts or is set meanwhile widens the spread, which is reported, and what is smaller than the
spread is not reported as certain. That a rank always learns later of the end than others cannot be distinguished
from its clock.

Example: 3 hosts, whose clocks are 0, +5 and -3 ms off; a rank of the second calls 8 ms after all others. By its own
clock it is 13 ms late, and by the third one's 16; corrected, it is 8.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct, to_builtins

from otelgpu.diagnose.collective_calls import CallColumns
from otelgpu.otlp_json.reader import Skips

F64 = npt.NDArray[np.float64]
Codes = npt.NDArray[np.intp]

_ROUNDS: Final = 200
_AGREED_NS: Final = 1.0


class HostClock(Struct, frozen=True, kw_only=True):
    """``offset_s``: how far a host's clock is ahead of its group's first host; None: not known.

    ``spread_s``: half of all ends lie within it (interquartile range). ``group``: hosts of one can be compared.
    """

    host: str
    group: int
    offset_s: float | None
    spread_s: float | None
    ends: int


class RankLateness(Struct, frozen=True, kw_only=True):
    """How late one rank of a communicator was, of collectives that were seen of at least one more."""

    communicator: str
    rank: int
    host: str
    collectives: int
    median_s: float
    p95_s: float
    last: float  # share of the collectives in which it was the last
    uncertainty_s: float  # of the clocks that were compared
    certain: bool  # the median is more than that


class Bandwidth(Struct, frozen=True, kw_only=True):
    """Bytes per second, as nccl-tests define them; medians over calls."""

    communicator: str
    operation: str
    time_source: str
    calls: int
    algorithm: float
    bus: float


class CollectiveReport(Struct, frozen=True, kw_only=True):
    """What there is to say; the latest rank first."""

    collectives: int
    compared: int  # collectives of which at least two ranks could be compared
    hosts: list[HostClock]
    ranks: list[RankLateness]
    bandwidths: list[Bandwidth]
    counters: dict[str, int]
    first: dict[str, str]  # by counter: where the first of what was passed over stands, and why

    def shown(self) -> dict[str, Any]:
        """The document of ``--json``."""
        shown: dict[str, Any] = to_builtins(self)
        return shown


def analyze(calls: CallColumns, skips: Skips | None = None) -> CollectiveReport:
    """All of it. ``skips``: what was left out before."""
    skips = skips or Skips()
    counted = Counter(skips.counts)
    groups = _groups(calls)
    offset, spread, ends = clock_offsets(calls, groups)
    compared = _compare(calls, groups, offset, spread)
    counted["calls_not_compared"] += int(np.count_nonzero(np.isnan(compared.lateness)))
    return CollectiveReport(
        collectives=calls.traces,
        compared=compared.collectives,
        hosts=[
            HostClock(
                host=name,
                group=int(groups[host]),
                offset_s=_known(offset[host]),
                spread_s=_known(spread[host]),
                ends=int(ends[host]),
            )
            for host, name in enumerate(calls.hosts)
        ],
        ranks=_ranks(calls, compared),
        bandwidths=_bandwidths(calls),
        counters={reason: count for reason, count in sorted(counted.items()) if count},
        first={reason: str(place) for reason, place in sorted(skips.first.items())},
    )


def _known(value_ns: float) -> float | None:
    return None if np.isnan(value_ns) else float(value_ns) * 1e-9


def _groups(calls: CallColumns) -> Codes:
    """Which hosts are connected by collectives whose ends they both reported: the first host of each one's group."""
    group = np.arange(len(calls.hosts))
    ended = np.isfinite(calls.end)
    pairs = np.unique(np.stack([calls.trace[ended], calls.host[ended]], axis=1), axis=0)
    same = pairs[1:, 0] == pairs[:-1, 0]
    edges = np.unique(np.stack([pairs[:-1, 1][same], pairs[1:, 1][same]], axis=1), axis=0)
    changed = True
    while changed:
        before = group.copy()
        for one, other in edges.tolist():
            group[[one, other]] = min(group[one], group[other])
        changed = bool((group != before).any())
    return group


def clock_offsets(calls: CallColumns, groups: Codes) -> tuple[F64, F64, Codes]:
    """Of each host: offset to the first of its group and spread, both in ns or NaN; and how many ends gave it."""
    hosts = len(calls.hosts)
    offset, spread = np.zeros(hosts), np.full(hosts, np.nan)
    several = _of_several_hosts(calls)
    ended = np.flatnonzero(np.isfinite(calls.end) & several[calls.trace])
    count = np.bincount(calls.host[ended], minlength=hosts)
    trace, host, end = calls.trace[ended], calls.host[ended], calls.end[ended]
    residual = np.zeros(len(ended))
    for _ in range(_ROUNDS if len(ended) else 0):
        corrected = end - offset[host]
        residual = corrected - _medians(corrected, trace, calls.traces)[trace]
        moved = np.nan_to_num(_medians(residual, host, hosts))
        offset += moved
        if np.abs(moved).max() < _AGREED_NS:
            break
    spread = _medians(residual, host, hosts, 0.75) - _medians(residual, host, hosts, 0.25)
    firsts = offset[groups]
    offset = np.where(count > 0, offset - firsts, np.nan)
    alone = np.bincount(groups, minlength=hosts)[groups] == 1
    offset[alone & (groups == np.arange(hosts))] = np.nan
    return offset, spread, count


def _of_several_hosts(calls: CallColumns) -> npt.NDArray[np.bool_]:
    """Which collectives have ends of more than one host."""
    ended = np.isfinite(calls.end)
    pairs = np.unique(np.stack([calls.trace[ended], calls.host[ended]], axis=1), axis=0)
    return np.bincount(pairs[:, 0], minlength=calls.traces) > 1


def _medians(values: F64, codes: Codes, size: int, part: float = 0.5) -> F64:
    """The median, or another quantile, of the values of each code; NaN of none. Interpolates as numpy does."""
    order = np.lexsort((values, codes))
    ordered = values[order]
    lengths = np.bincount(codes, minlength=size)
    begins = np.cumsum(lengths) - lengths
    place = begins + (lengths - 1) * part
    found = np.full(size, np.nan)
    there = lengths > 0
    low = np.floor(place[there]).astype(np.intp)
    high = np.ceil(place[there]).astype(np.intp)
    weight = place[there] - low
    found[there] = ordered[low] + (ordered[high] - ordered[low]) * weight
    return found


class _Compared(Struct, frozen=True):
    """Calls of a collective on hosts that can be compared are together: ``codes``, of each call."""

    codes: Codes
    lateness: F64  # seconds after the first of those together; NaN where there is no other
    latest: F64  # of those together
    uncertainty: F64  # seconds, of the clocks of those together; 0 where they have one
    collectives: int


def _compare(calls: CallColumns, groups: Codes, offset: F64, spread: F64) -> _Compared:
    pairs = np.stack([calls.trace, groups[calls.host]], axis=1)
    together, codes = np.unique(pairs, axis=0, return_inverse=True)
    codes = codes.reshape(-1)
    # A host that cannot be compared with others still can with itself.
    start = calls.start - np.nan_to_num(offset)[calls.host]
    first, last = np.full(len(together), np.inf), np.full(len(together), -np.inf)
    np.minimum.at(first, codes, start)
    np.maximum.at(last, codes, start)
    several = np.bincount(codes, minlength=len(together)) > 1
    widest = np.zeros(len(together))
    np.maximum.at(widest, codes, np.nan_to_num(spread)[calls.host])
    hosts = np.unique(np.stack([codes, calls.host], axis=1), axis=0)[:, 0]
    of_one = np.bincount(hosts, minlength=len(together)) == 1
    return _Compared(
        codes=codes,
        lateness=np.where(several[codes], (start - first[codes]) * 1e-9, np.nan),
        latest=(last - first) * 1e-9,
        uncertainty=np.where(of_one, 0.0, widest * 1e-9),
        collectives=len(np.unique(together[several, 0])),
    )


def _ranks(calls: CallColumns, compared: _Compared) -> list[RankLateness]:
    by_rank: dict[tuple[str, int, int], list[int]] = {}
    for row in np.flatnonzero(np.isfinite(compared.lateness)).tolist():
        call = calls.calls[row]
        by_rank.setdefault((call.communicator, call.rank, int(calls.host[row])), []).append(row)
    found = []
    for (communicator, rank, host), rows in by_rank.items():
        values, codes = compared.lateness[rows], compared.codes[rows]
        median, uncertainty = float(np.median(values)), float(compared.uncertainty[codes].max())
        is_last = (values == compared.latest[codes]) & (values > 0)
        found.append(
            RankLateness(
                communicator=communicator,
                rank=rank,
                host=calls.hosts[host],
                collectives=len(rows),
                median_s=median,
                p95_s=float(np.quantile(values, 0.95)),
                last=float(np.mean(is_last)),
                uncertainty_s=uncertainty,
                certain=median > uncertainty,
            )
        )
    return sorted(found, key=lambda each: (-each.median_s, each.communicator, each.rank, each.host))


def _bandwidths(calls: CallColumns) -> list[Bandwidth]:
    by_source: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for call in calls.calls:
        if np.isfinite(call.bus) and np.isfinite(call.algorithm):
            key = (call.communicator, call.operation, call.time_source)
            by_source.setdefault(key, []).append((call.algorithm, call.bus))
    return [
        Bandwidth(
            communicator=communicator,
            operation=operation,
            time_source=source,
            calls=len(values),
            algorithm=float(np.median([algorithm for algorithm, _ in values])),
            bus=float(np.median([bus for _, bus in values])),
        )
        for (communicator, operation, source), values in sorted(by_source.items())
    ]
