"""``otelgpu top``: rates per queue pair, communicator or process, as they are now."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import click
from msgspec import structs
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from otelgpu import agent as wiring
from otelgpu.cli.headings import HeadedCommand
from otelgpu.cli.options import (
    agent_scope,
    common_options,
    configure,
    live_settings,
    plan,
    probe_options,
    scope_options,
)
from otelgpu.cli.parameters import Duration, duration_option, pid_option, require_observable
from otelgpu.cli.privilege_plan import give_up
from otelgpu.engine import registry
from otelgpu.engine.presentation import TopTable, Unit, top_views
from otelgpu.errors import OtelgpuError
from otelgpu.export.quantities import duration as duration_text
from otelgpu.export.quantities import size
from otelgpu.kernel.scope import Scope
from otelgpu.model.self_telemetry import Delivery
from otelgpu.model.text import printable
from otelgpu.processes.listing import descendants
from otelgpu.render.top import Row, Value, column_keys, rows
from otelgpu.sources.live import LiveSource

if TYPE_CHECKING:
    from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

    from otelgpu.model.profiles import ProfileColumns
    from otelgpu.model.spans import SpanColumns

_LINES: Final = 40  # rows of one table on a terminal; --json has all

_WIDE: Final = 240  # columns of what is written to no terminal: a row a line

Sheets = list[tuple[TopTable, list[Row]]]


class Frames:
    """An exporter of metrics that makes a frame of each two readings; spans are nobody's here.

    ``show`` is called with the tables and the seconds that they are of. The first frame is of the time since the
    session began.
    """

    def __init__(
        self,
        top_tables: Iterable[TopTable],
        sort: str,
        show: Callable[[Sheets, float], None],
        clock: Callable[[], float],
    ) -> None:
        from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

        self._top_tables = list(top_tables)
        self._sort = sort
        self._show = show
        self._clock = clock
        self._before, self._began = MetricsData(), clock()
        self._closed = False
        self.shown = 0

    def export_spans(self, batches: Iterable[SpanColumns]) -> None:
        """They are made as they are taken: so they are taken."""
        for _ in batches:
            pass

    def export_metrics(self, data: MetricsData, items: int) -> None:
        """Show what happened since the last."""
        now = self._clock()
        if self._closed:
            return
        seconds = now - self._began
        found = [
            (
                top_table,
                rows(
                    top_table,
                    self._before,
                    data,
                    seconds,
                    self._sort if self._sort in column_keys(top_table) else "",
                ),
            )
            for top_table in self._top_tables
        ]
        self._before, self._began = data, now
        self.shown += 1
        self._show(found, seconds)

    def export_profiles(self, batches: Sequence[ProfileColumns]) -> None:
        """They are no table."""

    def end(self) -> None:
        """Show no more: what a session reports as it ends is of no whole interval."""
        self._closed = True

    def flush(self, deadline_s: float) -> bool:
        """Nothing waits."""
        return True

    def close(self, deadline_s: float) -> None:
        """Nothing is open."""

    def stats(self) -> Mapping[str, int]:
        """Nothing is sent, so nothing is lost."""
        return {}

    def deliveries(self) -> Sequence[Delivery]:
        """See :meth:`stats`."""
        return ()


def tables(found: Sheets) -> RenderableType:
    """For a terminal."""
    return Group(*(_table(top_table, those) for top_table, those in found))


def _table(top_table: TopTable, those: list[Row]) -> Table:
    table = Table(title=top_table.title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for _, title in top_table.keys.values():
        table.add_column(title, overflow="fold")
    for column in top_table.columns:
        table.add_column(
            column.title, justify="left" if column.unit is Unit.TEXT else "right", overflow="fold"
        )
    for row in those[:_LINES]:
        keys = [_word(row[name]) for name, _ in top_table.keys.values()]
        cells = [written(row[column.key], column.unit) for column in top_table.columns]
        table.add_row(*(Text(printable(cell)) for cell in (*keys, *cells)))
    if len(those) > _LINES:
        table.caption = f"and {len(those) - _LINES} more"
    elif not those:
        table.caption = "nothing yet"
    return table


def _word(value: Value) -> str:
    return "-" if value is None else f"{value}"


def written(value: Value, unit: Unit) -> str:
    """A value as people read it; ``-`` where nobody reported one."""
    if value is None or isinstance(value, str):
        return value or "-"
    match unit:
        case Unit.BYTES:
            return size(value)
        case Unit.SECONDS:
            return duration_text(value * 1e9)
        case Unit.SHARE:
            return f"{100 * value:.0f} %"
    return f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def lines(view: str, found: Sheets, seconds: float) -> str:
    """One JSON document on one line."""
    return json.dumps(
        {"view": view, "seconds": seconds, **{top_table.name: those for top_table, those in found}}
    )


def _sort_key(view: str, wanted: str) -> str:
    known = list(
        dict.fromkeys(key for top_table in top_views()[view].top_tables for key in column_keys(top_table))
    )
    if wanted and wanted not in known:
        raise click.BadParameter(
            f"there is no column {wanted}; there are: {', '.join(known)}", param_hint="--sort"
        )
    return wanted


@click.command(cls=HeadedCommand)
@common_options
@probe_options
@scope_options
@pid_option("Only these processes and their children.")
@duration_option
@click.option(
    "--interval",
    type=Duration(0.1),
    default=1.0,
    metavar="TIME",
    help="Between two frames (1 s).",
)
@click.option("--sort", default="", metavar="COLUMN", help="Sort by a column, as --json names it.")
@click.option("--once", is_flag=True, help="Show one frame, of one interval, and end.")
@click.option("--json", "as_json", is_flag=True, help="A JSON document a frame, with all rows.")
@click.argument("view", type=click.Choice(list(top_views())), default=next(iter(top_views())))
def top(
    view: str,
    pids: tuple[int, ...],
    duration: float | None,
    interval: float,
    sort: str,
    once: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Show rates as they are now: of RDMA queue pairs and ports, NCCL communicators and ranks, or calls of a GPU's API.

    Without -p it shows all that the other options pick, as `agent` does. Where it does not write to a terminal, it
    writes one frame below the other.

    \b
    Examples:
      otelgpu top rdma
      otelgpu top nccl -p 4242 --sort skew_p99_s
      otelgpu top cuda --once --json
    """
    picked = [flag for flag in ("cgroup", "container", "executable") if options.get(f"{flag}s")]
    if pids and picked:
        raise click.UsageError(f"-p names processes, and --{picked[0]} picks others: give one of both")
    # Frames are made of metrics alone: what a file says of spans and of where they go is not for here.
    config = structs.replace(configure(options), detail="phases", export=(), rdma_transfers=False)
    if config.source == "inject":
        raise OtelgpuError("top observes by probes only", hint="leave --source at uprobe")
    sort = _sort_key(view, sort)
    require_observable(pids)
    known = registry.with_records()
    wanted = config.families or tuple(name for name in top_views()[view].families if name in known)
    scope = Scope(processes=pids) if pids else agent_scope(config)
    wide = None if sys.stdout.isatty() else _WIDE
    console = Console(markup=False, emoji=False, highlight=False, width=wide)
    enough = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    shows_live = console.is_terminal and not as_json and not once
    with (
        Live(console=console, auto_refresh=False, transient=False)
        if shows_live
        else _Plain(console) as screen
    ):

        def show(found: Sheets, seconds: float) -> None:
            if as_json:
                click.echo(lines(view, found, seconds))
            else:
                screen.update(tables(found), refresh=True)
            if once:
                os.eventfd_write(enough, 1)

        with closing(LiveSource(registry.select(wanted), scope, live_settings(config))) as source:
            if config.drop_privileges:
                give_up(config)
            if pids:
                for member in dict.fromkeys(m for tgid in pids for m in (tgid, *descendants(tgid))):
                    source.observe(member)
            else:
                source.observe_running()
            frames = Frames(
                top_views()[view].top_tables, sort, show, time.monotonic
            )  # now: its first frame counts from here
            session = wiring.Agent(
                source,
                replace(
                    plan(config),
                    open_exporters=lambda: [frames],
                    metric_interval_s=interval,
                    whole_metrics=True,
                ),
            )
            with wiring.Interrupts() as interrupts:
                until = time.monotonic() + duration if duration is not None else None
                session.work(interrupts, until=until, also=enough)
                frames.end()
                session.finish()
    os.close(enough)
    if not frames.shown:
        click.echo("otelgpu: ended before the first frame; see --interval", err=True)
    sys.exit(0)


class _Plain:
    """What ``Live`` is on a terminal, elsewhere: one frame below the other."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def __enter__(self) -> _Plain:
        return self

    def __exit__(self, *unused: object) -> None:
        return

    def update(self, frame: RenderableType, *, refresh: bool) -> None:
        """Print it, as wide as it is."""
        self._console.print(frame)
