"""The simulator of jobs that verdicts are proved by: its schedule is the trade's, and its tables say what it did."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.rig.jobs.faults import FAULTS
from tests.rig.jobs.schedule import run
from tests.rig.jobs.shape import FIRST_STEP, Shape, draw
from tests.rig.jobs.simulation import HEALTHY, simulate
from tests.rig.jobs.table import fill, write

duckdb = pytest.importorskip("duckdb")

EVEN = Shape(
    steps=3, stages=4, replicas=1, units=8, unit_s=1.0, jitter=0.0, spread=0.0, lengths=0.0, ranks_per_host=2
)


def quiet(shape: Shape, slowest: float = 1.0) -> float:
    """What a step takes when nothing but computing takes time; the last stage computes ``slowest`` as long."""
    work = draw(shape, np.random.default_rng(1))
    slow = np.ones(shape.stages)
    slow[-1] = slowest
    nothing = {
        name: 0 * getattr(work, name)
        for name in ("input", "host", "copy", "file", "tensor", "data", "expert", "pipe", "world")
    }
    slow_stage = slow[:, None, None, None]
    changed = work.changed(forward=work.forward * slow_stage, backward=work.backward * slow_stage, **nothing)
    return float(run(shape, changed).step_s[-1])


def test_a_pipeline_takes_its_units_and_once_more_the_other_stages() -> None:
    assert quiet(EVEN) == pytest.approx(8 + 3)
    assert quiet(EVEN, slowest=2.0) == pytest.approx(8 * 2 + 3)


def test_the_first_step_is_long_on_all_ranks() -> None:
    job = simulate(HEALTHY, 1, EVEN)
    assert job.timeline.step_s[0] > FIRST_STEP * 0.9 * job.timeline.step_s[1]


def test_a_wait_is_in_the_collective_of_who_waits_and_not_of_the_slow_rank() -> None:
    job = simulate("slow compute", 3, Shape(steps=10, replicas=8))
    assert job.fault is not None
    (slow,) = job.fault.ranks
    with duckdb.connect() as connection:
        fill(connection, job)
        times = connection.execute(
            "SELECT rank, sum(t1 - t0) FROM ops WHERE kind = 'coll' GROUP BY rank ORDER BY 2 LIMIT 1"
        ).fetchall()
    assert times[0][0] == slow


def test_every_collective_ends_on_all_its_ranks_at_once_but_for_their_clocks() -> None:
    shape = Shape(steps=5, stages=2, replicas=4, tensor=2, experts=2, units=4, skew_s=0.0, drift=0.0)
    with duckdb.connect() as connection:
        fill(connection, simulate(HEALTHY, 5, shape))
        apart, members = connection.execute(
            "SELECT max(apart), bool_and(found = n) FROM ("
            "SELECT max(t1) - min(t1) AS apart, count(*) AS found, max(n) AS n FROM ops "
            "WHERE kind IN ('coll', 'p2p') GROUP BY grp, seq)"
        ).fetchall()[0]
    assert apart < 1e-6
    assert members


def test_clocks_of_hosts_differ(tmp_path: Path) -> None:
    write(tmp_path / "ops.parquet", simulate(HEALTHY, 5, Shape(steps=5, replicas=16)))
    begins = duckdb.sql(
        f"SELECT host, min(t0) FROM '{tmp_path}/ops.parquet' WHERE kind = 'step' GROUP BY host"
    ).fetchall()
    assert len(begins) == 2
    assert abs(begins[0][1] - begins[1][1]) > 1e-4


@pytest.mark.parametrize("name", FAULTS)
def test_the_same_seed_is_the_same_job_and_its_fault_costs(name: str) -> None:
    one, other = simulate(name, 2), simulate(name, 2)
    assert one.share == other.share > 0
    assert one.fault is not None
    assert all(0 <= rank < one.shape.ranks for rank in one.fault.ranks)
