"""Which rank a slow one is compared with."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("duckdb")

from otelgpu.cli.rank_reports import look
from otelgpu.diagnose.ranks.comparisons import compared
from otelgpu.errors import OtelgpuError
from tests.rig.jobs.shape import Shape
from tests.rig.jobs.simulation import simulate
from tests.rig.jobs.table import write

SHAPE = Shape(steps=40, replicas=4, stages=2, ranks_per_host=4, unit_s=0.01)


def test_the_normal_rank_has_the_slow_one_s_stage_and_is_the_median_of_those_that_are_not_slow(
    tmp_path: Path,
) -> None:
    job = simulate("slow compute", 4, SHAPE)
    assert job.fault is not None
    (slow,) = job.fault.ranks
    path = tmp_path / "job.parquet"
    write(path, job)
    facts, report = look([str(path)], None, None, None)
    ranks = facts.ranks.tolist()
    found = compared(facts, report, None, ranks)
    assert found is not None
    assert found.slow == slow
    role = dict(zip(ranks, facts.roles, strict=True))
    assert (found.normal != slow, role[found.normal]) == (True, role[slow])
    assert found.own_s[1] > found.own_s[0]
    assert (found.first_step, found.last_step) == (0, 39)
    others = [rank for rank in ranks if role[rank] != role[slow]]
    with pytest.raises(OtelgpuError, match="like rank"):
        compared(facts, report, None, [slow, *others])
