"""What the device did in a step of training, as it measured that itself: parts that add up to the step. Pure.

In: activities of processes that measure device time (:mod:`~otelgpu.model.device_work`), whether their host calls are
known or not; the calls that make the device work, each with what it says of its activities. Out:
:class:`~otelgpu.families.steps.training.step.DeviceParts` of steps that were measured from begin to end, and of no
others.

**What is known of a step.** Time is measured in slices, and a call outside of them says so by naming no activity. What
such a call queued may run at any time from then on, and until the first measured work of a later call on the same
stream begins, for streams keep their order; or for :data:`DONE_NS`. The same holds of a call that names activities
which have not come :data:`GRACE_NS` after the step: it was noted into a graph, or a record was lost. A step that such
a time touches has no device time. Nor has one during which records were lost, or a kernel ran of which the name is
unknown.

Example, all on one stream: launch at 10 unmeasured, launch at 20 measured, whose kernel runs 60..90: between 10 and 60
anything may have run; a step from 60 to 100 was busy for 30 and idle for 10.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from otelgpu.engine.call_roles import TRAINING
from otelgpu.families.steps.training.step import DeviceParts, TrainingStep
from otelgpu.model.device_work import Activities, Work, causes_work
from otelgpu.model.ids import combine
from otelgpu.model.losses import Reasons
from otelgpu.model.operations import Operations

SETTLE_NS: Final = 1_500_000_000
"""How long after a step's end its work is asked for at the earliest: programs hand it over ten times a second, and
report once a second what was lost."""

GRACE_NS: Final = 3_000_000_000
"""How long after a step's end the work of its calls is waited for."""

DONE_NS: Final = 10_000_000_000
"""What was queued so long ago has run."""

ROWS: Final = 262_144
"""Activities that are remembered, and calls: 8 MiB of each. Shared evenly among the processes that measure."""

LOST: Final = frozenset(
    (
        *("ring_full", "ring_given_up", "activities_dropped", "activities_without_times", "activities_cut"),
        *("activities_out_of_time", "activities_unknown", "activities_not_sent", "activity_buffers_short"),
        "flush_failed",
    )
)
"""Losses after which there may be work that no call names."""

#: What is counted, and what one count means.
COUNTERS: Final = Reasons(
    "training",
    {
        "steps_beyond_device_slices": "steps of training in which, or shortly before which, calls were not measured",
        "steps_with_device_work_missing": "steps of training of which device work did not come within 3 s, "
        "or is unnamed",
        "steps_with_device_records_lost": "steps of training while which records were lost, so that device "
        "work may lack",
    },
)

_COMMUNICATION: Final = re.compile(r"(?:nccl|rccl)\w*Kernel")
"""How names of the library's kernels begin: ncclDevKernel_AllReduce_Sum_f32_RING_LL, ncclKernel_…, ncclSymDevKernel_…
and RCCL's ncclDevKernel_Generic_1, rcclGenericKernel."""

_KERNEL, _COLLECTIVE, _COPY, _UNKNOWN = range(4)
_DEFAULT_STREAMS: Final = 2  # handles up to this one: one stream of each device, or of each thread
_CELL_NS: Final = np.uint64(1_000_000_000)
_NONE: Final = np.iinfo(np.int64).max

WORK: Final = np.dtype(
    [
        *(("start_ns", "<i8"), ("end_ns", "<i8"), ("name", "<u8")),
        *(("correlation", "<u4"), ("device", "<i2"), ("work", "<u2")),
    ]
)
"""Shape (n,). One row per activity, on the device."""

CALL: Final = np.dtype(
    [("start_ns", "<i8"), ("lane", "<u8"), ("began_ns", "<i8"), ("outer", "<u4"), ("inner", "<u4")]
)
"""Shape (n,). One row per call that makes a device work; ``outer`` 0: unmeasured. ``lane``: reports its stream.
``began_ns``: when its first work began, of what is not remembered any more; the end of time of none."""


