"""Queue pairs, what was counted of them, and pinned memory → metrics. Pure.

A queue pair has series of its own as long as there are fewer than the limit; the others of a process share series
that are marked ``otel.metric.overflow``. Sums are exact either way: what was seen is reported as it was, and where
posts were observed for a part of the time only, an estimate is reported beside it under another name.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from otelgpu.engine.metric import Metric
from otelgpu.engine.metrics import Growing, Metrics
from otelgpu.families.rdma import names as qp
from otelgpu.families.rdma.counts import Grown
from otelgpu.families.rdma.endpoints import text
from otelgpu.families.rdma.facts import Counted, FabricEvent
from otelgpu.families.rdma.loss import LOSSES, Loss
from otelgpu.families.rdma.memory_regions import Holder, Pinned
from otelgpu.families.rdma.owners import Owner
from otelgpu.families.rdma.queue_pairs import QueuePair
from otelgpu.model.communicators import hash_text
from otelgpu.model.process_numbers import process_id
from otelgpu.model.resource import Resource

SERIES: Final = 512
"""Queue pairs of all processes that have series of their own at a time."""

LINGER_NS: Final = 120_000_000_000
"""How long an ended queue pair's series are reported: longer than any usual interval of export."""

FULL: Final = 0.999
"""Share of the time from which on posts or polls count as observed all the time."""

SHARED_QUEUE: Final = "srq"
"""``rdma.qp.type`` of what was posted to the shared receive queues of a process."""

UNKNOWN: Final = "unknown"
"""``rdma.qp.type`` of completions of queue pairs that are not known."""

# Counter → metric, and the attribute that distinguishes its columns.
_PLAIN: Final[Mapping[str, tuple[Metric, str]]] = {
    "work_requests": (qp.REQUESTS, qp.OPERATION),
    "bytes": (qp.IO, qp.OPERATION),
    "posts": (qp.POSTS, ""),
    "posts_failed": (qp.POSTS_FAILED, ""),
    "signalled": (qp.SIGNALLED, ""),
    "inlined": (qp.INLINED, ""),
    "uncounted": (qp.UNCOUNTED, ""),
    "statuses": (qp.COMPLETED, qp.STATUS),
    "completed_bytes": (qp.RECEIVED, ""),
}
_ESTIMATED: Final[Mapping[str, Metric]] = {"work_requests": qp.REQUESTS_ESTIMATED, "bytes": qp.IO_ESTIMATED}
_SUCCESS: Final = "success"
_FLUSHED: Final = "flushed"


class Sums(Struct, eq=False):
    """What was counted of one queue pair since it was first seen; ``values`` (k,) as ``places`` name them."""

    places: Mapping[Counted, int]
    values: npt.NDArray[np.int64]
    vendor_error: int = 0
    post_share: float | None = None  # of the last reading's time; None: not known
    poll_share: float | None = None
    complete: bool = True  # all posts and all polls were observed
    partial: bool = False  # an estimate is reported

    def one(self, what: str, of: str | int = "") -> int:
        """A counter; one that the record does not have is 0."""
        place = self.places.get(Counted(what, of))
        return int(self.values[place]) if place is not None else 0

    def total(self, what: str) -> int:
        """Sum over the columns of a counter."""
        return sum(int(self.values[place]) for each, place in self.places.items() if each.what == what)

    @property
    def failures(self) -> int:
        """Completions that report of a failure."""
        return self.total("statuses") - self.one("statuses", _SUCCESS)

    @property
    def broken(self) -> list[str]:
        """The statuses of failures, without those of work that was flushed because it, or the program, gave up."""
        return [
            str(each.of)
            for each, place in self.places.items()
            if each.what == "statuses" and self.values[place] and each.of not in (_SUCCESS, _FLUSHED)
        ]

    @property
    def outstanding(self) -> int | None:
        """Work requests that will have a completion and have none yet; None: cannot be known."""
        completions = self.one("completions")
        if not self.complete or self.one("uncounted") or self.one("statuses", _SUCCESS) < completions:
            return None
        receives = self.one("work_requests", "receive")
        if self.one("completed_bytes") and not receives:
            return None  # those of a shared queue are nobody's
        left = self.one("signalled") + receives - completions
        return left if left >= 0 else None


class _Series(Struct, eq=False):
    owner: Resource
    labels: dict[str, str | int]
    own: bool
    cells: dict[int, Growing] = field(default_factory=dict)  # by column of the counts
    estimates: dict[int, Growing] = field(default_factory=dict)
    latency: Growing | None = None
    made: list[tuple[Metric, dict[str, str | int]]] = field(default_factory=list)  # series that go with it
    levels: dict[tuple[str, str], tuple[Metric, dict[str, str | int], float]] = field(default_factory=dict)


