"""The contract of a family: at most four members, no method left empty.

A family is a package ``otelgpu.families.<name>`` with a module-level ``FAMILY``; the registry finds it,
so that adding one edits no existing file. Where its probes attach is written in the ``SEC()`` names of
``bpf/<name>/<name>.bpf.c`` and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Protocol, runtime_checkable

import numpy.typing as npt

from otelgpu.layout.btf import Btf
from otelgpu.model.allocators import Levels
from otelgpu.model.communicators import CommunicatorSeen
from otelgpu.model.engine import EngineMessage
from otelgpu.model.exchange import Claim, Exchange, Named, Opened
from otelgpu.model.files import FileCalls
from otelgpu.model.handoffs import Handoff
from otelgpu.model.inputs import Batch
from otelgpu.model.operations import Memory, OperationKind, Operations
from otelgpu.model.queue_pairs import VerbsFact
from otelgpu.model.samples import Samples
from otelgpu.model.spans import Attribute
from otelgpu.model.telling import Telling

DEVICE_MEMORY: Final = frozenset((Memory.DEVICE, Memory.MANAGED, Memory.POOL, Memory.PHYSICAL))
"""Kinds of memory that a process takes from a device."""

HOST_MEMORY: Final = frozenset((Memory.HOST, Memory.REGISTERED))
"""Kinds of the host's memory that are pinned for a device."""

CALL_SECONDS: Final = (
    *(1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4),
    *(1e-3, 2e-3, 5e-3, 1e-2, 1e-1, 1.0, 10.0),
)
"""Bounds of histograms of how long calls and kernels take, in seconds."""

LARGEST_SIZE: Final = 1 << 48
"""Bytes; a size beyond it is no size but a mistake of the caller's."""

Column = Callable[[Operations], npt.NDArray[Any]]


def memory_name(code: int) -> str:
    """``cuda.memory.kind`` and its like: the kind of memory in words, whatever number a record has."""
    return Memory(code).name.lower() if code in _MEMORY else "unknown"


_MEMORY: Final = frozenset(Memory)


class Instrument(Enum):
    """OpenTelemetry instrument kinds that this project uses."""

    COUNTER = "counter"
    HISTOGRAM = "histogram"
    UP_DOWN_COUNTER = "updowncounter"  # told as it stands: a sum that can fall
    GAUGE = "gauge"  # told as it stands


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric's definition. ``buckets`` are a histogram's explicit bounds, in ``unit``.

    ``whole``: False of a counter whose sum has a fraction.
    """

    name: str
    unit: str
    instrument: Instrument
    description: str
    buckets: tuple[float, ...] = ()
    whole: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationMetric:
    """How a metric is fed from operations: which rows, which value, at most one attribute."""

    metric: Metric
    kinds: tuple[OperationKind, ...]
    apis: Container[str] = ()  # only the functions whose exported name is in it; (): all of ``kinds``
    value: Column | None = None  # None: one per row
    attribute: tuple[str, Callable[[int], str], Column] | None = None  # key, label of a code, code column
    failed: bool = False  # True: failed calls, by ``error.type``; False: all others
    returned: bool = False  # True: only calls whose return was seen, without which there is no duration
    by_kernel: bool = False  # told per kernel name where the user asked for that


class Holds(Enum):
    """What a folded span may say of an attribute of its calls."""

    EQUAL = "equal"  # equal in a run of equal calls; unknown where unequal calls were merged
    SINGLE = "single"  # differs from call to call: told of single calls only
    SUM = "sum"  # adds up


@dataclass(frozen=True, slots=True)
class CallAttribute:
    """An integer attribute of calls: ``column`` gives its values, ``absent`` the one that says nothing."""

    key: str
    column: Column
    holds: Holds = Holds.EQUAL
    absent: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationSignals:
    """A family's names for operations: the only place where they are written."""

    scope: str
    result_name: Callable[[str, int], str]  # of a function's exported name and a status code
    attributes: Mapping[OperationKind, tuple[CallAttribute, ...]]
    labels: Mapping[OperationKind, tuple[tuple[str, Callable[[int], str], Column], ...]]  # text attributes
    api_labels: tuple[tuple[str, Callable[[str], str]], ...]  # text attributes that the exported name tells
    metrics: tuple[OperationMetric, ...]
    summaries: tuple[tuple[str, OperationKind, Column | None], ...]  # totals on a phase: key, rows, value
    kernel_name: str = ""  # attribute key of a launch's full kernel name; "" of a family that launches none


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What exchanges add to one series of a metric; ``labels`` are of bounded cardinality.

    ``rows``: which exchange each value is of, by position; an exemplar names its span.
    """

    metric: Metric
    labels: Mapping[str, str | int]
    values: Sequence[float]
    rows: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeSignals:
    """A family's names for exchanges, many of which are told at a time, each with its route."""

    scope: str
    span_name: Callable[[Exchange, str], str]
    attributes: Callable[[Sequence[Exchange], Sequence[str]], tuple[Attribute, ...]]  # a row per exchange
    metrics: Callable[[Sequence[Exchange], Sequence[str]], list[Measured]]


