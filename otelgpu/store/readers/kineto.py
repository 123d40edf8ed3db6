"""torch.profiler's traces (Kineto), one for each rank, plain or gzip; and what ``render/kineto.py`` writes alike.

A device's work is of the step in which the host called for it, whenever it ran. While a device is idle its rank waits
for nobody (a collective's kernel runs as long as it waits), so idle time is the rank's own: ``input`` as far as the
data loader was asked meanwhile, else ``host``. Not all PyTorch versions give collectives a number: they are counted
by step and group, in which all ranks make the same ones. Where a job has no device and trains with gloo, its operators
are the work (:mod:`otelgpu.store.readers.kineto_cpu`). What otelgpu writes may be a sample of the device's work, and
does not say so: of it only the steps are taken. A step has the mark of what the program says that it does in it
(``record_function("evaluate")``).

Source: pytorch/kineto at 114171d, ``libkineto/src/output_json.cpp`` (layout, arguments of collectives); PyTorch 2.9,
``torch/profiler/profiler.py`` (names of files), ``torch/utils/data/dataloader.py`` (annotation).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec
import numpy as np

from otelgpu.store.batches import Batches, text
from otelgpu.store.database import Store
from otelgpu.store.limits import ranks_of
from otelgpu.store.marks import mark_of
from otelgpu.store.readers.kineto_cpu import TRANSFER, Operator, work_of
from otelgpu.store.readers.process_groups import ELEMENT_BYTES, ProcessGroup, group_of, members, stage_of
from otelgpu.store.readers.whole_files import decoded_files
from otelgpu.store.reasons import EVENTS_UNREADABLE, FILES_OF_SEVERAL_RANKS
from otelgpu.store.tables import SEQUENCE_UNKNOWN, STEP_UNKNOWN

MOST_BYTES: Final = 512 << 20
"""Of a file, decompressed: it is held in memory as a whole, with its events."""

_STEP: Final = re.compile(r"ProfilerStep#(\d{1,12})")
_DATA_LOADER: Final = "enumerate(DataLoader)#"
_COMMUNICATION: Final = re.compile(r"nccl(?:Dev)?Kernel")
_OF_PAIRS: Final = re.compile(r"_?all_?to_?all|_?gather|_?scatter")
_RANK_IN_NAME: Final = re.compile(r"rank[-_]?(\d{1,9})(?!\d)")
_HOST_IN_NAME: Final = re.compile(r"(.+)_\d+\.\d+\.pt\.trace\.json")
_COPIES: Final = ("gpu_memcpy", "gpu_memset")
_HOST_CALLS: Final = ("cuda_runtime", "cuda_driver")
_OF_PROGRAM: Final = "user_annotation"
_ANNOTATIONS: Final = (_OF_PROGRAM, "cpu_op")
_OF_STEP: Final = 1 << 20
"""More collectives than a step has: numbers of one step are below the next one's."""

_NO_DEVICE: Final = "no device time in the traces of {ranks}: computing, copies and collectives are not known"
_NO_STEPS: Final = "no steps in the traces of {ranks}: the loop does not call step() of torch.profiler"


_Whole = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]


class _Event(msgspec.Struct):
    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = ""
    tid: int | str = ""
    ts: float = 0.0
    dur: float = -1.0
    args: msgspec.Raw = msgspec.Raw(b"{}")


class _Arguments(msgspec.Struct):
    correlation: int = 0
    bytes: _Whole = 0
    collective: str = msgspec.field(default="", name="Collective name")
    group: str = msgspec.field(default="", name="Process Group Name")
    ranks: str | list[int] = msgspec.field(default="", name="Process Group Ranks")
    size: _Whole = msgspec.field(default=0, name="Group size")
    elements: _Whole = msgspec.field(default=0, name="In msg nelems")
    dtype: str = ""


class _Distributed(msgspec.Struct):
    backend: str = ""
    rank: Annotated[int, msgspec.Meta(ge=-1, lt=1 << 31)] = -1
    pg_config: msgspec.Raw = msgspec.Raw(b"[]")


class _Trace(msgspec.Struct, rename="camel"):
    trace_events: list[msgspec.Raw]
    base_time_nanoseconds: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)] = 0
    distributed_info: _Distributed = msgspec.field(default_factory=_Distributed)
    device_properties: list[msgspec.Raw] = []
    otelgpu: msgspec.Raw = msgspec.Raw()  # in a trace that otelgpu wrote


