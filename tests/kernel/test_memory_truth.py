"""The memory that otelgpu says is held is what the program holds, at every checkpoint of 10,000 random calls.

The program (tests/fakes/programs/memory.c) allocates and frees by every function of the runtime and driver API,
keeps its own account and stands still at each checkpoint; the ledger here is fed from the live ring.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

import pytest

from otelgpu.families.gpu.cuda.decode import CudaDecoder
from otelgpu.families.gpu.memory.ledger import MemoryLedger, ProcessMemory
from otelgpu.model.inputs import Batch
from otelgpu.model.operations import Memory
from tests.kernel.observing import Watch
from tests.rig import Checkpoint, MemoryProgram, memory_command

NOT_HELD = {"imported", "address"}
"""Another process's memory, and addresses with nothing behind them: not counted as held."""


@pytest.fixture
def ledger(watching: Watch) -> MemoryLedger:
    return MemoryLedger([CudaDecoder(watching.source.btf["cuda"])])


def feed(ledger: MemoryLedger, watching: Watch) -> None:
    """Everything recorded so far."""
    decoder = CudaDecoder(watching.source.btf["cuda"])
    for item in watching.inputs:
        if isinstance(item, Batch) and item.kind == "cuda_call":
            ledger.add(decoder.decode(item))
    watching.inputs.clear()
    ledger.settle(time.monotonic_ns())


def held(process: ProcessMemory) -> dict[tuple[int, str], tuple[int, int]]:
    return {
        (account.device, Memory(account.memory).name.lower()): (account.live_bytes, account.live_allocations)
        for account in process.accounts.values()
        if account.live_allocations and Memory(account.memory).name.lower() not in NOT_HELD
    }


def truth(checkpoint: Checkpoint) -> dict[tuple[int, str], tuple[int, int]]:
    return {
        place: (live.bytes, live.count) for place, live in checkpoint.live.items() if place[1] not in NOT_HELD
    }


def sums(process: ProcessMemory, field: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for account in process.accounts.values():
        name = Memory(account.memory).name.lower()
        found[name] = found.get(name, 0) + getattr(account, field)
    return found


def ours(numbers: Mapping[str, int]) -> dict[str, int]:
    return {name: number for name, number in numbers.items() if number and name not in NOT_HELD}


def checkpoints(watching: Watch, program: MemoryProgram) -> Iterator[Checkpoint]:
    while checkpoint := watching.during(program.next_checkpoint):
        yield checkpoint


@pytest.mark.parametrize(
    ("threads", "resets", "seed"), [(1, False, 1), (1, True, 2), (5, False, 3), (5, True, 4)]
)
def test_memory_held_equals_the_program_s_own_account_at_every_checkpoint(
    watching: Watch, ledger: MemoryLedger, threads: int, resets: bool, seed: int
) -> None:
    command = memory_command(operations=10_000, checkpoint=1000, threads=threads, resets=resets, seed=seed)
    program = MemoryProgram(command, {"FAKE_CUDART_DEVICES": "2"})
    watching.observe(program.pid)
    seen = 0
    for checkpoint in checkpoints(watching, program):
        feed(ledger, watching)
        process = ledger.processes[program.pid]
        assert held(process) == truth(checkpoint), f"checkpoint {checkpoint.number}"
        assert ours(sums(process, "allocated_bytes")) == ours(checkpoint.allocated_bytes)
        assert ours(sums(process, "freed_bytes")) == ours(checkpoint.freed_bytes)
        seen += 1
    assert (seen, program.close()) == (11, 0)
    assert watching.total("cuda", "ring_full") == 0
    assert not {reason: count for reason, count in ledger.counters.items() if count}


def test_allocations_that_fail_are_counted_and_hold_nothing(watching: Watch, ledger: MemoryLedger) -> None:
    program = MemoryProgram(
        memory_command(operations=1000, checkpoint=500),
        {"FAKE_CUDA_FAIL": "cuMemAlloc_v2:3:2,cuMemAllocManaged:2:2,cuMemHostAlloc:2:2,cuMemCreate:1:2"},
    )
    watching.observe(program.pid)
    *_, last = checkpoints(watching, program)
    feed(ledger, watching)
    assert not held(ledger.processes[program.pid])
    failed = sum(
        count
        for function, count in last.failures.items()
        if "Free" not in function  # all others that this program lets fail allocate
    )
    assert sum(sums(ledger.processes[program.pid], "failures").values()) == failed > 4
    assert program.close() == 0


def test_what_a_killed_program_held_is_free(watching: Watch, ledger: MemoryLedger) -> None:
    program = MemoryProgram(memory_command(operations=2000, checkpoint=1000))
    watching.observe(program.pid)
    checkpoint = watching.during(program.next_checkpoint)
    feed(ledger, watching)
    assert checkpoint is not None and held(ledger.processes[program.pid]) == truth(checkpoint) != {}
    program.process.kill()
    program.close()
    ledger.end_process(program.pid, time.monotonic_ns())
    ledger.settle(time.monotonic_ns())
    (ended,) = ledger.take_ended()
    assert (ended.tgid, held(ended)) == (program.pid, {})
