"""``otelgpu diagnose ranks``: what it prints, its document, its exit codes and what it does with bad input."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

duckdb = pytest.importorskip("duckdb")

from otelgpu.cli.commands import cli  # noqa: E402
from otelgpu.diagnose.ranks.rank_map import _bins, _span  # noqa: E402
from tests.rig.jobs.shape import Shape  # noqa: E402
from tests.rig.jobs.simulation import HEALTHY, simulate  # noqa: E402
from tests.rig.jobs.table import EPOCH_S, write  # noqa: E402

SHAPE = Shape(steps=40, replicas=4, ranks_per_host=2, unit_s=0.01)


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["diagnose", "ranks", *map(str, arguments)])


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    path = tmp_path / "slow.parquet"
    write(path, simulate("slow compute", 4, SHAPE))
    return path


@pytest.fixture
def healthy(tmp_path: Path) -> Path:
    path = tmp_path / "healthy.parquet"
    write(path, simulate(HEALTHY, 4, SHAPE), name="job-2")
    return path


def test_the_document_is_the_contract(slow: Path) -> None:
    result = invoke(slow, "--json")
    assert result.exit_code == 3, result.output
    report = json.loads(result.output)
    assert set(report) == {"verdicts", "marked", "known", "input", "limits"}
    assert report["input"] == {"ranks": 4, "steps": 40, "hosts": 2, "rejected": {}}
    (verdict,) = report["verdicts"]
    fault = simulate("slow compute", 4, SHAPE).fault
    assert fault is not None
    expected = {
        "class": "slow_worker",
        "cause": "compute",
        "ranks": list(fault.ranks),
        "first_step": 0,
        "last_step": 39,
        "persistent": True,
    }
    assert {key: verdict[key] for key in expected} == expected
    assert set(verdict["cost"]) == {"seconds_per_step", "share", "gpu_hours"}
    assert set(verdict) >= {"hosts", "role", "factor", "confidence", "evidence", "next"}
    assert verdict["start_unix_s"] == pytest.approx(EPOCH_S, abs=1)


def test_the_sentence_comes_first(slow: Path) -> None:
    result = invoke(slow)
    assert result.exit_code == 3
    assert result.output.startswith("Slow rank ")
    assert "next: " in result.output
    assert "4 ranks on 2 hosts, 40 steps" in result.output


def test_nothing_is_said_of_a_healthy_job(healthy: Path) -> None:
    result = invoke(healthy)
    assert (result.exit_code, result.output.splitlines()[0][:16]) == (0, "Nothing is wrong")
    assert json.loads(invoke(healthy, "--json").output)["verdicts"] == []


def test_a_part_of_the_run_that_is_too_short_is_inconclusive(slow: Path) -> None:
    step_s = simulate("slow compute", 4, SHAPE).timeline.step_s
    end = EPOCH_S + float(step_s[:5].sum())
    result = invoke(slow, "--to", repr(end))
    assert result.exit_code == 4
    assert result.output.startswith("Inconclusive: steps: ")


def test_two_jobs_are_told_apart_by_name(slow: Path, healthy: Path) -> None:
    result = invoke(slow, healthy)
    assert result.exit_code == 1
    assert "2 jobs: 'job-1', 'job-2'" in str(result.exception)
    assert invoke(slow, healthy, "--job", "job-2").exit_code == 0
    assert invoke(slow, healthy, "--job", "job-1").exit_code == 3
    assert invoke(slow, "--job", "job-3").exit_code == 1


def test_what_names_no_job_is_of_the_one_that_there_is(slow: Path, tmp_path: Path) -> None:
    nameless = tmp_path / "nameless.parquet"
    duckdb.sql(f"SELECT * EXCLUDE (job) FROM '{slow}' WHERE kind = 'coll'").write_parquet(str(nameless))
    rest = tmp_path / "rest.parquet"
    duckdb.sql(f"SELECT * FROM '{slow}' WHERE kind <> 'coll'").write_parquet(str(rest))
    assert invoke(nameless, rest).exit_code == 3


def test_what_is_kept_is_an_input_again(slow: Path, tmp_path: Path) -> None:
    first = invoke(slow, "--json", "--keep", tmp_path / "kept")
    assert invoke(tmp_path / "kept", "--json").output == first.output


def test_rows_that_cannot_be_are_counted(slow: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.parquet"
    duckdb.sql(
        f"SELECT * REPLACE (CASE WHEN step = 3 THEN t0 - 1 ELSE t1 END AS t1) FROM '{slow}'"
    ).write_parquet(str(bad))
    result = invoke(bad, "--json")
    assert result.exit_code == 3
    assert json.loads(result.output)["input"]["rejected"]["times_reversed"] > 0


def test_an_input_without_operations_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "other.parquet"
    duckdb.sql("SELECT 1 AS apples").write_parquet(str(path))
    result = invoke(path)
    assert result.exit_code == 1
    assert "there are no operations" in str(result.exception)


@pytest.mark.parametrize("time", ["soon", "nan", "2026-13-01"])
def test_what_is_no_time_is_wrong_usage(slow: Path, time: str) -> None:
    assert invoke(slow, "--from", time).exit_code == 2


def test_names_cannot_steer_the_terminal(slow: Path, tmp_path: Path) -> None:
    path = tmp_path / "steering.parquet"
    duckdb.sql(f"SELECT * REPLACE (chr(27) || '[31m' || host AS host) FROM '{slow}'").write_parquet(str(path))
    output = invoke(path).output
    assert "\x1b" not in output
    assert "[31m" in output


def test_the_page_has_the_verdict_and_is_not_overwritten(slow: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    assert invoke(slow, "-o", page).exit_code == 3
    assert "Slow rank " in page.read_text()
    again = invoke(slow, "-o", page)
    assert (again.exit_code, "is there already" in str(again.exception)) == (1, True)
    assert invoke(slow, "-o", page, "--force").exit_code == 3


def test_more_ranks_and_steps_than_the_page_has_room_for_are_taken_together() -> None:
    bins = _bins(10_000, 1_000)
    assert (len(bins), _span("step", np.arange(10_000), bins, 1)) == (1_000, "steps 10–19")
    assert _span("rank", np.arange(4), _bins(4, 1_024), 3) == "rank 3"


@pytest.fixture
def under_way(slow: Path, tmp_path: Path) -> Path:
    """The same job, which ends now."""
    path = tmp_path / "now.parquet"
    later = f"(SELECT {time.time()} - max(t1) FROM '{slow}')"
    duckdb.sql(f"SELECT * REPLACE (t0 + {later} AS t0, t1 + {later} AS t1) FROM '{slow}'").write_parquet(
        str(path)
    )
    return path


def test_following_says_each_verdict_once(under_way: Path) -> None:
    result = invoke(under_way, "--follow", "--every", "1s", "-d", "2s", "--json")
    assert result.exit_code == 3, result.output
    (line,) = result.output.splitlines()
    news = json.loads(line)
    assert (news["state"], news["verdict"]["class"]) == ("began", "slow_worker")


def test_following_says_once_why_something_is_left_out(under_way: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.jsonl"
    broken.write_text("no json\n")
    result = invoke(under_way, broken, "--follow", "--every", "1s", "-d", "2s")
    assert result.exit_code == 3, result.output
    assert result.output.count("otelgpu: rejected: files_unrecognised: 1") == 1


def test_following_waits_for_an_input_and_says_so_once(tmp_path: Path) -> None:
    result = invoke(tmp_path / "none.parquet", "--follow", "--every", "1s", "-d", "2s")
    assert result.exit_code == 0
    assert result.output.count("waiting: ") == 1


def test_following_looks_at_the_window_only(slow: Path) -> None:
    result = invoke(slow, "--follow", "-d", "0s")  # a job of the past
    assert (result.exit_code, "waiting: there are no operations" in result.output) == (0, True)


def test_ctrl_c_ends_following_with_what_was_found(under_way: Path) -> None:
    command = [sys.executable, "-m", "otelgpu", "diagnose", "ranks", str(under_way), "--follow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "began    Slow rank" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 3


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--every", "5s"], "--every needs --follow"),
        (["-d", "5s"], "--duration needs --follow"),
        (["--follow", "--from", "2026-05-01T12:00Z"], "--from cannot be combined with --follow"),
        (["--follow", "-o", "x.html"], "-o cannot be combined with --follow"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    slow: Path, arguments: list[str], complaint: str
) -> None:
    result = invoke(slow, *arguments)
    assert (result.exit_code, complaint in result.output) == (2, True), result.output


def test_an_error_of_the_slow_rank_s_host_is_evidence(slow: Path, tmp_path: Path) -> None:
    (verdict,) = json.loads(invoke(slow, "--json").output)["verdicts"]
    at, host = EPOCH_S + 1, verdict["hosts"][0]
    rows = f"SELECT '{host}' AS host, {at} AS t0, {at} AS t1, 'xid' AS name, 79.0 AS value"
    beside = tmp_path / "evidence.parquet"
    duckdb.sql(rows).write_parquet(str(beside))
    (again,) = json.loads(invoke(slow, beside, "--json").output)["verdicts"]
    assert again["evidence"] == [
        *verdict["evidence"],
        {"name": "xid", "text": f"meanwhile on {host}: xid 79", "value": 79.0},
    ]
    assert {key: again[key] for key in again if key != "evidence"} == {
        key: verdict[key] for key in verdict if key != "evidence"
    }
