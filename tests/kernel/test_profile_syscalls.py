"""System calls: every one is counted, with its time; slow ones and some of the quick ones have their stacks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from otelgpu.families.profiles.syscall_names import syscall_name
from otelgpu.model.profiling import ProfileKind
from otelgpu.model.samples import SampleKind, Samples
from tests.kernel.observing import Watch
from tests.kernel.profiled import Profiled, compiled, profiled

GETPPID, NANOSLEEP = 110, 230
QUICK = 2 * 20_000


@pytest.fixture
def calls(watch: Callable[..., Watch], tmp_path: Path) -> Profiled:
    taken = profiled(watch, ProfileKind.SYSCALL)
    taken.run([compiled(tmp_path), "calls"])
    return taken


def of_number(taken: Profiled, number: int) -> Samples:
    samples = taken.of_kind(SampleKind.SYSCALL)
    found: Samples = samples[samples["other"] == number]
    return found


def test_every_call_is_counted_and_its_time_and_few_samples_are_taken_for_them(calls: Profiled) -> None:
    quick = of_number(calls, GETPPID)
    assert syscall_name(GETPPID) == "getppid"
    assert int(quick["size_bytes"].sum()) == QUICK, calls.watching.losses()
    # A thread measured its loop, in which a call is made: the calls take a part of it.
    in_loops = sum(each.ns for each in calls.known["asks_often"])
    assert 0 < int(quick["value"].sum()) < in_loops
    assert len(quick) < QUICK / 40
    stacks = quick[quick["stack"] != 0]
    assert len(stacks) == len(calls.under(stacks, "asks_often"))
    assert int(stacks["size_bytes"].sum()) > QUICK * 0.9

    slow = of_number(calls, NANOSLEEP)
    ((count, ns),) = calls.known["sleeps_in_calls"]
    assert len(slow) == int(slow["size_bytes"].sum()) == count
    assert abs(int(slow["value"].sum()) - ns) < 0.1 * ns
    assert len(calls.under(slow, "sleeps_in_calls")) == count

    unknown = of_number(calls, 1_000_000)
    assert int(unknown["size_bytes"].sum()) == 1
    assert calls.watching.total("profile", "ring_full") == 0
    assert not np.isin(calls.samples["kind"], [SampleKind.CPU, SampleKind.OFF_CPU]).any()


def test_sums_of_a_process_that_ended_are_not_kept(watch: Callable[..., Watch], tmp_path: Path) -> None:
    taken = profiled(watch, ProfileKind.SYSCALL)
    taken.run([compiled(tmp_path), "calls"])
    loaded = next(each for each in taken.watching.source._draining if each.family == "profile")
    sums = loaded.map("syscall_sums")

    def left() -> int:
        return sum(int.from_bytes(key[:4], "little") == taken.tgid for key in sums.list_keys())

    assert left()
    for _ in range(2):
        taken.report()
    assert left() == 0
