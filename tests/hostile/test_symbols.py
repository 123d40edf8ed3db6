"""Who has libraries with symbols made to be dear to look through keeps nobody beside it from being probed."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile.stage import ATTACKER, MOST_RSS_BYTES, Stage, ends_in_time, resident_bytes
from tests.kernel.observing import cuda_calls, read_spans
from tests.rig import fake_cudart_path, start_cuda_client
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
CALLS = 61
VICTIMS = 2
ATTACHED_S = 2.5
"""How long new programs may wait for their probes: a second of looking at the attacker's files, and one question."""


@pytest.fixture
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


def test_new_programs_are_probed_beside_libraries_that_are_dear_to_look_into(
    stage: Stage, dear: list[Path]
) -> None:
    with stage.agent("--families=cuda") as agent:
        stage.attack_with(MAPPER, *map(str, dear))
        time.sleep(1)
        for number in range(VICTIMS):
            library = stage.folder / str(number) / "libcudart.so.12"  # one that nobody has probed yet
            library.parent.mkdir()
            shutil.copy(fake_cudart_path(), library)
            with start_cuda_client(prefix=stage.victim, library=library, calls=CALLS) as victim:
                time.sleep(ATTACHED_S)
                victim.finish()
        assert resident_bytes(agent.process.pid, "VmHWM") < MOST_RSS_BYTES
        ends_in_time(agent)
    assert cuda_calls(read_spans(stage.traces))["cudaLaunchKernel"] == VICTIMS * CALLS
