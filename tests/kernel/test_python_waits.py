"""Waits of threads that run Python, of which most stacks are not walked: how long, and under whom."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from otelgpu.model.profiling import ProfileKind
from otelgpu.model.samples import SampleKind, ThreadState
from tests.kernel.observing import Watch
from tests.kernel.profiled import Profiled, profiled

PROGRAM = Path(__file__).parent / "data" / "waiting_threads.py"
TRIES_NS = 5_000_000
"""So long CPython waits for its lock at a time (``sys.getswitchinterval()``)."""
ASSUMED = "wait_stack_assumed"


def waits_of(watch: Callable[..., Watch], work: str) -> Profiled:
    taken = profiled(watch, ProfileKind.PYTHON)
    taken.run([sys.executable, PROGRAM, work])
    assert not taken.watching.total("profile", "ring_full")
    return taken


def test_tries_to_get_the_interpreter_are_one_wait_that_is_reported_in_parts(
    watch: Callable[..., Watch],
) -> None:
    taken = waits_of(watch, "lock")
    waits = taken.under(taken.of_kind(SampleKind.OFF_CPU), "wants_the_interpreter")
    for name, ((_, ns),) in taken.known.items():
        mine = waits[waits["tid"] == int(name[1:])]
        assert abs(int(mine["value"].sum()) - ns) < 0.1 * ns  # those below a millisecond are not reported
        assert (mine["value"] <= mine["duration_ns"]).all()
    tried = waits[waits["state"] == ThreadState.INTERRUPTIBLE]
    joined = tried[tried["value"] < tried["duration_ns"]]  # between its parts it was on a CPU
    assert joined["value"].sum() > 0.2 * tried["value"].sum()
    assert joined["value"].max() > 2 * TRIES_NS
    assert len(taken.known) == 8


def test_callers_of_callers_have_their_shares_of_waits(watch: Callable[..., Watch]) -> None:
    taken = waits_of(watch, "naps")
    waits = taken.under(taken.of_kind(SampleKind.OFF_CPU), "naps")
    found = {name: int(taken.under(waits, name)["value"].sum()) for name in taken.known}
    truth = {name: sum(each.ns for each in known) for name, known in taken.known.items()}
    assert set(truth) == {"has_three_naps", "has_one_nap"}
    for name in truth:  # of each thread: none is taken to be for ever where it was first
        assert len(set(taken.under(waits, name)["tid"].tolist())) == len(set(waits["tid"].tolist()))
    share = found["has_three_naps"] / sum(found.values())
    # Some hundred walks stand for some thousand waits: 0.75, and neither 0.5 nor 1.
    assert abs(share - truth["has_three_naps"] / sum(truth.values())) < 0.12
    assert sum(found.values()) > 0.5 * sum(truth.values())
    assumed = taken.watching.total("profile", ASSUMED)
    assert 0.2 * len(waits) < assumed <= len(taken.of_kind(SampleKind.OFF_CPU))


def test_a_wait_of_which_every_caller_was_looked_at_has_no_stack_that_is_assumed(
    watch: Callable[..., Watch],
) -> None:
    taken = waits_of(watch, "alone")
    waits = taken.of_kind(SampleKind.OFF_CPU)
    slept = taken.under(waits[waits["state"] == ThreadState.INTERRUPTIBLE], "naps_alone")
    ((_, ns),) = taken.known["naps_alone"]
    assert len(slept) > 100 and slept["value"].sum() > 0.5 * ns
    # Who is preempted in the midst of its code has a place by its frames alone.
    assert taken.watching.total("profile", ASSUMED) <= (waits["state"] == ThreadState.RUNNABLE).sum()
