"""The memory ledger: what each process holds of each device, who asked for it, and what never comes back.

In: operations of all kinds, in any order within a tick, and the ends of processes. Out, per process: an
:class:`Account` for each device and kind of memory, a :class:`Site` for each place in the code that allocates.
Pure; memory is bounded by ``limit`` and :data:`SITES`, and what goes beyond is counted.

What is true of a call: only one that returned success changes what is held. An allocation takes effect when it
ends, a free when it begins: in between, another thread may be given the same address. Calls are applied in this
order at a tick. A free that blocks longer than a tick is recorded after its address was given away again;
hence a free at time t frees what was allocated by t, never what came after, and an address that is given again
while it is held has been freed by a call whose record is still to come.

>>> device = {"tgid": 1, "memory": Memory.DEVICE, "handle": 0xA0, "returned": 1}
>>> malloc = device | {"kind": OperationKind.ALLOCATION, "duration_ns": 5}
>>> ledger = MemoryLedger([])
>>> ledger.add(rows_of(**malloc, start_ns=10, size_bytes=512))  # held from 15 on
>>> ledger.settle(20)
>>> ledger.add(rows_of(**malloc, start_ns=30, size_bytes=64))  # the same address, at 35
>>> ledger.settle(40)
>>> ledger.add(rows_of(**device, kind=OperationKind.FREE, start_ns=25, duration_ns=99))
>>> ledger.settle(200)  # the free began at 25: what it freed was the first
>>> [(account.live_bytes, account.freed_bytes) for account in ledger.processes[1].accounts.values()]
[(64, 512)]

What it does not know: bytes that a pool keeps for itself, and what was allocated before the process was
observed. The handles of cuMemCreate belong to no context, so that they outlive the ends of contexts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from otelgpu.engine.contract import ContextStep, OperationDecoder
from otelgpu.families.gpu.memory.failures import Failures, Request
from otelgpu.families.gpu.memory.process import SITES, Account, AllocationSite, ProcessMemory, Site
from otelgpu.model.codes import combine, distinct, examples
from otelgpu.model.losses import Reasons
from otelgpu.model.operations import (
    DEVICE_MEMORY,
    LARGEST_SIZE,
    Memory,
    OperationKind,
    Operations,
    concatenate,
)

__all__ = [
    "COUNTERS",
    "SITES",
    "WINDOW_NS",
    "Account",
    "MemoryLedger",
    "ProcessMemory",
    "Site",
]

ALLOCATIONS: Final = 1 << 18
"""Allocations of one process that are followed at a time, 34 MB when it holds so many."""

KINDS: Final = frozenset(
    (
        *(OperationKind.ALLOCATION, OperationKind.FREE, OperationKind.MAPPING),
        *(OperationKind.MODULE, OperationKind.DEVICE),
    )
)
"""Kinds of calls that may concern memory: of no others has :meth:`MemoryLedger.add` to be reported."""

WINDOW_NS: Final = 60_000_000_000
OWED_NS: Final = 60_000_000_000
"""How long the record of a free may be under way after its address was given again."""

OUT_OF_MEMORY: Final = 2
"""``cudaErrorMemoryAllocation``, ``CUDA_ERROR_OUT_OF_MEMORY``, ``hipErrorOutOfMemory``: one number in all of them."""

COUNTERS: Final = Reasons(
    "memory",
    {
        "allocation_not_kept": "an allocation or mapping beyond the bound of those followed in one process; it is "
        "missing from the memory in use",
        "site_not_kept": "an allocation of a call site beyond the bound of sites; it is reported without its site",
        "free_unknown": "memory was freed whose allocation was not seen: it is older than the observation",
        "free_missed": "an address was given again without its free being seen; the older allocation was ended",
        "handle_unknown": "a mapping or reference of physical memory whose allocation was not seen",
        "context_unknown": "a context ended that is older than the observation; what it held is reported as in use "
        "until it is freed or the process ends",
        "size_absurd": "an allocation that claims more bytes than there are addresses; it was left out",
        "time_absurd": "a call that claims to have ended in the future; it was left out",
        "failure_not_reported": "an allocation that failed for want of memory and has no event of its own: there "
        "were too many in a short time; the next event has their number",
        "result_unknown": "a call that changes what is held whose return was not probed; it was left out",
    },
)
"""Reason → what one count means."""

_FOREVER_NS: Final = 1 << 63
_AHEAD_NS: Final = 10_000_000_000  # what is drained may be younger than the tick; not by much
_WANTED: Final = np.zeros(1 << 16, dtype=np.bool_)
_WANTED[[*(KINDS - {OperationKind.DEVICE})]] = True
# Numbers, for what is looked up at every call: members of an enumeration are slow to reach and to compare.
_ALLOCATION: Final = int(OperationKind.ALLOCATION)
_FREE: Final = int(OperationKind.FREE)
_MAPPING: Final = int(OperationKind.MAPPING)
_MODULE: Final = int(OperationKind.MODULE)
_DEVICE: Final = int(OperationKind.DEVICE)
_PHYSICAL: Final = int(Memory.PHYSICAL)
_STEPS: Final = (None, *ContextStep)
_LEAST_DEVICE: Final = -(1 << 15)
_KEEP: Final = _STEPS.index(ContextStep.KEEP)
_CONTEXT_ENDS: Final = [
    _STEPS.index(step) for step in (ContextStep.DESTROY, ContextStep.RESET_CURRENT, ContextStep.RESET_DEVICE)
]
_CONTEXTS_MATTER: Final = [_STEPS.index(step) for step in (ContextStep.CREATE, ContextStep.RETAIN_DEVICE)]
_COLUMNS: Final = (
    *("kind", "tgid", "tid", "device", "handle", "other", "size_bytes", "caller", "memory", "status"),
    *("returned", "family"),
)
_PLACE: Final = ("device", "memory", "caller")  # what reports allocations of one process and context apart
_AT_ADDRESS: Final = np.ones(1 << 8, dtype=np.bool_)  # memory that goes by its address alone
_AT_ADDRESS[[Memory.ADDRESS, Memory.PHYSICAL, Memory.REGISTERED]] = False


class MemoryLedger:
    """All processes of a session. ``decoders`` are its families', by position.

    ``stacks``: the numbers of the stacks that calls were made under, shape (n,), 0 where that is not known; asked
    when calls are applied. None: stacks are not distinguished. ``failures`` is told of those for want of memory,
    ``at_end`` of processes that end, with what they hold, and when.
    """

    def __init__(
        self,
        decoders: Sequence[OperationDecoder],
        *,
        limit: int = ALLOCATIONS,
        stacks: Callable[[Operations], npt.NDArray[np.uint64]] | None = None,
        failures: Failures | None = None,
        at_end: Callable[[ProcessMemory, int], None] | None = None,
    ) -> None:
        self.processes: dict[int, ProcessMemory] = {}
        self.counters: Counter[str] = Counter(dict.fromkeys(COUNTERS, 0))
        self._limit = limit
        self._stacks, self._failures, self._at_end = stacks, failures, at_end
        self._steps = np.zeros((max(len(decoders), 1), 1 << 16), dtype=np.uint8)  # of a family's function
        for family, decoder in enumerate(decoders):
            for api, step in decoder.context_steps.items():
                self._steps[family, api] = _STEPS.index(step)
        self._ended: list[ProcessMemory] = []
        self._waiting: list[Operations] = []
        self._ends: list[tuple[int, int]] = []  # time, tgid
        self._contexts_matter = False  # a thread's choice says nothing where all use the primary one
        self._window_end_ns = 0

    @property
    def is_waiting(self) -> bool:
        """Whether anything is to be applied, or was not taken yet."""
        return bool(self._waiting or self._ends or self._ended)

    def add(self, rows: Operations) -> None:
        """Take what concerns memory; it counts from the next :meth:`settle` on."""
        kinds = np.ascontiguousarray(rows["kind"])
        wanted = _WANTED[kinds]
        if not self._contexts_matter and (modules := np.flatnonzero(kinds == OperationKind.MODULE)).size:
            steps = self._steps[rows["family"][modules], rows["api"][modules]]
            self._contexts_matter = bool(np.isin(steps, _CONTEXTS_MATTER).any())
        if self._contexts_matter:
            wanted |= kinds == OperationKind.DEVICE
        if wanted.any():
            self._waiting.append(rows.compress(wanted))

    def end_process(self, tgid: int, time_ns: int) -> None:
        """A process ended, or began another program: what it held at that time is free."""
        self._ends.append((time_ns, tgid))

    def settle(self, now_ns: int, *, final: bool = False) -> None:
        """Apply what took effect by ``now_ns``: every record that was submitted before has been added.

        ``final``: whatever was added is applied, for nothing follows.
        """
        self._ends.sort()
        until_ns = _FOREVER_NS if final else now_ns
        if self._waiting:
            self._apply(concatenate(self._waiting), until_ns)
        self._end_processes(until_ns)
        if not self._window_end_ns:
            self._window_end_ns = now_ns + WINDOW_NS
        elif now_ns >= self._window_end_ns:
            self._window_end_ns = now_ns + WINDOW_NS
            for process in self.processes.values():
                process.close_window()
                self.counters["free_missed"] += process.expire(now_ns - OWED_NS)

    def forget(self, tgid: int) -> None:
        """Drop what came of a process after its end."""
        self.processes.pop(tgid, None)

    def take_ended(self) -> list[ProcessMemory]:
        """Processes that ended since the last call; they hold nothing any more."""
        ended, self._ended = self._ended, []
        return ended

    # -- applying ---------------------------------------------------------------------------------

    def _apply(self, rows: Operations, now_ns: int) -> None:
        steps = self._steps[rows["family"], rows["api"]]
        effect = rows["start_ns"] + np.where(self._at_start(rows, steps), 0, rows["duration_ns"])
        due = effect <= now_ns
        soon = ~due & (effect <= now_ns + _AHEAD_NS)
        self._waiting = [rows.compress(soon)] if soon.any() else []
        self.counters["time_absurd"] += len(rows) - int(due.sum()) - int(soon.sum())
        # Of calls at the same nanosecond those that free come last: a free follows its own allocation.
        order = np.lexsort((rows["kind"] == OperationKind.FREE, effect))
        order = order[due[order]]
        rows, steps = rows.take(order), steps[order]
        self._keep(rows, steps)
        stacks = np.zeros(len(rows), dtype=np.uint64)
        if self._stacks is not None and len(gives := np.flatnonzero(rows["kind"] == _ALLOCATION)):
            stacks[gives] = self._stacks(rows.take(gives))
        self._apply_in_order(rows, steps, effect[order], stacks)

    def _apply_in_order(
        self,
        rows: Operations,
        steps: npt.NDArray[np.uint8],
        effect: npt.NDArray[np.uint64],
        stacks: npt.NDArray[np.uint64],
    ) -> None:
        """Calls in order of their effect: plain ones of one process that follow one another together."""
        plain = _plain(rows, steps)
        process = np.where(plain, rows["tgid"].astype(np.int64), -1)
        changes = (np.flatnonzero(process[1:] != process[:-1]) + 1).tolist()
        codes, places = _places(rows, stacks)
        times, numbers, sizes = effect.tolist(), rows["handle"].tolist(), rows["size_bytes"].tolist()
        for first, last in pairwise([0, *changes, len(rows)] if len(rows) else ()):
            tgid = int(process[first])
            if tgid >= 0 and not (self._ends and self._ends[0][0] < times[last - 1]):
                mine = self._process(tgid)
                if not mine.has_contexts and not (self._failures and self._failures.watches(tgid)):
                    some = slice(first, last)
                    mine.exchange(times[some], codes[some], numbers[some], sizes[some], places)
                    continue
            some = slice(first, last)
            self._apply_one_by_one(rows[some], steps[some], times[some], stacks[some])

    def _apply_one_by_one(
        self,
        rows: Operations,
        steps: npt.NDArray[np.uint8],
        times: list[int],
        stacks: npt.NDArray[np.uint64],
    ) -> None:
        columns = [*(rows[name].tolist() for name in _COLUMNS), stacks.tolist()]
        for time_ns, step, row in zip(times, steps.tolist(), zip(*columns, strict=True), strict=True):
            if self._ends and self._ends[0][0] < time_ns:
                self._end_processes(time_ns - 1)
            self._call(time_ns, _STEPS[step], row)

    def _keep(self, rows: Operations, steps: npt.NDArray[np.uint8]) -> None:
        """The devices whose primary context the runtime uses."""
        keeping = (steps == _KEEP) & (rows["returned"] == 1) & (rows["status"] == 0)
        tgids, devices = rows["tgid"][keeping].astype(np.int64), rows["device"][keeping].astype(np.int64)
        for place in np.unique((tgids << 16) + devices - _LEAST_DEVICE).tolist():
            self._process(place >> 16).keep((place & 0xFFFF) + _LEAST_DEVICE)

    def _process(self, tgid: int) -> ProcessMemory:
        process = self.processes.get(tgid)
        if process is None:
            process = self.processes[tgid] = ProcessMemory(tgid, self.counters, self._limit)
        return process

    def _at_start(self, rows: Operations, steps: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
        """What takes effect when it begins: the rest does when it ends."""
        kinds = rows["kind"]
        unmaps = (kinds == OperationKind.MAPPING) & (rows["other"] == 0)
        return np.asarray((kinds == OperationKind.FREE) | unmaps | np.isin(steps, _CONTEXT_ENDS))

    def _call(self, time_ns: int, step: ContextStep | None, row: tuple[int, ...]) -> None:
        kind, tgid, tid, device, handle, other, size, caller, memory, status, returned, family, stack = row
        process = self.processes.get(tgid) or self._process(tgid)
        if kind == _ALLOCATION:
            if not returned:
                process.account(device, memory, family).requested_bytes += min(size, LARGEST_SIZE)
                return
            if status:
                account = process.account(device, memory, family)
                account.failures += 1
                if self._failures is not None and status == OUT_OF_MEMORY and memory in DEVICE_MEMORY:
                    place = (account.device, memory, family, size, caller, stack)
                    self._failures.refuse(process, Request(time_ns, tid, *place))
                return
        elif kind == _DEVICE:
            status = status if returned else 0  # a choice seen at its entry is taken as made
        elif not returned and (step is not None or kind != _MODULE):
            self.counters["result_unknown"] += 1
            return
        if status:
            return
        if step is not None and step is not ContextStep.KEEP:
            process.step(step, time_ns, tid, device, handle, other)
        if kind == _FREE:
            process.free(time_ns, memory, handle)
        elif kind == _MAPPING:
            process.map(time_ns, handle, size, other)
        elif kind == _ALLOCATION and memory == _PHYSICAL and not size:
            process.retain(time_ns, handle, other)
        elif kind == _ALLOCATION:
            process.allocate(time_ns, tid, device, memory, handle, size, caller, stack, family)
            if self._failures is not None and self._failures.watches(tgid) and memory in DEVICE_MEMORY:
                there = process.account(device, memory, family).device
                self._failures.grant(tgid, tid, there, size, time_ns, process.held_of(there))

    def _end_processes(self, now_ns: int) -> None:
        """End those whose time has come, in order."""
        while self._ends and self._ends[0][0] <= now_ns:
            time_ns, tgid = self._ends.pop(0)
            process = self.processes.pop(tgid, None)
            if process is not None:
                if self._failures is not None:
                    self._failures.end_process(tgid)
                if self._at_end is not None:
                    self._at_end(process, time_ns)
                process.end()
                self._ended.append(process)


def _plain(rows: Operations, steps: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    """Which calls gave an address memory of its own, or took it back, and did nothing else."""
    kinds, returned = rows["kind"], (rows["returned"] == 1) & (rows["status"] == 0)
    exchanges = (kinds == _FREE) | ((kinds == _ALLOCATION) & (rows["size_bytes"] <= LARGEST_SIZE))
    elsewhere = (steps == 0) | (steps == _KEEP)
    here = _AT_ADDRESS[rows["memory"]] & (rows["handle"] != 0)
    return np.asarray(exchanges & returned & elsewhere & here)


def _places(rows: Operations, stacks: npt.NDArray[np.uint64]) -> tuple[list[int], list[AllocationSite]]:
    """For each row the position of its place, -1 for a free; and the places."""
    columns = [*(np.ascontiguousarray(rows[name]) for name in _PLACE), stacks, rows["family"].copy()]
    coded = [distinct(column) for column in columns]
    codes, count = combine([(codes, len(values)) for values, codes in coded], len(rows))
    reported = examples(codes, count)
    places = [
        AllocationSite(*place)
        for place in zip(*(column[reported].tolist() for column in columns), strict=True)
    ]
    return np.where(rows["kind"] == _ALLOCATION, codes, -1).tolist(), places
