"""How what a family exports is shown: in ``otelgpu top``, on the console, in timelines and in the viewer.

A family has these in a module ``presentation.py`` of its folder, as ``PRESENTATION``. What shows things reads
:func:`presentations` and names no family, so that a new one appears everywhere with no edit. The modules are
imported when something is shown, not by an agent that shows nothing.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from enum import Enum, IntEnum
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from msgspec import Struct, field

from otelgpu.engine.viewer import ViewerPart

_FAMILIES: Final = "otelgpu.families"
_LEVELS: Final = 2  # as the registry has it: a subject, or a folder in one

Labels = Mapping[str, str | int]
Reported = Mapping[str, Any]
"""A span's attributes."""


# -- otelgpu top -------------------------------------------------------------------------------------


class Unit(Enum):
    """How a value is written."""

    TEXT = "text"
    COUNT = "count"
    BYTES = "bytes"
    SECONDS = "seconds"
    SHARE = "share"


class How(Enum):
    """How a column comes of its metric's series in a row."""

    RATE = "rate"  # growth a second: of a histogram, its measurements
    SUM_RATE = "sum_rate"  # growth a second of a histogram's sum
    TOTAL = "total"  # as it stands, added up
    MEAN = "mean"  # of a histogram's new measurements; of levels, as they stand
    P50 = "p50"
    P99 = "p99"
    LABEL = "label"  # the text of a label, of a series that stands at 1
    WORST = "worst"  # the label whose new measurements have the largest mean
    OBSERVED = "observed"  # no metric: what is read of the process itself, by the column's key


class Column(Struct, frozen=True, kw_only=True):
    """``metrics``: the first of them that a row has. ``where``: only series with these labels.

    ``without``: not those. ``having``: only series that have this label. ``label``: for :attr:`How.LABEL` and
    :attr:`How.WORST`. ``alarming``: above zero something went wrong.
    """

    key: str
    title: str
    how: How
    metrics: tuple[str, ...]
    unit: Unit = Unit.COUNT
    where: Labels = field(default_factory=dict)
    without: Labels = field(default_factory=dict)
    having: str = ""
    label: str = ""
    alarming: bool = False


class TopTable(Struct, frozen=True, kw_only=True):
    """One table. ``keys``: label of a series, or attribute of its resource → (column, title)."""

    name: str
    title: str
    keys: Mapping[str, tuple[str, str]]
    columns: tuple[Column, ...]
    sort: str


OF_PROCESS: Final = {"service.name": ("service", "service"), "process.pid": ("pid", "pid")}
"""Keys of a table that has a row for each process."""


PROCESSES: Final = "processes"
"""The view of processes, and its one table; made in :mod:`otelgpu.engine.top_views`, as the next."""
AGENT: Final = "agent"
"""The view of this program itself, and the table of what it costs."""
LOSSES: Final = "losses"
"""The table of what was lost, in that view."""


def rate(key: str, title: str, *metrics: str, unit: Unit = Unit.COUNT, **more: Any) -> Column:
    """A column of what a counter grows by a second."""
    return Column(key=key, title=title, how=How.RATE, metrics=metrics, unit=unit, **more)


class TopView(Struct, frozen=True, kw_only=True):
    """What ``otelgpu top NAME`` shows. ``families``: those that it is made of, by their names.

    ``rank``: views are listed by it (:mod:`otelgpu.engine.top_views`).
    """

    name: str
    title: str
    top_tables: tuple[TopTable, ...]
    families: tuple[str, ...]
    rank: int = 10


class ProcessColumns(Struct, frozen=True, kw_only=True):
    """What a family adds to the view of processes, whose rows have the keys :data:`OF_PROCESS`."""

    columns: tuple[Column, ...]
    families: tuple[str, ...] = ()
    rank: int = 10


# -- Console -----------------------------------------------------------------------------------------


class ConsoleLabel(Struct, frozen=True, kw_only=True):
    """An attribute that stands behind a span's name, as ``text`` with its value in ``unit`` for ``{}``."""

    key: str
    text: str = "{}"
    unit: Unit = Unit.TEXT


# -- Timelines ---------------------------------------------------------------------------------------


class TrackGroup(IntEnum):
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


class TrackRule(Struct, frozen=True, kw_only=True):
    """Spans of ``scopes``, or with ``attribute``, are on tracks of their own.

    ``track``: what says a span's track from others of its place, and its name. Of rules that fit a span, the
    one with the least ``rank``.
    """

    group: TrackGroup
    track: Callable[[Reported], tuple[Hashable, str]]
    scopes: frozenset[str] = frozenset()
    attribute: str = ""
    rank: int = 10

    def fits(self, scope: str, reported: Reported) -> bool:
        """Whether a span of that scope, with those attributes, is meant."""
        return scope in self.scopes or (self.attribute != "" and self.attribute in reported)


