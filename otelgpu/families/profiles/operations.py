"""Calls of libraries, device work and memory, each under the stack of the call that caused it → rows of profiles.

In: operations and device work in columns, samples of kind CALL, the memory ledger. Out:
:class:`~otelgpu.engine.profile_rows.ProfileRows` of the kinds cuda, kernel, mem and nccl. Pure.

What is time on the device is reported only where the device measured it (CUPTI, in the in-process source), with a frame
``GPU: flash_fwd`` on top of the launching stack. What is known of launches without that is how many there were and how
long the host was in them: their topmost frame is ``launch: flash_fwd``.

Example: a launch of flash_fwd that took the host 4 us, under stack 77: a row of ``kernel_launches`` with value 1
and one of ``kernel_launch_time`` with value 4000, stack 77 both; and when the device has said that the kernel ran for
900 us, one of ``gpu_kernel_time`` with value 900,000.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from otelgpu.engine.call_stacks import CallStacks, WaitingCalls
from otelgpu.engine.memory_labels import KEPT, memory_label
from otelgpu.engine.operation_spans import Vocabulary
from otelgpu.engine.profile_rows import Label, ProfileRows, Rows, profile_rows
from otelgpu.model.codes import Codes, combine, distinct, examples
from otelgpu.model.device_work import DeviceWork, Work, join_work
from otelgpu.model.operations import DEVICE_KINDS, LARGEST_SIZE, OperationKind, Operations
from otelgpu.model.profiles import FrameType, ValueType
from otelgpu.model.profiling import LAUNCHES, ProfileKind, stack_kinds
from otelgpu.model.samples import Frame, Samples

GPU_KERNEL_TIME: Final = ValueType(type="gpu_kernel_time", unit="nanoseconds")
KERNEL_LAUNCHES: Final = ValueType(type="kernel_launches", unit="count")
KERNEL_LAUNCH_TIME: Final = ValueType(type="kernel_launch_time", unit="nanoseconds")
ALLOCATED: Final = ValueType(type="device_memory_allocated", unit="bytes")
ALLOCATIONS: Final = ValueType(type="device_memory_allocations", unit="count")
NCCL_CALLS: Final = ValueType(type="nccl_calls", unit="count")
NCCL_TIME: Final = ValueType(type="nccl_time", unit="nanoseconds")
NCCL_BYTES: Final = ValueType(type="nccl_bytes", unit="bytes")

CALL: Final = "otelgpu.call.name"
"""Attribute: the exported name of the function that was called."""
SIZE_CLASS: Final = "otelgpu.call.size_class"
"""Attribute: how many bytes a call was about, as the least power of 16 that is no less, in words: ``<=64KiB``."""

_LARGEST: Final = np.uint64(LARGEST_SIZE)
_SIZES: Final = (
    "",
    *(f"<={n}" for n in ("16B", "256B", "4KiB", "64KiB", "1MiB", "16MiB", "256MiB", "4GiB", "64GiB")),
)
_SIZE_BOUNDS: Final = np.array([0, *(16**power for power in range(1, len(_SIZES)))], dtype=np.uint64)
_LARGER: Final = ">64GiB"
_SIZED: Final = (OperationKind.COPY, OperationKind.SET, OperationKind.ALLOCATION, OperationKind.MAPPING)
_MESSAGES: Final = (OperationKind.COLLECTIVE, OperationKind.POINT_TO_POINT)
_NCCL: Final = (*_MESSAGES, OperationKind.COMMUNICATOR, OperationKind.GROUP)
_GRAPH: Final = "graph"


class OperationProfiles:
    """One session's. ``kinds`` are those asked for; others are passed over. ``stacks`` is shared with others.

    ``launches``: False: calls that launch are passed over too.
    """

    def __init__(
        self,
        kinds: Collection[ProfileKind],
        stacks: CallStacks,
        vocabulary: Vocabulary,
        *,
        launches: bool = True,
    ) -> None:
        self._kinds = frozenset(kinds)
        self._wanted = _wanted(stack_kinds(self._kinds, launches=launches))
        self._stacks, self._vocabulary = stacks, vocabulary
        self._calls = WaitingCalls(stacks)
        self._work: list[DeviceWork] = []

    def see_samples(self, samples: Samples, now_ns: int) -> None:
        """Samples of kind CALL, as they come."""
        self._stacks.add(samples, now_ns)

    def see_calls(self, rows: Operations) -> None:
        """Operations of all families, launches with their names; they may be changed afterwards."""
        self._calls.add(rows.compress(self._wanted[rows["kind"]]))

    def see_work(self, work: DeviceWork) -> None:
        """What devices did, joined to the calls that caused it."""
        if ProfileKind.KERNEL in self._kinds and len(work):
            self._work.append(work.compress(work["work"] == Work.KERNEL))

    def take(self, now_ns: int, *, final: bool = False) -> list[ProfileRows]:
        """All that is known since the last time."""
        calls, stacks = self._calls.take(now_ns, final=final)
        reported: list[ProfileRows] = []
        if len(calls):
            if ProfileKind.CUDA in self._kinds:
                reported += self._device_calls(calls, stacks)
            if ProfileKind.KERNEL in self._kinds:
                reported += self._launches(calls, stacks)
            if ProfileKind.MEM in self._kinds:
                reported += self._allocations(calls, stacks)
            if ProfileKind.NCCL in self._kinds:
                reported += self._nccl(calls, stacks)
        if self._work:
            reported += self._kernels(join_work(self._work))
            self._work.clear()
        self._stacks.expire(now_ns, final=final)
        return [rows for rows in reported if len(rows)]

    # -- kinds --------------------------------------------------------------------------------------

    def _device_calls(self, calls: Operations, stacks: npt.NDArray[np.uint64]) -> list[ProfileRows]:
        """Each API's under types of its own."""
        calls, stacks = _only(DEVICE_KINDS, calls, stacks)
        families = np.unique(calls["family"]).tolist()
        return [
            rows
            for family in families
            for rows in self._calls_of(family, *_where(calls["family"] == family, calls, stacks))
        ]

    def _calls_of(self, family: int, calls: Operations, stacks: npt.NDArray[np.uint64]) -> list[ProfileRows]:
        rows = _rows_of_calls(calls, stacks)
        launches, sized = np.isin(calls["kind"], OperationKind.LAUNCH), np.isin(calls["kind"], _SIZED)
        columns = (
            calls["api"],
            np.where(launches, calls["name"], 0),
            np.where(sized, size_classes(calls["size_bytes"]), 0),
        )
        rows["label"], labels = _labelled(columns, partial(self._call_label, family))
        count, time = call_types(self._vocabulary.families[family][1].scope)
        return _counted_and_timed(ProfileKind.CUDA, count, time, rows, calls, labels=labels)

    def _call_label(self, family: int, api: int, name: int, size: int) -> Label:
        label: list[tuple[str, str | int]] = [(CALL, self._vocabulary.call_name(family, api))]
        key = self._vocabulary.families[family][1].kernel_name
        if name and key:
            label.append((key, self._vocabulary.short_kernels[name]))
        if size:
            label.append((SIZE_CLASS, _LARGER if size == len(_SIZES) else _SIZES[size]))
        return tuple(label)

    def _launches(self, calls: Operations, stacks: npt.NDArray[np.uint64]) -> list[ProfileRows]:
        calls, stacks = _only(LAUNCHES, calls, stacks)
        rows = _rows_of_calls(calls, stacks)
        kernels = calls["kind"] == OperationKind.LAUNCH
        columns = (np.where(kernels, calls["name"].astype(np.int64), -1),)
        rows["leaf"], leaves = _labelled(
            columns,
            lambda name: (Frame(type=FrameType.NATIVE, name=f"launch: {self._kernel(name)}"),),
        )
        return _counted_and_timed(
            ProfileKind.KERNEL, KERNEL_LAUNCHES, KERNEL_LAUNCH_TIME, rows, calls, leaves=leaves
        )

    def _kernel(self, name: int) -> str:
        return self._vocabulary.short_kernels[name] if name >= 0 else _GRAPH

    def _kernels(self, work: DeviceWork) -> list[ProfileRows]:
        rows = profile_rows(len(work))
        _set_head(rows, work)
        rows["time_ns"], rows["value"] = work["device_start_ns"], _bounded(work["duration_ns"])
        rows["stack"] = self._stacks.stacks_of(work)
        rows["leaf"], leaves = _labelled(
            (work["name"].astype(np.int64),),
            lambda name: (Frame(type=FrameType.GPU, name=f"GPU: {self._kernel(name)}"),),
        )
        return [ProfileRows(kind=ProfileKind.KERNEL, sample_type=GPU_KERNEL_TIME, rows=rows, leaves=leaves)]

    def _nccl(self, calls: Operations, stacks: npt.NDArray[np.uint64]) -> list[ProfileRows]:
        calls, stacks = _only(_NCCL, calls, stacks)
        rows = _rows_of_calls(calls, stacks)
        rows["label"], labels = _labelled(
            (calls["family"], calls["api"]),
            lambda family, api: ((CALL, self._vocabulary.call_name(family, api)),),
        )
        reported = _counted_and_timed(ProfileKind.NCCL, NCCL_CALLS, NCCL_TIME, rows, calls, labels=labels)
        moving = np.isin(calls["kind"], _MESSAGES) & (calls["size_bytes"] > 0) & _succeeded(calls)
        moved = rows[moving]
        moved["value"] = np.minimum(calls["size_bytes"][moving], _LARGEST)
        reported.append(ProfileRows(kind=ProfileKind.NCCL, sample_type=NCCL_BYTES, rows=moved, labels=labels))
        return reported

    def _allocations(self, calls: Operations, stacks: npt.NDArray[np.uint64]) -> list[ProfileRows]:
        """Allocations that succeeded, of memory that is counted."""
        real = (calls["kind"] == OperationKind.ALLOCATION) & np.isin(calls["memory"], list(KEPT))
        real &= _succeeded(calls) & (calls["size_bytes"] <= _LARGEST)
        calls, stacks = calls.compress(real), stacks[real]
        rows = _rows_of_calls(calls, stacks)
        rows["label"], labels = _labelled(
            (calls["memory"], calls["device"], calls["family"]),
            lambda memory, device, family: memory_label(
                memory, device, self._vocabulary.families[family][1].memory
            ),
        )
        sized = rows.copy()
        sized["value"] = calls["size_bytes"]
        return [
            ProfileRows(kind=ProfileKind.MEM, sample_type=ALLOCATED, rows=sized, labels=labels),
            ProfileRows(kind=ProfileKind.MEM, sample_type=ALLOCATIONS, rows=rows, labels=labels),
        ]


