"""The ledger of physical memory against a plain model, with releases and unmaps that are reported late."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from otelgpu.families.gpu.memory.ledger import MemoryLedger
from otelgpu.model.operations import Memory, Operations
from tests.rig.examples import examples
from tests.unit.families.gpu.memory.memory_calls import Decoder, allocation, counted, free, mapping, total

HANDLES = (7, 8, 9)
PAGES = (0x1000, 0x2000, 0x3000)
PAGE = 0x1000


@dataclass(eq=False)
class Block:
    """Of physical memory, in truth."""

    size: int
    references: dict[int, int] = field(default_factory=dict)
    pages: set[int] = field(default_factory=set)

    def is_live(self) -> bool:
        return bool(self.pages) or any(self.references.values())


class Truth:
    """What a process did, call by call; a call that makes no sense is not made."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self._time_ns = 0

    def live_bytes(self) -> int:
        return sum(block.size for block in self.blocks if block.is_live())

    def call(self, what: str, handle: int, page: int) -> Operations | None:
        self._time_ns += 10
        now = self._time_ns
        owner = next((block for block in self.blocks if block.references.get(handle)), None)
        there = next((block for block in self.blocks if page in block.pages), None)
        physical = {"at": handle, "memory": Memory.PHYSICAL}
        if what == "create" and owner is None:
            self.blocks.append(Block(PAGE << len(self.blocks), {handle: 1}))
            return allocation(now, size=self.blocks[-1].size, **physical)
        if what == "retain" and there is not None and owner in (None, there):
            there.references[handle] = there.references.get(handle, 0) + 1
            return allocation(now, size=0, other=page, **physical)
        if what == "release" and owner is not None:
            owner.references[handle] -= 1
            return free(now, **physical)
        if what == "map" and owner is not None and there is None:
            owner.pages.add(page)
            return mapping(now, page, PAGE, handle)
        if what == "unmap" and there is not None:
            there.pages.remove(page)
            return mapping(now, page, PAGE)
        return None


CALLS = st.tuples(
    st.sampled_from(["create", "create", "retain", "release", "release", "map", "unmap"]),
    st.sampled_from(HANDLES),
    st.sampled_from(PAGES),
    st.integers(0, 4),  # so many calls later is it reported, if it ends something
)


@examples(400)
@given(st.lists(CALLS, max_size=24))
def test_what_is_held_is_what_the_process_holds(calls: list[tuple[str, int, int, int]]) -> None:
    truth, ledger = Truth(), MemoryLedger([Decoder()])
    reported: list[tuple[int, int, Operations]] = []
    for number, (what, handle, page, late) in enumerate(calls):
        row = truth.call(what, handle, page)
        if row is not None:
            reported.append((number + late * (what in ("release", "unmap")), number, row))
    for tick, (_, _, row) in enumerate(sorted(reported, key=lambda each: each[:2])):
        ledger.add(row)
        ledger.settle(1000 + tick)
    assert (total(ledger), counted(ledger)) == (truth.live_bytes(), {})
