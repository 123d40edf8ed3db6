"""A verdict links to the spans that show it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("duckdb")

from otelgpu.cli.commands import cli
from tests.unit.store.otlp_spans import Rank
from tests.unit.store.parquet_files import ops

SLOW = range(20, 40)
STEPS = 60


def job(folder: Path) -> list[Rank]:
    """Four ranks; of rank 2 the host needs 80 ms more in some steps, most of all in 31, and 33 after it."""
    ranks = [Rank(rank) for rank in range(4)]
    for rank in ranks:
        for step in range(STEPS):
            late = rank.rank == 2 and step in SLOW
            more = {31: 0.02, 33: 0.01}.get(step, 0.0) if late else 0.0
            rank.step(step, data_loader_stall=0.01, host_overhead=0.005 + (0.08 + more if late else 0))
            rank.collective(step, wait_ms=2 if late else 40)
        (folder / f"{rank.rank}.jsonl").write_bytes(rank.line())
    return ranks


def diagnosed(*arguments: str) -> dict[str, Any]:
    done = CliRunner().invoke(cli, ["diagnose", "ranks", *arguments, "--json"])
    assert done.exit_code == 3, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_they_are_of_the_steps_that_show_it_best(tmp_path: Path) -> None:
    steps = job(tmp_path)[2].spans["otelgpu.training"]
    (verdict,) = diagnosed(str(tmp_path))["verdicts"]
    assert (verdict["cause"], verdict["ranks"]) == ("host", [2])
    first = verdict["first_step"] - SLOW.start
    assert verdict["links"] == [
        {"rank": 2, "step": at + first, "trace_id": "ab" * 16, "span_id": steps[at]["spanId"]}
        for at in (31, 33)
    ]


def test_they_are_kept_with_the_tables(tmp_path: Path) -> None:
    (lines := tmp_path / "lines").mkdir()
    job(lines)
    before = diagnosed(str(lines), "--keep", str(tmp_path / "kept"))
    assert diagnosed(str(tmp_path / "kept"))["verdicts"][0]["links"] == before["verdicts"][0]["links"] != []


def test_the_terminal_names_them(tmp_path: Path) -> None:
    job(tmp_path)
    said = CliRunner().invoke(cli, ["diagnose", "ranks", str(tmp_path)]).stdout
    assert f"trace {'ab' * 16}, span " in said


@pytest.mark.parametrize(
    "link", ["<script>", "ab" * 24, f"{'AB' * 16}-{'cd' * 8}", f"{'ab' * 16}-{'cd' * 9}", ""]
)
def test_what_is_no_span_s_identity_is_none(tmp_path: Path, link: str) -> None:
    (lines := tmp_path / "lines").mkdir()
    job(lines)
    kept = tmp_path / "kept"
    diagnosed(str(lines), "--keep", str(kept))
    spans = kept / "step_spans.parquet"
    ops(tmp_path / "other.parquet", f"SELECT * REPLACE ('{link}' AS link) FROM '{spans}'")
    (tmp_path / "other.parquet").rename(spans)
    assert diagnosed(str(kept))["verdicts"][0]["links"] == []