class Activity(Protocol):
    """What a conversational family learnt from a batch."""

    @property
    def claims(self) -> Sequence[Claim]:
        """In order of time per thread."""

    @property
    def exchanges(self) -> Sequence[Exchange]:
        """Those that ended."""

    @property
    def opened(self) -> Sequence[Opened]:
        """Those that began, each told once its head is known."""

    @property
    def named(self) -> Sequence[Named]:
        """By which ids exchanges are known elsewhere."""

    @property
    def messages(self) -> Sequence[EngineMessage]:
        """What engine processes said to each other, in order of time per thread."""


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


@runtime_checkable
class OperationDecoder(Protocol):
    """Records → operations, columns in and columns out."""

    apis: Mapping[int, str]  # code of an API function → its exported name
    context_steps: Mapping[
        int, ContextStep
    ]  # code of an API function → what it does to contexts, if anything

    def decode(self, batch: Batch) -> Operations:
        """Shape (n,) for n records, in order; they may be the batch's own, so whoever changes them copies."""


@runtime_checkable
class CommunicatorDecoder(OperationDecoder, Protocol):
    """One that also tells what is known of the communicators that operations name."""

    def communicators(self, batch: Batch) -> list[CommunicatorSeen]:
        """What a batch told of communicators, in its order; of batches of other kinds nothing."""


@runtime_checkable
class Conversation(Protocol):
    """Records → exchanges, with memory of what went before; deterministic, no I/O."""

    @property
    def counters(self) -> Mapping[str, int]:
        """Losses and oddities by name, since the start."""

    @property
    def connection_count(self) -> int:
        """Connections that are remembered."""

    def feed(self, batch: Batch) -> Activity:
        """What the batch brought to light."""

    def process_gone(self, tgid: int, time_ns: int) -> Activity:
        """End what the process had open; same result as :meth:`feed`."""

    def expire(self, now_ns: int) -> Activity:
        """Forget what has been idle for long; same result as :meth:`feed`."""


@runtime_checkable
class HandoffDecoder(Protocol):
    """Records → hand-offs of work between threads, which are no signals of their own."""

    def hand_offs(self, batch: Batch) -> list[Handoff]:
        """The events of a batch, in its order."""


@runtime_checkable
class FileDecoder(Protocol):
    """Records → calls on files, which are no spans of their own."""

    def files(self, batch: Batch) -> FileCalls:
        """The calls of a batch, in its order; of batches of other kinds none."""


@runtime_checkable
class AllocatorDecoder(Protocol):
    """Records → what a framework's allocator gave to tensors and took back, which are no spans of their own."""

    def tensor_calls(self, batch: Batch) -> Operations:
        """Allocations and frees of a batch, in its order; of batches of other kinds none."""

    def levels(self, batch: Batch) -> Levels:
        """How things stand, by process and device; of batches of other kinds none."""


@runtime_checkable
class FabricDecoder(Protocol):
    """Records → facts of queue pairs and the memory and events that belong to them."""

    def facts(self, batch: Batch) -> list[VerbsFact]:
        """The facts of a batch, in its order; of batches of other kinds none."""


@runtime_checkable
class SampleDecoder(Protocol):
    """Records → samples of where threads were, which refer to stacks by number."""

    def samples(self, batch: Batch) -> Samples:
        """Shape (n,), in the batch's order, of the kinds that are known; of batches of other kinds none."""

    def name_of(self, kind: int, number: int) -> str:
        """Of the file or device of a sample of ``kind`` whose ``other`` is ``number``; "" where it is not known."""


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


@dataclass(frozen=True, slots=True)
class Beside:
    """With another family, whose processes it is for; at once where that is not observed."""

    family: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Everything the rest of the program knows about a family. ``signals``: None of what has no spans of its own."""

    name: str
    open: Callable[
        [Btf, Telling],
        OperationDecoder
        | Conversation
        | HandoffDecoder
        | FileDecoder
        | FabricDecoder
        | SampleDecoder
        | AllocatorDecoder,
    ]
    signals: OperationSignals | ExchangeSignals | None
    load: Load | Beside = Load.AT_ONCE

    def at_once(self, observed: Container[str]) -> bool:
        """Whether a session of those families begins with this one."""
        return self.load in (Load.AT_ONCE, Load.ASKED) or (
            isinstance(self.load, Beside) and self.load.family not in observed
        )
