"""How often the loop turns: less often while something always comes and takes little time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from otelgpu.agent import Agent
from otelgpu.model.inputs import Batch, Tick
from otelgpu.pace import BUSY, LONGEST_S, STEADY_S, Pace

USUAL_S = 0.2
SOMETHING = [Batch(family="cuda", kind="cuda_call", records=np.zeros(1, dtype="u8")), Tick(time_ns=1)]
NOTHING = [Tick(time_ns=1)]


class Loop:
    """Turns of a loop: each as long as its pace has it, of which a share is computed."""

    def __init__(self) -> None:
        self.now_s, self.computed_s = 100.0, 3.0
        self.pace = Pace(clock=lambda: self.now_s, computed=lambda: self.computed_s)

    def turn(self, share: float = 0.05, *, idle: bool = False) -> float:
        """One turn; how long it was."""
        length_s = self.pace.interval_s(USUAL_S)
        self.now_s += length_s
        self.computed_s += share * length_s
        self.pace.turned(NOTHING if idle else SOMETHING)
        return length_s

    def turns(self, seconds: float, share: float = 0.05) -> list[float]:
        """Those of the next ``seconds``."""
        until_s = self.now_s + seconds
        found = []
        while self.now_s < until_s:
            found.append(self.turn(share))
        return found


def test_turns_are_longer_once_something_has_come_for_a_while() -> None:
    loop = Loop()
    assert set(loop.turns(STEADY_S - 0.1)) == {USUAL_S}
    assert set(loop.turns(10.0)) == {LONGEST_S}


def test_a_turn_that_brings_nothing_ends_that() -> None:
    loop = Loop()
    loop.turns(STEADY_S)
    loop.turn(idle=True)
    assert set(loop.turns(STEADY_S - 0.1)) == {USUAL_S}


def test_who_has_much_to_do_turns_as_often_as_always() -> None:
    loop = Loop()
    assert set(loop.turns(3 * STEADY_S, BUSY + 0.01)) == {USUAL_S}
    assert loop.turns(1.0, BUSY - 0.01)[-1] == LONGEST_S


@pytest.mark.parametrize(("usual_s", "longer_s"), [(0.05, 0.25), (0.3, LONGEST_S), (1.0, 1.0), (10.0, 10.0)])
def test_no_turn_is_more_than_five_times_as_long_nor_longer_than_the_bound(
    usual_s: float, longer_s: float
) -> None:
    loop = Loop()
    loop.turns(2 * STEADY_S)
    assert loop.pace.interval_s(usual_s) == longer_s


@pytest.mark.parametrize(
    ("memory_is_short", "publishes", "wanted_s"),
    [(False, False, LONGEST_S), (True, False, USUAL_S), (False, True, USUAL_S)],
)
def test_the_agent_turns_as_often_as_asked_where_memory_is_short_or_others_read_its_contexts(
    memory_is_short: bool, publishes: bool, wanted_s: float
) -> None:
    loop = Loop()
    loop.turns(2 * STEADY_S)
    agent = SimpleNamespace(
        _plan=SimpleNamespace(interval_s=USUAL_S),
        _headroom=SimpleNamespace(steps=int(memory_is_short)),
        _reported=object() if publishes else None,
        _pace=loop.pace,
    )
    assert Agent.interval_s.__get__(cast(Agent, agent)) == wanted_s