class QueuePairMetrics:
    """Those of a session. ``counters`` grow: what was merged, by reason."""

    def __init__(
        self, metrics: Metrics, resource_of: Callable[[int], Resource], own: Resource, *, limit: int = SERIES
    ) -> None:
        self._metrics, self._resource_of, self._own, self._limit = metrics, resource_of, own, limit
        self._series: dict[QueuePair, _Series] = {}
        self._count_own = 0
        self._lingering: deque[tuple[int, _Series]] = deque()  # since when
        self.sums: dict[QueuePair, Sums] = {}
        self._states: dict[tuple[Resource, str, str], int] = {}
        self._columns: tuple[Counted, ...] = ()
        self._places: dict[Counted, int] = {}
        self._plain: dict[int, tuple[Metric, str, str | int]] = {}
        self._latencies: list[int] = []
        self.counters: Counter[str] = Counter()

    # -- what was counted -------------------------------------------------------------------------

    def measure(self, grown: Grown, queue_pairs: Sequence[QueuePair | None]) -> None:
        """Add differences to what their queue pairs have; a row without one was counted where it was refused."""
        if not len(grown):
            return
        self._know(grown.counters)
        rows, columns = np.nonzero(grown.values)
        ends = np.searchsorted(rows, np.arange(len(grown) + 1)).tolist()
        columns_of, values_of = columns.tolist(), grown.values[rows, columns].tolist()
        buckets, totals = self._buckets(grown)
        filled: list[bool] = np.any(buckets, axis=1).tolist()
        shares = self._shares(grown)
        since_ns = grown.since_ns.tolist()
        vendor_errors = grown.vendor_error.tolist()
        plain = self._plain
        for row, queue_pair in enumerate(queue_pairs):
            if queue_pair is None:
                continue
            series = self._of(queue_pair)
            added = [
                (column, value)
                for column, value in zip(
                    columns_of[ends[row] : ends[row + 1]], values_of[ends[row] : ends[row + 1]], strict=True
                )
                if column in plain
            ]
            for column, value in added:
                cell = series.cells.get(column)
                if cell is None:
                    metric, attribute, of = plain[column]
                    cell = series.cells[column] = self._growing(series, metric, attribute, of)
                cell.grow(value)
            if filled[row]:
                if series.latency is None:
                    series.latency = self._growing(series, qp.LATENCY, "", "")
                series.latency.fill(buckets[row], totals[row])
            sums = self._sums(queue_pair, since_ns[row])
            self._estimate(series, sums, shares[row][0], added)
            sums.values = sums.values + grown.values[row]
            sums.post_share, sums.poll_share = shares[row]
            sums.complete &= min(sums.post_share or 0, sums.poll_share or 0) >= FULL
            sums.vendor_error = vendor_errors[row] or sums.vendor_error
            if series.own:
                self._stand(series, sums)

    def _know(self, counters: tuple[Counted, ...]) -> None:
        if counters is self._columns:
            return
        self._columns = counters
        self._places = {each: place for place, each in enumerate(counters)}
        self._plain = {
            place: (*_PLAIN[each.what], each.of) for place, each in enumerate(counters) if each.what in _PLAIN
        }
        self._latencies = [place for place, each in enumerate(counters) if each.what == "latencies"]

    def _growing(self, series: _Series, metric: Metric, attribute: str, value: str | int) -> Growing:
        labels = series.labels | ({attribute: value} if attribute else {})
        series.made.append((metric, labels))
        return self._metrics.growing(metric, qp.SCOPE, series.owner, labels)

    def _column(self, grown: Grown, what: str) -> npt.NDArray[np.int64]:
        place = self._places.get(Counted(what, ""))
        return grown.values[:, place] if place is not None else np.zeros(len(grown), dtype=np.int64)

    def _buckets(self, grown: Grown) -> tuple[npt.NDArray[np.int64], list[float]]:
        """Latencies in the histogram's buckets, (n, bounds + 1), and their sums in seconds."""
        bounds = len(qp.LATENCY.buckets)
        buckets = np.zeros((len(grown), bounds + 1), dtype=np.int64)
        for power, place in enumerate(self._latencies):
            buckets[:, min(max(power - qp.FIRST_BUCKET + 1, 0), bounds)] += grown.values[:, place]
        return buckets, (self._column(grown, "latency_sum_ns") / 1e9).tolist()

    def _shares(self, grown: Grown) -> list[tuple[float | None, float | None]]:
        """Of the time since the last reading: in which posts, and in which polls, were observed."""
        observed = zip(
            grown.elapsed_ns.tolist(),
            self._column(grown, "observed_post_ns").tolist(),
            self._column(grown, "observed_poll_ns").tolist(),
            strict=True,
        )
        return [
            (min(post / time, 1.0), min(poll / time, 1.0)) if time > 0 else (None, None)
            for time, post, poll in observed
        ]

    def _sums(self, queue_pair: QueuePair, since_ns: int) -> Sums:
        known = self.sums.get(queue_pair)
        if known is None or len(known.values) != len(self._columns):
            nothing = np.zeros(len(self._columns), dtype=np.int64)
            whole = not queue_pair.late and since_ns <= queue_pair.made_ns
            known = self.sums[queue_pair] = Sums(self._places, nothing, complete=whole)
        return known

    def _estimate(
        self, series: _Series, sums: Sums, share: float | None, added: Sequence[tuple[int, int]]
    ) -> None:
        """Where posts were not observed all the time: what there would have been at the same rate."""
        if not sums.partial:
            if share is None or share >= FULL:
                return
            sums.partial = True
            for column, value in enumerate(sums.values.tolist()):  # what was before is known
                if value and column in self._plain:
                    self._grow_estimate(series, column, value)
        if not share:
            self.counters["intervals_unobserved"] += 1
            share = 1.0
        for column, value in added:
            self._grow_estimate(series, column, round(value / share))

    def _grow_estimate(self, series: _Series, column: int, value: int) -> None:
        cell = series.estimates.get(column)
        if cell is None:
            metric = _ESTIMATED.get(self._columns[column].what)
            if metric is None:
                return
            _, attribute, of = self._plain[column]
            cell = series.estimates[column] = self._growing(series, metric, attribute, of)
        cell.grow(value)

    def _stand(self, series: _Series, sums: Sums) -> None:
        for path, share in (("post", sums.post_share), ("poll", sums.poll_share)):
            if share is not None:
                self._level(series, qp.OBSERVED, {qp.PATH: path}, share, path)
        self._level(series, qp.OUTSTANDING, {}, sums.outstanding)
        self._level(series, qp.LAST_VENDOR_ERROR, {}, sums.vendor_error or None)

    def _level(
        self,
        series: _Series,
        metric: Metric,
        more: dict[str, str | int],
        value: float | None,
        path: str = "",
    ) -> None:
        """What stands of a queue pair; None: nothing does any more."""
        key = metric.name, path
        stands = series.levels.get(key)
        if stands is None and value is None:
            return
        labels = series.labels | more if value is not None else {}
        if stands is not None:
            if value is not None and stands[1:] == (labels, value):
                return
            if stands[1] != labels:
                self._metrics.unset(metric, series.owner, stands[1])
                del series.levels[key]
        if value is not None:
            self._metrics.set(metric, qp.SCOPE, series.owner, labels, value)
            series.levels[key] = metric, labels, value

    # -- what queue pairs are ---------------------------------------------------------------------

    def show(self, queue_pair: QueuePair, owner: Owner | None) -> None:
        """Its state, peer and communicator, as they are now."""
        series = self._of(queue_pair)
        if not series.own:
            return
        more: dict[str, str | int] = {qp.STATE: str(queue_pair.state)}
        if queue_pair.peer_number:
            more[qp.PEER_NUMBER] = queue_pair.peer_number
        if queue_pair.peer_gid:
            more[qp.PEER_GID] = text(queue_pair.peer_gid)
        if owner is not None:
            more[qp.COMMUNICATOR] = communicator(owner)
        self._level(series, qp.QUEUE_PAIR_STATUS, more, 1)

    def connected(self, queue_pair: QueuePair) -> None:
        """It became ready to send; the time is said where all of it was seen."""
        if queue_pair.init_ns and queue_pair.ready_ns:
            seconds = max(queue_pair.ready_ns - queue_pair.init_ns, 0) / 1e9
            labels = {key: value for key, value in _labels(queue_pair).items() if key in (qp.DEVICE, qp.TYPE)}
            self._metrics.add(qp.CONNECTING, qp.SCOPE, self._resource_of(queue_pair.tgid), labels, seconds)

    def ended(self, queue_pair: QueuePair, now_ns: int, *, departed: bool = False) -> None:
        """Nothing stands of it any more; what was counted is reported for a while, or until its process departs."""
        self.sums.pop(queue_pair, None)
        series = self._series.pop(queue_pair, None)
        if series is None:
            return
        for metric, labels, _ in series.levels.values():
            self._metrics.unset(metric, series.owner, labels)
        if series.own and departed:
            self._count_own -= 1
        elif series.own:
            self._lingering.append((now_ns, series))

    def expire(self, now_ns: int) -> None:
        """Report no more what ended long ago."""
        while self._lingering and self._lingering[0][0] <= now_ns - LINGER_NS:
            _, series = self._lingering.popleft()
            self._count_own -= 1
            for metric, labels in series.made:
                self._metrics.unset(metric, series.owner, labels)

    def count_states(self, live: Iterable[QueuePair]) -> None:
        """How many queue pairs there are in each state."""
        now: Counter[tuple[Resource, str, str]] = Counter()
        owners: dict[int, Resource] = {}
        for each in live:
            owner = owners.get(each.tgid) or owners.setdefault(each.tgid, self._resource_of(each.tgid))
            now[owner, each.device, str(each.state)] += 1
        for owner, device, state in self._states.keys() - now.keys():
            self._metrics.unset(qp.QUEUE_PAIRS, owner, _named({qp.DEVICE: device, qp.STATE: state}))
        for (owner, device, state), count in now.items():
            labels = _named({qp.DEVICE: device, qp.STATE: state})
            self._metrics.set(qp.QUEUE_PAIRS, qp.SCOPE, owner, labels, count)
        self._states = dict(now)

    # -- what is of no single queue pair ----------------------------------------------------------

    def pin(self, pinned: Pinned, holders: Iterable[Holder]) -> None:
        """What these hold now."""
        for holder in holders:
            labels = _of_holder(holder)
            owner = self._resource_of(holder.tgid)
            self._metrics.set(qp.PINNED, qp.SCOPE, owner, labels, pinned.bytes[holder])
            self._metrics.set(qp.REGIONS, qp.SCOPE, owner, labels, pinned.regions[holder])

    def unpin(self, holders: Iterable[Holder]) -> None:
        """These are no more."""
        for holder in holders:
            owner = self._resource_of(holder.tgid)
            for metric in (qp.PINNED, qp.REGIONS):
                self._metrics.unset(metric, owner, _of_holder(holder))

    def event(self, event: FabricEvent) -> None:
        """One more."""
        labels = _named(
            {qp.DEVICE: event.device, qp.EVENT_NAME: event.event, qp.EVENT_SOURCE: str(event.source)}
        )
        self._metrics.add(qp.EVENTS, qp.SCOPE, self._resource_of(event.tgid), labels, 1)

    def lose(self, loss: Loss, owner: Owner | None) -> None:
        """More of an error counter: of a queue pair, or of nobody's."""
        labels: dict[str, str | int] = {
            qp.LOSS_KIND: LOSSES[loss.counter],
            qp.LOSS_COUNTER: loss.counter,
            qp.ATTRIBUTION: str(loss.attribution),
        }
        place: dict[str, str | int] = {qp.DEVICE: loss.device, qp.PORT: loss.port}
        if loss.queue_pair is None:
            self._metrics.add(qp.LOSSES, qp.SCOPE, self._own, place | labels, loss.grown)
            return
        if owner is not None:
            labels[qp.COMMUNICATOR] = communicator(owner)
        series = self._series.get(loss.queue_pair)
        if series is not None:
            labels = series.labels | labels
            if (qp.LOSSES, labels) not in series.made:
                series.made.append((qp.LOSSES, labels))
            self._metrics.add(qp.LOSSES, qp.SCOPE, series.owner, labels, loss.grown)
            return
        # It has ended, and perhaps its process, of which nothing more is reported.
        labels |= _labels(loss.queue_pair) | {qp.PID: process_id(loss.queue_pair.tgid)}
        self._metrics.add(qp.LOSSES, qp.SCOPE, self._own, labels, loss.grown)

    def _of(self, queue_pair: QueuePair) -> _Series:
        known = self._series.get(queue_pair)
        if known is not None:
            return known
        own = self._count_own < self._limit and bool(queue_pair.number)
        labels = _labels(queue_pair)
        if not queue_pair.number:
            pass  # it stands for several, of which no more is known
        elif own:
            self._count_own += 1
        else:
            self.counters["queue_pairs_without_series"] += 1
            labels = {key: value for key, value in labels.items() if key in (qp.DEVICE, qp.TYPE)}
            labels[qp.OVERFLOW] = True
        made = self._series[queue_pair] = _Series(self._resource_of(queue_pair.tgid), labels, own)
        return made


def communicator(owner: Owner) -> str:
    """The hash of a communicator, as family nccl writes it."""
    return hash_text(owner.hash)


def _labels(queue_pair: QueuePair) -> dict[str, str | int]:
    found: dict[str, str | int] = {
        qp.DEVICE: queue_pair.device,
        qp.PORT: queue_pair.port,
        qp.NUMBER: queue_pair.number,
        qp.TYPE: queue_pair.type,
    }
    return _named(found)


def _named(labels: dict[str, str | int]) -> dict[str, str | int]:
    """What is not known is left out."""
    return {key: value for key, value in labels.items() if value}


def _of_holder(holder: Holder) -> dict[str, str | int]:
    return _named({qp.DEVICE: holder.device, qp.MEMORY: "dmabuf" if holder.dmabuf else "host"})
