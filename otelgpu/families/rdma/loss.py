"""Whose loss was it? Growth of a port's error counters, divided among the queue pairs that send through it. Pure.

Only counters that rise on the *requester*, whose packets were lost, are divided: those of :data:`LOSSES`. In order of
trust: the driver counts per queue pair; there is one queue pair only; the time from post to completion says which
had to send again. What none of these settles is reported as nobody's.

Worked example: a port's ``rcvd_seq_err`` grows by 10 in a second in which queue pair 17 had 9 completions that took
64 times as long as its usual ones, and queue pair 18 none: 10 for queue pair 17, by ``latency``.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from otelgpu.families.rdma.counts import Key
from otelgpu.families.rdma.queue_pairs import QueuePair
from otelgpu.model.fabric import QueuePairReadings

LOSSES: Final[Mapping[str, str]] = {
    # mlx5: drivers/infiniband/hw/mlx5/counters.c
    "packet_seq_err": "sequence_nak",
    "implied_nak_seq_err": "sequence_nak",
    "local_ack_timeout_err": "timeout",
    "rnr_nak_retry_err": "receiver_not_ready",
    "req_transport_retries_exceeded": "retries_exceeded",
    "req_rnr_retries_exceeded": "receiver_not_ready_retries_exceeded",
    "roce_adp_retrans": "adaptive_retransmission",
    "roce_adp_retrans_to": "adaptive_retransmission_timeout",
    # rxe: drivers/infiniband/sw/rxe/rxe_hw_counters.c
    "rcvd_seq_err": "sequence_nak",
    "completer_retry_err": "timeout",
    "rcvd_rnr_err": "receiver_not_ready",
    "retry_exceeded_err": "retries_exceeded",
    "retry_rnr_exceeded_err": "receiver_not_ready_retries_exceeded",
    # bnxt_re: drivers/infiniband/hw/bnxt_re/hw_counters.c
    "seq_err_naks_rcvd": "sequence_nak",
    "to_retransmits": "timeout",
    "rnr_naks_rcvd": "receiver_not_ready",
    "max_retry_exceeded": "retries_exceeded",
}
"""Counter by the driver's name → what it counts: ``rdma.loss.kind``."""

WAIT_NS: Final = 3_000_000_000
"""How long a port's growth waits for completions: counters are read once a second, and a time-out is up to seconds."""

SLOW: Final = 3
"""Powers of two above a queue pair's usual time from post to completion, from which on it counts as slow."""

_USUAL: Final = (
    0.1  # quantile: usual is what the fastest tenth takes, for most messages may have lost a packet
)
_ALL: Final = 0.8  # a share of the weight from which on the rest is noise
_PENDING: Final = 4096  # growths that wait
_WINDOW: Final = 16  # readings of a queue pair that are kept
_QUEUE_PAIRS: Final = 65_536


class Attribution(StrEnum):
    """How the queue pair is known: ``rdma.loss.attribution``."""

    DRIVER = "driver"
    ONLY_QUEUE_PAIR = "only_queue_pair"
    LATENCY = "latency"
    UNKNOWN = "unknown"


class Loss(NamedTuple):
    """``grown``: more of a counter; ``queue_pair`` None: it is not known whose."""

    device: str
    port: int
    counter: str
    grown: int
    queue_pair: QueuePair | None
    attribution: Attribution


class _Latencies(Struct):
    """Completions of one queue pair by power of two, and how much of it was slow of late."""

    total: npt.NDArray[np.int64]
    slow: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=_WINDOW))  # time, weight


class _Pending(NamedTuple):
    time_ns: int
    since_ns: int
    device: str
    port: int
    counter: str
    grown: int


