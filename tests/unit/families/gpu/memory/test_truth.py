"""The ledger against a world that knows: threads allocate and free by every API, and records come as they may.

A free takes effect when it begins, and its record is made when it ends, any number of ticks later; meanwhile
its address or handle is given away again. Records of one tick come in any order. Each allocation has a stack, of
which the ledger learns by the start of the call.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from otelgpu.engine.contract import ContextStep
from otelgpu.families.gpu.memory.ledger import MemoryLedger
from otelgpu.model.operations import Memory, Operations, concatenate
from tests.rig.examples import examples
from tests.unit.families.gpu.memory.memory_calls import Decoder, allocation, free, live, mapping, step

BY_ADDRESS = [Memory.DEVICE, Memory.MANAGED, Memory.POOL, Memory.HOST]
PAGE = 0x1000
pages = st.integers(0, 7)
stacks = st.integers(0, 3)


@dataclass(eq=False)
class Block:
    """Physical memory."""

    size: int
    stack: int
    references: Counter[int] = field(
        default_factory=Counter
    )  # by handle: each is released as often as it was given


class World(RuleBasedStateMachine):
    """What is true now, and the records that are on their way."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = MemoryLedger([Decoder()], stacks=self.stacks_of)
        self.now = 1
        self.stack_at: dict[int, int] = {}  # by start
        self.blocks: dict[
            tuple[bool, int], tuple[int, str, int, int]
        ] = {}  # own, address → device, kind, size, stack
        self.handles: dict[int, Block] = {}
        self.mapped: dict[int, Block] = {}  # by page
        self.under_way: list[Operations] = []  # begun, not ended
        self.made: list[Operations] = []  # ended, not reported

    def at(self) -> int:
        self.now += 1
        return self.now

    def at_under(self, stack: int) -> int:
        now = self.at()
        self.stack_at[now] = stack
        return now

    def stacks_of(self, rows: Operations) -> npt.NDArray[np.uint64]:
        return np.array([self.stack_at.get(start, 0) for start in rows["start_ns"].tolist()], dtype=np.uint64)

    def truth_by_stack(self) -> dict[tuple[int, int, str], int]:
        sums: Counter[tuple[int, int, str]] = Counter()
        for device, kind, size, stack in self.blocks.values():
            sums[stack, device, kind] += size
        physical = {id(b): b for b in [*self.handles.values(), *self.mapped.values()]}
        for block in physical.values():
            sums[block.stack, 0, "PHYSICAL"] += block.size
        return dict(sums)

    def truth(self) -> dict[tuple[int, str], int]:
        sums: Counter[tuple[int, str]] = Counter()
        for (_, device, kind), size in self.truth_by_stack().items():
            sums[device, kind] += size
        return dict(sums)

    def begin(self, row: Operations) -> None:
        self.under_way.append(row)

    # -- calls ----------------------------------------------------------------------------------------

    @rule(
        address=st.integers(1, 4),
        size=st.integers(1, 99),
        kind=st.sampled_from(BY_ADDRESS),
        device=st.integers(0, 1),
        stack=stacks,
    )
    def malloc(self, address: int, size: int, kind: Memory, device: int, stack: int) -> None:
        if (False, address) not in self.blocks:
            begin = self.at_under(stack)
            self.made.append(
                allocation(
                    begin, self.at(), at=address, size=size, memory=kind, device=device, caller=address
                )
            )
            self.blocks[False, address] = (device, kind.name, size, stack)

    @rule(address=st.integers(1, 4), size=st.integers(1, 99))
    def register(self, address: int, size: int) -> None:
        if (True, address) not in self.blocks:
            self.made.append(allocation(self.at(), at=address, size=size, memory=Memory.REGISTERED))
            self.blocks[True, address] = (0, "REGISTERED", size, 0)

    @rule(number=st.integers(0, 7), named=st.sampled_from(BY_ADDRESS))
    def begin_free(self, number: int, named: Memory) -> None:
        if self.blocks:
            own, address = sorted(self.blocks)[number % len(self.blocks)]
            del self.blocks[own, address]
            self.begin(free(self.at(), at=address, memory=Memory.REGISTERED if own else named))

    @rule(address=st.integers(1, 4), what=st.sampled_from(["failed", "entry"]), size=st.integers(1, 99))
    def call_in_vain(self, address: int, what: str, size: int) -> None:
        reported: dict[str, Any] = {"status": 2} if what == "failed" else {"returned": 0}
        self.made += [
            allocation(self.at(), at=address, size=size, **reported),
            free(self.at(), at=address, **reported),
        ]

    @rule(handle=st.integers(1, 3), size=st.integers(1, 99), stack=stacks)
    def create(self, handle: int, size: int, stack: int) -> None:
        if handle not in self.handles:
            begin = self.at_under(stack)
            self.made.append(allocation(begin, at=handle, size=size, memory=Memory.PHYSICAL))
            self.handles[handle] = Block(size, stack, Counter([handle]))

    @precondition(lambda self: self.handles)
    @rule(number=pages)
    def begin_release(self, number: int) -> None:
        handle = sorted(self.handles)[number % len(self.handles)]
        block = self.handles[handle]
        block.references[handle] -= 1
        if not block.references[handle]:
            del self.handles[handle]
        self.begin(free(self.at(), at=handle, memory=Memory.PHYSICAL))

    @precondition(lambda self: self.mapped)
    @rule(number=pages, handle=st.integers(1, 3))
    def retain(self, number: int, handle: int) -> None:
        page = sorted(self.mapped)[number % len(self.mapped)]
        block = self.mapped[page]
        if self.handles.get(handle, block) is block:
            self.made.append(
                allocation(self.at(), at=handle, size=0, memory=Memory.PHYSICAL, other=page * PAGE + 5)
            )
            block.references[handle] += 1
            self.handles[handle] = block

    @precondition(lambda self: self.handles)
    @rule(number=pages, first=pages, count=st.integers(1, 3))
    def map(self, number: int, first: int, count: int) -> None:
        wanted = range(first, first + count)
        if self.mapped.keys().isdisjoint(wanted):
            handle = sorted(self.handles)[number % len(self.handles)]
            self.mapped |= dict.fromkeys(wanted, self.handles[handle])
            self.made.append(mapping(self.at(), first * PAGE, count * PAGE, handle))

    @rule(first=pages, count=st.integers(1, 5))
    def begin_unmap(self, first: int, count: int) -> None:
        for page in range(first, first + count):
            self.mapped.pop(page, None)
        self.begin(mapping(self.at(), first * PAGE, count * PAGE))

    @rule(device=st.integers(0, 1))
    def reset(self, device: int) -> None:
        self.blocks = {key: block for key, block in self.blocks.items() if block[0] != device}
        self.begin(step(ContextStep.RESET_CURRENT, self.at(), device=device))
        self.end_calls(1)  # a reset waits for nobody

    @rule()
    def another_program(self) -> None:
        self.under_way.clear()  # calls that are under way never end
        self.blocks, self.handles, self.mapped = {}, {}, {}
        self.ledger.end_process(1, self.at())

    # -- records --------------------------------------------------------------------------------------

    @rule(count=st.integers(1, 3))
    def end_calls(self, count: int) -> None:
        """The youngest calls end: those that block longest are reported last."""
        for _ in range(min(count, len(self.under_way))):
            row = self.under_way.pop()
            row["duration_ns"] = self.at() - row["start_ns"]
            self.made.append(row)

    @rule(shuffled=st.randoms(use_true_random=False))
    def tick(self, shuffled: Any) -> None:
        shuffled.shuffle(self.made)
        self.ledger.add(concatenate(self.made))
        self.made.clear()
        self.ledger.settle(self.at())

    @invariant()
    def the_ledger_is_true_when_everything_was_reported(self) -> None:
        if not self.under_way and not self.made:
            self.ledger.settle(self.at())
            assert live(self.ledger) == self.truth()
            held = [process.held_by_stack() for process in self.ledger.processes.values()]
            assert {
                (stack, device, Memory(memory).name): size
                for by_stack in held
                for (stack, device, memory, _), (size, _) in by_stack.items()
            } == self.truth_by_stack()

    def teardown(self) -> None:
        self.end_calls(len(self.under_way) or 1)
        self.ledger.add(concatenate(self.made))
        self.made.clear()
        self.the_ledger_is_true_when_everything_was_reported()
        for process in self.ledger.processes.values():
            for account in process.accounts.values():
                sites = [site for site in process.sites if site.account is account]
                assert sum(site.live_bytes for site in sites) == account.live_bytes
                assert account.peak_bytes >= account.live_bytes >= 0


TestMemoryTruth = World.TestCase
TestMemoryTruth.settings = examples(150, stateful_step_count=60)
