"""Who maps a file that is made to be dear to look into keeps neither ``check`` nor ``ps`` waiting."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile.stage import Stage
from tests.kernel.observing import OTELGPU
from tests.unit.elf.elf_builders import crowded_elf

SECTIONS = 1 << 17
"""8 MB of section headers: as many as are read."""
MAPS = """
import mmap, os, sys, time
file = os.open(sys.argv[1], os.O_RDONLY)
mapped = mmap.mmap(file, 1 << 20, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC)
os.write(1, b"begun\\n")
time.sleep(600)
"""
MEASURED = """
import os, sys
child = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
print(os.wait4(child, 0)[2].ru_maxrss, file=sys.stderr)
"""
"""A small process in between: the most memory that the kernel counts for a child is at least its parent's."""
MOST_S = 5.0
"""Most of it is the imports, and probes that are tried."""
MOST_BYTES = 250 << 20


@pytest.fixture
def crowded() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        path = Path(folder, "libcudart.so.12")
        path.write_bytes(crowded_elf(SECTIONS))
        yield path


@pytest.mark.alone(reason="counts in seconds how long a command takes")
def test_files_of_nothing_but_sections_are_looked_into_at_once(stage: Stage, crowded: Path) -> None:
    attacker = stage.attack_with(MAPS, str(crowded))
    checked = run("check", "-p", str(attacker.pid), "--families=cuda", "--json")
    (process,) = checked["processes"]
    assert process["pid"] == attacker.pid
    assert str(crowded) in json.dumps(process)
    listed = run("ps", "--json")
    assert attacker.pid in [process["pid"] for process in listed["processes"]]


def run(*arguments: str) -> dict[str, list[dict[str, object]]]:
    """What a command prints, within the bounds of time and memory."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, OTELGPU, *arguments], capture_output=True, text=True, check=True
    )
    seconds = time.monotonic() - began
    most_kib = int(done.stderr.split()[-1])
    print(f"{arguments[0]}: {seconds:.1f} s, {most_kib >> 10} MiB")
    assert seconds < MOST_S
    assert most_kib << 10 < MOST_BYTES
    found: dict[str, list[dict[str, object]]] = json.loads(done.stdout)
    return found
