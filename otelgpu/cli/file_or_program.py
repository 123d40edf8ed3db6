"""Commands that diagnose a file, running processes, or a program that they start: ``[FILE | -p PID | -- PROGRAM…]``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from otelgpu.cli.headings import HeadedCommand
from otelgpu.cli.parameters import Duration, force_option, pid_option, require_observable
from otelgpu.cli.profile import DEFAULT_SECONDS, Finish, Request, profile_processes, profile_program
from otelgpu.cli.profile_outputs import Outputs
from otelgpu.config import Config

if TYPE_CHECKING:
    from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

_PROGRAM: Final = "otelgpu.program"
_Command = TypeVar("_Command", bound=Callable[..., Any])


class FileOrProgram(HeadedCommand):
    """Arguments before ``--`` are files, those behind it a program and its own: see :func:`program_of`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See :class:`click.Command`."""
        place = args.index("--") if "--" in args else len(args)
        ctx.meta[_PROGRAM] = tuple(args[place + 1 :])
        if place < len(args) and not args[place + 1 :]:
            raise click.UsageError("there is no program behind --", ctx)
        return super().parse_args(ctx, args[:place])


def input_options(verb: str) -> Callable[[_Command], _Command]:
    """What is diagnosed: ``files``, ``pids`` and ``duration``; ``verb`` is what is done for so long."""

    def decorate(command: _Command) -> _Command:
        command = click.option(
            "-d",
            "--duration",
            type=Duration(above=True),
            metavar="TIME",
            help=f"{verb} for so long: 30, 90s, 5m (default 10 s; of a program that is started: until it ends).",
        )(command)
        command = pid_option("Running processes.")(command)
        return click.argument(
            "files", metavar="[FILE | -- PROGRAM…]", nargs=-1, type=click.Path(path_type=Path)
        )(command)

    return decorate


def report_options(page: str) -> Callable[[_Command], _Command]:
    """Where a report goes: ``as_json``, ``output`` and ``force``; ``page`` is what the page has."""

    def decorate(command: _Command) -> _Command:
        command = force_option(command)
        command = click.option(
            "-o",
            "--output",
            metavar="FILE.html",
            type=click.Path(dir_okay=False, path_type=Path),
            help=f"One page: {page}.",
        )(command)
        return click.option("--json", "as_json", is_flag=True, help="One JSON document.")(command)

    return decorate


def program_of(
    files: tuple[Path, ...], pids: tuple[int, ...], duration: float | None = None
) -> tuple[str, ...]:
    """The program of the command that runs; empty where it is to diagnose a file or processes.

    Raises :class:`click.UsageError` where not just one of the three is given, or a file and a ``duration``.
    """
    program: tuple[str, ...] = click.get_current_context().meta[_PROGRAM]
    if sum((bool(files), bool(pids), bool(program))) != 1 or len(files) > 1:
        raise click.UsageError("give processes (-p PID), a program (-- PROGRAM) or one FILE")
    if files and duration is not None:
        raise click.UsageError("-d cannot be combined with a FILE: it was recorded already")
    return program


def _nothing(pid: int) -> None:
    pass


def profile_given(
    config: Config,
    program: tuple[str, ...],
    pids: tuple[int, ...],
    seconds: float | None,
    finish: Finish,
    *,
    begun: Callable[[int], None] = _nothing,
    attached: Callable[[], None] = lambda: None,
    see_metrics: Callable[[MetricsData], object] | None = None,
    spans_per_parent: int = 0,
) -> None:
    """Profile a program from its start, or processes; ``finish`` takes what was seen, and nothing is written.

    ``begun`` is told each process that was asked for; for the others see :class:`~otelgpu.cli.profile.Request`.
    """
    with Outputs(()) as nothing:
        request = Request(
            config=config,
            seconds=DEFAULT_SECONDS if seconds is None and not program else seconds,
            delay_s=0.0,
            outputs=nothing,
            quiet=False,
            see_metrics=see_metrics,
            attached=attached,
            spans_per_parent=spans_per_parent,
        )
        if program:
            profile_program(request, program, finish, begun)
            return
        require_observable(pids)
        for pid in pids:
            begun(pid)
        profile_processes(request, pids, finish)
