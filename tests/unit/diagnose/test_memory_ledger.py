"""Categories add up to the memory ledger at every instant, whatever is allocated, freed, failed or ended."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.diagnose.memory.accounting import account, devices_of
from otelgpu.diagnose.memory.observations import DEVICE, Place, Snapshot
from otelgpu.engine.memory_names import memory_names
from otelgpu.families.gpu.memory.ledger import MemoryLedger, ProcessMemory
from otelgpu.families.gpu.memory.profile_rows import AT_EXIT, IN_USE, MemoryProfiles
from otelgpu.model.operations import DEVICE_MEMORY, Memory, Operations
from otelgpu.render.frames import Frame, Kind
from tests.rig.examples import examples
from tests.unit.families.gpu.memory.memory_calls import Decoder, allocation, free

STACKS: list[tuple[Frame, ...]] = [
    (),
    (Frame(Kind.PYTHON, "load_weights"),),
    (Frame(Kind.NATIVE, "c10::cuda::CUDACachingAllocator::alloc_block"), Frame(Kind.PYTHON, "forward")),
    (Frame(Kind.PYTHON, "forward"),),
    (Frame(Kind.PYTHON, "main"),),
]
KINDS = [Memory.DEVICE, Memory.MANAGED, Memory.POOL, Memory.HOST]


@st.composite
def a_call(draw: st.DrawFn, start: int) -> Operations:
    at = draw(st.integers(1, 6))
    if draw(st.booleans()):
        return free(start, at=at)
    return allocation(
        start,
        at=at,
        size=draw(st.integers(0, 1 << 40)),
        device=draw(st.sampled_from([0, 1, -1])),
        memory=draw(st.sampled_from(KINDS)),
        caller=draw(st.integers(0, len(STACKS) - 1)),
        status=draw(st.sampled_from([0, 0, 0, 2])),
    )


def callers(rows: Operations) -> npt.NDArray[np.uint64]:
    """The stack's number is the call's caller."""
    return rows["caller"].astype(np.uint64)


def held_of(process: ProcessMemory) -> dict[int, int]:
    """Of each device what the ledger says, in its own words."""
    found: dict[int, int] = {}
    for each in process.accounts.values():
        if each.memory in DEVICE_MEMORY:
            found[each.device] = found.get(each.device, 0) + each.live_bytes
    return {device: size for device, size in found.items() if size}


def snapshot_of(profiles: MemoryProfiles, *, at_exit: bool) -> Snapshot:
    """What a profile of that moment has, with its labels read as a diagnosis reads them."""
    made = Snapshot(time_ns=1)
    for part in profiles.take(1) if at_exit else profiles.held(1):
        if part.sample_type != (AT_EXIT if at_exit else IN_USE):
            continue
        for row in part.rows:
            label = dict(part.labels[row["label"] - 1])
            kind, device = str(label["cuda.memory.kind"]), int(label.get("cuda.device.index", -1))
            if kind not in ("host", "registered"):
                made.sizes[Place(DEVICE, device, kind, STACKS[row["stack"]])] += int(row["value"])
    return made


def accounted(snapshot: Snapshot) -> dict[int, int]:
    found = {}
    for device in devices_of([snapshot]):
        each = account(snapshot, device)
        assert sum(each.categories.values()) == each.total == each.ledger
        if each.ledger:
            found[device] = each.ledger
    return found


@given(st.data())
@examples(60)
def test_categories_add_up_to_the_ledger_at_every_instant(data: st.DataObject) -> None:
    exited: list[tuple[ProcessMemory, int]] = []
    ledger = MemoryLedger(
        [Decoder()], stacks=callers, at_end=lambda process, time_ns: exited.append((process, time_ns))
    )
    profiles = MemoryProfiles(ledger, [memory_names("cuda")])
    last: dict[int, int] = {}
    for time in range(1, 1 + data.draw(st.integers(1, 25))):
        ledger.add(data.draw(a_call(10 * time)))
        ledger.settle(10 * time + 5)
        process = ledger.processes.get(1)
        last = held_of(process) if process is not None else {}
        assert accounted(snapshot_of(profiles, at_exit=False)) == last
    if 1 in ledger.processes:
        mine = ledger.processes[1]
        profiles.see_end(mine, 1000)  # before the ledger lets go of it all
        assert accounted(snapshot_of(profiles, at_exit=True)) == last
        ledger.end_process(1, 1000)
        ledger.settle(2000)
        assert [process for process, _ in exited] == [mine]
        assert accounted(snapshot_of(profiles, at_exit=False)) == {}
