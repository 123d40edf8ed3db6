"""Spans and samples as PyTorch's profiler writes them, for its TensorBoard plug-in and Holistic Trace Analysis. Pure.

In: spans in columns, profiles with times. Out: JSON in the layout of Kineto: Chrome's trace format, as `timeline` has
it, in which the categories, arguments and numbers of some events have meanings:

* work on devices is ``kernel``, ``gpu_memcpy`` or ``gpu_memset``; its process is the device's ordinal, its thread the
  stream; arguments say ``device``, ``stream``, ``correlation``, and of kernels ``grid`` and ``block`` as launched;
* host calls are ``cuda_runtime`` or ``cuda_driver``, with the ``correlation`` of the first work that they caused;
* a step is a ``user_annotation`` ``ProfilerStep#N``; where no step was seen the whole time is step 0, for what reads
  the file counts nothing outside of steps;
* a collective call is a ``user_annotation`` ``nccl:all_reduce``, a request and all else one by its own name.

Source: pytorch/kineto at 114171d, ``libkineto/src/output_json.cpp`` (layout), ``CuptiActivity.cpp`` (arguments) and
``ActivityType.h`` (categories); torch-tb-profiler 0.4.3 and HolisticTraceAnalysis 0.5.0 read it.
"""

from __future__ import annotations

import gzip
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import count
from operator import attrgetter
from typing import Any, Final

import msgspec

from otelgpu.model.profiles import ProfileColumns
from otelgpu.model.spans import SpanColumns
from otelgpu.render.flame_graph import clean
from otelgpu.render.timeline import flow, named, on_lane
from otelgpu.render.timeline_tracks import Event, Lane, Place, Tracks

_SCHEMA: Final = 1
_ANNOTATION: Final = "user_annotation"
_EXTERNAL: Final = "External id"
_SAMPLE: Final = "cpu_instant_event"
_OF_WORK: Final = ("correlation", "grid", "block", "shared memory")
_KEPT: Final = ("trace_id", "span_id", _EXTERNAL, "error.type", "cuda.graph.id", "cuda.graph.node")
"""Of host calls and of work, what else is told."""

_STREAMS: Final = 1_000_000
"""Streams of one device have numbers below this; those of a further process on it are this apart."""

_DEVICES_ORDER: Final = 5_000_000  # devices are below all host processes
_WINDOW: Final = "PyTorch Profiler (0)"  # the name by which readers find the time that was recorded
_DIRECTIONS: Final = {
    "MemcpyHostToHost": "HtoH",
    "MemcpyHostToDevice": "HtoD",
    "MemcpyDeviceToHost": "DtoH",
    "MemcpyDeviceToDevice": "DtoD",
}


def kineto(
    spans: Sequence[SpanColumns], profiles: Sequence[ProfileColumns] = (), *, title: str = ""
) -> bytes:
    """The file's bytes."""
    tracks = Tracks()
    for batch in spans:
        tracks.take_spans(batch)
    shown = tracks.take_samples(profiles)
    begin = tracks.begin
    caused = list(tracks.caused())
    lanes = list(tracks.lanes())
    _correlate(lanes, caused)
    _tie_to_collectives(lanes, caused)
    streams = _Streams()
    for lane in lanes:
        for event in lane.events:
            _adapt(event, lane, streams)
    events = [event for lane in lanes for event in _written(lane, begin)]
    for order, (pid, name) in enumerate(sorted(tracks.processes.items())):
        events += named("process", pid, 0, clean(name), order)
    events += streams.described()
    for identity, (call, work) in enumerate(caused, 1):
        events += flow(call, work, begin, identity, "ac2g")
    end = max((event.end for lane in lanes for event in lane.events), default=begin)
    if not any(event.name.startswith("ProfilerStep#") for lane in lanes for event in lane.events):
        events.append(_whole("ProfilerStep#0", _ANNOTATION, min(tracks.processes, default=0), 0, end - begin))
    events.append(_whole(_WINDOW, "Trace", "Spans", "PyTorch Profiler", end - begin))
    return msgspec.json.encode(
        {
            "schemaVersion": _SCHEMA,
            "deviceProperties": [{"id": device} for device in streams.devices],
            **_distributed(spans),
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": begin,
            "otelgpu": {
                "samples_shown": shown,
                "samples_left_out": sum(map(len, profiles)) - shown,
                "events_without_room": tracks.without_room,
            },
            "traceEvents": events,
            "traceName": clean(title),
        }
    )


def kineto_gz(
    spans: Sequence[SpanColumns], profiles: Sequence[ProfileColumns] = (), *, title: str = ""
) -> bytes:
    """The same, compressed."""
    return gzip.compress(kineto(spans, profiles, title=title), compresslevel=6, mtime=0)


def _correlate(lanes: Sequence[Lane], caused: Sequence[tuple[Event, Event]]) -> None:
    """Give work, and the calls that caused it, numbers that no other process's have."""
    numbers: dict[tuple[int, Any], int] = {}
    for lane in lanes:
        if lane.place is Place.STREAM:
            for event in lane.events:
                key = lane.pid, event.args.get("cuda.correlation.id")
                event.args["correlation"] = numbers.setdefault(key, len(numbers) + 1)
    for call, work in caused:
        call.args.setdefault("correlation", work.args["correlation"])
        for name in ("grid", "block"):
            sides = [call.args.get(f"cuda.{name}.{axis}") for axis in "xyz"]
            if None not in sides:
                work.args[name] = sides
        for told, name in (("cuda.shared_memory.size", "shared memory"), ("cuda.memcpy.kind", "kind")):
            if told in call.args:
                work.args[name] = call.args[told]
        if not work.args.get("cuda.size") and "otelgpu.count" not in call.args:
            work.args["cuda.size"] = call.args.get("cuda.size", 0)