_TRACE: Final = msgspec.json.Decoder(_Trace)
_GROUPS: Final = msgspec.json.Decoder(list[ProcessGroup])
_EVENT: Final = msgspec.json.Decoder(_Event)
_ARGUMENTS: Final = msgspec.json.Decoder(_Arguments)


class _Place(msgspec.Struct):
    rank: int
    host: str
    role: str
    lane: str


class _Work(msgspec.Struct):
    """Device work, in seconds."""

    kind: str
    name: str
    t0: float
    t1: float
    args: _Arguments
    called: float | None = None  # when the host called; None: the call's correlation says


class _Rank:
    """What a trace says of its rank. Times are seconds since the trace's base. ``on_cpu``: it has no device."""

    def __init__(self, *, on_cpu: bool = False) -> None:
        self._on_cpu = on_cpu
        self.operators: list[Operator] = []  # of a rank that has none
        self.steps: list[tuple[float, float, int]] = []
        self.loads: list[tuple[float, float]] = []
        self.marks: list[tuple[float, str]] = []  # since when the program says that it does something else
        self.called: dict[int, float] = {}  # by correlation, when the host called
        self.work: list[_Work] = []
        self.processes: set[int | str] = set()  # that have steps

    def take(self, raw: msgspec.Raw) -> None:
        """An event. Raises msgspec.MsgspecError."""
        event = _EVENT.decode(raw)
        if event.ph != "X" or event.dur < 0:
            return
        begin, end = event.ts * 1e-6, (event.ts + event.dur) * 1e-6
        if event.cat == "kernel":
            args = _ARGUMENTS.decode(event.args)
            kind = _kind(event.name, args.collective)
            self.work.append(_Work(kind, args.collective or event.name, begin, end, args))
        elif event.cat in _COPIES:
            self.work.append(_Work("copy", event.name, begin, end, _ARGUMENTS.decode(event.args)))
        elif event.cat in _HOST_CALLS:
            if correlation := _ARGUMENTS.decode(event.args).correlation:
                self.called[correlation] = begin
        elif event.cat in _ANNOTATIONS:
            if found := _STEP.fullmatch(event.name):
                self.steps.append((begin, end, int(found[1])))
                self.processes.add(event.pid)
            elif event.cat == _OF_PROGRAM and (mark := mark_of(event.name)):
                self.marks.append((begin, mark))
            elif event.name.startswith(_DATA_LOADER):
                self.loads.append((begin, end))
            elif self._on_cpu and (event.cat == "cpu_op" or event.name.startswith(TRANSFER)):
                self.operators.append(Operator(event.tid, event.name, begin, end))

    def work_on_cpu(self) -> None:
        """Take the operators for the device's work."""
        for each in work_of(self.operators, self.loads):
            self.work.append(_Work(each.kind, each.name, each.t0, each.t1, _Arguments(), each.t0))

    def step_at(self, time: float) -> int:
        """Of the host; −1: none."""
        place = bisect_right(self.steps, time, key=lambda step: step[0]) - 1
        if place >= 0 and time < self.steps[place][1]:
            return self.steps[place][2]
        return STEP_UNKNOWN

    def step_of(self, work: _Work) -> int:
        """By the call that made it."""
        called = self.called.get(work.args.correlation) if work.called is None else work.called
        return STEP_UNKNOWN if called is None else self.step_at(called)


def _kind(kernel: str, collective: str) -> str:
    """``SendRecv`` is the kernel of sends and receives, and of collectives that are made of them, which say so."""
    if not _COMMUNICATION.match(kernel):
        return "compute"
    return "p2p" if "SendRecv" in kernel and not _OF_PAIRS.match(collective) else "coll"


class _Busy:
    """When a device worked at all: sums of the union of intervals."""

    def __init__(self, work: Sequence[_Work]) -> None:
        begins = np.array([each.t0 for each in work])
        ends = np.array([each.t1 for each in work])
        order = np.argsort(begins, kind="stable")
        begins, ends = begins[order], np.maximum.accumulate(ends[order])
        first = np.r_[True, begins[1:] > ends[:-1]]
        last = np.r_[first[1:], True]
        self._times = np.stack([begins[first], ends[last]], axis=1).ravel()
        lengths = ends[last] - begins[first]
        before = np.r_[0.0, np.cumsum(lengths)]
        self._sums = np.stack([before[:-1], before[1:]], axis=1).ravel()

    def idle(self, begin: float, end: float) -> float:
        """Seconds of [begin, end) in which nothing ran."""
        first, last = np.interp([begin, end], self._times, self._sums)
        return max(0.0, end - begin - float(last - first))


