"""The contract of a family: at most four members, no method left empty.

A family is a package ``otelgpu.families.<name>`` with a module-level ``FAMILY``; the registry finds it,
so that adding one edits no existing file. Where its probes attach is written in the ``SEC()`` names of
``bpf/<name>/<name>.bpf.c`` and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from otelgpu.layout.btf import Btf
from otelgpu.model.exchange import Claim, Exchange
from otelgpu.model.inputs import Batch
from otelgpu.model.operations import OperationKind, Operations

Column = Callable[[Operations], npt.NDArray[Any]]


class Instrument(Enum):
    """OpenTelemetry instrument kinds that this project uses."""

    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric's definition. ``buckets`` are a histogram's explicit bounds, in ``unit``."""

    name: str
    unit: str
    instrument: Instrument
    description: str
    buckets: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationMetric:
    """How a metric is fed from operations: which rows, which value, at most one attribute."""

    metric: Metric
    kinds: tuple[OperationKind, ...]
    apis: tuple[str, ...] = ()  # only these functions; empty: all of ``kinds``
    value: Column | None = None  # None: one per row
    attribute: tuple[str, Callable[[int], str], Column] | None = None  # key, label of a code, code column
    failed: bool = False  # False: successful calls (or of unknown result); True: failed ones only


class Holds(Enum):
    """What a folded span may say of an attribute of its calls."""

    EQUAL = "equal"  # equal in a run of equal calls; unknown where unequal calls were merged
    SINGLE = "single"  # differs from call to call: told of single calls only
    SUM = "sum"  # adds up


@dataclass(frozen=True, slots=True)
class CallAttribute:
    """An integer attribute of calls: ``column`` gives its values."""

    key: str
    column: Column
    holds: Holds = Holds.EQUAL


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationSignals:
    """A family's names for operations: the only place where they are written."""

    scope: str
    result_name: Callable[[int], str]  # of a status code
    attributes: Mapping[OperationKind, tuple[CallAttribute, ...]]
    labels: Mapping[OperationKind, tuple[tuple[str, Callable[[int], str], Column], ...]]  # text attributes
    kernel_name: str  # attribute key of a launch's full kernel name
    metrics: tuple[OperationMetric, ...]
    summaries: tuple[tuple[str, OperationKind, Column | None], ...]  # totals on a phase: key, rows, value


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeSignals:
    """A family's names for exchanges."""

    scope: str
    span_name: Callable[[Exchange], str]
    attributes: Callable[[Exchange], dict[str, Any]]
    metrics: Callable[[Exchange], list[tuple[Metric, float, dict[str, str | int]]]]


class Activity(Protocol):
    """What a conversational family learnt from a batch."""

    @property
    def claims(self) -> Sequence[Claim]:
        """In order of time per thread."""

    @property
    def exchanges(self) -> Sequence[Exchange]:
        """Those that ended."""


@runtime_checkable
class OperationDecoder(Protocol):
    """Records → operations, columns in and columns out."""

    apis: Mapping[int, str]  # code of an API function → its exported name

    def decode(self, batch: Batch) -> Operations:
        """Shape (n,) for n records, in order."""


@runtime_checkable
class Conversation(Protocol):
    """Records → exchanges, with memory of what went before; deterministic, no I/O."""

    @property
    def counters(self) -> Mapping[str, int]:
        """Losses and oddities by name, since the start."""

    def feed(self, batch: Batch) -> Activity:
        """What the batch brought to light."""

    def process_gone(self, tgid: int, time_ns: int) -> Activity:
        """End what the process had open; same result as :meth:`feed`."""

    def expire(self, now_ns: int) -> Activity:
        """Forget what has been idle for long; same result as :meth:`feed`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Everything the rest of the program knows about a family."""

    name: str
    open: Callable[[Btf], OperationDecoder | Conversation]
    signals: OperationSignals | ExchangeSignals


def fill_from_head(operations: Operations, records: npt.NDArray[np.void], kind: OperationKind) -> None:
    """Copy ``struct record_head`` into the columns that every operation has."""
    head = records["head"]
    operations["start_ns"] = head["time_ns"]
    for column in (
        "duration_ns",
        "tgid",
        "tid",
        "cgroup_id",
        "trace_id",
        "span_id",
        "trace_flags",
        "context_source",
        "returned",
    ):
        operations[column] = head[column]
    operations["kind"] = kind
