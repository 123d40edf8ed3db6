"""5,000 threads, and processes that fork, exec and end all the time: what is held is bounded, losses are counted."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path

import numpy as np

from otelgpu.model.profiling import ProfileKind
from otelgpu.model.samples import SampleKind
from tests.kernel.observing import Watch
from tests.kernel.profiled import compiled, profiled

SOURCE = Path(__file__).parent / "data" / "storm.c"
THREADS = 5_000
KINDS = (ProfileKind.CPU, ProfileKind.OFFCPU, ProfileKind.SYSCALL, ProfileKind.FILE, ProfileKind.BLOCK)


def test_a_storm_of_threads_and_processes_is_bounded_and_counted(
    watch: Callable[..., Watch], tmp_path: Path
) -> None:
    taken = profiled(watch, *KINDS, frequency_hz=99)
    taken.run([compiled(tmp_path, SOURCE), str(THREADS), "4"])
    made = taken.known["threads"][0].calls
    assert made == THREADS, (made, resource.getrlimit(resource.RLIMIT_NPROC))
    assert taken.known["children"][0].calls > 3

    waits = taken.of_kind(SampleKind.OFF_CPU)
    tids, times = np.unique(waits["tid"], return_counts=True)
    lost = taken.watching.total("profile", "ring_full")
    assert len(tids) >= THREADS or lost  # each has waited
    assert times.mean() >= 2 or lost
    for kind in (SampleKind.CPU, SampleKind.SYSCALL):
        assert len(taken.of_kind(kind))
    # No wait is longer than the program ran, and none is reported of the time before it began.
    assert int(waits["value"].max()) < 60e9

    # What lasted is reported; what ended is not kept.
    for _ in range(2):
        taken.report()
    loaded = next(each for each in taken.watching.source._draining if each.family == "profile")
    alive = {int(name) for name in os.listdir("/proc") if name.isdigit()}
    owners = {int.from_bytes(key[:4], "little") for key in loaded.map("syscall_sums").list_keys()}
    assert owners <= alive
    assert loaded.map("block_requests").list_keys() == []
    reported = loaded.map("reported_stacks")
    assert len(reported.list_keys()) <= reported.max_entries
    assert taken.watching.total("profile", "thread_state_failed") == 0
    assert taken.watching.total("profile", "syscall_table_full") == 0