def parts_within(
    work: npt.NDArray[np.void], kinds: npt.NDArray[np.intp], bounds: tuple[int, int]
) -> DeviceParts:
    """Where the time from the first bound to the second went, on the device that worked most then.

    ``kinds``, (n,): 0 a kernel, 1 one of the communication library, 2 a copy or set. Of devices that worked alike the
    first is taken; ``work`` is not empty.
    """
    found = [
        _of_device(
            work.compress(work["device"] == device), kinds[work["device"] == device], int(device), bounds
        )
        for device in np.unique(work["device"])
    ]
    return min(found, key=lambda parts: parts.idle_ns)


def _of_device(
    work: npt.NDArray[np.void], kinds: npt.NDArray[np.intp], device: int, bounds: tuple[int, int]
) -> DeviceParts:
    """All starts and ends cut the time into pieces in each of which the same work runs."""
    times = np.concatenate([np.clip(work["start_ns"], *bounds), np.clip(work["end_ns"], *bounds)])
    order = np.argsort(times, kind="stable")
    lengths = np.diff(times[order])
    kind, changes = np.tile(kinds, 2)[order], np.repeat([1, -1], len(work))[order]
    computes, moves, copies = (
        np.cumsum(np.where(kind == each, changes, 0))[:-1] > 0 for each in (_KERNEL, _COLLECTIVE, _COPY)
    )

    def during(chosen: npt.NDArray[np.bool_]) -> int:
        return int(lengths[chosen].sum())

    return DeviceParts(
        device=device,
        compute_ns=during(computes),
        exposed_communication_ns=during(moves & ~computes),
        copy_ns=during(copies & ~moves & ~computes),
        idle_ns=bounds[1] - bounds[0] - during(computes | moves | copies),
        communication_ns=during(moves),
    )


class _Process:
    """Of one process. No call before ``from_ns`` is known, nor any work.

    It is followed from its first collectives on; what was queued before has run when the first step is reported,
    which is three steps and half a second later.
    """

    def __init__(self, from_ns: int) -> None:
        self.from_ns = from_ns
        self.work = np.zeros(0, dtype=WORK)
        self.calls = np.zeros(0, dtype=CALL)
        self._unknown: tuple[npt.NDArray[Any], ...] | None = None  # until there is more
        self.lost_ns = -1  # records were lost until then
        self.kinds: dict[int, int] = {0: _UNKNOWN}  # of kernels, by what their activities call them
        self.ended = False

    def add_work(self, rows: Activities, name_of: Callable[[int], str]) -> None:
        """Activities, and what they are: names are known with them, and not when the process has ended."""
        self._unknown = None
        self.work = np.concatenate([self.work, _work_of(rows)])
        kernels = self.work["name"][self.work["work"] == Work.KERNEL]
        for name in np.unique(kernels).tolist():
            if name not in self.kinds and (reported := name_of(name)):
                self.kinds[name] = _COLLECTIVE if _COMMUNICATION.match(reported) else _KERNEL

    def kinds_of(self, work: npt.NDArray[np.void]) -> npt.NDArray[np.intp]:
        """What each is, shape (n,)."""
        names, codes = np.unique(work["name"], return_inverse=True)
        kinds = np.array([self.kinds.get(name, _UNKNOWN) for name in names.tolist()], dtype=np.intp)
        return np.where(work["work"] == Work.KERNEL, kinds[codes.reshape(-1)], _COPY)

    def add_calls(self, calls: npt.NDArray[np.void]) -> None:
        """Rows of :data:`CALL`."""
        self._unknown = None
        self.calls = np.concatenate([self.calls, calls])

    def unknown(self) -> tuple[npt.NDArray[Any], ...]:
        """Of each call of which the work is not known: from when to when that may run, and whether it was measured."""
        if self._unknown is None:
            self._unknown = self._found_unknown()
        return self._unknown

    def _found_unknown(self) -> tuple[npt.NDArray[Any], ...]:
        calls = self.calls.take(np.lexsort((self.calls["start_ns"], self.calls["lane"])))
        began = self._began(calls)
        lacking = began == _NONE
        positions = np.where(lacking, len(calls), np.arange(len(calls)))
        following = np.minimum.accumulate(positions[::-1])[::-1][lacking]
        mine = calls.compress(lacking)
        until = mine["start_ns"] + DONE_NS
        closed = following < len(calls)
        closed[closed] = calls["lane"][following[closed]] == mine["lane"][closed]
        until[closed] = np.minimum(until[closed], began[following[closed]])
        return mine["start_ns"], until, mine["outer"] != 0

    def _began(self, calls: npt.NDArray[np.void]) -> npt.NDArray[np.int64]:
        """When the first work of each call began; the end of time of those without any."""
        found = calls["began_ns"].copy()
        if not len(self.work):
            return found
        order = np.lexsort((self.work["start_ns"], self.work["correlation"]))
        known, starts = self.work["correlation"][order], self.work["start_ns"][order]
        for wanted in (calls["outer"], calls["inner"]):
            at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
            mine = (known[at] == wanted) & (wanted != 0)
            found[mine] = np.minimum(found[mine], starts[at[mine]])
        return found

    def bound(self, rows: int, from_ns: int) -> None:
        """Forget what is over by a time, and the oldest beyond a bound."""
        self._unknown = None
        self.calls["began_ns"] = self._began(self.calls)
        self.work = self.work.compress(self.work["end_ns"] > from_ns)
        self.calls = self.calls.compress(self.calls["start_ns"] > from_ns - DONE_NS)
        for table, column in (("work", "end_ns"), ("calls", "start_ns")):
            mine = getattr(self, table)
            if len(mine) > rows:
                mine = mine.take(np.argsort(mine[column], kind="stable"))
                self.from_ns = max(self.from_ns, int(mine[column][-rows - 1]) + 1)
                setattr(self, table, mine[-rows:])


