"""Spans and samples as a timeline in Chrome's trace format, for https://ui.perfetto.dev and chrome://tracing. Pure.

In: spans in columns, profiles with times. Out: JSON. Each process has tracks for requests and steps, on top,
then one for each thread, stream of a device, communicator and queue pair; kernels are tied to their launches by
flows. Events of a track that overlap without one holding the other go to a further lane of it, for viewers need
them nested.

Source: "Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
(X: complete, i: instant, b and e: asynchronous, M: metadata, s and f: flow), as
https://perfetto.dev/docs/faq#json reads it. Times are microseconds after ``begin_unix_ns``.

Host calls do not carry the correlation id that device work has. A kernel is tied to the n-th launch of its
thread, stream and name where there are as many of both, else to the last such launch before it began: the
flow's category says which.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

import msgspec
import numpy as np

from otelgpu.model.profiles import ProfileColumns
from otelgpu.model.resource import Resource
from otelgpu.model.spans import SpanColumns, SpanKind
from otelgpu.render.flame_graph import clean
from otelgpu.render.frames import process_frame
from otelgpu.render.timeline_samples import MOST_SAMPLES, Shown, column_of, observed

MOST_LANES: Final = 64
"""Of a track: what finds none is counted."""

FIRST_TRACK: Final = 5_000_000
"""Tracks that are no threads have numbers above any thread's (pid_max is at most 4,194,304)."""

_EXACT: Final = 1 << 53


class Place(IntEnum):
    """What a track shows, in the order from top to bottom."""

    REQUESTS = 0
    STEPS = 1
    THREAD = 2
    WAITS = 3
    STREAM = 4
    COMMUNICATOR = 5
    QUEUE_PAIR = 6
    APART = 7
    OTHER = 8


@dataclass(slots=True)
class Event:
    """What a track shows from ``start`` to ``end``; of samples without a length both are one time."""

    start: int  # nanoseconds of Unix time
    end: int
    name: str
    category: str
    args: dict[str, Any]
    pid: int = 0
    tid: int = 0


@dataclass(slots=True)
class Track:
    """``thread``: the number of the thread that it shows, 0 of others."""

    place: Place
    name: str
    thread: int = 0
    events: list[Event] = field(default_factory=list)


def timeline(spans: Sequence[SpanColumns], profiles: Sequence[ProfileColumns] = ()) -> bytes:
    """The file's bytes."""
    made = _Timeline()
    for batch in spans:
        made.take_spans(batch)
    shown = made.take_samples(profiles)
    return made.written({"samples_shown": shown, "samples_left_out": sum(map(len, profiles)) - shown})


