"""Collectives of several hosts on one clock, and what that clock is worth. Pure.

In: calls of collectives with the ends of their waits. Out: each host's clock offset with its spread; per rank how
late it called, corrected by that; bandwidth per communicator. Which rank is slow is not said, for a call of the host
shows only when work was queued: :mod:`otelgpu.diagnose.ranks` looks at what each rank did itself.

Clocks: :mod:`otelgpu.diagnose.clocks`, one fit of offset and drift of all of them. What is smaller than their
uncertainty is not reported as certain.

Example: 3 hosts, whose clocks are 0, +5 and -3 ms off; a rank of the second calls 8 ms after all others. By its own
clock it is 13 ms late, and by the third one's 16; corrected, it is 8.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct, to_builtins

from otelgpu.diagnose.clocks import Clocks, solve
from otelgpu.diagnose.collective_calls import CallColumns
from otelgpu.otlp_json.reader import Skips

F64 = npt.NDArray[np.float64]
Codes = npt.NDArray[np.intp]


class HostClock(Struct, frozen=True, kw_only=True):
    """``offset_s``: how far a host's clock is ahead of its group's first host, amid the data; None: not known.

    ``drift_ppm``: how fast it gains on that one. ``uncertainty_s``: three standard errors of both together.
    ``spread_s``: half of all ends lie within it (interquartile range). ``group``: hosts of one can be compared.
    """

    host: str
    group: int
    offset_s: float | None
    drift_ppm: float | None
    uncertainty_s: float | None
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
    clocks = solve(calls.end, calls.host, calls.trace, len(calls.hosts))
    compared, uncertainty = _compare(calls, clocks), clocks.uncertainty_ns()
    counted["calls_not_compared"] += int(np.count_nonzero(np.isnan(compared.lateness)))
    return CollectiveReport(
        collectives=calls.traces,
        compared=compared.collectives,
        hosts=[
            HostClock(
                host=name,
                group=int(clocks.group[host]),
                offset_s=_known(clocks.offset_ns[host], 1e-9),
                drift_ppm=_known(clocks.drift_ns_per_s[host], 1e-3),
                uncertainty_s=_known(uncertainty[host], 1e-9),
                spread_s=_known(clocks.spread_ns[host], 1e-9),
                ends=int(clocks.ends[host]),
            )
            for host, name in enumerate(calls.hosts)
        ],
        ranks=_ranks(calls, compared),
        bandwidths=_bandwidths(calls),
        counters={reason: count for reason, count in sorted(counted.items()) if count},
        first={reason: str(place) for reason, place in sorted(skips.first.items())},
    )


def _known(value: float, unit: float) -> float | None:
    return None if np.isnan(value) else float(value) * unit


class _Compared(Struct, frozen=True):
    """Calls of a collective on hosts that can be compared are together: ``codes``, of each call."""

    codes: Codes
    lateness: F64  # seconds after the first of those together; NaN where there is no other
    latest: F64  # of those together
    uncertainty: F64  # seconds, of the difference of two clocks of those together; 0 where they have one
    collectives: int


def _compare(calls: CallColumns, clocks: Clocks) -> _Compared:
    pairs = np.stack([calls.trace, clocks.group[calls.host]], axis=1)
    together, codes = np.unique(pairs, axis=0, return_inverse=True)
    codes = codes.reshape(-1)
    # A host that cannot be compared with others still can with itself.
    start = clocks.corrected(calls.host, calls.start)
    first, last = np.full(len(together), np.inf), np.full(len(together), -np.inf)
    np.minimum.at(first, codes, start)
    np.maximum.at(last, codes, start)
    several = np.bincount(codes, minlength=len(together)) > 1
    widest = np.zeros(len(together))
    np.maximum.at(widest, codes, np.sqrt(2) * np.nan_to_num(clocks.uncertainty_ns())[calls.host])
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
