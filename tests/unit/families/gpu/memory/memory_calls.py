"""Calls that concern memory, one line each, and a decoder that knows the context functions by number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from otelgpu.engine.contract import ContextStep
from otelgpu.families.gpu.memory.ledger import MemoryLedger
from otelgpu.model.inputs import Batch
from otelgpu.model.operations import Memory, OperationKind, Operations, concatenate, operations

STEPS = dict(enumerate(ContextStep, 1))
API = {step: number for number, step in STEPS.items()}
KIND_OF_STEP = {
    **dict.fromkeys(ContextStep, OperationKind.MODULE),
    **dict.fromkeys(
        (ContextStep.SELECT, ContextStep.PUSH, ContextStep.POP, ContextStep.SELECT_DEVICE),
        OperationKind.DEVICE,
    ),
}


class Decoder:
    """Function n does what the n-th step says; function 0 and those beyond do nothing to contexts."""

    apis: Mapping[int, str] = {number: step.value for number, step in STEPS.items()}
    context_steps: Mapping[int, ContextStep] = STEPS

    def decode(self, batch: Batch) -> Operations:
        return batch.records


def call(kind: OperationKind, start: int, end: int | None = None, **columns: Any) -> Operations:
    """A successful call of process 1, thread 1, device 0, from ``start`` to ``end`` (or the same moment)."""
    row = operations(1)
    row["kind"], row["tgid"], row["tid"], row["returned"] = kind, 1, 1, 1
    row["start_ns"], row["duration_ns"] = start, 0 if end is None else end - start
    for column, value in columns.items():
        row[column] = value
    return row


def allocation(
    start: int, end: int | None = None, *, at: int = 0xA000, size: int = 100, **columns: Any
) -> Operations:
    return call(
        OperationKind.ALLOCATION,
        start,
        end,
        **({"handle": at, "size_bytes": size, "memory": Memory.DEVICE} | columns),
    )


def free(start: int, end: int | None = None, *, at: int = 0xA000, **columns: Any) -> Operations:
    return call(OperationKind.FREE, start, end, **({"handle": at, "memory": Memory.DEVICE} | columns))


def mapping(start: int, at: int, size: int, handle: int = 0, **columns: Any) -> Operations:
    """``handle`` 0 unmaps."""
    return call(OperationKind.MAPPING, start, handle=at, size_bytes=size, other=handle, **columns)


def step(what: ContextStep, start: int, end: int | None = None, **columns: Any) -> Operations:
    return call(KIND_OF_STEP[what], start, end, api=API[what], **columns)


def ledger_of(*rows: Operations, now: int = 10**6, **options: Any) -> MemoryLedger:
    """A ledger that was given all rows in one tick."""
    ledger = MemoryLedger([Decoder()], **options)
    ledger.add(concatenate(rows))
    ledger.settle(now)
    return ledger


def live(ledger: MemoryLedger, tgid: int = 1) -> dict[tuple[int, str], int]:
    """Bytes held by (device, kind), without what is zero."""
    process = ledger.processes.get(tgid)
    accounts = process.accounts.values() if process else ()
    return {(a.device, Memory(a.memory).name): a.live_bytes for a in accounts if a.live_bytes}


def total(ledger: MemoryLedger, tgid: int = 1) -> int:
    return sum(live(ledger, tgid).values())


def counted(ledger: MemoryLedger) -> dict[str, int]:
    return {reason: count for reason, count in ledger.counters.items() if count}


def rows_of(**columns: Any) -> Operations:
    """One row of zeros but for ``columns``: of the examples in docstrings."""
    row = operations(1)
    for column, value in columns.items():
        row[column] = value
    return np.copy(row)
