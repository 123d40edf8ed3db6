"""What the device did ↔ the host call that caused it, by the correlation id that both carry.

In: host calls and activities in columns, in any order and batching; activities come up to seconds after
their call, and sometimes before it. Out: rows of :data:`~otelgpu.model.device_work.DEVICE_WORK`, each with its
call's thread and start, ready to be joined to the request that the thread then worked for. One call may have
many activities (a graph launch), or none (a launch into a graph that is being captured).

Worked example: call (process 1, id 7, started at 100 on thread 9); activities (1, id 7, device time 150..160),
(1, id 8, 170..180). The first comes out at once with start 100, thread 9 and device start 150; the second
waits for its call for :data:`WINDOW_NS`, then adds to ``activities_without_call``.

An id is a call's until the process reuses it: of several calls the last that began before the work did is
meant. Memory is bounded by rows; what finds no room is counted, never guessed.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np
import numpy.typing as npt

from otelgpu.model.device_work import ACTIVITY, DEVICE_WORK, Activities, DeviceWork, Work
from otelgpu.model.operations import OPERATION, Operations

WINDOW_NS: Final = 10_000_000_000
"""How long a call waits for what it causes, and an activity for its call, after either has arrived."""

ROWS: Final = 65_536
"""Calls that wait, and activities that wait: 8 MiB each. At the default budget a window has 20,000."""

_EARLY_NS: Final = 1_000_000  # the device's clock against ours: the error of the conversion and more


class _Waiting:
    """Rows with the time at which each arrived, oldest first; at most :data:`ROWS`."""

    def __init__(self, dtype: np.dtype[np.void]) -> None:
        self.rows: npt.NDArray[np.void] = np.zeros(0, dtype=dtype)
        self.arrived_ns = np.zeros(0, dtype=np.int64)
        self.used = np.zeros(0, dtype=np.bool_)

    def add(self, rows: npt.NDArray[np.void], now_ns: int) -> int:
        """The result is how many found no room: the newest."""
        kept = max(min(len(rows), ROWS - len(self.rows)), 0)
        plain = np.dtype((np.void, 128))
        joined = np.concatenate([self.rows.view(plain), rows[:kept].view(plain)])
        self.rows = joined.view(self.rows.dtype)
        self.arrived_ns = np.concatenate([self.arrived_ns, np.full(kept, now_ns, dtype=np.int64)])
        self.used = np.concatenate([self.used, np.zeros(kept, dtype=np.bool_)])
        return len(rows) - kept

    def keep(self, which: npt.NDArray[np.bool_]) -> None:
        if not which.all():
            self.rows = self.rows.compress(which)
            self.arrived_ns, self.used = self.arrived_ns[which], self.used[which]


class DeviceTime:
    """The join of one session. ``counters`` grow: what was left out, by reason."""

    def __init__(self) -> None:
        self._calls = _Waiting(OPERATION)
        self._reported = np.zeros(0, dtype=np.uint64)  # of the calls: what correlations() gave
        self._activities = _Waiting(ACTIVITY)
        self.counters: Counter[str] = Counter()

    def add_calls(self, rows: Operations, reported: npt.NDArray[np.uint64], now_ns: int) -> None:
        """Host calls with their :func:`correlations`; those without are passed over."""
        measured = reported != 0
        if not measured.any():
            return
        lost = self._calls.add(rows.compress(measured), now_ns)
        self._reported = np.concatenate([self._reported, reported[measured]])[: len(self._calls.rows)]
        self._count("calls_beyond_memory", lost)

    def add_activities(self, rows: Activities, now_ns: int) -> None:
        """Rows of :data:`ACTIVITY`, as a process reported them."""
        known = np.isin(rows["work"], list(Work)) & (rows["correlation"] != 0)
        begun = (rows["work"] == 0) & (rows["correlation"] == 0)  # a slice begins
        self._count("activities_malformed", int((~known & ~begun).sum()))
        if known.any():
            self._count("activities_beyond_memory", self._activities.add(rows.compress(known), now_ns))

    def take(self, now_ns: int, *, final: bool = False) -> DeviceWork:
        """All work whose call is known by now; what has waited too long is forgotten and counted."""
        joined = self._join() if len(self._activities.rows) and len(self._calls.rows) else _none()
        before_ns = now_ns if final else now_ns - WINDOW_NS
        self._forget(
            self._activities.arrived_ns <= before_ns,
            self._calls.arrived_ns <= before_ns,
        )
        return joined

    def forget_process(self, tgid: int) -> None:
        """A process has ended: its number may be given out again."""
        self._forget(self._activities.rows["tgid"] == tgid, self._calls.rows["tgid"] == tgid)

    def _forget(self, activities: npt.NDArray[np.bool_], calls: npt.NDArray[np.bool_]) -> None:
        self._count("activities_without_call", int(activities.sum()))
        self._count("calls_without_activity", int((calls & ~self._calls.used).sum()))
        self._activities.keep(~activities)
        self._reported = self._reported[~calls]
        self._calls.keep(~calls)

    def _join(self) -> DeviceWork:
        keys, positions = self._index()
        rows = self._activities.rows
        wanted = _key(rows["tgid"], rows["correlation"])
        first = np.searchsorted(keys, wanted, side="left")
        last = np.searchsorted(keys, wanted, side="right")
        starts = self._calls.rows["start_ns"][positions]
        for row in np.flatnonzero(last - first > 1).tolist():  # an id that was used again, rarely
            among = starts[first[row] : last[row]]
            began = int(rows["start_ns"][row]) + _EARLY_NS
            last[row] = first[row] + np.searchsorted(among, np.uint64(began), side="right")
        found = last > first
        if not found.any():
            return _none()
        calls = positions[last[found] - 1]
        self._calls.used[calls] = True
        joined = _work(self._calls.rows.take(calls), rows.compress(found))
        self._activities.keep(~found)
        return joined

    def _index(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.intp]]:
        """Sorted keys, and the call that each is of; of equal keys in order of the calls' start."""
        outer, inner = self._reported & np.uint64(0xFFFFFFFF), self._reported >> np.uint64(32)
        two = np.flatnonzero((inner != 0) & (inner != outer))
        tgids, every = self._calls.rows["tgid"], np.arange(len(outer))
        keys = np.concatenate([_key(tgids, outer), _key(tgids[two], inner[two])])
        positions = np.concatenate([every, two])
        order = np.lexsort((self._calls.rows["start_ns"][positions], keys))
        return keys[order], positions[order]

    def _count(self, reason: str, count: int) -> None:
        if count:
            self.counters[reason] += count


def _none() -> DeviceWork:
    return np.zeros(0, dtype=DEVICE_WORK)


def _key(tgids: npt.NDArray[np.uint32], ids: npt.NDArray[np.integer]) -> npt.NDArray[np.uint64]:
    return (tgids.astype(np.uint64) << np.uint64(32)) | ids.astype(np.uint64)


def _work(calls: Operations, activities: Activities) -> DeviceWork:
    """The call's head, the activity's payload. Both have one row per activity; ``calls`` is overwritten."""
    stream, api = calls["stream"].copy(), calls["api"].copy()
    ends_ns = calls["start_ns"] + calls["duration_ns"]
    rows: DeviceWork = calls.view(DEVICE_WORK)
    rows["duration_ns"] = activities["duration_ns"]
    rows["device_start_ns"] = activities["start_ns"]
    rows["name"] = 0
    rows["name_id"] = activities["name"]
    rows["stream"], rows["api"], rows["host_end_ns"] = stream, api, ends_ns
    for column in (
        "sampled",
        "size_bytes",
        "graph_node",
        "stream_id",
        "graph",
        "correlation",
        "work",
        "device",
    ):
        rows[column] = activities[column]
    return rows
