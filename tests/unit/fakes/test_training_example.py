"""The example of data-parallel training, on the fakes: all ranks are as slow as the slowest, which waits least."""

from __future__ import annotations

import statistics

import pytest

from examples.training.__main__ import show, train
from tests.rig import build_fakes


def test_all_wait_for_the_late_rank(capsys: pytest.CaptureFixture[str]) -> None:
    build_fakes()
    said = train(ranks=3, steps=7, late_rank=1, late_ms=50)
    assert [one["rank"] for one in said] == [0, 1, 2]
    waits = {one["rank"]: statistics.median(step["wait"] for step in one["steps"]) for one in said}
    assert all(len(one["steps"]) == 7 for one in said)
    assert waits[1] < min(waits[0], waits[2])
    show(said)
    assert "rank 1 waits least: the others wait for it" in capsys.readouterr().out
