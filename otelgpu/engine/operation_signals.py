"""A family's names for its operations: attributes, labels, metrics and totals, and which column has each. Pure."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from enum import Enum
from typing import Any, Final

import numpy.typing as npt
from msgspec import Struct

from otelgpu.engine.memory_names import MemoryNames
from otelgpu.engine.metric import Metric
from otelgpu.model.operations import OperationKind, Operations

CALL_SECONDS: Final = (
    *(1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4),
    *(1e-3, 2e-3, 5e-3, 1e-2, 1e-1, 1.0, 10.0),
)
"""Bounds of histograms of how long calls and kernels take, in seconds."""

Column = Callable[[Operations], npt.NDArray[Any]]


class OperationMetric(Struct, frozen=True, kw_only=True):
    """How a metric is fed from operations: which rows, which value, at most one attribute."""

    metric: Metric
    kinds: tuple[OperationKind, ...]
    apis: Container[str] = ()  # only the functions whose exported name is in it; (): all of ``kinds``
    value: Column | None = None  # None: one per row
    attribute: tuple[str, Callable[[int], str], Column] | None = None  # key, label of a code, code column
    failed: bool = False  # True: failed calls, by ``error.type``; False: all others
    returned: bool = False  # True: only calls whose return was seen, without which there is no duration
    by_kernel: bool = False  # reported per kernel name where the user asked for that


class Holds(Enum):
    """What a folded span may say of an attribute of its calls."""

    EQUAL = "equal"  # equal in a run of equal calls; unknown where unequal calls were merged
    SINGLE = "single"  # differs from call to call: reported of single calls only
    SUM = "sum"  # adds up


class CallAttribute(Struct, frozen=True):
    """An integer attribute of calls: ``column`` gives its values, ``absent`` the one that says nothing."""

    key: str
    column: Column
    holds: Holds = Holds.EQUAL
    absent: int | None = None


class OperationTotal(Struct, frozen=True, kw_only=True):
    """What the span above calls of a kind says of them: their number, or the sum of a column of integers.

    ``per_unit``: so many make one of the unit that is exported, which is then a double: nanoseconds in a second.
    """

    key: str
    kind: OperationKind
    value: Column | None = None
    per_unit: int = 1


class OperationSignals(Struct, frozen=True, kw_only=True):
    """A family's names for operations: the only place where they are written."""

    scope: str
    result_name: Callable[[str, int], str]  # of a function's exported name and a status code
    attributes: Mapping[OperationKind, tuple[CallAttribute, ...]]
    labels: Mapping[OperationKind, tuple[tuple[str, Callable[[int], str], Column], ...]]  # text attributes
    api_labels: tuple[tuple[str, Callable[[str], str]], ...]  # text attributes that the exported name reports
    metrics: tuple[OperationMetric, ...]
    summaries: tuple[OperationTotal, ...]  # on a phase
    kernel_name: str = ""  # attribute key of a launch's full kernel name; "" of a family that launches none
    runs_collectives: bool = (
        False  # a call of a collective returns when that has ended for its rank; False: queued it
    )
    memory: MemoryNames | None = None  # what the memory that its calls make is called; None: they make none

    @property
    def kernel_place(self) -> tuple[str, str, str]:
        """Attribute keys of where a kernel without a name is: its file, the file's build id, the offset in it."""
        prefix = self.kernel_name.removesuffix("name")
        return f"{prefix}module", f"{prefix}build_id", f"{prefix}offset"
