"""Time off the CPU against what the program itself measured: how often, how long, in what state, and woken by whom."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from otelgpu.model.profiling import ProfileKind
from otelgpu.model.samples import SampleKind, Samples, ThreadState
from tests.kernel.observing import Watch
from tests.kernel.profiled import Profiled, compiled, profiled

SLACK_NS = 5_000_000  # a call: until the thread has a CPU again, when others want it too


@pytest.fixture(scope="module")
def program(kernel: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("waits"))


@pytest.fixture(scope="module")
def waits(program: Path) -> Iterator[Profiled]:
    with ExitStack() as stack:
        taken = profiled(lambda **options: stack.enter_context(Watch(**options)), ProfileKind.OFFCPU)
        taken.run([program, "waits"])
        yield taken


def voluntary(samples: Samples) -> Samples:
    """Those of a thread that meant to wait, and did so for long."""
    found: Samples = samples[(samples["state"] == ThreadState.INTERRUPTIBLE) & (samples["value"] > 8_000_000)]
    return found


@pytest.mark.parametrize("function", ["sleeps", "takes_lock", "reads_pipe"])
def test_each_wait_is_reported_with_its_length_under_its_stack(waits: Profiled, function: str) -> None:
    ((calls, ns),) = waits.known[function]
    found = waits.under(waits.of_kind(SampleKind.OFF_CPU), function)
    long = voluntary(found)
    # On a machine with other work a thread may be put off the CPU just before it would wait.
    assert calls - 2 <= len(long) <= calls <= len(found)
    assert abs(int(found["value"].sum()) - ns) < calls * SLACK_NS
    assert (long["value"] == long["duration_ns"]).all()


@pytest.mark.parametrize(
    ("waits_in", "waker", "name"),
    [("takes_lock", "hands_lock_over", b"waiter"), ("reads_pipe", "writes_pipe", b"reader")],
)
def test_who_woke_a_thread_is_named_by_its_stack(
    waits: Profiled, waits_in: str, waker: str, name: bytes
) -> None:
    found = waits.under(waits.of_kind(SampleKind.OFF_CPU), waits_in)
    long = voluntary(found)
    assert set(long["name"].tolist()) == {name}
    wakers = waits.of_kind(SampleKind.WAKER)
    theirs = wakers[np.isin(wakers["time_ns"], long["time_ns"]) & (wakers["other"] == long["tid"][0])]
    assert len(theirs) == len(long)
    assert len(waits.under(theirs, waker)) == len(long)
    assert set(theirs["tid"].tolist()) == set(long["other"].tolist()) == {waits.tgid}


def test_nobody_woke_a_thread_whose_time_was_up(waits: Profiled) -> None:
    found = waits.under(waits.of_kind(SampleKind.OFF_CPU), "sleeps")
    long = voluntary(found)
    assert not long["other"].any()
    wakers = waits.of_kind(SampleKind.WAKER)
    assert not np.isin(wakers["time_ns"], long["time_ns"]).any()


def test_a_wait_that_lasts_is_reported_so_far_and_its_rest_when_it_ends(
    watch: Callable[..., Watch], program: Path
) -> None:
    taken = profiled(watch, ProfileKind.OFFCPU)
    reported: list[int] = []

    def ask() -> None:
        for _ in range(2):
            taken.report()
            lasting = taken.under(taken.of_kind(SampleKind.OFF_CPU), "waits_for_ever")
            reported.append(len(lasting))

    taken.run([program, "forever"], also=ask)
    lasting = taken.under(taken.of_kind(SampleKind.OFF_CPU), "waits_for_ever")
    assert reported == [1, 2]
    assert len(lasting) == 3  # the rest came as the process ended
    ordered = np.sort(lasting, order="time_ns")
    ends = ordered["time_ns"] + ordered["duration_ns"]
    assert (ordered["time_ns"][1:] == ends[:-1]).all()
    assert set(lasting["name"].tolist()) == {b"forever"}
    assert not taken.watching.total("profile", "ring_full")


def test_waits_that_are_shorter_than_asked_for_are_not_reported(
    watch: Callable[..., Watch], program: Path
) -> None:
    taken = profiled(watch, ProfileKind.OFFCPU, off_cpu_least_us=25_000)
    taken.run([program, "waits"])
    found = taken.of_kind(SampleKind.OFF_CPU)
    assert (found["value"] >= 25_000_000).all()
    assert len(taken.under(found, "takes_lock")) >= taken.known["takes_lock"][0].calls - 1
    assert len(taken.under(found, "reads_pipe")) <= 1  # there may be other work on the machine


NAPS = """
import sys, time
print("ready", file=sys.stderr, flush=True)
sys.stdin.readline()
waited = 0
for _ in range(1999):
    begin = time.monotonic_ns()
    time.sleep(0.0001)
    waited += time.monotonic_ns() - begin
print("naps", 1999, waited)
print("done", 0, 0, flush=True)
sys.stdin.readline()
"""


def test_short_waits_are_reported_by_sums_where_waits_under_a_millisecond_are_asked_for(
    watch: Callable[..., Watch],
) -> None:
    taken = profiled(watch, ProfileKind.OFFCPU, off_cpu_least_us=900)
    taken.run([sys.executable, "-c", NAPS])
    ((naps, ns),) = taken.known["naps"]
    found = taken.under(taken.of_kind(SampleKind.OFF_CPU), "do_nanosleep")
    assert 10 < len(found) < naps / 2  # each stands for several
    assert (found["value"] >= 900_000).all()
    assert 0.5 * ns < int(found["value"].sum()) <= ns