class TrainingDevices:
    """One session's.

    ``watches``: whether a process may have steps. ``name_of``: a kernel's full name by process and what its activity
    calls it, "" where it is not known.
    """

    def __init__(self, watches: Callable[[int], bool], name_of: Callable[[int, int], str]) -> None:
        self._watches, self._name_of = watches, name_of
        self._processes: dict[int, _Process] = {}
        self._measuring: set[int] = set()
        self._fresh: list[Activities] = []  # since the last tick
        self._decided: dict[int, int] = {}  # of each process, the end of the last step that was settled
        self.counters: Counter[str] = Counter(dict.fromkeys(COUNTERS, 0))

    def see_activities(self, rows: Activities) -> None:
        """As a process reported them."""
        self._fresh.append(rows.compress(np.isin(rows["work"], list(Work))))

    def see_calls(self, rows: Operations, reported: npt.NDArray[np.uint64]) -> None:
        """Calls of any kind with their :func:`~otelgpu.model.device_work.correlations`."""
        some = causes_work(rows) & ~((rows["status"] != 0) & (rows["returned"] == 1))
        for tgid in np.unique(rows["tgid"][some]).tolist():
            mine = some & (rows["tgid"] == tgid)
            process = self._processes.get(tgid)
            if process is None:
                if reported[mine].any():
                    self._measuring.add(tgid)
                if tgid not in self._measuring or not self._watches(tgid):
                    continue
                process = self._processes[tgid] = _Process(int(rows["start_ns"][mine].min()))
            process.add_calls(_thinned(rows.compress(mine), reported[mine]))

    def lose(self) -> None:
        """Records were lost until the next tick: of whom, and when, is not known."""
        for process in self._processes.values():
            process.lost_ns = _NONE

    def measures(self, tgid: int) -> bool:
        """Whether device time of a process is measured at all."""
        return tgid in self._processes

    def settle(self, step: TrainingStep, now_ns: int, *, final: bool) -> tuple[bool, DeviceParts | None]:
        """Whether it is known what the device did in a step, or that it never will be; and what it did."""
        process = self._processes.get(step.tgid)
        if process is None:
            return True, None
        self._distribute()
        begins, ends, measured = process.unknown()
        touching = (begins < step.end_ns) & (ends > step.start_ns)
        final |= process.ended or now_ns >= step.end_ns + GRACE_NS
        outside = step.start_ns < process.from_ns or bool(
            (~measured & (begins >= step.start_ns) & touching).any()
        )
        if not outside and not final:
            late = measured & (begins < step.end_ns) & (begins > step.start_ns - DONE_NS)
            if now_ns < step.end_ns + SETTLE_NS or (late.any() and touching.any()):
                return False, None
        if outside or touching.any():
            return self._without(step, "missing" if measured[touching].any() and not outside else "beyond")
        if process.lost_ns >= step.start_ns:
            return self._without(step, "lost")
        work = process.work
        work = work.compress((work["start_ns"] < step.end_ns) & (work["end_ns"] > step.start_ns))
        kinds = process.kinds_of(work)
        if not len(work) or (kinds == _UNKNOWN).any():
            return self._without(step, "missing")
        self._decided[step.tgid] = step.end_ns
        return True, parts_within(work, kinds, (step.start_ns, step.end_ns))

    def _without(self, step: TrainingStep, why: str) -> tuple[bool, None]:
        names = {
            "beyond": "steps_beyond_device_slices",
            "missing": "steps_with_device_work_missing",
            "lost": "steps_with_device_records_lost",
        }
        self.counters[names[why]] += 1
        self._decided[step.tgid] = step.end_ns
        return True, None

    def forget_process(self, tgid: int) -> None:
        """A process ended: its steps are settled with what is known."""
        self._measuring.discard(tgid)
        if tgid in self._processes:
            self._processes[tgid].ended = True

    def prune(self, now_ns: int, undecided: Sequence[TrainingStep]) -> None:
        """At a tick, when steps were settled."""
        self._distribute()
        waiting = {step.tgid for step in undecided}
        for tgid, process in list(self._processes.items()):
            oldest_ns = self._decided.get(tgid, 0)
            if tgid not in waiting:
                if process.ended:
                    del self._processes[tgid]
                    self._decided.pop(tgid, None)
                    continue
                oldest_ns = max(oldest_ns, now_ns - TRAINING.longest_ns - GRACE_NS)
            process.lost_ns = now_ns if process.lost_ns == _NONE else process.lost_ns
            process.bound(ROWS // len(self._processes), oldest_ns)

    def _distribute(self) -> None:
        fresh, self._fresh = self._fresh, []
        for rows in fresh:
            for tgid in np.unique(rows["tgid"]).tolist():
                process = self._processes.get(tgid)
                if process is not None:
                    process.add_work(rows.compress(rows["tgid"] == tgid), partial(self._name_of, tgid))


def _work_of(rows: Activities) -> npt.NDArray[np.void]:
    found = np.zeros(len(rows), dtype=WORK)
    found["start_ns"] = rows["start_ns"]
    found["end_ns"] = np.maximum(rows["start_ns"] + rows["duration_ns"], rows["start_ns"])
    for column in ("name", "correlation", "device", "work"):
        found[column] = rows[column]
    return found


def _thinned(rows: Operations, reported: npt.NDArray[np.uint64]) -> npt.NDArray[np.void]:
    """Rows of :data:`CALL`: of unmeasured calls in a row on a stream the first and the last of each second."""
    default = rows["stream"] <= _DEFAULT_STREAMS
    lanes = combine(
        0,
        np.where(default, np.uint64(0), rows["stream"]),
        np.where(default, rows["tid"].astype(np.uint64), np.uint64(0)),
        np.where(default, rows["device"].astype(np.int64).view(np.uint64), np.uint64(0)),
    )
    order = np.lexsort((rows["start_ns"], lanes))
    runs = np.stack([lanes, rows["start_ns"] // _CELL_NS, (reported != 0).astype(np.uint64)], axis=1)[order]
    new = np.any(runs[1:] != runs[:-1], axis=1)
    kept = np.append(True, new) | np.append(new, True) | (reported[order] != 0)
    chosen = order[kept]
    found = np.zeros(len(chosen), dtype=CALL)
    found["start_ns"], found["lane"] = rows["start_ns"][chosen], lanes[chosen]
    found["began_ns"] = _NONE
    found["outer"] = reported[chosen] & np.uint64(0xFFFFFFFF)
    found["inner"] = reported[chosen] >> np.uint64(32)
    return found
