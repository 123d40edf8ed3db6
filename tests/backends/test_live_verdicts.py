"""A rank becomes slow while its job goes on: the verdict is at the Collector before the job has ended."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.backends.live_job import LiveJob, watch


@pytest.mark.alone(reason="three agents start at once and read every call: both processors for ten seconds")
def test_a_rank_that_becomes_slow_is_told_while_the_job_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    if os.geteuid() != 0:
        pytest.skip("needs root, to observe the ranks")
    job = LiveJob(ranks=3, step_s=0.1, late_from=40, steps=340, every_s=1)
    told = watch(job, tmp_path)
    assert told.under_way
    assert told.event["otelgpu.verdict.class"] == "slow_worker"
    assert told.event["otelgpu.verdict.cause"] == "input"
    assert told.event["otelgpu.verdict.ranks"] == [str(job.late_rank)]
    assert told.event["otelgpu.verdict.hosts"] == [f"node-{job.late_rank}"]
    assert told.event["otelgpu.verdict.start"] * 1e9 <= told.slow_ns + job.step_s * 1e9
