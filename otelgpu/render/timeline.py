"""Spans and samples as a timeline in Chrome's trace format, for https://ui.perfetto.dev and chrome://tracing. Pure.

In: spans in columns, profiles with times. Out: JSON. Kernels are tied to their launches by flows.

Source: "Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
(X: complete, i: instant, b and e: asynchronous, M: metadata, s and f: flow), as
https://perfetto.dev/docs/faq#json reads it. Times are microseconds after ``begin_unix_ns``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from otelgpu.engine.presentation import TrackGroup
from otelgpu.model.profiles import ProfileColumns
from otelgpu.model.spans import SpanColumns
from otelgpu.render.page_columns import clean
from otelgpu.render.timeline_tracks import Event, Lane, Tracks


def timeline(spans: Sequence[SpanColumns], profiles: Sequence[ProfileColumns] = ()) -> bytes:
    """The file's bytes."""
    tracks = Tracks()
    for batch in spans:
        tracks.take_spans(batch)
    shown = tracks.take_samples(profiles)
    begin = tracks.begin
    events: list[dict[str, Any]] = []
    for order, (pid, name) in enumerate(sorted(tracks.processes.items())):
        events += named("process", pid, 0, clean(name), order)
    for lane in tracks.lanes():
        events += on_lane(lane, begin)
    for identity, (call, work) in enumerate(tracks.caused(), 1):
        events += flow(call, work, begin, identity, "launch")
    facts = {
        "begin_unix_ns": str(begin),
        "tool": "otelgpu",
        "samples_shown": shown,
        "samples_left_out": sum(map(len, profiles)) - shown,
        "events_without_room": tracks.without_room,
    }
    return msgspec.json.encode({"traceEvents": events, "displayTimeUnit": "ns", "otherData": facts})


def on_lane(lane: Lane, begin: int) -> Iterator[dict[str, Any]]:
    """A lane's name and events."""
    yield from named("thread", lane.pid, lane.number, lane.name, lane.order)
    if lane.group is not TrackGroup.APART:
        yield from (_event(each, begin) for each in lane.events)
        return
    for identity, event in enumerate(lane.events):  # begin and end of each, for which viewers find room
        common = {
            "name": event.name,
            "cat": event.category,
            "id": identity,
            "pid": event.pid,
            "tid": event.tid,
        }
        yield common | {"ph": "b", "ts": _us(event.start - begin), "args": event.args}
        yield common | {"ph": "e", "ts": _us(event.end - begin)}


def flow(call: Event, work: Event, begin: int, identity: int, name: str) -> Iterator[dict[str, Any]]:
    """An arrow from a call to the work that it caused, where both have room; the work's clock is another one."""
    if call.start > work.start or not call.tid or not work.tid:
        return
    common = {"name": name, "cat": name, "id": identity}
    yield common | {"ph": "s", "pid": call.pid, "tid": call.tid, "ts": _us(call.start - begin)}
    yield common | {"ph": "f", "bp": "e", "pid": work.pid, "tid": work.tid, "ts": _us(work.start - begin)}


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


def named(what: str, pid: int, tid: int, name: str, order: int) -> list[dict[str, Any]]:
    """Metadata of a process or thread."""
    common = {"ph": "M", "pid": pid, "tid": tid, "ts": 0}
    return [
        common | {"name": f"{what}_name", "args": {"name": name}},
        common | {"name": f"{what}_sort_index", "args": {"sort_index": order}},
    ]


def _us(nanoseconds: int) -> float:
    return nanoseconds / 1000