def call_types(scope: str) -> tuple[ValueType, ValueType]:
    """How many calls an API had, and how long they took: ``cuda_calls`` and ``cuda_time`` of ``otelgpu.cuda``."""
    api = scope.rpartition(".")[2]
    return ValueType(type=f"{api}_calls", unit="count"), ValueType(type=f"{api}_time", unit="nanoseconds")


def size_classes(sizes: npt.NDArray[np.uint64]) -> npt.NDArray[np.intp]:
    """0 of none, else the position of the least bound that is no less, one more of the largest: shape (n,)."""
    found: npt.NDArray[np.intp] = np.searchsorted(_SIZE_BOUNDS, sizes, side="left")
    return found


def _wanted(bits: int) -> npt.NDArray[np.bool_]:
    """By kind of operation, whatever number a record has."""
    wanted = np.zeros(1 << 16, dtype=np.bool_)
    for kind in OperationKind:
        wanted[kind] = bits >> kind & 1
    return wanted


def _only(
    kinds: Sequence[OperationKind], calls: Operations, stacks: npt.NDArray[np.uint64]
) -> tuple[Operations, npt.NDArray[np.uint64]]:
    return _where(np.isin(calls["kind"], kinds), calls, stacks)


def _where(
    which: npt.NDArray[np.bool_], calls: Operations, stacks: npt.NDArray[np.uint64]
) -> tuple[Operations, npt.NDArray[np.uint64]]:
    return (calls, stacks) if which.all() else (calls.compress(which), stacks[which])


