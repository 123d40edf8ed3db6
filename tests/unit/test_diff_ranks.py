"""``otelgpu diff --slow``: the slow rank's profiles against a normal one's, of the same steps."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

duckdb = pytest.importorskip("duckdb")

from otelgpu.cli.commands import cli  # noqa: E402
from otelgpu.export.file.exporter import FileExporter  # noqa: E402
from otelgpu.model.resource import Resource, resource  # noqa: E402
from tests.unit.render.profile_columns import SECOND, profile  # noqa: E402
from tests.unit.store.otlp_spans import START, Rank  # noqa: E402

RANKS, STEPS, SLOW = 4, 40, 2
LOAD, COMPUTE = ("main", "py:load:60"), ("main", "py:compute:80")


def owner(rank: int) -> Resource:
    said = {"otelgpu.job.rank": rank, "otelgpu.job.world_size": RANKS, "otelgpu.job.id": "17"}
    return resource({"service.name": "llama", "process.pid": 100 + rank, **said})


def job(folder: Path, *, slow: int | None = SLOW, profiled: range = range(RANKS), begin: int = START) -> Path:
    """Steps of 100 ms, of which loading takes 10 ms, and 50 ms on the slow rank; a profile of 4 s of each rank."""
    folder.mkdir()
    lines = []
    for number in range(RANKS):
        rank = Rank(number, ranks=RANKS)
        rank.launched = dict(owner(number).attributes)
        for step in range(STEPS):
            rank.step(step, data_loader_stall=0.05 if number == slow else 0.01, host_overhead=0.02)
            rank.collective(step)
        lines.append(rank.line())
    (folder / "spans.jsonl").write_bytes(b"".join(lines))
    exporter = FileExporter(str(folder / "profiles.jsonl"))
    for number in profiled:
        load_ms = 50 if number == slow else 10
        stacks = {LOAD: STEPS * load_ms * 1_000_000, COMPUTE: STEPS * 20 * 1_000_000}
        # The profile is of ten seconds, of which the job takes four.
        exporter.export_profiles([profile(stacks, owner=owner(number), start=begin - 3 * SECOND)])
    exporter.close(5)
    return folder


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["diff", *map(str, arguments)])


def test_the_line_that_takes_longer_stands_first_with_what_it_takes_of_a_step(tmp_path: Path) -> None:
    result = invoke("--slow", "auto", job(tmp_path / "job"))
    assert result.exit_code == 0, result.output
    assert result.output.startswith(f"rank {SLOW} against rank ")
    rows = [line for line in result.output.splitlines() if "ms" in line and ".py:" in line]
    change, before, after = rows[0].split(" ms")[:3]
    assert "load" in rows[0]
    # 40 steps of 10 s: of a second 0.2 s and 0.04 s, of a step of 100 ms 20 ms and 4 ms
    assert [float(text) for text in (change, before, after)] == pytest.approx([16, 4, 20], rel=0.01)


def test_a_rank_may_be_named(tmp_path: Path) -> None:
    result = invoke("--slow", "0", job(tmp_path / "job"))
    assert result.exit_code == 0, result.output
    assert result.output.startswith("rank 0 against rank ")
    assert f"against rank {SLOW}" not in result.output


def test_a_page_has_both_ranks(tmp_path: Path) -> None:
    page = tmp_path / "diff.html"
    assert invoke("--slow", "auto", job(tmp_path / "job"), "-o", page).exit_code == 0
    assert f"→ rank {SLOW}" in page.read_text()


def test_where_no_rank_is_slow_that_is_said(tmp_path: Path) -> None:
    result = invoke("--slow", "auto", job(tmp_path / "job", slow=None))
    assert (result.exit_code, result.output.startswith("No rank is slow")) == (0, True), result.output


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"profiled": range(2)}, f"there are no profiles of rank {SLOW}"),
        ({"profiled": range(SLOW, SLOW + 1)}, "there are no profiles of a rank like rank"),
        ({"begin": START + 60 * SECOND}, "are not of steps"),
    ],
)
def test_what_is_missing_is_said_with_how_to_get_it(
    tmp_path: Path, options: dict[str, object], complaint: str
) -> None:
    result = invoke("--slow", "auto", job(tmp_path / "job", **options))  # type: ignore[arg-type]
    assert (result.exit_code, complaint in str(result.exception or result.output)) == (1, True)


@pytest.mark.parametrize("arguments", [["a"], ["--slow", "auto", "a", "b"], ["--slow", "third", "a"]])
def test_arguments_that_do_not_go_together_are_refused(arguments: list[str]) -> None:
    assert invoke(*arguments).exit_code == 2