def _tie_to_collectives(lanes: Sequence[Lane], caused: Sequence[tuple[Event, Event]]) -> None:
    """Give collective calls numbers, and the same to work that a call caused within one: its time is communication."""
    made: dict[tuple[int, Any], list[Event]] = defaultdict(list)
    for lane in lanes:
        for event in lane.events:
            if event.args.get("nccl.phase") == "enqueue":
                made[event.pid, event.args.get("thread.id")].append(event)
    numbers = count(1)
    for events in made.values():
        events.sort(key=attrgetter("start"))
        for event in events:
            event.args[_EXTERNAL] = next(numbers)
    for call, work in caused:
        events = made.get((call.pid, call.args.get("thread.id")), [])
        place = bisect_right(events, call.start, key=attrgetter("start")) - 1
        if place >= 0 and call.end <= events[place].end:
            call.args[_EXTERNAL] = work.args[_EXTERNAL] = events[place].args[_EXTERNAL]


class _Streams:
    """Which process and thread of the file a stream of a device is."""

    def __init__(self) -> None:
        self._owners: dict[int, list[int]] = {}  # device → processes that use it
        self._threads: dict[tuple[int, int], str] = {}

    @property
    def devices(self) -> list[int]:
        return sorted(self._owners)

    def place(self, device: int, stream: int, lane: Lane) -> int:
        """The thread's number."""
        owners = self._owners.setdefault(device, [])
        if lane.pid not in owners:
            owners.append(lane.pid)
        number = owners.index(lane.pid) * _STREAMS + stream % _STREAMS
        self._threads.setdefault((device, number), f"stream {stream}")
        return number

    def described(self) -> Iterator[dict[str, Any]]:
        """The names of all."""
        for device in self.devices:
            common = {"ph": "M", "ts": 0, "pid": device, "tid": 0}
            yield common | {"name": "process_labels", "args": {"labels": f"GPU {device}"}}
            yield from named("process", device, 0, f"GPU {device}", _DEVICES_ORDER + device)
        for order, ((device, number), name) in enumerate(sorted(self._threads.items())):
            yield from named("thread", device, number, name, order)


def _adapt(event: Event, lane: Lane, streams: _Streams) -> None:
    """Name, category, place and arguments as Kineto has them."""
    args = event.args
    if lane.place is Place.STREAM:
        device, stream = _number(args.get("cuda.device.index")), _number(args.get("cuda.stream.id"))
        told: dict[str, Any] = {
            key: args[key] for key in ("correlation", "grid", "block", "shared memory") if key in args
        }
        if kernel := args.get("cuda.kernel.name"):
            event.name, event.category = kernel, "kernel"
        else:
            told["bytes"] = size = _number(args.get("cuda.size"))
            if event.end > event.start:
                told["memory bandwidth (GB/s)"] = size / (event.end - event.start)
            event.category = "gpu_memcpy" if event.name == "memcpy" else "gpu_memset"
            event.name = f"Memcpy {_DIRECTIONS.get(args.get('kind', ''), 'Unknown')}"
            if event.category == "gpu_memset":
                event.name = "Memset (Device)"
        event.pid, event.tid = device, streams.place(device, stream, lane)
        event.args = {"device": device, "stream": stream} | told | _kept(args)
    elif "cuda.api" in args:
        event.name, event.category = event.name.partition(" ")[0], f"cuda_{args['cuda.api']}"
        event.args = {key: args[key] for key in ("correlation",) if key in args} | _kept(args)
    elif lane.place is Place.STEPS and isinstance(args.get("otelgpu.step.number"), int):
        event.name, event.category = f"ProfilerStep#{args['otelgpu.step.number']}", _ANNOTATION
    elif args.get("nccl.phase") == "enqueue":
        words = re.findall("[A-Z][a-z]*", str(args.get("nccl.operation", "")))
        event.name, event.category = "nccl:" + "_".join(words).lower(), _ANNOTATION
    elif "stack" in args:
        event.category = _SAMPLE
    else:
        event.category = _ANNOTATION


def _kept(args: dict[str, Any]) -> dict[str, Any]:
    return {key: args[key] for key in _KEPT if key in args}


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _written(lane: Lane, begin: int) -> Iterator[dict[str, Any]]:
    events = on_lane(lane, begin)
    if lane.place is Place.STREAM:  # named as the device's
        return (event for event in events if event["ph"] != "M")
    return events


def _whole(name: str, category: str, pid: int | str, tid: int | str, length_ns: int) -> dict[str, Any]:
    """An event from the beginning to the end."""
    common = {"ph": "X", "name": name, "cat": category, "pid": pid, "tid": tid}
    return common | {"ts": 0.0, "dur": length_ns / 1000, "args": {}}


def _distributed(spans: Sequence[SpanColumns]) -> dict[str, Any]:
    """The rank that the file is of, where it is of one rank of a communicator."""
    found = set()
    for batch in spans:
        columns = {each.key: each for each in batch.attributes}
        if {"nccl.rank", "nccl.communicator.ranks"} <= columns.keys():
            ranks, sizes = (columns[key].values.tolist() for key in ("nccl.rank", "nccl.communicator.ranks"))  # type: ignore[union-attr]
            found |= set(zip(ranks, sizes, strict=True))
    largest = {(rank, size) for rank, size in found if size == max(size for _, size in found)}
    if len(largest) != 1:
        return {}
    ((rank, size),) = largest
    return {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": size}}