def _succeeded(calls: Operations) -> npt.NDArray[np.bool_]:
    """As far as is known."""
    return np.asarray((calls["returned"] == 0) | (calls["status"] == 0))


def _bounded(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    return np.minimum(values, np.uint64(2**63 - 1)).astype(np.int64)


def _set_head(rows: Rows, of: npt.NDArray[np.void]) -> None:
    for name in ("tgid", "tid", "context_source"):
        rows[name] = of[name]


def _rows_of_calls(calls: Operations, stacks: npt.NDArray[np.uint64]) -> Rows:
    rows = profile_rows(len(calls))
    _set_head(rows, calls)
    for name in ("trace_id", "span_id", "trace_flags"):
        rows[name] = calls[name]
    rows["time_ns"], rows["stack"], rows["value"] = calls["start_ns"], stacks, 1
    return rows


def _counted_and_timed(
    kind: ProfileKind,
    count: ValueType,
    time: ValueType,
    rows: Rows,
    calls: Operations,
    *,
    labels: tuple[Label, ...] = (),
    leaves: tuple[tuple[Frame, ...], ...] = (),
) -> list[ProfileRows]:
    """How many, and of those whose return was seen how long."""
    known = (calls["returned"] == 1) & (calls["duration_ns"] > 0)
    timed = rows[known]
    timed["value"] = _bounded(calls["duration_ns"][known])
    return [
        ProfileRows(kind=kind, sample_type=count, rows=rows, labels=labels, leaves=leaves),
        ProfileRows(kind=kind, sample_type=time, rows=timed, labels=labels, leaves=leaves),
    ]


_Reported = TypeVar("_Reported")


def _labelled(
    columns: Sequence[npt.NDArray[np.generic]], report: Callable[..., _Reported]
) -> tuple[npt.NDArray[np.uint32], tuple[_Reported, ...]]:
    """For each row the number of its combination, from 1; and what is reported of each of those."""
    rows = len(columns[0])
    if not rows:
        return np.zeros(0, dtype=np.uint32), ()
    coded = [distinct(np.ascontiguousarray(column)) for column in columns]
    codes: Codes
    codes, count = combine([(code, len(values)) for values, code in coded], rows)
    at = examples(codes, count)
    reported = tuple(
        report(*place) for place in zip(*(column[at].tolist() for column in columns), strict=True)
    )
    return (codes + 1).astype(np.uint32), reported
