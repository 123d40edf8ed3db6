"""``otelgpu analyze``: what collected data of several hosts says together."""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from otelgpu.cli.batch import BatchRun, batch_command
from otelgpu.cli.headings import HeadedCommand
from otelgpu.diagnose.collective_calls import Gatherer
from otelgpu.diagnose.collective_report import CollectiveReport
from otelgpu.diagnose.collective_report import analyze as analyze_collectives
from otelgpu.errors import OtelgpuError
from otelgpu.model.text import printable
from otelgpu.store.line_files import lines, whole_rotations

_MOST_RANKS = 20  # lines on a terminal; --json has all


@click.group()
def analyze() -> None:
    """Look at collected data: files of OTLP/JSON lines, as --export file:PATH and Collectors write them."""


@analyze.command(cls=HeadedCommand)
@click.argument(
    "files",
    metavar="FILE…",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document, with all ranks.")
@batch_command("analyze collectives")
def collectives(run: BatchRun, /, files: tuple[Path, ...], *, as_json: bool) -> None:
    """NCCL collectives of several hosts on one clock: its offsets, when each rank called, bandwidths.

    Clocks of hosts, offset and drift, are estimated from the ends of waits, with how sure that is. Of a file that was
    rotated (FILE.1, …) all parts are read. Which rank is slow, since when and why: otelgpu diagnose ranks.
    """
    gatherer = Gatherer()
    for path in whole_rotations(files):
        run.read(path)
        with path.open("rb") as file:
            gatherer.take(lines(file), source=path.name)
    run.skip(gatherer.skips.counts)
    report = analyze_collectives(gatherer.columns(), gatherer.skips)
    if as_json:
        click.echo(json.dumps(report.shown(), indent=2))
    else:
        _write(Console(), report)
    if not report.collectives:
        raise OtelgpuError(
            "the files hold no spans of NCCL calls with a sequence",
            hint="they are exported with --families nccl; calls outside of a communicator have none",
        )


def _write(console: Console, report: CollectiveReport) -> None:
    if not report.collectives:
        console.print("No collectives.")
    else:
        console.print(
            f"{report.collectives} collectives, of {report.compared} at least two ranks can be compared.",
            highlight=False,
        )
        console.print(_clocks(report))
        console.print(_ranks(report))
    if report.bandwidths:
        console.print(_bandwidths(report))
    for reason, count in report.counters.items():
        where = f", first {report.first[reason]}" if reason in report.first else ""
        console.print(Text(printable(f"{reason}: {count}{where}")))


def _clocks(report: CollectiveReport) -> Table:
    table = _table(
        "Clocks, as estimated", ("host", "compared with", "offset", "drift", "uncertainty", "spread", "ends")
    )
    for clock in report.hosts:
        reference = report.hosts[clock.group].host
        _add(
            table,
            clock.host,
            "-" if reference == clock.host else reference,
            _milliseconds(clock.offset_s),
            "-" if clock.drift_ppm is None else f"{clock.drift_ppm:+.2f} ppm",
            _milliseconds(clock.uncertainty_s),
            _milliseconds(clock.spread_s),
            str(clock.ends),
        )
    return table


def _ranks(report: CollectiveReport) -> Table:
    columns = ("communicator", "rank", "host", "collectives", "median", "95 %", "last", "of clocks", "")
    table = _table("Lateness after correction, latest first", columns)
    for each in report.ranks[:_MOST_RANKS]:
        _add(
            table,
            each.communicator,
            str(each.rank),
            each.host,
            str(each.collectives),
            _milliseconds(each.median_s),
            _milliseconds(each.p95_s),
            f"{each.last:.0%}",
            _milliseconds(each.uncertainty_s),
            "" if each.certain else "within what clocks are off",
        )
    if len(report.ranks) > _MOST_RANKS:
        table.caption = f"{len(report.ranks) - _MOST_RANKS} more ranks: see --json"
    return table


def _bandwidths(report: CollectiveReport) -> Table:
    columns = ("communicator", "operation", "time from", "calls", "algorithm", "bus")
    table = _table("Bandwidth, GB/s, as nccl-tests define it", columns)
    for each in report.bandwidths:
        _add(
            table,
            each.communicator,
            each.operation,
            each.time_source,
            str(each.calls),
            f"{each.algorithm * 1e-9:.2f}",
            f"{each.bus * 1e-9:.2f}",
        )
    return table


def _table(title: str, columns: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column)
    return table


def _add(table: Table, *cells: str) -> None:
    table.add_row(*(Text(printable(cell)) for cell in cells))


def _milliseconds(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{seconds * 1e3:.3f} ms"
