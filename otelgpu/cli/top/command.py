"""What is typed, and what becomes of the frames: they are written, or sent to who draws them (start.py)."""

from __future__ import annotations

import os
import sys
from typing import Any, Final

import click
from msgspec import structs

from otelgpu.cli.headings import HeadedCommand
from otelgpu.cli.options import common_options, configure, probe_options, scope_options
from otelgpu.cli.parameters import Duration, duration_option, pid_option, require_observable
from otelgpu.cli.top.observer import Channel
from otelgpu.cli.top.observing import Wanted, observe
from otelgpu.config import Config
from otelgpu.engine.presentation import TopView
from otelgpu.engine.top_views import top_views
from otelgpu.errors import OtelgpuError
from otelgpu.render.top.frames import Frame, Setup
from otelgpu.render.top.rows import column_keys

KERNELS: Final = 50
"""Kernels that have a row of their own, unless the configuration says how many names metrics carry."""


def _sort_key(views: tuple[TopView, ...], wanted: str) -> str:
    known = list(
        dict.fromkeys(key for view in views for table in view.top_tables for key in column_keys(table))
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
@click.argument("view", type=click.Choice(list(top_views())), required=False, metavar="[VIEW]")
@click.pass_context
def top(
    context: click.Context,
    /,
    view: str | None,
    pids: tuple[int, ...],
    duration: float | None,
    interval: float,
    sort: str,
    once: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Show rates as they are now: requests, GPU calls, collectives, RDMA queue pairs, processes.

    On a terminal it is a program with a tab for each; press ? for its keys. Elsewhere, and with --once or --json,
    frames are written one below the other. VIEW is what it begins with, and elsewhere all that it shows: requests,
    cuda, nccl, rdma, processes or agent; a family that is installed beside these may have its own.

    Without -p it shows all that the other options pick, as `agent` does.

    \b
    Examples:
      otelgpu top
      otelgpu top nccl -p 4242 --sort skew_p99_s
      otelgpu top cuda --once --json
    """
    picked = [flag for flag in ("cgroup", "container", "executable") if options.get(f"{flag}s")]
    if pids and picked:
        raise click.UsageError(f"-p names processes, and --{picked[0]} picks others: give one of both")
    views = (top_views()[view],) if view is not None else tuple(top_views().values())
    sort = _sort_key(views, sort)
    channel = context.find_object(Channel)
    wanted = Wanted(
        config=_config(options),
        views=views if channel is None else tuple(top_views().values()),
        pids=pids,
        sort=sort,
        interval_s=interval,
        duration_s=duration,
    )
    require_observable(pids)
    if channel is None:
        _write(wanted, view, once=once, as_json=as_json)
    else:
        channel.send(Setup(views=wanted.views, view=view, sort=sort))
        observe(wanted, channel.send, enough=channel.closed, is_ready=channel.is_ready)


def _config(options: dict[str, Any]) -> Config:
    """Frames are made of metrics alone: what a file says of spans and of where they go is not for here."""
    config = configure(options)
    if config.source == "inject":
        raise OtelgpuError("top observes by probes only", hint="leave --source at uprobe")
    return structs.replace(
        config,
        detail="phases",
        export=(),
        rdma_transfers=False,
        kernel_metrics=config.kernel_metrics or KERNELS,
    )


def _write(wanted: Wanted, view: str | None, *, once: bool, as_json: bool) -> None:
    from otelgpu.cli.top.plain import line, plain_console, tables

    console = plain_console(is_terminal=sys.stdout.isatty())
    enough = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def show(frame: Frame) -> None:
        if as_json:
            click.echo(line(view, frame))
        else:
            console.print(tables(wanted.views, frame))
        if once:
            os.eventfd_write(enough, 1)

    shown = observe(wanted, show, enough=enough)
    os.close(enough)
    if not shown:
        click.echo("otelgpu: ended before the first frame; see --interval", err=True)
