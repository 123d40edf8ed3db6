"""Commands that diagnose a file, running processes, or a program that they start: ``[FILE | -p PID | -- PROGRAM…]``."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from otelgpu.cli.headings import HeadedCommand

_PROGRAM: Final = "otelgpu.program"


class FileOrProgram(HeadedCommand):
    """Arguments before ``--`` are files, those behind it a program and its own: see :func:`program_of`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See :class:`click.Command`."""
        place = args.index("--") if "--" in args else len(args)
        ctx.meta[_PROGRAM] = tuple(args[place + 1 :])
        if place < len(args) and not args[place + 1 :]:
            raise click.UsageError("there is no program behind --", ctx)
        return super().parse_args(ctx, args[:place])


def program_of(files: tuple[Path, ...], pids: tuple[int, ...]) -> tuple[str, ...]:
    """The program of the command that runs; empty where it is to diagnose a file or processes.

    Raises :class:`click.UsageError` where not just one of the three is given.
    """
    program: tuple[str, ...] = click.get_current_context().meta[_PROGRAM]
    if sum((bool(files), bool(pids), bool(program))) != 1 or len(files) > 1:
        raise click.UsageError("give processes (-p PID), a program (-- PROGRAM) or one FILE")
    return program
