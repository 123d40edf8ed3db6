"""Spans of CUDA's calls, and of what the device did, as columns. Pure.

In: :class:`~otelgpu.model.spans.SpanColumns` with ``--detail all``. Out: :class:`GpuCalls`, in order of time. What
comes from a file may hold anything: what has no thread, or times that cannot be, is counted and left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from otelgpu.model.spans import Attribute, SpanColumns, Text, plain

I64 = npt.NDArray[np.int64]

LAUNCH: Final = 1
COPY: Final = 2
BLOCKING_COPY: Final = 3
SYNC: Final = 4
MEMORY: Final = 5
OTHER: Final = 6
"""Kinds of calls."""

MOST_CALLS: Final = 4_000_000
"""Of a diagnosis; what is beyond is counted and left out."""
_LATEST: Final = 1 << 62
_SCOPE: Final = "otelgpu.cuda"
_OF_DEVICE: Final = "cuda.call.delay"  # only spans of what the device did have it
_COUNT: Final = "otelgpu.count"
_MERGED: Final = "otelgpu.merged"  # calls that others lie between: no times of theirs are known


class GpuCalls(Struct, kw_only=True):
    """n calls, by begin; all columns have length n. Unix nanoseconds.

    ``count``: calls that a row stands for; ``size_bytes``: −1: none; ``to_host``: copies; ``blocks``: of a launch's
    grid, −1: none. ``device``: the ordinal, −1: not known.
    """

    begin_ns: I64
    end_ns: I64
    kind: I64
    pid: I64
    tid: I64
    count: I64
    size_bytes: I64
    to_host: npt.NDArray[np.bool_]
    blocks: I64
    device: I64

    def __len__(self) -> int:
        return len(self.begin_ns)

    def where(self, mask: npt.NDArray[np.bool_]) -> GpuCalls:
        """Some of them."""
        return GpuCalls(**{name: getattr(self, name)[mask] for name in _COLUMNS})

    def of(self, *kinds: int) -> GpuCalls:
        """Those of the kinds."""
        return self.where(np.isin(self.kind, kinds))


_COLUMNS: Final = GpuCalls.__struct_fields__


class DeviceTimes(Struct, kw_only=True):
    """What the device did, by process: begins and ends of kernels, copies and sets; ``is_kernel``: which are."""

    begin_ns: I64
    end_ns: I64
    pid: I64
    is_kernel: npt.NDArray[np.bool_]

    def of_process(self, pid: int) -> DeviceTimes:
        """One process's."""
        mine = self.pid == pid
        return DeviceTimes(
            begin_ns=self.begin_ns[mine],
            end_ns=self.end_ns[mine],
            pid=self.pid[mine],
            is_kernel=self.is_kernel[mine],
        )


def kind_of(function: str) -> int:
    """By the exported name."""
    if "Memcpy" in function:
        return COPY if "Async" in function else BLOCKING_COPY
    if "Launch" in function:
        return LAUNCH
    if "Synchronize" in function:
        return SYNC
    return MEMORY if any(part in function for part in ("Malloc", "Free", "MemAlloc")) else OTHER


def gpu_calls(batches: Iterable[SpanColumns], rejected: Counter[str]) -> tuple[GpuCalls, DeviceTimes]:
    """All of them. ``rejected``: reason → rows, added to."""
    calls: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
    times: dict[str, list[Any]] = {name: [] for name in DeviceTimes.__struct_fields__}
    taken = 0
    for batch in batches:
        pid = batch.resource.get("process.pid")
        if batch.scope != _SCOPE or not isinstance(pid, int) or not len(batch):
            continue
        if taken + len(batch) > MOST_CALLS:
            rejected["calls_beyond_limit"] += len(batch)
            continue
        taken += len(batch)
        begin, end = batch.start_unix_ns, batch.end_unix_ns
        good = (begin <= end) & (end < np.uint64(_LATEST))
        rejected["calls_with_wrong_times"] += int((~good).sum())
        attributes = {each.key: each for each in batch.attributes}
        merged = _is_set(attributes.get(_MERGED), len(batch))
        if merged.any():
            counts = np.maximum(_numbers(attributes.get(_COUNT), len(batch)), 1)
            rejected["calls_merged"] += int(counts[merged].sum())
            good &= ~merged
        table = times if _OF_DEVICE in attributes else calls
        for name, column in _columns(batch, attributes, pid, names=tuple(table)).items():
            table[name].append(column[good])
    rejected += Counter()  # without what is none
    return _joined(GpuCalls, calls), _joined(DeviceTimes, times)


def _columns(
    batch: SpanColumns, attributes: dict[str, Attribute], pid: int, names: Sequence[str]
) -> dict[str, npt.NDArray[Any]]:
    rows = len(batch)
    functions = [plain(each).partition(" ")[0] for each in batch.name.table]
    kinds = np.array([kind_of(each) for each in functions], dtype=np.int64)
    is_copy = np.array([each in ("memcpy", "memset") for each in functions], dtype=np.bool_)
    grid = [_numbers(attributes.get(f"cuda.grid.{axis}"), rows) for axis in "xyz"]
    made = {
        "begin_ns": batch.start_unix_ns.astype(np.int64),
        "end_ns": batch.end_unix_ns.astype(np.int64),
        "pid": np.full(rows, pid, dtype=np.int64),
        "kind": kinds[batch.name.codes],
        "is_kernel": ~is_copy[batch.name.codes],
        "tid": _numbers(attributes.get("thread.id"), rows),
        "count": np.maximum(_numbers(attributes.get(_COUNT), rows), 1),
        "size_bytes": _numbers(attributes.get("cuda.size"), rows),
        "to_host": _is_text(attributes.get("cuda.memcpy.kind"), "MemcpyDeviceToHost", rows),
        "blocks": np.where(grid[0] > 0, np.prod(np.clip(grid, 1, 1 << 20), axis=0), -1),
        "device": _numbers(attributes.get("cuda.device.index"), rows),
    }
    return {name: made[name] for name in names}


def _numbers(attribute: Attribute | None, rows: int) -> I64:
    """−1 where it is absent, or no number."""
    if attribute is None or isinstance(attribute.values, Text) or attribute.values.dtype.kind not in "iu":
        return np.full(rows, -1, dtype=np.int64)
    values = np.clip(attribute.values, 0, _LATEST).astype(np.int64)
    return values if attribute.present is None else np.where(attribute.present, values, -1)


def _is_set(attribute: Attribute | None, rows: int) -> npt.NDArray[np.bool_]:
    if attribute is None or isinstance(attribute.values, Text) or attribute.values.dtype.kind != "b":
        return np.zeros(rows, dtype=np.bool_)
    values = attribute.values.astype(np.bool_)
    return values if attribute.present is None else values & attribute.present


def _is_text(attribute: Attribute | None, wanted: str, rows: int) -> npt.NDArray[np.bool_]:
    if attribute is None or not isinstance(attribute.values, Text):
        return np.zeros(rows, dtype=np.bool_)
    found = np.array([each == wanted for each in attribute.values.table], dtype=np.bool_)
    there = found[attribute.values.codes]
    return there if attribute.present is None else there & attribute.present


def _joined(made: Any, table: dict[str, list[Any]]) -> Any:
    columns = {name: np.concatenate(parts) if parts else _empty(name) for name, parts in table.items()}
    order = np.argsort(columns["begin_ns"], kind="stable")
    return made(**{name: column[order] for name, column in columns.items()})


def _empty(name: str) -> npt.NDArray[Any]:
    return np.zeros(0, dtype=np.bool_ if name in ("to_host", "is_kernel") else np.int64)