class _Timeline:
    """Puts events on tracks, then numbers those."""

    def __init__(self) -> None:
        self._processes: dict[Resource, int] = {}
        self._names: dict[int, str] = {}
        self._tracks: dict[tuple[int, Place, Any], Track] = {}
        self._launches: dict[tuple[Any, ...], list[tuple[Event, int]]] = defaultdict(list)
        self._works: dict[tuple[Any, ...], list[Event]] = defaultdict(list)

    def _process(self, owner: Resource) -> int:
        pid = self._processes.get(owner)
        if pid is None:
            told = owner.get("process.pid")
            pid = told if isinstance(told, int) and 0 < told < 1 << 31 else 0
            name = process_frame(owner).name
            while self._names.get(pid, name) != name:  # two hosts' processes of one number
                pid += 1 << 23
            self._processes[owner] = pid
            self._names[pid] = name
        return pid

    def _track(self, pid: int, place: Place, key: Any, name: str, thread: int = 0) -> Track:
        return self._tracks.setdefault((pid, place, key), Track(place, name, thread))

    def take_spans(self, batch: SpanColumns) -> None:
        """The spans of a batch, each to its track."""
        pid = self._process(batch.resource)
        starts, ends = batch.start_unix_ns.tolist(), batch.end_unix_ns.tolist()
        traces, ids = batch.trace_id.tobytes().hex(), batch.span_id.tobytes().hex()
        names = [_plain(each) for each in batch.name.table]
        errors = (batch.status == 2).tolist()
        for row, attributes in enumerate(_rows(batch)):
            name = names[batch.name.codes[row]] or "span"
            args = {key: _json(value) for key, value in attributes.items()}
            args |= {"trace_id": traces[32 * row : 32 * row + 32], "span_id": ids[16 * row : 16 * row + 16]}
            if errors[row]:
                args["error"] = True
            event = Event(starts[row], max(ends[row], starts[row]), clean(name), clean(batch.scope), args)
            place, key, label, thread = _placed(batch, attributes)
            self._track(pid, place, key, label, thread).events.append(event)
            self._note_work(pid, attributes, event, place)

    def _note_work(self, pid: int, attributes: dict[str, Any], event: Event, place: Place) -> None:
        """Remember what flows go from and to."""
        stream = attributes.get("cuda.stream")
        if stream is None:
            return
        kernel = attributes.get("cuda.kernel.name") or ("graph" if "cuda.graph.id" in attributes else "")
        key = (
            pid,
            attributes.get("thread.id"),
            stream,
            kernel or ("graph" if "cuda.graph" in attributes else ""),
        )
        if place is Place.STREAM:
            self._works[key].append(event)
        elif not event.name.startswith(("cudaEvent", "cuEvent", "cudaStream", "cuStream")):
            count = attributes.get("otelgpu.count", 1)
            self._launches[key].append(
                (event, count if isinstance(count, int) and 0 < count < MOST_SAMPLES else 1)
            )

    def take_samples(self, profiles: Sequence[ProfileColumns]) -> int:
        """Observations that have times; how many of them are shown."""
        shown = 0
        for each in observed(profiles):
            shown += 1
            pid = self._process(each.owner)
            name = f"thread {each.thread}" if each.thread else "no thread"
            if each.thread_name:
                name = f"{each.thread_name} ({each.thread})"
            if each.shown is Shown.APART:
                event = Event(each.start, each.end, each.kind, each.kind, each.args)
                self._track(pid, Place.APART, each.kind, each.kind).events.append(event)
            elif each.shown is Shown.WAIT:
                event = Event(each.start, each.end, f"{each.kind}: {each.name}", each.kind, each.args)
                self._track(pid, Place.WAITS, each.thread, f"{name}: waits").events.append(event)
            else:
                event = Event(each.start, each.end, each.name, each.kind, each.args)
                track = self._track(pid, Place.THREAD, each.thread, name, each.thread)
                track.events.append(event)
                if each.thread_name:
                    track.name = name
        return shown

    def written(self, facts: dict[str, Any]) -> bytes:
        """All events with the tracks' names."""
        begin = min((each.start for track in self._tracks.values() for each in track.events), default=0)
        events: list[dict[str, Any]] = []
        number = FIRST_TRACK
        for order, (pid, name) in enumerate(sorted(self._names.items())):
            events += _named("process", pid, 0, clean(name), order)
        tracks = sorted(self._tracks.items(), key=lambda item: (item[0][0], item[0][1], str(item[1].name)))
        no_room = 0
        for order, ((pid, place, _), track) in enumerate(tracks):
            track.events.sort(key=lambda event: (event.start, -event.end))
            if place is Place.APART:
                events += _apart(track, pid, number, order, begin)
                number += 1
                continue
            lanes: list[list[int]] = []
            numbers: list[int] = []
            for event in track.events:
                lane = _lane(lanes, event)
                if lane < 0:
                    no_room += 1
                    continue
                if lane == len(numbers):
                    if track.thread and not lane:
                        numbers.append(track.thread)
                    else:
                        numbers.append(number)
                        number += 1
                    label = track.name if not lane else f"{track.name} ({lane + 1})"
                    events += _named("thread", pid, numbers[-1], label, order)
                event.pid, event.tid = pid, numbers[lane]
                events.append(_event(event, begin))
        events += self._flows(begin)
        facts |= {"events_without_room": no_room}
        other = {"begin_unix_ns": str(begin), "tool": "otelgpu", **facts}
        return msgspec.json.encode({"traceEvents": events, "displayTimeUnit": "ns", "otherData": other})

    def _flows(self, begin: int) -> Iterator[dict[str, Any]]:
        """From each launch to the work on the device that it caused."""
        identity = 0
        for key, works in self._works.items():
            works.sort(key=lambda event: event.start)
            calls = sorted(self._launches.get(key, ()), key=lambda call: call[0].start)
            each = [call for call, count in calls for _ in range(count)]
            by_order = len(each) == len(works)
            starts = np.array([call.start for call, _ in calls], dtype=np.uint64)
            for position, work in enumerate(works):
                if by_order:
                    launch = each[position]
                else:
                    before = int(np.searchsorted(starts, np.uint64(work.start), side="right"))
                    if not before:
                        continue
                    launch = calls[before - 1][0]
                if launch.start > work.start or not launch.tid or not work.tid:
                    continue
                identity += 1
                category = "launch, by order" if by_order else "launch, the last before"
                common = {"name": "launch", "cat": category, "id": identity}
                yield common | {
                    "ph": "s",
                    "pid": launch.pid,
                    "tid": launch.tid,
                    "ts": _us(launch.start - begin),
                }
                yield common | {
                    "ph": "f",
                    "bp": "e",
                    "pid": work.pid,
                    "tid": work.tid,
                    "ts": _us(work.start - begin),
                }


