"""Spans and samples on tracks: what a timeline shows in which row, and which host call caused what on a device. Pure.

In: spans in columns, profiles with times. Out: tracks with events, for a format to write. Each process has tracks for
requests and steps, then one for each thread, stream of a device, communicator and queue pair. Events of a track that
overlap without one holding the other go to a further lane of it, for viewers need them nested.

Which spans are on which tracks, the families say (:mod:`otelgpu.engine.presentation`). Work on a device says how long
before it its host call began (``cuda.call.delay``): the call that began then on the
work's thread is its cause, or the run of equal calls that one span stands for and that was under way then.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Final

from msgspec import Struct, field

from otelgpu.engine.presentation import TrackGroup, device_apis, track_rules
from otelgpu.model.profiles import ProfileColumns
from otelgpu.model.resource import Resource
from otelgpu.model.spans import SpanColumns, SpanKind
from otelgpu.render.frames import process_frame
from otelgpu.render.page_columns import clean
from otelgpu.render.timeline_samples import Shown, column_of, observed

MOST_LANES: Final = 64
"""Of a track: what finds none is counted."""

FIRST_TRACK: Final = 5_000_000
"""Tracks that are no threads have numbers above any thread's (pid_max is at most 4,194,304)."""

_EXACT: Final = 1 << 53


class Event(Struct):
    """What a track shows from ``start`` to ``end``; of samples without a length both are one time."""

    start: int  # nanoseconds of Unix time
    end: int
    name: str
    category: str
    args: dict[str, Any]
    pid: int = 0
    tid: int = 0


class Track(Struct):
    """``thread``: the number of the thread that it shows, 0 of others."""

    group: TrackGroup
    name: str
    thread: int = 0
    events: list[Event] = field(default_factory=list)


class Lane(Struct, frozen=True, kw_only=True):
    """What viewers call a thread: a track, or one of its lanes. ``number`` is unique within process ``pid``.

    ``events`` begin in order, and lie apart or within each other; those of `TrackGroup.APART` overlap as they like.
    """

    pid: int
    number: int
    name: str
    group: TrackGroup
    order: int
    events: list[Event]


class Tracks:
    """Puts events on tracks, and finds room for them. ``without_room``: events for which `lanes` found none."""

    def __init__(self) -> None:
        self.processes: dict[int, str] = {}  # by number
        self.without_room = 0
        self._owners: dict[Resource, int] = {}
        self._tracks: dict[tuple[int, TrackGroup, Any], Track] = {}
        self._calls: dict[tuple[int, Any], list[Event]] = defaultdict(list)
        self._works: list[tuple[tuple[int, Any], int, Event]] = []
        self._delays = [names.delay for names in device_apis()]
        self._streams = frozenset(names.stream for names in device_apis())

    @property
    def begin(self) -> int:
        """When the first event begins: nanoseconds of Unix time; 0 where there is none."""
        return min((each.start for track in self._tracks.values() for each in track.events), default=0)

    def _process(self, owner: Resource) -> int:
        pid = self._owners.get(owner)
        if pid is None:
            reported = owner.get("process.pid")
            pid = reported if isinstance(reported, int) and 0 < reported < 1 << 31 else 0
            name = process_frame(owner).name
            while self.processes.get(pid, name) != name:  # two hosts' processes of one number
                pid += 1 << 23
            self._owners[owner] = pid
            self.processes[pid] = name
        return pid

    def _track(self, pid: int, group: TrackGroup, key: Any, name: str, thread: int = 0) -> Track:
        return self._tracks.setdefault((pid, group, key), Track(group, name, thread))

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
            event.pid = pid
            self._track(pid, place, key, label, thread).events.append(event)
            who = pid, attributes.get("thread.id")
            delay = next((attributes[key] for key in self._delays if key in attributes), None)
            if isinstance(delay, int | float):
                self._works.append((who, event.start - round(delay * 1e9), event))
            elif place is TrackGroup.THREAD and not self._streams.isdisjoint(attributes):
                self._calls[who].append(event)

    def take_samples(self, profiles: Sequence[ProfileColumns]) -> int:
        """Observations that have times; how many of them are shown."""
        shown = 0
        for each in observed(profiles):
            shown += 1
            pid = self._process(each.owner)
            name = f"thread {each.thread}" if each.thread else "no thread"
            if each.thread_name:
                name = f"{each.thread_name} ({each.thread})"
            event = Event(each.start, each.end, each.name, each.kind, each.args, pid)
            if each.shown is Shown.APART:
                event.name = each.kind
                self._track(pid, TrackGroup.APART, each.kind, each.kind).events.append(event)
            elif each.shown is Shown.WAIT:
                event.name = f"{each.kind}: {each.name}"
                self._track(pid, TrackGroup.WAITS, each.thread, f"{name}: waits").events.append(event)
            else:
                track = self._track(pid, TrackGroup.THREAD, each.thread, name, each.thread)
                track.events.append(event)
                if each.thread_name:
                    track.name = name
        return shown

    def lanes(self) -> Iterator[Lane]:
        """All events, each with its lane's number; a lane after the other, of a process from top to bottom."""
        number = FIRST_TRACK
        tracks = sorted(self._tracks.items(), key=lambda item: (item[0][0], item[0][1], str(item[1].name)))
        for order, ((pid, group, _), track) in enumerate(tracks):
            track.events.sort(key=lambda event: (event.start, -event.end))
            filled = [track.events] if group is TrackGroup.APART else self._filled(track)
            for lane, events in enumerate(filled):
                own = track.thread if not lane else 0
                for event in events:
                    event.tid = own or number
                name = track.name if not lane else f"{track.name} ({lane + 1})"
                yield Lane(pid=pid, number=own or number, name=name, group=group, order=order, events=events)
                number += not own

    def _filled(self, track: Track) -> list[list[Event]]:
        ends: list[list[int]] = []
        filled: list[list[Event]] = []
        for event in track.events:
            lane = _lane(ends, event)
            if lane < 0:
                self.without_room += 1
                continue
            if lane == len(filled):
                filled.append([])
            filled[lane].append(event)
        return filled

    def caused(self) -> Iterator[tuple[Event, Event]]:
        """(host call, work on a device) where the call has a span."""
        for calls in self._calls.values():
            calls.sort(key=attrgetter("start"))
        for who, called, work in self._works:
            calls = self._calls.get(who, [])
            place = bisect_right(calls, called, key=attrgetter("start")) - 1
            if place < 0:
                continue
            call = calls[place]
            if call.start == called or ("otelgpu.count" in call.args and called <= call.end):
                yield call, work


def _placed(batch: SpanColumns, reported: dict[str, Any]) -> tuple[TrackGroup, Any, str, int]:
    """The track of a span: its kind, what distinguishes it, its name, and the thread's number if it is one."""
    if batch.kind is SpanKind.SERVER:
        return TrackGroup.REQUESTS, "", "requests", 0
    for rule in track_rules():
        if rule.fits(batch.scope, reported):
            key, name = rule.track(reported)
            return rule.group, key, clean(name), 0
    thread = reported.get("thread.id")
    if isinstance(thread, int) and 0 < thread < FIRST_TRACK:
        return TrackGroup.THREAD, thread, f"thread {thread}", thread
    return TrackGroup.OTHER, batch.scope, clean(batch.scope), 0


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


def _json(value: Any) -> Any:
    """What JavaScript's numbers do not hold becomes text."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return value if -_EXACT <= value <= _EXACT else str(value)  # not a number is in no range


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
