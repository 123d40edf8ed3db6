"""What handlers say to each other, through the engine: whoever emits a fact does not know who listens. Pure.

Everything that enters a session from outside is in :mod:`otelgpu.model.inputs`; these are made in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from otelgpu.engine.operation_spans import Parents
    from otelgpu.model.communicators import CommunicatorSeen
    from otelgpu.model.device_work import Activities, DeviceWork
    from otelgpu.model.engine_messages import EngineMessage
    from otelgpu.model.exchange import Exchange, Named, Opened, ThreadAssignment
    from otelgpu.model.files import FileCalls
    from otelgpu.model.handoffs import Handoff
    from otelgpu.model.operations import Operations
    from otelgpu.model.resource import Resource
    from otelgpu.model.samples import Samples
    from otelgpu.model.settings import SignalSettings
    from otelgpu.model.tasks import TaskService


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficParsed:
    """What was parsed on connections. Assignments are in the order of the records that caused them."""

    assignments: Sequence[ThreadAssignment] = ()
    exchanges: Sequence[Exchange] = ()  # that ended
    opened: Sequence[Opened] = ()  # that began, each once its head is known
    shed: Sequence[int] = ()  # keys of exchanges that were opened, and of which no more will be known
    named: Sequence[Named] = ()  # by which ids exchanges are known elsewhere
    tasks: Sequence[TaskService] = ()  # that serve requests, in the order in which it was learnt
    messages: Sequence[EngineMessage] = ()  # of engine processes to each other, in order of time per thread


@dataclass(frozen=True, slots=True)
class HandedOff:
    """Work that threads gave each other, in order."""

    handoffs: Sequence[Handoff]


@dataclass(frozen=True, slots=True)
class CommunicatorsSeen:
    """What was learnt of communicators, in order."""

    seen: Sequence[CommunicatorSeen]


@dataclass(frozen=True, slots=True)
class DeviceActivities:
    """Activities as devices measured them, before their host calls are known."""

    rows: Activities


@dataclass(frozen=True, slots=True)
class DeviceActivityNames:
    """Pieces of names that activities refer to by number: records of ``struct *_activity_name``."""

    records: npt.NDArray[np.void]


@dataclass(frozen=True, slots=True)
class CallsArrived:
    """New operations of one family, before launches are given their names, which lie where correlation ids do."""

    rows: Operations


@dataclass(frozen=True, slots=True)
class CallsNamed:
    """The same, with the names of kernels. Whoever keeps rows copies them."""

    rows: Operations


@dataclass(frozen=True, slots=True)
class CallsCorrelated:
    """Host calls of processes that measure devices, with what their records say of activities: shape (n,)."""

    rows: Operations
    correlations: npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class DeviceWorkJoined:
    """Device work whose host call is known."""

    work: DeviceWork


@dataclass(frozen=True, slots=True)
class FilesCalled:
    """Calls on files that took long."""

    calls: FileCalls


@dataclass(frozen=True, slots=True)
class Sampled:
    """Samples of where threads were; ``name_of`` names the file or device of a sample by kind and number."""

    samples: Samples
    name_of: Callable[[int, int], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestsAnswered:
    """m requests whose spans are reported now. ``parents`` has a row for each slot of each request."""

    exchanges: Sequence[Exchange]
    boundary: npt.NDArray[np.uint64]  # where their phases part
    sampled: npt.NDArray[np.bool_]  # (m,)
    parents: Parents


@dataclass(frozen=True, slots=True)
class RequestsGivenUp:
    """Requests that will not be answered any more."""

    keys: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessDescribed:
    """More is known of the same program."""

    before: Resource | None
    after: Resource


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramReplaced:
    """A process began another program: what the one before held is free."""

    tgid: int
    time_ns: int


@dataclass(frozen=True, slots=True)
class ProcessForgotten:
    """A while after its end: what still came of a process is forgotten, too."""

    tgid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsChanged:
    """From the next tick on. ``limit``: operation spans under one parent."""

    settings: SignalSettings
    limit: int


@dataclass(frozen=True, slots=True)
class TickBegins:
    """After processes ended, and before operations are decoded: what these are joined with must be there.

    Only to those whose turn it is. ``final``: it is the last.
    """

    final: bool
