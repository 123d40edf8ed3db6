"""What processes worked on: requests under way, steps of engines, calls; until it has been charged. Pure.

In: facts of the session, as they come. Out: for an interval of time and a process, a
:class:`~otelgpu.families.gpu.energy.sharing.ProcessPart`. Bounded: what finds no room is counted, and what is charged
by it is nobody's.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from otelgpu.engine.facts import EngineStep
from otelgpu.families.gpu.energy.sharing import (
    METHODS,
    NO_SHARES,
    NOBODY,
    Method,
    ProcessPart,
    Shares,
    Spans,
)

BIN_NS: Final = 50_000_000
"""Calls are summed up in bins of time: half of the interval between two readings."""

FLIGHTS: Final = 65_536
STEPS: Final = 65_536
CALLS: Final = 131_072
"""Sums of calls, each of one request in one bin."""

_LATEST: Final = (1 << 63) - 1

REASONS: Final = {
    "requests_not_charged": f"a request beyond the {FLIGHTS} under way that energy is shared among",
    "steps_not_charged": f"a step of an engine beyond the {STEPS} that wait for a reading of energy",
    "calls_not_charged": f"calls of a request in 50 ms, beyond the {CALLS} such that wait for a reading of energy",
}
"""What is counted, and what one count means."""


class Flight(Struct):
    """A request under way. ``end_ns`` 0: still."""

    key: int
    tgid: int
    start_ns: int
    end_ns: int = 0

    def overlap(self, start_ns: int, end_ns: int) -> int:
        """Nanoseconds that it was under way in a stretch of time."""
        until_ns = min(self.end_ns, end_ns) if self.end_ns else end_ns
        return max(until_ns - max(self.start_ns, start_ns), 0)


class _Step(NamedTuple):
    """One of an engine. ``parts``: of it, for each of its members; they sum up to 1."""

    start_ns: int
    end_ns: int
    keys: npt.NDArray[np.int64]
    parts: npt.NDArray[np.float64]


class UnderWay(NamedTuple):
    """Requests in a stretch of time: columns of one length (n,), int64."""

    keys: npt.NDArray[np.int64]
    begins_ns: npt.NDArray[np.int64]  # within the stretch
    lasted_ns: npt.NDArray[np.int64]


class _Process(Struct):
    """One that drives a device."""

    steps: deque[_Step] = field(default_factory=deque)
    calls: dict[int, Counter[int]] = field(default_factory=dict)  # bin → request → ns
    device_time: dict[int, Counter[int]] = field(default_factory=dict)
    known_ns: int = 0  # the end of the last step that is known
    called: deque[tuple[int, int]] = field(default_factory=deque)  # stretches with launches


class Work:
    """Of all processes. ``lineage``: a process and those that it comes from."""

    def __init__(self, lineage: Callable[[int], Iterable[int]]) -> None:
        self.counters: Counter[str] = Counter()
        self.flights: dict[int, Flight] = {}
        self._flights_of: dict[int, dict[int, Flight]] = {}  # by process
        self._columns: dict[int, npt.NDArray[np.int64]] = {}  # of those: (3, n) keys, starts, ends
        self._served: set[int] = set()  # processes whose requests others had steps or calls for
        self._lineage = lineage
        self._processes: dict[int, _Process] = {}
        self._steps = self._calls = 0

    # -- what is learnt ------------------------------------------------------------------------

    def begin(self, key: int, tgid: int, start_ns: int) -> None:
        """A request is under way."""
        if key in self.flights:
            return
        if len(self.flights) >= FLIGHTS:
            self.counters["requests_not_charged"] += 1
            return
        flight = self.flights[key] = Flight(key, tgid, start_ns)
        self._flights_of.setdefault(tgid, {})[key] = flight
        self._columns.pop(tgid, None)

    def end(self, key: int, end_ns: int) -> None:
        """It is no more."""
        flight = self.flights.get(key)
        if flight is not None:
            flight.end_ns = max(end_ns, flight.start_ns + 1)
            self._columns.pop(flight.tgid, None)

    def drop(self, key: int) -> None:
        """Nothing is charged to a request any more."""
        flight = self.flights.pop(key, None)
        if flight is not None:
            mine = self._flights_of[flight.tgid]
            del mine[key]
            self._columns.pop(flight.tgid, None)
            if not mine:
                del self._flights_of[flight.tgid]

    def launch(self, tgid: int, start_ns: int, end_ns: int) -> None:
        """A process launched work, for whomever."""
        called = self._of(tgid).called
        if called and start_ns <= called[-1][1] + BIN_NS:
            called[-1] = min(called[-1][0], start_ns), max(called[-1][1], end_ns)
        else:
            called.append((start_ns, end_ns))

    def add_steps(self, steps: Iterable[EngineStep]) -> None:
        """Steps that have ended, with all that will be known of their members."""
        for step in steps:
            process = self._of(step.tgid)
            process.known_ns = max(process.known_ns, step.end_ns)
            self._note_served(key for key, _ in step.members)
            if self._steps >= STEPS:
                self.counters["steps_not_charged"] += 1
                continue
            self._steps += 1
            process.steps.append(_step(step))

    def add_calls(
        self,
        tgids: npt.NDArray[np.uint32],
        keys: npt.NDArray[np.int64],
        starts_ns: npt.NDArray[np.uint64],
        durations_ns: npt.NDArray[np.uint64],
        *,
        device: bool = False,
    ) -> None:
        """Calls of requests, or what the device did by them: columns of one length."""
        columns = np.stack([tgids.astype(np.int64), keys, (starts_ns // BIN_NS).astype(np.int64)], axis=1)
        found, codes = np.unique(columns, axis=0, return_inverse=True)
        sums = np.bincount(codes.reshape(-1), weights=durations_ns.astype(np.float64), minlength=len(found))
        for (tgid, key, place), spent in zip(found.tolist(), sums.tolist(), strict=True):
            process = self._of(tgid)
            self._note_served((key,))
            bins = process.device_time if device else process.calls
            in_bin = bins.setdefault(place, Counter())
            if key not in in_bin:
                if self._calls >= CALLS:
                    self.counters["calls_not_charged"] += 1
                    continue
                self._calls += 1
            in_bin[key] += max(int(spent), 1)

    def _note_served(self, keys: Iterable[int]) -> None:
        self._served.update(self.flights[key].tgid for key in keys if key in self.flights)

    def _of(self, tgid: int) -> _Process:
        process = self._processes.get(tgid)
        if process is None:
            process = self._processes[tgid] = _Process()
        return process

    # -- what is asked -------------------------------------------------------------------------

    @property
    def callers(self) -> set[int]:
        """Processes that have called a device."""
        return set(self._processes)

    def drivers(self, users: Collection[int]) -> set[int]:
        """Processes that drive a device, or have one of ``users`` do so."""
        return {each for tgid in users for each in self._lineage(tgid)} | self._served

    def flights_of(self, tgids: Iterable[int]) -> Iterator[Flight]:
        """Requests of processes."""
        for tgid in tgids:
            yield from self._flights_of.get(tgid, {}).values()

    def is_known(self, tgid: int, until_ns: int) -> bool:
        """Whether no step of a process that began by then is still to be known, as far as its rhythm tells."""
        process = self._processes.get(tgid)
        return process is None or not process.known_ns or process.known_ns >= until_ns

    def under_way(self, tgids: Iterable[int], start_ns: int, end_ns: int) -> UnderWay:
        """Requests of processes in a stretch of time."""
        columns = [self._flight_columns(tgid) for tgid in tgids if tgid in self._flights_of]
        if not columns:
            return UnderWay(*np.zeros((3, 0), dtype=np.int64))
        keys, starts, ends = columns[0] if len(columns) == 1 else np.concatenate(columns, axis=1)
        begins = np.maximum(starts, start_ns)
        lasted = np.minimum(ends, end_ns) - begins
        there = lasted > 0
        return UnderWay(keys[there], begins[there], lasted[there])

    def _flight_columns(self, tgid: int) -> npt.NDArray[np.int64]:
        """Of one process's requests; of one that is under way the end is the latest there can be."""
        found = self._columns.get(tgid)
        if found is None:
            rows = [
                (each.key, each.start_ns, each.end_ns or _LATEST) for each in self._flights_of[tgid].values()
            ]
            found = self._columns[tgid] = np.array(rows, dtype=np.int64).reshape(-1, 3).T.copy()
        return found

    def has_called(self, tgid: int, start_ns: int, end_ns: int) -> bool:
        """Whether a process launched anything in a stretch of time."""
        process = self._processes.get(tgid)
        return process is not None and any(s < end_ns and e >= start_ns for s, e in process.called)

    def of_process(self, tgid: int, start_ns: int, end_ns: int) -> ProcessPart | None:
        """What a process did in an interval; None: nothing that is known."""
        lineage = list(self._lineage(tgid))
        process = self._processes.get(tgid) or _Process()
        steps = [step for step in process.steps if step.start_ns < end_ns and step.end_ns > start_ns]
        under_way = self.under_way(lineage, start_ns, end_ns)
        if steps:
            shares = self._by_steps(steps, lineage, start_ns, end_ns)
        elif found := _in_bins(process.device_time, start_ns, end_ns):
            shares = Shares.of(found, Method.DEVICE_TIME)
        elif found := _in_bins(process.calls, start_ns, end_ns):
            shares = Shares.of(found, Method.CALLS)
        elif len(under_way.keys):
            shares = _by_concurrency(under_way)
        else:
            return None
        starts = np.array([max(step.start_ns, start_ns) for step in steps], dtype=np.int64)
        ends = np.array([min(step.end_ns, end_ns) for step in steps], dtype=np.int64)
        spans = Spans(
            np.concatenate([starts, under_way.begins_ns]),
            np.concatenate([ends, under_way.begins_ns + under_way.lasted_ns]),
        )
        return ProcessPart(weight=1, shares=shares, spans=spans)

    def _by_steps(self, steps: Sequence[_Step], lineage: Sequence[int], start_ns: int, end_ns: int) -> Shares:
        """By the members of steps; of those whose members are not all known, by who was under way in them."""
        keys: list[npt.NDArray[np.int64]] = []
        weights: list[npt.NDArray[np.float64]] = []
        others: list[Shares] = []
        for step in steps:
            begin, until = max(step.start_ns, start_ns), min(step.end_ns, end_ns)
            if len(step.keys):
                keys.append(step.keys)
                weights.append(step.parts * (until - begin))
                continue
            there = _by_concurrency(self.under_way(lineage, begin, until))
            if not len(there.keys):
                there = Shares.of([(NOBODY, 1.0)], Method.CONCURRENCY)
            others.append(there._replace(weights=there.weights * ((until - begin) / there.weights.sum())))
        found = sum(others, NO_SHARES)
        if keys:
            distinct, codes = np.unique(np.concatenate(keys), return_inverse=True)
            sums = np.bincount(codes.reshape(-1), weights=np.concatenate(weights))
            by_members = np.full(len(distinct), METHODS.index(Method.STEPS), dtype=np.int64)
            found += Shares(distinct, sums.astype(np.float64), by_members)
        return found

    # -- what is over --------------------------------------------------------------------------

    def forget_before(self, time_ns: int) -> list[int]:
        """All until then has been charged. The requests that ended by then and that nobody closed."""
        for process in self._processes.values():
            while process.steps and process.steps[0].end_ns <= time_ns:
                process.steps.popleft()
                self._steps -= 1
            while process.called and process.called[0][1] < time_ns:
                process.called.popleft()
            for bins in (process.calls, process.device_time):
                for place in [place for place in bins if (place + 1) * BIN_NS <= time_ns]:
                    self._calls -= len(bins.pop(place))
        return [key for key, each in self.flights.items() if each.end_ns and each.end_ns <= time_ns]

    def forget_process(self, tgid: int) -> list[int]:
        """It has ended; its requests, which have, too."""
        self._served.discard(tgid)
        process = self._processes.pop(tgid, None)
        if process is not None:
            self._steps -= len(process.steps)
            self._calls -= sum(
                len(each) for bins in (process.calls, process.device_time) for each in bins.values()
            )
        return list(self._flights_of.get(tgid, ()))


def _step(step: EngineStep) -> _Step:
    members = np.array(step.members, dtype=np.int64).reshape(-1, 2)
    whole = int(members[:, 1].sum())
    if whole <= 0:  # whoever was under way
        members = members[:0]
    return _Step(step.start_ns, step.end_ns, members[:, 0].copy(), members[:, 1] / max(whole, 1))


def _by_concurrency(under_way: UnderWay) -> Shares:
    methods = np.full(len(under_way.keys), METHODS.index(Method.CONCURRENCY), dtype=np.int64)
    return Shares(under_way.keys, under_way.lasted_ns.astype(np.float64), methods)


def _in_bins(bins: dict[int, Counter[int]], start_ns: int, end_ns: int) -> list[tuple[int, int]]:
    """Nanoseconds by request, of the bins that an interval overlaps."""
    found: Counter[int] = Counter()
    for place in [place for place in bins if place * BIN_NS < end_ns and (place + 1) * BIN_NS > start_ns]:
        found.update(bins[place])
    return list(found.items())
