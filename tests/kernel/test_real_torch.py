"""PyTorch's own caching allocator, the real libc10.so and libc10_cuda.so, on the fake of the CUDA runtime.

Two accounts must agree that know nothing of each other: what PyTorch says that it reserved, and what otelgpu saw it
take from the runtime.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from otelgpu.families.gpu.cuda.decode import CudaDecoder
from otelgpu.families.gpu.memory.ledger import MemoryLedger
from otelgpu.families.gpu.torch.decode import TorchDecoder
from otelgpu.model.inputs import Batch
from otelgpu.model.operations import Memory
from otelgpu.model.profiling import ProfileKind, ProfileSettings
from tests.kernel.observing import WAIT_S, Watch
from tests.rig import build_fakes, missing_compiler
from tests.rig.programs import SteppedProgram
from tests.rig.torch_wheels import WITH_CUDA_12, torch_libraries

pytestmark = pytest.mark.skipif(missing_compiler() is not None, reason=f"needs {missing_compiler()}")

_ALLOCATOR = "_ZN3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocator"
_FUNCTIONS = {
    "init": "4initEi",
    "raw_alloc": "9raw_allocEm",
    "raw_delete": "10raw_deleteEPv",
    "empty_cache": "10emptyCacheE",  # takes nothing, or from 2.8 on the id of a pool
}
_FOREVER_NS = 1 << 62


def places(library: Path) -> dict[str, int]:
    """Where the native allocator's functions are: they are not exported, but the wheel's files are not stripped."""
    with library.open("rb") as file:
        table = ELFFile(file).get_section_by_name(".symtab")
        assert isinstance(table, SymbolTableSection)
        return {
            name: symbol["st_value"]
            for symbol in table.iter_symbols()
            for name, end in _FUNCTIONS.items()
            if symbol.name.startswith(_ALLOCATOR + end) and ".cold" not in symbol.name
        }


@pytest.fixture(params=WITH_CUDA_12)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def program(version: str) -> Iterator[Callable[..., SteppedProgram]]:
    try:
        libraries = torch_libraries(version)
    except RuntimeError as error:
        pytest.skip(str(error))
    started: list[SteppedProgram] = []

    def start(**options: int) -> SteppedProgram:
        library = libraries / "libc10_cuda.so"
        reported = {**places(library), **options}
        started.append(
            SteppedProgram(
                [
                    str(build_fakes() / "torch" / "program_allocator"),
                    f"--library={library}",
                    *(f"--{name}={number}" for name, number in reported.items()),
                ],
                {"LD_LIBRARY_PATH": f"{libraries}:{build_fakes() / 'torch'}:{build_fakes()}"},
            )
        )
        return started[-1]

    yield start
    for each in started:
        each.close()


def test_what_pytorch_s_allocator_reports_is_reported_and_what_it_reserved_is_what_the_driver_gave(
    watch: Callable[..., Watch], program: Callable[..., SteppedProgram], version: str
) -> None:
    profile = ProfileSettings(kinds=frozenset((ProfileKind.MEM,)))
    watching = watch(families=("cuda", "torch", "profile"), profile=profile)
    running = program(operations=499)
    watching.observe(running.pid)
    cuda = MemoryLedger([CudaDecoder(watching.source.btf["cuda"])])

    def step() -> tuple[dict[str, Any], dict[str, int], int]:
        """What the program says of its calls, what otelgpu of the allocator, and of what the driver gave."""
        line = watching.during(running.next_line)
        assert line is not None
        said = json.loads(line)

        def reported_whole() -> bool:
            """Levels come after the records of what they count, once per collection at most."""
            level = last_level()
            return (level.get("allocations"), level.get("frees"), level.get("refusals")) == (
                len(said["made"]),
                len(said["dropped"]),
                said["refused"],
            )

        until = time.monotonic() + WAIT_S
        while not reported_whole() and time.monotonic() < until:
            watching.pump(0.05)
        for item in watching.inputs:
            if isinstance(item, Batch) and item.kind == "cuda_call":
                cuda.add(CudaDecoder(watching.source.btf["cuda"]).decode(item))
        cuda.settle(_FOREVER_NS)
        given = sum(
            account.live_bytes
            for account in cuda.processes[running.pid].accounts.values()
            if account.memory == Memory.DEVICE
        )
        return said, last_level(), given

    def last_level() -> dict[str, int]:
        """What otelgpu reported last of the allocator; nothing when that is nothing."""
        batches = [item for item in watching.inputs if isinstance(item, Batch) and item.family == "torch"]
        levels = [row for batch in batches for row in TorchDecoder().levels(batch)]
        return {name: int(levels[-1][name]) for name in levels[-1].dtype.names} if levels else {}

    said, level, before = step()
    records = watching.records("torch_memory")
    made, dropped = said["made"], said["dropped"]
    assert len(records) == len(made) + len(dropped) == 499
    gave = [record for record in records if record["bytes"] > 0]
    took = [record for record in records if record["bytes"] < 0]
    assert [int(record["address"]) for record in gave] == [address for address, _ in made]
    assert [int(record["address"]) for record in took] == dropped
    # A block is a little larger than what was asked for; all are multiples of 512 bytes.
    assert all(record["bytes"] % 512 == 0 for record in gave)
    assert all(record["bytes"] >= asked for record, (_, asked) in zip(gave, made, strict=True))
    running_sum = np.cumsum([int(record["bytes"]) for record in records])
    assert running_sum.tolist() == [int(record["allocated"]) for record in records]
    assert level["allocated"] == running_sum[-1]
    assert level["allocated_peak"] == running_sum.max()
    assert level["reserved"] == before > level["allocated"]
    assert (level["allocations"], level["frees"]) == (len(made), len(dropped))
    assert {int(record["device"]) for record in records} == {0x0001}, "cuda:0"

    said, level, _ = step()
    # Later ones look first for functions of the driver that the fake has not, and fail for want of those.
    assert said["refused"] == level["refusals"] == (version == "2.1.2")

    said, level, after = step()
    assert level["reserved"] == after < before, "what was cached went back to the driver"
    assert running.next_line() is None and running.close() == 0
    assert watching.total("torch", "ring_full") == watching.total("torch", "allocator_implausible") == 0
    stacks = watching.records("profile_call")
    assert len(stacks) >= len(said["made"]), "each allocation's, and those of calls of the runtime"
