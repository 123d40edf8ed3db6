"""Programs that the kernel passes over, because they run on that CPU already: each time is counted."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from otelgpu.kernel.attach import attach_tracepoints
from otelgpu.kernel.loader import load_family
from tests.kernel.observing import compiled_image

TIMES = 23


def test_each_time_a_program_is_passed_over_is_counted(tmp_path: Path) -> None:
    loaded = load_family(
        compiled_image("nested", tmp_path), constants={"asking": os.getpid()}, ring_bytes=4096
    )
    try:
        attach_tracepoints(loaded)
        assert loaded.counters()["program_passed_over"] == 0
        getppid = ctypes.CDLL(None).getppid
        for _ in range(TIMES):
            getppid()
        assert loaded.counters()["submitted"] == TIMES
        assert loaded.counters()["program_passed_over"] == TIMES
    finally:
        loaded.close()
