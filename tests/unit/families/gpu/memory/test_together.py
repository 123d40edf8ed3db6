"""Calls that are applied together change the ledger as the same calls do one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.engine.contract import ContextStep
from otelgpu.families.gpu.memory import ledger as memory
from otelgpu.families.gpu.memory import process as memory_process
from otelgpu.families.gpu.memory.ledger import MemoryLedger
from otelgpu.model.operations import LARGEST_SIZE, Memory, OperationKind, Operations, concatenate
from tests.rig.examples import examples
from tests.unit.families.gpu.memory.memory_calls import (
    API,
    Decoder,
    allocation,
    call,
    counted,
    free,
    ledger_of,
)

KINDS = [*Memory, 77]
SIZES = [0, 1, 50, LARGEST_SIZE, LARGEST_SIZE + 1]
STEPS = [ContextStep.CREATE, ContextStep.CREATE, ContextStep.DESTROY, ContextStep.RESET_CURRENT]


@st.composite
def calls(draw: st.DrawFn) -> Operations:
    """Mostly plain allocations and frees of few addresses by two processes, and some of all that is not plain."""
    odd = draw(st.integers(0, 7))  # what is not plain about it: nothing, as a rule
    begin = draw(st.integers(1, 40))
    end = begin + draw(st.integers(0, 20))
    columns: dict[str, Any] = {
        "tgid": draw(st.sampled_from([1, 1, 1, 2])),
        "device": draw(st.sampled_from([1, -1, -(1 << 15), 300])) if odd == 1 else 0,
        "status": 2 if odd == 2 else 0,
        "returned": 0 if odd == 3 else 1,
        "memory": draw(st.sampled_from(KINDS)) if odd == 4 else Memory.DEVICE,
        "api": API[ContextStep.KEEP] if odd == 5 else 0,
    }
    if odd == 6:
        columns["api"] = API[draw(st.sampled_from(STEPS))]
        return call(OperationKind.MODULE, begin, end, handle=9, **columns)
    at = draw(st.integers(0, 4))
    if draw(st.booleans()):
        return free(begin, end, at=at, **columns)
    caller = draw(st.integers(0, 4))
    return allocation(begin, end, at=at, size=draw(st.sampled_from(SIZES)), caller=caller, **columns)


def state(ledger: MemoryLedger) -> list[object]:
    processes = [*ledger.processes.values(), *ledger.take_ended()]
    kept = [(p.tgid, p.accounts, p.sites, p._held, p._owed) for p in processes]
    return [dict(ledger.counters), kept]


@examples(150)
@given(
    st.lists(st.lists(calls(), min_size=1, max_size=20), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 2)), max_size=2),
    st.integers(1, 4),
    st.integers(0, 2),
)
def test_together_is_as_one_by_one(
    ticks: list[list[Operations]], ends: list[tuple[int, int]], limit: int, sites: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory_process, "SITES", sites)
        together, alone = (MemoryLedger([Decoder()], limit=limit) for _ in range(2))
        for ledger in (together, alone):
            if ledger is alone:
                patch.setattr(memory, "_plain", lambda rows, _: np.zeros(len(rows), dtype=np.bool_))
            for number, rows in enumerate(ticks, start=1):
                ledger.add(concatenate(rows))
                if number == 1:
                    for time_ns, tgid in ends:
                        ledger.end_process(tgid, time_ns)
                ledger.settle(number * 50)
        assert state(together) == state(alone)


def test_each_allocation_without_room_for_its_site_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_process, "SITES", 1)
    rows = [allocation(number, at=number, caller=min(number, 2)) for number in (1, 2, 3)]
    assert counted(ledger_of(*rows)) == {"site_not_kept": 2}