def read(store: Store, paths: Sequence[Path]) -> None:
    """See the module."""
    idle, aimless = [], []
    with store.batches() as batches:
        for path, number, trace in decoded_files(store, paths, _decoded, _rank_of, most_bytes=MOST_BYTES):
            rank = _rank(store, trace)
            if len(rank.processes) > 1:
                store.rejected[FILES_OF_SEVERAL_RANKS] += 1
                continue
            named = _HOST_IN_NAME.match(path.name)
            role, lane = stage_of(_groups(trace), number)
            place = _Place(number, text(named[1]) if named else "", role, lane)
            _insert(batches, rank, place, trace.base_time_nanoseconds * 1e-9)
            idle += [] if rank.work else [number]
            aimless += [] if rank.steps else [number]
    for ranks, sentence in ((idle, _NO_DEVICE), (aimless, _NO_STEPS)):
        if ranks:
            store.limits.append(sentence.format(ranks=ranks_of("", sorted(set(ranks)))))


def _decoded(raw: bytes) -> _Trace:
    """Raises ValueError."""
    try:
        return _TRACE.decode(raw)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from error


def _rank_of(path: Path, trace: _Trace) -> int | None:
    if trace.distributed_info.rank >= 0:
        return trace.distributed_info.rank
    found = _RANK_IN_NAME.search(path.name)
    return int(found[1]) if found else None


def _groups(trace: _Trace) -> list[ProcessGroup]:
    """Those that the rank is in; none where they cannot be read: older versions have no list."""
    try:
        return _GROUPS.decode(trace.distributed_info.pg_config)
    except (msgspec.MsgspecError, RecursionError):
        return []


def _rank(store: Store, trace: _Trace) -> _Rank:
    on_cpu = trace.distributed_info.backend == "gloo" and not trace.device_properties
    rank = _Rank(on_cpu=on_cpu)
    for raw in trace.trace_events:
        try:
            rank.take(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            store.rejected[EVENTS_UNREADABLE] += 1
    if trace.otelgpu:
        rank.work.clear()
    elif not rank.work:
        rank.work_on_cpu()
    rank.steps.sort()
    rank.work.sort(key=lambda work: work.t0)
    return rank


def _insert(batches: Batches, rank: _Rank, place: _Place, base: float) -> None:
    for step, kind, name, group, sequence, n, t0, t1, size in (*_of_host(rank), *_of_device(rank)):
        batches.add(
            *("", step, place.rank, place.host, place.role, place.lane, 0),
            *(kind, text(name), text(group), sequence, n, base + t0, base + t1, size),
        )


_Row = tuple[int, str, str, str, int, int, float, float, int]
"""Step, kind, name, group, sequence, members, t0, t1, bytes."""


def _of_host(rank: _Rank) -> Iterator[_Row]:
    """Steps, and what the device was idle for in each; nothing is known of that where there is no device time."""
    waited: dict[int, float] = defaultdict(float)
    busy = _Busy(rank.work) if rank.work else None
    for begin, end in rank.loads:
        step = rank.step_at(begin)
        seconds = busy.idle(begin, end) if busy else end - begin
        waited[step] += seconds
        yield step, "input", "data loader", "", SEQUENCE_UNKNOWN, 0, begin, begin + seconds, 0
    marks = {
        rank.step_at(begin): mark for begin, mark in sorted(rank.marks, reverse=True)
    }  # the first of a step
    for begin, end, step in rank.steps:
        yield step, "step", marks.get(step, "ProfilerStep"), "", SEQUENCE_UNKNOWN, 0, begin, end, 0
        if busy:
            seconds = max(0.0, busy.idle(begin, end) - waited[step])
            yield step, "host", "device idle", "", SEQUENCE_UNKNOWN, 0, begin, begin + seconds, 0


def _of_device(rank: _Rank) -> Iterator[_Row]:
    made: Counter[tuple[int, str]] = Counter()
    for work in rank.work:
        step, args = rank.step_of(work), work.args
        group = group_of(args.group, members(args.ranks))
        sequence = SEQUENCE_UNKNOWN
        if work.kind == "coll" and group and step != STEP_UNKNOWN:
            sequence = step * _OF_STEP + made[step, group]
            made[step, group] += 1
        size = args.bytes or args.elements * ELEMENT_BYTES.get(args.dtype, 0)
        yield step, work.kind, work.name, group, sequence, args.size, work.t0, work.t1, size
