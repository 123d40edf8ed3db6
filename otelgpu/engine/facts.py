"""What handlers say to each other, through the engine: whoever emits a fact does not know who listens. Pure.

Everything that enters a session from outside is in :mod:`otelgpu.model.inputs`; these are made in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct

if TYPE_CHECKING:
    from otelgpu.engine.folding import Parents
    from otelgpu.model.communicators import CommunicatorSeen
    from otelgpu.model.device_work import Activities, DeviceWork
    from otelgpu.model.engine_messages import EngineMessage
    from otelgpu.model.exchange import Exchange, Named, Opened, ThreadAssignment
    from otelgpu.model.files import FileCalls
    from otelgpu.model.handoffs import Handoff
    from otelgpu.model.operations import Operations
    from otelgpu.model.resource import Resource
    from otelgpu.model.samples import Samples
    from otelgpu.model.settings import Detail, SignalSettings
    from otelgpu.model.tasks import TaskService


class TrafficParsed(Struct, frozen=True, kw_only=True):
    """What was parsed on connections. Assignments are in the order of the records that caused them."""

    assignments: Sequence[ThreadAssignment] = ()
    exchanges: Sequence[Exchange] = ()  # that ended
    opened: Sequence[Opened] = ()  # that began, each once its head is known
    shed: Sequence[int] = ()  # keys of exchanges that were opened, and of which no more will be known
    named: Sequence[Named] = ()  # by which ids exchanges are known elsewhere
    tasks: Sequence[TaskService] = ()  # that serve requests, in the order in which it was learnt
    messages: Sequence[EngineMessage] = ()  # of engine processes to each other, in order of time per thread


class HandedOff(Struct, frozen=True):
    """Work that threads gave each other, in order."""

    handoffs: Sequence[Handoff]


class CommunicatorsSeen(Struct, frozen=True):
    """What was learnt of communicators, in order."""

    seen: Sequence[CommunicatorSeen]


class DeviceActivities(Struct, frozen=True):
    """Activities as devices measured them, before their host calls are known."""

    rows: Activities


class DeviceActivityNames(Struct, frozen=True):
    """Pieces of names that activities refer to by number: records of ``struct *_activity_name``."""

    records: npt.NDArray[np.void]


class CallsArrived(Struct, frozen=True):
    """New operations of one family, before launches are given their names, which lie where correlation ids do."""

    rows: Operations


class CallsNamed(Struct, frozen=True):
    """The same, with the names of kernels. Whoever keeps rows copies them."""

    rows: Operations


class CallsCorrelated(Struct, frozen=True):
    """Host calls of processes that measure devices, with what their records say of activities: shape (n,)."""

    rows: Operations
    correlations: npt.NDArray[np.uint64]


class DeviceWorkJoined(Struct, frozen=True):
    """Device work whose host call is known."""

    work: DeviceWork


class FilesCalled(Struct, frozen=True):
    """Calls on files that took long."""

    calls: FileCalls


class StretchesSeen(Struct, frozen=True):
    """What threads did for a while, of kind STRETCH: shape (n,)."""

    rows: Operations


class Sampled(Struct, frozen=True):
    """Samples of where threads were; ``name_of`` names the file or device of a sample by kind and number."""

    samples: Samples
    name_of: Callable[[int, int], str]


class RequestsAnswered(Struct, frozen=True, kw_only=True):
    """m requests whose spans are reported now. ``parents`` has a row for each slot of each request."""

    exchanges: Sequence[Exchange]
    boundary: npt.NDArray[np.uint64]  # where their phases part
    with_work: npt.NDArray[np.bool_]  # (m,): whether operations are reported under them
    parents: Parents


class RequestsGivenUp(Struct, frozen=True):
    """Requests that will not be answered any more."""

    keys: Sequence[int]


class EngineStep(NamedTuple):
    """A step of a serving engine of which no more will be known. Times are CLOCK_MONOTONIC."""

    tgid: int
    start_ns: int
    end_ns: int
    members: tuple[tuple[int, int], ...]
    """Exchange (0: none is known) and the tokens that were worked on for it; () where not all of them are known."""


class EngineStepsEnded(Struct, frozen=True):
    """In no order."""

    steps: Sequence[EngineStep]


class CallsOwned(Struct, frozen=True):
    """Operations and the requests that they were made for, by key: both of shape (n,)."""

    rows: Operations
    owners: npt.NDArray[np.int64]


class ProcessDescribed(Struct, frozen=True, kw_only=True):
    """More is known of the same program."""

    before: Resource | None
    after: Resource


class ProgramReplaced(Struct, frozen=True, kw_only=True):
    """A process began another program: what the one before held is free."""

    tgid: int
    time_ns: int


class ProcessForgotten(Struct, frozen=True):
    """A while after its end: what still came of a process is forgotten, too."""

    tgid: int


class SettingsChanged(Struct, frozen=True, kw_only=True):
    """From the next tick on. ``limit``: operation spans under one parent."""

    settings: SignalSettings
    limit: int


class DetailRaised(Struct, frozen=True):
    """Processes whose calls are reported in more detail than the others', from here on; all of them, by number."""

    levels: Mapping[int, Detail]


class TickBegins(Struct, frozen=True):
    """After processes ended, and before operations are decoded: what these are joined with must be there.

    Only to those whose turn it is. ``final``: it is the last, and to all of them.
    """

    final: bool