def _placed(batch: SpanColumns, told: dict[str, Any]) -> tuple[Place, Any, str, int]:
    """The track of a span: its kind, what tells it from others, its name, and the thread's number if it is one."""
    thread = told.get("thread.id")
    if batch.kind is SpanKind.SERVER or batch.scope == "otelgpu.http":
        return Place.REQUESTS, "", "requests", 0
    if batch.scope in ("otelgpu.engine", "otelgpu.training"):
        rank = told.get("otelgpu.rank", "")
        return Place.STEPS, rank, f"steps of rank {rank}" if rank != "" else "steps", 0
    if "cuda.correlation.id" in told:
        device = told.get("cuda.device.index", 0)
        stream = told.get("cuda.stream.id", told.get("cuda.stream", 0))
        return Place.STREAM, (device, stream), f"GPU {device} stream {stream}", 0
    if "rdma.qp.number" in told:
        device, number = told.get("rdma.device", ""), told["rdma.qp.number"]
        return Place.QUEUE_PAIR, (device, number), clean(f"queue pair {number} {device}".strip()), 0
    if "nccl.communicator.hash" in told:
        identity, rank = told["nccl.communicator.hash"], told.get("nccl.rank")
        of_rank = f" rank {rank}" if rank is not None else ""
        return Place.COMMUNICATOR, (identity, rank), clean(f"communicator {identity}{of_rank}"), 0
    if isinstance(thread, int) and 0 < thread < FIRST_TRACK:
        return Place.THREAD, thread, f"thread {thread}", thread
    return Place.OTHER, batch.scope, clean(batch.scope), 0


def _lane(lanes: list[list[int]], event: Event) -> int:
    """The first lane where ``event`` begins after what is there, or inside it; -1 where all are taken.

    ``lanes``: of each, the ends of what is open.
    """
    for number, ends in enumerate(lanes):
        while ends and ends[-1] <= event.start:
            ends.pop()
        if not ends or event.end <= ends[-1]:
            ends.append(event.end)
            return number
    if len(lanes) >= MOST_LANES:
        return -1
    lanes.append([event.end])
    return len(lanes) - 1


def _apart(track: Track, pid: int, number: int, order: int, begin: int) -> list[dict[str, Any]]:
    """Events that overlap as they like: begin and end of each, for which viewers find room."""
    made = _named("thread", pid, number, track.name, order)
    for identity, event in enumerate(track.events):
        common = {"name": event.name, "cat": event.category, "id": identity, "pid": pid, "tid": number}
        made.append(common | {"ph": "b", "ts": _us(event.start - begin), "args": event.args})
        made.append(common | {"ph": "e", "ts": _us(event.end - begin)})
    return made


def _event(event: Event, begin: int) -> dict[str, Any]:
    common = {
        "name": event.name,
        "cat": event.category or "span",
        "pid": event.pid,
        "tid": event.tid,
        "ts": _us(event.start - begin),
        "args": event.args,
    }
    if event.end == event.start and "stack" in event.args:
        return common | {"ph": "i", "s": "t"}
    return common | {"ph": "X", "dur": _us(event.end - event.start)}


def _named(what: str, pid: int, tid: int, name: str, order: int) -> list[dict[str, Any]]:
    """Metadata of a process or thread."""
    common = {"ph": "M", "pid": pid, "tid": tid, "ts": 0}
    return [
        common | {"name": f"{what}_name", "args": {"name": name}},
        common | {"name": f"{what}_sort_index", "args": {"sort_index": order}},
    ]


def _json(value: Any) -> Any:
    """What JavaScript's numbers do not hold becomes text."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return value if -_EXACT <= value <= _EXACT else str(value)  # not a number is in no range


def _us(nanoseconds: int) -> float:
    return nanoseconds / 1000


def _plain(text: str | tuple[str, ...]) -> str:
    return text if isinstance(text, str) else " ".join(text)


def _rows(batch: SpanColumns) -> Iterable[dict[str, Any]]:
    """The attributes of each span."""
    keys = [clean(each.key) for each in batch.attributes]
    columns = [column_of(each, len(batch)) for each in batch.attributes]
    if not columns:
        return ({} for _ in range(len(batch)))
    return (
        {key: value for key, value in zip(keys, row, strict=True) if value is not None}
        for row in zip(*columns, strict=True)
    )
