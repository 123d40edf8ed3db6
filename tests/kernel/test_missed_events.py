"""A process with more events than its share: what it does then is read from /proc, and nothing of it stays unknown."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from otelgpu.model.inputs import ProcessGone
from tests.kernel.observing import Watch
from tests.rig import fake_cudart_path

CALLS = 37
FLOOD = """
import ctypes, mmap, os, sys
sys.stdin.readline()
file = os.open("/proc/self/exe", os.O_RDONLY)
for _ in range(20000):
    mmap.mmap(file, 4096, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC).close()
library = ctypes.CDLL(sys.argv[1])
print("loaded", flush=True)
sys.stdin.readline()
for _ in range(int(sys.argv[2])):
    library.cudaDeviceSynchronize()
"""


def test_what_is_loaded_behind_a_flood_of_ones_own_is_found_and_so_is_the_end(tmp_path: Path) -> None:
    library = tmp_path / "fresh" / "libcudart.so.12"
    library.parent.mkdir()
    shutil.copy(fake_cudart_path(), library)
    with (
        Watch(families=("cuda",)) as watch,
        subprocess.Popen(
            [sys.executable, "-c", FLOOD, library, str(CALLS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        assert process.stdin is not None and process.stdout is not None
        watch.observe(process.pid)
        process.stdin.write("\n")
        process.stdin.flush()
        said = watch.during(process.stdout.readline)
        assert said == "loaded\n"
        watch.pump(2.5)
        assert watch.total("process", "process_share_spent") > 10_000
        watch.during(lambda: process.communicate("\n"))
        assert watch.calls(process.pid)["cudaDeviceSynchronize"] == CALLS
        watch.pump(5.0)
        gone = [item.tgid for item in watch.inputs if isinstance(item, ProcessGone)]
        assert gone == [process.pid]
