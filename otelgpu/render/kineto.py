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
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from operator import attrgetter
from typing import Any, Final

import msgspec

from otelgpu.engine.names import COUNT, ERROR_TYPE
from otelgpu.engine.presentation import (
    CollectiveNames,
    DeviceNames,
    TrackGroup,
    communication_libraries,
    device_apis,
    step_numbers,
)
from otelgpu.model.profiles import ProfileColumns
from otelgpu.model.spans import SpanColumns
from otelgpu.render.page_columns import clean
from otelgpu.render.timeline import flow, named, on_lane
from otelgpu.render.timeline_tracks import Event, Lane, Tracks

_SCHEMA: Final = 1
_API: Final = "cuda"
"""Kineto's categories of host calls begin with it, whoever made the device: its HIP calls are ``cuda_runtime`` too."""
_ANNOTATION: Final = "user_annotation"
_EXTERNAL: Final = "External id"
_SAMPLE: Final = "cpu_instant_event"
_KEPT: Final = ("trace_id", "span_id", _EXTERNAL, ERROR_TYPE)
"""Of host calls and of work, what else is reported."""

_STREAMS: Final = 1_000_000
"""Streams of one device have numbers below this; those of a further process on it are this apart."""

_DEVICES_ORDER: Final = 5_000_000  # devices are below all host processes
_WINDOW: Final = "PyTorch Profiler (0)"  # the name by which readers find the time that was recorded


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
        if lane.group is TrackGroup.STREAM:
            for event in lane.events:
                key = lane.pid, _first(event.args, [names.correlation for names in device_apis()])
                event.args["correlation"] = numbers.setdefault(key, len(numbers) + 1)
    for call, work in caused:
        call.args.setdefault("correlation", work.args["correlation"])
        names = _device_of(work.args)
        if names is None:
            continue
        for name, keys in (("grid", names.grid), ("block", names.block)):
            sizes = [call.args.get(key) for key in keys]
            if None not in sizes:
                work.args[name] = sizes
        for reported, name in ((names.shared_memory, "shared memory"), (names.direction, "kind")):
            if reported in call.args:
                work.args[name] = call.args[reported]
        if not work.args.get(names.size) and COUNT not in call.args:
            work.args[names.size] = call.args.get(names.size, 0)


def _first(args: dict[str, Any], keys: Iterable[str]) -> Any:
    return next((args[key] for key in keys if key in args), None)


def _device_of(args: dict[str, Any]) -> DeviceNames | None:
    """The API whose names a span's attributes have, of work or of a host call."""
    return next((names for names in device_apis() if names.correlation in args or names.api in args), None)


def _collective_of(args: dict[str, Any]) -> CollectiveNames | None:
    """The library whose host call of a collective a span is; None of all others."""
    libraries = communication_libraries()
    return next((names for names in libraries if args.get(names.phase) == names.enqueue), None)


def _tie_to_collectives(lanes: Sequence[Lane], caused: Sequence[tuple[Event, Event]]) -> None:
    """Give collective calls numbers, and the same to work that a call caused within one: its time is communication."""
    made: dict[tuple[int, Any], list[Event]] = defaultdict(list)
    for lane in lanes:
        for event in lane.events:
            if _collective_of(event.args) is not None:
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
    names, collective = _device_of(args), _collective_of(args)
    if lane.group is TrackGroup.STREAM and names is not None:
        device, stream = _number(args.get(names.device)), _number(args.get(names.work_stream))
        reported: dict[str, Any] = {
            key: args[key] for key in ("correlation", "grid", "block", "shared memory") if key in args
        }
        if kernel := args.get(names.kernel):
            event.name, event.category = kernel, "kernel"
        else:
            reported["bytes"] = size = _number(args.get(names.size))
            if event.end > event.start:
                reported["memory bandwidth (GB/s)"] = size / (event.end - event.start)
            event.category = "gpu_memcpy" if event.name == "memcpy" else "gpu_memset"
            event.name = f"Memcpy {names.directions.get(args.get('kind', ''), 'Unknown')}"
            if event.category == "gpu_memset":
                event.name = "Memset (Device)"
        event.pid, event.tid = device, streams.place(device, stream, lane)
        event.args = {"device": device, "stream": stream} | reported | _kept(args, names)
    elif names is not None and names.api in args:
        event.name, event.category = event.name.partition(" ")[0], f"{_API}_{args[names.api]}"
        event.args = {key: args[key] for key in ("correlation",) if key in args} | _kept(args, names)
    elif lane.group is TrackGroup.STEPS and isinstance(number := _first(args, step_numbers()), int):
        event.name, event.category = f"ProfilerStep#{number}", _ANNOTATION
    elif collective is not None:
        words = re.findall("[A-Z][a-z]*", str(args.get(collective.operation, "")))
        event.name, event.category = f"{collective.library}:" + "_".join(words).lower(), _ANNOTATION
    elif "stack" in args:
        event.category = _SAMPLE
    else:
        event.category = _ANNOTATION


def _kept(args: dict[str, Any], names: DeviceNames) -> dict[str, Any]:
    return {key: args[key] for key in (*_KEPT, *names.graph) if key in args}


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _written(lane: Lane, begin: int) -> Iterator[dict[str, Any]]:
    events = on_lane(lane, begin)
    if lane.group is TrackGroup.STREAM:  # named as the device's
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
        for names in communication_libraries():
            if {names.rank, names.ranks} <= columns.keys():
                ranks, sizes = (columns[key].values.tolist() for key in (names.rank, names.ranks))  # type: ignore[union-attr]
                found |= {(rank, size, names.library) for rank, size in zip(ranks, sizes, strict=True)}
    largest = {one for one in found if one[1] == max(size for _, size, _ in found)}
    if len(largest) != 1:
        return {}
    ((rank, size, library),) = largest
    return {"distributedInfo": {"backend": library, "rank": rank, "world_size": size}}
