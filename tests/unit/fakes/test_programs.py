"""The programs for each way of linking CUDA say what they did, and are linked as their kind says."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from tests.rig import (
    PROGRAM_KINDS,
    Checkpoint,
    MemoryProgram,
    ProgramKind,
    build_fakes,
    memory_command,
    program_path,
    run_memory_program,
    run_program,
    start_program,
)

ON_DEVICE = ("device", "managed", "pool", "physical")
ALLOCATE = (
    *(
        "cudaMalloc",
        "cudaMallocManaged",
        "cudaMallocPitch",
        "cudaMalloc3D",
        "cudaMallocHost",
        "cudaHostAlloc",
    ),
    *("cudaMallocAsync", "cudaMallocFromPoolAsync", "cudaHostRegister", "cudaIpcOpenMemHandle"),
    *("cuMemAlloc_v2", "cuMemAllocManaged", "cuMemAllocPitch_v2", "cuMemAllocHost_v2", "cuMemHostAlloc"),
    *("cuMemAllocAsync", "cuMemAllocFromPoolAsync", "cuMemHostRegister_v2", "cuIpcOpenMemHandle_v2"),
    *("cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemRetainAllocationHandle"),
)
TWO_DEVICES = {"FAKE_CUDART_DEVICES": "2"}


def symbols(path: Path, section: str) -> dict[str, str]:
    """Defined functions of a symbol table → their binding; none when the file has no such table."""
    with path.open("rb") as file:
        table = ELFFile(file).get_section_by_name(section)
        if not isinstance(table, SymbolTableSection):
            return {}
        return {s.name: s["st_info"]["bind"] for s in table.iter_symbols() if s["st_shndx"] != "SHN_UNDEF"}


class TestLinking:
    def test_a_static_runtime_has_local_symbols_as_nvcc_s(self) -> None:
        assert symbols(program_path("static"), ".symtab")["cudaLaunchKernel"] == "STB_LOCAL"
        assert "cudaLaunchKernel" not in symbols(program_path("static"), ".dynsym")

    def test_a_stripped_program_has_none(self) -> None:
        assert symbols(program_path("stripped"), ".symtab") == {}

    def test_the_runtime_in_a_library_is_not_in_the_program(self) -> None:
        assert "cudaLaunchKernel" not in symbols(program_path("static_library"), ".symtab")
        assert symbols(build_fakes() / "libengine.so", ".symtab")["cudaLaunchKernel"] == "STB_LOCAL"

    @pytest.mark.parametrize("kind", PROGRAM_KINDS)
    def test_every_launch_reaches_the_driver(self, kind: ProgramKind, tmp_path: Path) -> None:
        for said in run_program(kind, "--launches=29", ledger=tmp_path / "ledger"):
            made = sum(count for name, count in said.calls.items() if "LaunchKernel" in name)
            launched = sum(count for name, count in said.driver_calls.items() if "LaunchKernel" in name)
            assert launched == made >= 29
            assert kind == "ctypes" or sum(said.kernels.values()) == made

    def test_a_graph_has_as_many_nodes_as_were_captured(self) -> None:
        (said,) = run_program("graph")
        assert said.graph == {"nodes": 17, "launches": 13}
        assert said.calls["cudaGraphLaunch"] == 13

    def test_a_child_that_executes_a_program_of_cuda_reports_its_own(self) -> None:
        child, parent = run_program("fork_exec", "--launches=31")
        assert child.pid != parent.pid
        assert [said.calls["cudaLaunchKernel"] for said in (child, parent)] == [31, 31]

    @pytest.mark.parametrize("kind", ["shared", "static_library", "late", "driver", "ctypes"])
    def test_waits_before_its_first_call_when_started(self, kind: ProgramKind) -> None:
        with start_program(kind, "--launches=3") as program:
            (said,) = program.finish()
        assert said.pid == program.pid
        assert said.calls.get("cudaLaunchKernel", 0) + said.calls.get("cuLaunchKernel", 0) == 3


def check_account(checkpoint: Checkpoint) -> None:
    """The program's account agrees with itself and with the driver's."""
    live: Counter[str] = Counter()
    used = dict.fromkeys(checkpoint.used_bytes, 0)
    for (device, memory), held in checkpoint.live.items():
        live[memory] += held.bytes
        if memory in ON_DEVICE:
            used[device] += held.bytes
    assert used == checkpoint.used_bytes
    for memory, allocated in checkpoint.allocated_bytes.items():
        assert allocated - checkpoint.freed_bytes[memory] == live[memory]


class TestMemoryProgram:
    @pytest.mark.parametrize(("threads", "resets"), [(1, False), (1, True), (4, False), (4, True)])
    def test_its_account_is_the_driver_s_at_every_checkpoint(self, threads: int, resets: bool) -> None:
        said = run_memory_program(memory_command(threads=threads, resets=resets, seed=7), TWO_DEVICES)
        assert len(said) == 11
        for checkpoint in said:
            check_account(checkpoint)
        assert said[-2].live and not said[-1].live
        assert said[-1].used_bytes == {0: 0, 1: 0}
        assert all(said[-1].allocated_bytes.values()), said[-1].allocated_bytes  # every memory was used

    def test_every_allocation_function_is_called_and_some_fail(self) -> None:
        last = run_memory_program(memory_command())[-1]
        assert set(ALLOCATE) <= last.calls.keys()
        assert {"cudaMalloc", "cuMemAllocAsync", "cudaFree", "cuMemFree_v2"} <= last.failures.keys()

    def test_failures_that_are_asked_for_change_the_account(self) -> None:
        env = {"FAKE_CUDA_FAIL": "cuMemAlloc_v2:3:2,cuMemAllocManaged:5:2,cuMemCreate:2:2,cuMemFreeAsync:4:1"}
        said = run_memory_program(memory_command(operations=2000, checkpoint=500), env)
        for checkpoint in said[:-1]:
            check_account(checkpoint)
        assert said[-1].failures["cuMemCreate"] == 1

    def test_one_seed_is_one_program(self) -> None:
        first, again, other = (
            run_memory_program(memory_command(operations=1000, seed=seed))[-1].calls for seed in (3, 3, 4)
        )
        assert first == again != other

    def test_it_stops_at_each_checkpoint_when_stepped(self) -> None:
        program = MemoryProgram(memory_command(operations=300, checkpoint=100))
        numbers = []
        while checkpoint := program.next_checkpoint():
            numbers.append(checkpoint.number)
        assert (numbers, program.close()) == ([1, 2, 3, 4], 0)
