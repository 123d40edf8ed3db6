"""``otelgpu analyze collectives`` reads what sessions on several hosts reported, as the file exporter writes it."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from otelgpu.cli.commands import cli
from otelgpu.engine.call_roles import StepCalls
from otelgpu.engine.metrics import Metrics
from otelgpu.families.nccl.collectives import CollectiveSession
from otelgpu.model.resource import Resource, resource
from otelgpu.model.settings import SignalSettings
from otelgpu.otlp_json.writer import span_lines
from tests.unit.families.nccl.collective_sessions import SECOND, VOCABULARY
from tests.unit.families.nccl.collectives_simulated import CUDA_APIS, NCCL_APIS, Rank

MS = 1_000_000
AHEAD = {"node-a": 0, "node-b": 7 * MS, "node-c": -2 * MS}


def _host(name: str, _tgid: int) -> Resource:
    return resource({"host.name": name})


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Three hosts with two ranks each, 20 collectives; rank 4 calls 3 ms later than all others."""
    written = []
    for place, (host, ahead_ns) in enumerate(AHEAD.items()):
        ranks = [Rank(rank, ranks=6) for rank in (2 * place, 2 * place + 1)]
        session = CollectiveSession(
            Metrics(0),
            VOCABULARY,
            StepCalls([NCCL_APIS, CUDA_APIS]),
            partial(_host, host),
            seed=place,
            settings=SignalSettings(),
        )
        session.learn([rank.seen() for rank in ranks])
        for rank in ranks:
            for number in range(20):
                rank.now_ns = (number + 1) * 100 * MS + 3 * MS * (rank.rank == 4)
                rank.call()
                end_ns = (number + 1) * 100 * MS + 10 * MS
                rank.device("cudaStreamSynchronize", duration_ns=end_ns - rank.now_ns - 20_000)
            rows, _ = rank.take()
            session.take(rows, np.zeros(len(rows), dtype=np.int64))
            session.see_waits(rank.take_device_calls())
        path = tmp_path / f"{host}.jsonl"
        with path.open("wb") as out:
            for batch in session.report(9 * SECOND, 1_700_000_000 * SECOND + ahead_ns, final=True):
                out.writelines(line for line, _ in span_lines(batch))
        written.append(str(path))
    return written


def test_the_late_rank_and_the_clocks_are_in_the_document(files: list[str]) -> None:
    result = CliRunner().invoke(cli, ["analyze", "collectives", "--json", *files])
    assert result.exit_code == 0, result.output
    report = json.loads(result.output)
    assert (report["collectives"], report["compared"], report["counters"]) == (20, 20, {})
    offsets = {clock["host"]: clock["offset_s"] for clock in report["hosts"]}
    assert offsets == pytest.approx({host: ahead * 1e-9 for host, ahead in AHEAD.items()}, abs=1e-6)
    slowest = report["ranks"][0]
    assert (slowest["rank"], slowest["host"], slowest["last"], slowest["certain"]) == (4, "node-c", 1.0, True)
    assert slowest["median_s"] == pytest.approx(3e-3, abs=1e-6)
    (bandwidth,) = report["bandwidths"]
    assert (bandwidth["operation"], bandwidth["time_source"], bandwidth["calls"]) == (
        "AllReduce",
        "host_wait",
        120,
    )


def test_the_tables_report_offsets_and_ranks(files: list[str]) -> None:
    shown = CliRunner().invoke(cli, ["analyze", "collectives", *files], env={"COLUMNS": "160"}).output
    assert "20 collectives" in shown
    assert "7.000 ms" in shown
    rows = [line.split() for line in shown.splitlines() if "0000000000c0ffee" in line]
    assert rows[0][:3] == ["0000000000c0ffee", "4", "node-c"]


def test_a_line_that_is_not_whole_is_counted(files: list[str]) -> None:
    path = Path(files[0])
    path.write_bytes(path.read_bytes() + b'{"resourceSpans":[\n[1]\n\n')
    report = json.loads(CliRunner().invoke(cli, ["analyze", "collectives", "--json", *files]).output)
    assert report["counters"] == {"lines_unreadable": 2}
    assert report["collectives"] == 20
    broken = path.read_bytes().count(b"\n") - 2  # then come two more lines, of which one is empty
    place = report["first"]["lines_unreadable"]
    assert place.startswith(f"node-a.jsonl:{broken}: ") and "truncated" in place
    shown = CliRunner().invoke(cli, ["analyze", "collectives", *files], env={"COLUMNS": "300"}).output
    assert f"lines_unreadable: 2, first {place}" in shown


def test_files_without_collectives_say_so(tmp_path: Path) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_text("{}\n")
    result = CliRunner().invoke(cli, ["analyze", "collectives", str(path)])
    assert (result.exit_code, "No collectives" in result.output) == (1, True)


def test_names_cannot_steer_the_terminal(files: list[str]) -> None:
    path = Path(files[1])
    path.write_bytes(path.read_bytes().replace(b"node-b", b"[red]\\u001b[31m"))
    shown = CliRunner().invoke(cli, ["analyze", "collectives", *files], env={"COLUMNS": "160"}).output
    assert "\x1b" not in shown
    assert "[red]" in shown
