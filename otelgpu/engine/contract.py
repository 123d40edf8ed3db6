"""The contract of a family: what it declares of itself, and the handler that the engine opens for each session.

A family is a folder below ``otelgpu/families`` with a module-level ``FAMILY``; the registry finds it, so that adding
one edits no existing file. Where its probes attach is written in the ``SEC()`` names of ``bpf/<name>/<name>.bpf.c``
and nowhere else. What a handler may ask of the engine, and of other families through it, is
:class:`~otelgpu.engine.services.Services`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from msgspec import Struct

from otelgpu.elf.btf import Btf
from otelgpu.engine.operation_signals import OperationSignals
from otelgpu.model.inputs import Batch
from otelgpu.model.operations import OperationKind, Operations
from otelgpu.model.settings import SignalSettings
from otelgpu.model.spans import SpanColumns

if TYPE_CHECKING:
    from otelgpu.engine.metrics import Metrics
    from otelgpu.engine.services import Services


class ContextStep(Enum):
    """What a function does to the contexts that hold a process's device memory, or to a thread's choice of one.

    ``handle`` and ``other`` are the operation's columns.
    """

    CREATE = "create"  # ``handle``: the context made, which becomes the thread's
    DESTROY = "destroy"  # ``handle``: the context; what it held is free
    SELECT = "select"  # ``handle``: the context that becomes the thread's
    PUSH = "push"  # the same, and the one before comes back by POP
    POP = "pop"
    SELECT_DEVICE = "select_device"  # the primary context of a device becomes the thread's
    RESET_CURRENT = "reset_current"  # what the primary context of the current device held is free
    RESET_DEVICE = "reset_device"  # the same of device ``other``
    RETAIN_DEVICE = "retain_device"  # the primary context of device ``other`` has one more user
    RELEASE_DEVICE = "release_device"  # that of device ``other`` has one user less; without any it ends
    KEEP = "keep"  # an API that holds on to the primary context for as long as the program runs


class OperationDecoder(Protocol):
    """Records → operations, columns in and columns out."""

    apis: Mapping[int, str]  # code of an API function → its exported name
    context_steps: Mapping[
        int, ContextStep
    ]  # code of an API function → what it does to contexts, if anything

    def decode(self, batch: Batch) -> Operations:
        """Shape (n,) for n records that are calls, in order; of other records none.

        They may be the batch's own, so whoever changes them copies.
        """


class Load(Enum):
    """When a family's BPF programs are loaded: that takes time and memory, and few programs have some functions."""

    AT_ONCE = "at once"
    ASKED = "asked"  # at once, but only in a session that asks for the family by its name
    FOUND = (
        "found"  # when a file with one of its functions is found, even one that a program may only load later
    )
    MAPPED = (
        "mapped"  # when a program has mapped one, or is linked to it: the library is on every host, and idle
    )


class Beside(Struct, frozen=True):
    """With a family that has operations of a kind, whose processes it is for; at once where none is observed."""

    kind: OperationKind

    def is_of(self, family: Family) -> bool:
        """Whether that is such a family."""
        return family.operations is not None and self.kind in family.operations.signals.attributes


class Phase(IntEnum):
    """When in a tick a handler's turn comes: the one place where that order is declared.

    Those of one phase follow each other by the names of their families. Before the first the engine decodes operations
    and gives each its owner; between CONNECTIONS and PROFILES it closes windows of unattributed work.
    """

    MEMORY = 0
    DEVICE_WORK = 1  # joined to its host calls before requests are answered, for it goes under them
    REQUESTS = 2
    STEPS = 3  # which are linked to the requests they served
    COLLECTIVES = 4  # which are linked to requests and steps
    CONNECTIONS = 5
    PROFILES = 6  # linked to all spans of this tick


@runtime_checkable
class Takes(Protocol):
    """A handler of a family that has records."""

    def take(self, batch: Batch) -> None:
        """A batch of the family's own records."""


@runtime_checkable
class Ticks(Protocol):
    """A handler that has something to report, or to give up, as time goes on."""

    def tick(self, now_ns: int, *, final: bool) -> Iterable[SpanColumns]:
        """Every record submitted before ``now_ns`` was taken; ``final``: there will be no more.

        Only called when the handler was fed since its last tick, or has asked for it by :meth:`Services.wake`.
        """


@runtime_checkable
class EndsProcesses(Protocol):
    """A handler that remembers something of each process."""

    def end_process(self, tgid: int, time_ns: int) -> None:
        """A process ended, and everything that it did has been reported as far as it is known: forget it."""


@runtime_checkable
class Publishes(Protocol):
    """A handler with metrics that are set when somebody reads them."""

    def publish(self, metrics: Metrics) -> None:
        """Before each export."""


@runtime_checkable
class Counts(Protocol):
    """A handler that drops, skips or cannot read something now and then."""

    @property
    def counters(self) -> Mapping[str, int]:
        """How often, by reason, since the start."""


Handler = Takes | Ticks | EndsProcesses | Publishes | Counts
"""What a family does in one session. It has those of the five members that it has a use for."""


class OperationFamily(Struct, frozen=True, kw_only=True):
    """Calls of an API that become operations: how records are decoded, and what the operations are called."""

    decoder: Callable[[Btf, SignalSettings], OperationDecoder]
    signals: OperationSignals


class Family(Struct, frozen=True, kw_only=True):
    """Everything that the engine knows of a subject. It has ``operations``, or a handler, or both.

    ``load`` is None where there are no records: such a family is part of every session.
    """

    name: str
    load: Load | Beside | None = Load.AT_ONCE
    open: Callable[[Services], Handler | None] | None = None
    phase: Phase = Phase.PROFILES
    operations: OperationFamily | None = None

    def at_once(self, observed: Mapping[str, Family]) -> bool:
        """Whether a session of those families begins with this one."""
        if isinstance(self.load, Beside):
            return not any(map(self.load.is_of, observed.values()))
        return self.load in (Load.AT_ONCE, Load.ASKED)