class DeviceNames(Struct, frozen=True, kw_only=True):
    """Attributes by which a timeline knows the host calls of a device's API, and the work that they caused.

    ``directions``: value of ``direction`` → that of Kineto's, ``HtoD``.
    """

    # Of host calls.
    api: str
    stream: str
    size: str
    direction: str
    shared_memory: str
    grid: tuple[str, str, str]
    block: tuple[str, str, str]
    # Of work on the device.
    correlation: str
    device: str
    work_stream: str
    delay: str  # seconds from its host call's begin to the work's
    kernel: str
    graph: tuple[str, ...]
    directions: Mapping[str, str]


def device_names(vendor: str, directions: Mapping[str, str]) -> DeviceNames:
    """Those of an API whose attributes are ``cuda.stream``, or ``hip.stream``, and so on."""
    x, y, z = "xyz"
    return DeviceNames(
        api=f"{vendor}.api",
        stream=f"{vendor}.stream",
        size=f"{vendor}.size",
        direction=f"{vendor}.memcpy.kind",
        shared_memory=f"{vendor}.shared_memory.size",
        grid=(f"{vendor}.grid.{x}", f"{vendor}.grid.{y}", f"{vendor}.grid.{z}"),
        block=(f"{vendor}.block.{x}", f"{vendor}.block.{y}", f"{vendor}.block.{z}"),
        correlation=f"{vendor}.correlation.id",
        device=f"{vendor}.device.index",
        work_stream=f"{vendor}.stream.id",
        delay=f"{vendor}.call.delay",
        kernel=f"{vendor}.kernel.name",
        graph=(f"{vendor}.graph.id", f"{vendor}.graph.node"),
        directions=directions,
    )


def stream_rule(names: DeviceNames) -> TrackRule:
    """Work on a device, on a track for each of its streams."""

    def track(reported: Reported) -> tuple[Hashable, str]:
        device = reported.get(names.device, 0)
        stream = reported.get(names.work_stream, reported.get(names.stream, 0))
        return (device, stream), f"GPU {device} stream {stream}"

    return TrackRule(group=TrackGroup.STREAM, attribute=names.correlation, track=track, rank=3)


class CollectiveNames(Struct, frozen=True, kw_only=True):
    """Attributes of a communication library's calls. ``enqueue``: value of ``phase`` of a host call's span."""

    library: str
    phase: str
    enqueue: str
    operation: str
    rank: str
    ranks: str


# -- All of it ---------------------------------------------------------------------------------------


class Presentation(Struct, frozen=True, kw_only=True):
    """One family's. What it has none of is left out. ``step_number``: attribute of a step that says which it is."""

    views: tuple[TopView, ...] = ()
    process_columns: ProcessColumns | None = None
    labels: tuple[ConsoleLabel, ...] = ()
    tracks: tuple[TrackRule, ...] = ()
    device: DeviceNames | None = None
    collectives: CollectiveNames | None = None
    step_number: str = ""
    viewer: ViewerPart | None = None


@cache
def presentations() -> tuple[Presentation, ...]:
    """Those of all families, in alphabetical order of their folders."""
    found: list[Presentation] = []
    for package in _packages(_FAMILIES, _LEVELS):
        if find_spec(f"{package}.presentation") is not None:
            found.append(import_module(f"{package}.presentation").PRESENTATION)
    return tuple(found)


def _packages(parent: str, levels: int) -> Iterator[str]:
    path: Iterable[str] = import_module(parent).__path__
    for module in sorted(pkgutil.iter_modules(path), key=lambda module: module.name):
        if module.ispkg:
            name = f"{parent}.{module.name}"
            yield name
            if levels > 1:
                yield from _packages(name, levels - 1)


@cache
def console_labels() -> Sequence[ConsoleLabel]:
    """Labels of all families."""
    return [label for each in presentations() for label in each.labels]


@cache
def track_rules() -> Sequence[TrackRule]:
    """Rules of all families in the order in which they are tried."""
    return sorted((rule for each in presentations() for rule in each.tracks), key=lambda rule: rule.rank)


@cache
def device_apis() -> Sequence[DeviceNames]:
    """The devices' APIs that there are families for."""
    return [each.device for each in presentations() if each.device is not None]


@cache
def communication_libraries() -> Sequence[CollectiveNames]:
    """The communication libraries that there are families for."""
    return [each.collectives for each in presentations() if each.collectives is not None]


@cache
def step_numbers() -> Sequence[str]:
    """Attributes that say which step a step is."""
    return list(dict.fromkeys(each.step_number for each in presentations() if each.step_number))
