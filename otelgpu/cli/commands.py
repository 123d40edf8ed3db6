"""The commands, and errors as one line without a traceback."""

from __future__ import annotations

import logging
import signal
import sys
from typing import NoReturn

import click

from otelgpu import __version__
from otelgpu.cli.main import INTERRUPTED, leave_at_once
from otelgpu.errors import OtelgpuError
from otelgpu.kernel.garbage import only_new_looked_through
from otelgpu.model.text import did_you_mean


class _Lazy(click.Group):
    """Imports a command's module when the command is used: starting up stays quick."""

    _MODULES = {  # noqa: RUF012
        "run": "observe",
        "attach": "observe",
        "agent": "observe",
        "record": "observe",
        "replay": "replay",
        "top": "top.command",
        "profile": "profile",
        "diff": "diff",
        "ps": "ps",
        "check": "check",
        "diagnose": "diagnose",
        "topology": "topology",
        "analyze": "analyze",
        "view": "view",
        "mcp": "mcp.command",
        "watch-pods": "pod_watch.command",
        "profile-pods": "pod_profiles.command",
        "completion": "completion",
    }

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._MODULES)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self._MODULES and not name.startswith("-"):
            raise click.UsageError(f"there is no command {name!r}{did_you_mean(name, self._MODULES)}", ctx)
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        from importlib import import_module

        if cmd_name not in self._MODULES:
            return None
        with only_new_looked_through():
            from otelgpu.kernel.heap import share_one
            from otelgpu.kernel.privileges.dropping import take_up
            from otelgpu.kernel.quiet_imports import import_quietly

            share_one()
            take_up()
            import_quietly()
            module = import_module(f"otelgpu.cli.{self._MODULES[cmd_name]}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        if (
            signal.getsignal(signal.SIGINT) is leave_at_once
        ):  # from here on there may be something to be undone
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return command


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="otelgpu")
def cli() -> None:
    """OpenTelemetry traces and metrics of GPU services, with no change to them.

    HTTP requests (with time to first token and time per output token) and the CUDA calls that served them
    become spans and metrics in any OTLP backend.

    \b
    Start here:
      otelgpu check                      what can be seen on this machine
      otelgpu run -- python serve.py     start a service and observe it
      otelgpu attach -p PID              observe a running one
      otelgpu profile -p PID             where its time goes
      otelgpu view otelgpu.jsonl         look at what was observed
    """


def _command_line(drawn: object = None) -> None:
    """What was typed. ``drawn``: the way to who draws, where `top` is a program on a terminal."""
    cli.main(prog_name="otelgpu", standalone_mode=False, obj=drawn)


def run() -> NoReturn:
    """Run the command line.

    Exit codes: 0; 1 for an error reported on standard error; 2 for wrong usage; 70 for a fault of this program;
    130 for Ctrl-C.
    """
    try:
        if sys.argv[1:2] == ["top"]:
            from otelgpu.cli.top.start import draw, is_program

            if is_program(sys.argv[1:]):
                sys.exit(draw(_command_line))
        _command_line()
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(INTERRUPTED)
    except OtelgpuError as error:
        click.echo(f"otelgpu: {error}", err=True)
        sys.exit(error.exit_code)
    except Exception as error:
        logging.getLogger("otelgpu.cli").debug("internal error", exc_info=True)
        click.echo(f"otelgpu: internal error: {error!r} (OTELGPU_LOG_LEVEL=debug shows where)", err=True)
        sys.exit(70)  # EX_SOFTWARE
    sys.exit(0)