class LossShares:
    """Growth that waits for its queue pairs. ``counters`` grow: oddities by name."""

    def __init__(self) -> None:
        self._latencies: dict[Key, _Latencies] = {}
        self._pending: deque[_Pending] = deque()
        self._read_ns: dict[tuple[str, int], int] = {}
        self._readings: dict[tuple[str, int], Mapping[str, int]] = {}  # by device and number
        self._charged: Counter[tuple[str, int, str]] = (
            Counter()
        )  # by driver, not yet taken from a port's growth
        self._driven: list[tuple[QueuePairReadings, str, int]] = []
        self.counters: Counter[str] = Counter()

    def completed(
        self, keys: Sequence[Key], times_ns: Sequence[int], latencies: npt.NDArray[np.int64]
    ) -> None:
        """Completions since the last reading, by power of two of nanoseconds: (n, k) of n queue pairs."""
        rows = np.flatnonzero(latencies.any(axis=1)).tolist()
        known = []
        for row in rows:
            each = self._latencies.get(keys[row])
            if each is None:
                each = _Latencies(np.zeros(latencies.shape[1], dtype=np.int64))
                if len(self._latencies) < _QUEUE_PAIRS:
                    self._latencies[keys[row]] = each
            known.append(each)
        if not rows:
            return
        added = latencies[rows]
        totals = np.array([each.total for each in known]) + added
        weights = _slow_times(totals, added).tolist()
        for each, total, weight, row in zip(known, totals, weights, rows, strict=True):
            each.total = total
            if weight:
                each.slow.append((times_ns[row], weight))

    def read(self, readings: QueuePairReadings) -> None:
        """Counters that the driver keeps for one queue pair; the first reading is where they begin.

        One without any of :data:`LOSSES` says nothing of whose a loss is.
        """
        if not LOSSES.keys() & readings.values.keys():
            return
        key = readings.device, readings.number
        before = self._readings.get(key)
        if before is None and len(self._readings) >= _QUEUE_PAIRS:
            return
        self._readings[key] = readings.values
        for name in LOSSES.keys() & readings.values.keys():
            value, last = readings.values[name], (before or readings.values).get(name, 0)
            grown = value - last if value >= last else value
            if grown:
                self._driven.append((readings, name, grown))
                self._charged[readings.device, readings.port, name] += grown

    def grew(self, device: str, port: int, time_ns: int, deltas: Mapping[str, int]) -> None:
        """A port's counters grew since they were read last."""
        since_ns = self._read_ns.get((device, port), time_ns)
        self._read_ns[device, port] = time_ns
        for name in LOSSES.keys() & deltas.keys():
            if deltas[name] <= 0:
                continue
            if len(self._pending) >= _PENDING:
                self.counters["losses_beyond_memory"] += 1
                continue
            self._pending.append(_Pending(time_ns, since_ns, device, port, name, deltas[name]))

    def take(self, now_ns: int, live: Iterable[QueuePair], *, final: bool = False) -> list[Loss]:
        """What can be said by now of whose each loss was; ``live``: queue pairs that may have sent."""
        if not self._pending and not self._driven:
            return []
        on_port: dict[tuple[str, int], list[QueuePair]] = {}
        numbered: dict[tuple[str, int], QueuePair] = {}
        for each in live:
            on_port.setdefault((each.device, each.port), []).append(each)
            numbered[each.device, each.number] = each
        reported = [
            Loss(
                device=of.device,
                port=of.port,
                counter=name,
                grown=grown,
                queue_pair=numbered.get((of.device, of.number)),
                attribution=Attribution.DRIVER,
            )
            for of, name, grown in self._driven
        ]
        self._driven = []
        while self._pending and (final or self._pending[0].time_ns <= now_ns - WAIT_NS):
            reported += self._divide(self._pending.popleft(), on_port)
        return reported

    def forget(self, key: Key, device: str) -> None:
        """A queue pair is no more."""
        self._latencies.pop(key, None)
        self._readings.pop((device, key[2]), None)

    def forget_process(self, tgid: int) -> None:
        """A process ended."""
        for key in [key for key in self._latencies if key[0] == tgid]:
            del self._latencies[key]

    def _divide(self, grown: _Pending, on_port: Mapping[tuple[str, int], list[QueuePair]]) -> list[Loss]:
        place = grown.device, grown.port, grown.counter
        charged = min(self._charged[place], grown.grown)
        self._charged[place] -= charged
        left = grown.grown - charged
        if not left:
            return []
        counted = {number for device, number in self._readings if device == grown.device}
        candidates = [
            each
            for each in on_port.get((grown.device, grown.port), ())
            if each.number not in counted and _was_there(each, grown)
        ]
        if len(candidates) == 1 and not counted:
            return [Loss(*place, left, candidates[0], Attribution.ONLY_QUEUE_PAIR)]
        weights = [self._weight(each.key, grown) for each in candidates]
        if not any(weights):
            return [Loss(*place, left, None, Attribution.UNKNOWN)]
        return [
            Loss(*place, share, each, Attribution.LATENCY)
            for each, share in zip(candidates, _shares(weights, left), strict=True)
            if share
        ]

    def _weight(self, key: Key, grown: _Pending) -> float:
        """Time that slow completions cost a queue pair, from the reading before the growth until now."""
        known = self._latencies.get(key)
        if known is None:
            return 0.0
        return sum(weight for time_ns, weight in known.slow if time_ns >= grown.since_ns)


def _was_there(queue_pair: QueuePair, grown: _Pending) -> bool:
    return queue_pair.seen_ns <= grown.time_ns and (
        not queue_pair.ended_ns or queue_pair.ended_ns >= grown.since_ns
    )


def _slow_times(totals: npt.NDArray[np.int64], added: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Nanoseconds that the slow ones of ``added`` took, by what is usual in ``totals``: both (n, k), result (n,)."""
    upto = np.cumsum(totals, axis=1)
    usual = np.argmax(upto >= _USUAL * upto[:, -1:], axis=1)
    powers = np.arange(added.shape[1])
    slow = powers >= (usual + SLOW)[:, None]
    times: npt.NDArray[np.float64] = (added * slow * np.exp2(powers)).sum(axis=1)
    return times


def _shares(weights: Sequence[float], count: int) -> list[int]:
    """``count`` divided by weight, whole and in sum exact; all to one that has nearly all of the weight."""
    most = max(weights)
    if most >= _ALL * sum(weights):
        weights = [weight if weight == most else 0.0 for weight in weights]
        first = weights.index(most)
        weights = [most if row == first else 0.0 for row in range(len(weights))]
    exact = [count * weight / sum(weights) for weight in weights]
    shares = [int(each) for each in exact]
    by_rest = sorted(range(len(exact)), key=lambda row: shares[row] - exact[row])
    for row in by_rest[: count - sum(shares)]:
        shares[row] += 1
    return shares
