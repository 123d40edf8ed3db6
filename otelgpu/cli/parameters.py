"""The types of values on the command line, and the options that several commands have in common word for word."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from otelgpu.cli.completion import complete_pids
from otelgpu.errors import OtelgpuError
from otelgpu.processes.listing import describe, is_kernel_thread, list_processes

if TYPE_CHECKING:
    _Seconds = click.ParamType[float]
    _Pids = click.ParamType[tuple[int, ...]]
else:  # which older versions do not make generic
    _Seconds = _Pids = click.ParamType

_Command = TypeVar("_Command", bound=Callable[..., Any])

PROGRAM_FOLLOWS: Final = {"allow_interspersed_args": False}
"""Settings of a command whose arguments are a program and what that is given: options behind its name are its own."""

_UNITS: Final = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_PART: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ms|s|min|m|h|d|)")
_DURATION: Final = re.compile(rf"(?:{_PART.pattern})+")


class Duration(_Seconds):
    """Seconds as a float, from ``90``, ``1.5``, ``90s``, ``250ms``, ``5m``, ``1h30m`` or ``2d``."""

    name = "duration"

    def __init__(self, least_s: float = 0.0, *, above: bool = False) -> None:
        """``least_s``: what is shorter is refused; with ``above``, that itself as well."""
        self._least_s = least_s
        self._above = above

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Raises :class:`click.BadParameter`."""
        if isinstance(value, int | float):
            return float(value)
        text = str(value).strip().lower()
        if _DURATION.fullmatch(text) is None:
            self.fail(f"{value!r} is no duration; write seconds, or 250ms, 90s, 5m, 1h30m", param, ctx)
        parts = _PART.findall(text)
        if len(parts) > 1 and not all(unit for _, unit in parts):
            self.fail(f"{value!r}: a number without a unit; write 1h30m", param, ctx)
        seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
        if seconds < self._least_s or (self._above and seconds <= self._least_s):
            bound = f"more than {self._least_s:g} s" if self._above else f"at least {self._least_s:g} s"
            self.fail(f"{value!r} is too short: give {bound}", param, ctx)
        return seconds


class UnixTime(_Seconds):
    """Seconds since 1970 as a float, from these or from a date and time of ISO 8601; without a zone that is UTC."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Raises :class:`click.BadParameter`."""
        if isinstance(value, float):
            return value
        try:
            seconds = float(value)
        except ValueError:
            try:
                when = datetime.fromisoformat(value)
            except ValueError:
                self.fail(f"{value!r} is no time; write 2026-05-01T12:30Z, or seconds since 1970", param, ctx)
            seconds = (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
        if not math.isfinite(seconds):
            self.fail(f"{value!r} is no time; write 2026-05-01T12:30Z, or seconds since 1970", param, ctx)
        return seconds


class ProcessIds(_Pids):
    """Process ids, separated by commas, as a tuple of int > 0."""

    name = "pids"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """Raises :class:`click.BadParameter`."""
        if isinstance(value, tuple):
            return value
        words = [word.strip() for word in str(value).split(",") if word.strip()]
        wrong = next((word for word in words if not word.isdecimal() or int(word) == 0), None)
        if wrong is not None:
            self.fail(f"{wrong!r} is no process id; give numbers, separated by commas", param, ctx)
        if not words:
            self.fail("it names no process; is what made the list empty?", param, ctx)
        return tuple(map(int, words))


def _joined(
    context: click.Context, parameter: click.Parameter, values: tuple[tuple[int, ...], ...]
) -> tuple[int, ...]:
    return tuple(dict.fromkeys(pid for value in values for pid in value))


def pid_option(text: str) -> Callable[[_Command], _Command]:
    """``-p PID[,PID…]``, repeatable: ``pids``, a tuple of int. ``text``: of ``--help``."""
    return click.option(
        "-p",
        "--pid",
        "pids",
        multiple=True,
        type=ProcessIds(),
        callback=_joined,
        shell_complete=complete_pids,
        metavar="PID[,PID…]",
        help=text,
    )


duration_option: Final = click.option(
    "--duration", "-d", type=Duration(), metavar="TIME", help="Stop after so long: 30, 90s, 5m, 1h."
)


def require_observable(pids: Iterable[int], *, proc: Path = Path("/proc")) -> None:
    """Raise :class:`OtelgpuError` for a process that is not there, or that runs no program."""
    for pid in pids:
        if not (proc / str(pid)).exists():
            raise OtelgpuError(f"there is no process {pid}")
        if is_kernel_thread(pid, proc=proc):
            raise OtelgpuError(
                f"process {pid} is a thread of the kernel: it runs no program that could be observed",
                hint="otelgpu ps lists the processes that use a GPU",
            )


def processes_of(container: str) -> list[int]:
    """Those that run in a container now, by its id or the beginning of it."""
    found = {tgid: describe(tgid) for tgid in list_processes()}
    return [tgid for tgid, facts in found.items() if facts and facts.container_id.startswith(container)]


def require_container(container: str) -> list[int]:
    """Its processes. Raises :class:`OtelgpuError` where there are none, or by less than four characters of an id."""
    running = processes_of(container) if len(container) >= 4 else []
    if not running:
        raise OtelgpuError(
            f"no process runs in container {container}",
            hint="give the id as `docker ps` or `crictl ps` has it, four characters of it at least; see: otelgpu ps",
        )
    return running


force_option: Final = click.option("--force", is_flag=True, help="Overwrite output files that are there.")


def refuse_overwriting(paths: Iterable[Path], *, force: bool) -> None:
    """Raise :class:`OtelgpuError` where a file of somebody's results would be gone."""
    for path in paths:
        if not force and os.path.isfile(path) and os.path.getsize(path):
            raise OtelgpuError(
                f"{path} is there already", hint="give another name, or --force to overwrite it"
            )


def program_argument(*, required: bool = False) -> Callable[[_Command], _Command]:
    """``command``: the program to start and its arguments, a tuple of str, which may be empty unless ``required``."""
    return click.argument(
        "command", nargs=-1, type=click.UNPROCESSED, required=required, callback=_with_a_name
    )


def _with_a_name(
    context: click.Context, parameter: click.Parameter, value: tuple[str, ...]
) -> tuple[str, ...]:
    if value and not value[0]:
        raise click.BadParameter("the program's name is empty", context, parameter)
    return value
