"""Who makes it dear to look at what it has mapped keeps nobody beside it from being probed."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile.stage import ATTACKER, MOST_RSS_BYTES, Stage, ends_in_time, resident_bytes
from tests.kernel.observing import Session, cuda_calls, read_spans
from tests.rig import fake_cudart_path
from tests.unit.elf.elf_builders import synthetic_elf

WANTED = ("cudaLaunchKernel", "cudaMemcpyAsync", "cudaStreamSynchronize", "cudaMallocAsync", "cuMemAlloc_v2")
SYMBOLS = 1_900_000
FILES = 12
MAPPER = """
import mmap, os, sys, time
files = [os.open(path, os.O_RDONLY) for path in sys.argv[1:]]
print("begun", flush=True)
while True:
    mapped = []
    for path, file in zip(sys.argv[1:], files):
        os.utime(path)  # another file, as far as can be told
        mapped.append(mmap.mmap(file, 1 << 20, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC))
    time.sleep(2)
"""
CROWD = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
ctypes.CDLL(sys.argv[1]).cudaMalloc  # its names are in what it maps: that is remembered at each mapping
file = os.open(sys.argv[2], os.O_RDONLY)
READ, EXECUTE, PRIVATE = 1, 4, 2
for number in range(50_000):  # every other page, so that none can be merged
    libc.mmap(None, 4096, READ | EXECUTE, PRIVATE, file, (2 * number % 10_000) * 4096)
print("begun", flush=True)
while True:
    libc.munmap(libc.mmap(None, 4096, READ | EXECUTE, PRIVATE, file, 4096), 4096)
"""
CALLS = 61
VICTIMS = 2
ATTACHED_S = 5.0
"""How long new programs may wait for their probes while somebody else keeps both processors busy, too."""


@pytest.fixture(scope="module")
def dear() -> Iterator[list[Path]]:
    """45 MB each, of names that are almost those of wanted functions."""
    names = [f"{name}{number}" for name in WANTED for number in range(400)]
    content = synthetic_elf(SYMBOLS, names=names)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        paths = [Path(folder, f"libdear{number}.so") for number in range(FILES)]
        for path in paths:
            path.write_bytes(content)
            os.chown(path, ATTACKER, ATTACKER)
        yield paths


@pytest.mark.alone(reason="counts in seconds how long new programs wait")
def test_new_programs_are_probed_beside_libraries_that_are_dear_to_look_into(
    stage: Stage, dear: list[Path]
) -> None:
    with stage.agent("--families=cuda") as agent:
        stage.attack_with(MAPPER, *map(str, dear))
        time.sleep(1)
        assert_new_programs_are_probed(stage, agent)


@pytest.mark.alone(reason="counts in seconds how long new programs wait")
def test_new_programs_are_probed_beside_one_with_tens_of_thousands_of_mappings(
    stage: Stage, dear: list[Path]
) -> None:
    with stage.agent("--families=cuda") as agent:
        stage.attack_with(CROWD, str(fake_cudart_path()), str(dear[0]))
        time.sleep(1)
        assert_new_programs_are_probed(stage, agent)


def assert_new_programs_are_probed(stage: Stage, agent: Session) -> None:
    stage.run_new_libraries(VICTIMS, calls=CALLS, probed_s=ATTACHED_S)
    assert resident_bytes(agent.process.pid, "VmHWM") < MOST_RSS_BYTES
    ends_in_time(agent)
    assert cuda_calls(read_spans(stage.traces))["cudaLaunchKernel"] >= VICTIMS * CALLS
