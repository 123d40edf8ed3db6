"""What a batch command reports of itself, where OTEL_EXPORTER_OTLP_ENDPOINT names somebody to report to.

A command that is decorated with :func:`batch_command` gets a :class:`BatchRun` to note in what it read and found. When
it ends, whether well or not, metrics and events go out through OpenTelemetry's SDK. Without an endpoint nothing of that
is imported; an endpoint that is down changes neither the exit code nor what is printed.
"""

from __future__ import annotations

import functools
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import click
from msgspec import Struct, field

from otelgpu.errors import OtelgpuError
from otelgpu.model.verdict import Verdict

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


class BatchRun(Struct):
    """What one run of a command read and found."""

    name: str
    inputs: int = 0
    input_bytes: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    verdicts: list[Verdict] = field(default_factory=list)

    def read(self, *paths: Path) -> None:
        """Files were read."""
        for path in paths:
            try:
                self.input_bytes += path.stat().st_size
            except OSError:
                continue  # the command says so itself
            self.inputs += 1

    def skip(self, counts: Mapping[str, int]) -> None:
        """Parts of them could not be: reason → how many."""
        self.skipped.update(counts)

    def conclude(self, verdicts: Iterable[Verdict]) -> None:
        """Something was found."""
        self.verdicts += verdicts


@contextmanager
def live_events(environ: Mapping[str, str]) -> Iterator[Callable[[Iterable[Verdict]], None]]:
    """Takes verdicts of a command that goes on, and sends each within seconds; nowhere without an endpoint."""
    from otelgpu.export.sdk import open_providers

    providers = open_providers(environ, _declared(environ))
    logger = providers.logger if providers is not None else None
    if providers is None or logger is None:
        yield lambda verdicts: None
        return
    from otelgpu.export.events import emit_verdicts

    try:
        yield lambda verdicts: emit_verdicts(logger, verdicts)
    finally:
        providers.deliver()


def batch_command(
    name: str,
) -> Callable[[Callable[Concatenate[BatchRun, _Parameters], _Result]], Callable[_Parameters, _Result]]:
    """Have a command report on itself. It comes nearest to the function, below click's decorators."""

    def decorate(
        function: Callable[Concatenate[BatchRun, _Parameters], _Result],
    ) -> Callable[_Parameters, _Result]:
        @functools.wraps(function)
        def reporting(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
            run, began = BatchRun(name), time.monotonic()
            error_type = ""
            try:
                return function(run, *args, **kwargs)
            except BaseException as error:
                error_type = _error_type(error)
                raise
            finally:
                report(run, time.monotonic() - began, error_type, os.environ)

        return reporting

    return decorate


def _error_type(error: BaseException) -> str:
    """Empty for a command that ended as it was meant to: the exit code may be that of a program that it started."""
    return "" if isinstance(error, SystemExit | click.exceptions.Exit) else type(error).__name__


def report(run: BatchRun, duration_s: float, error_type: str, environ: Mapping[str, str]) -> None:
    """Send it, within a bounded time; nothing without an endpoint. Never raises for what goes wrong with that."""
    try:
        _report(run, duration_s, error_type, environ)
    except (
        OtelgpuError,
        ImportError,
        OSError,
        RuntimeError,
        ValueError,
    ):  # RuntimeError: no thread can be started
        logging.getLogger("otelgpu.cli").debug("this command could not report on itself", exc_info=True)


def _report(run: BatchRun, duration_s: float, error_type: str, environ: Mapping[str, str]) -> None:
    from otelgpu.export.sdk import open_providers, wanted_signals

    declared = _declared(environ)
    if not wanted_signals(environ, declared):
        return
    providers = open_providers(environ, declared)
    if providers is None:
        return
    from otelgpu.export.events import CommandFacts, emit_command, emit_verdicts, record_command

    facts = CommandFacts(
        name=run.name,
        duration_s=duration_s,
        inputs=run.inputs,
        input_bytes=run.input_bytes,
        skipped=run.skipped,
        verdicts=len(run.verdicts),
        error_type=error_type,
    )
    if (meter := providers.meter) is not None:
        record_command(meter, facts)
    if (logger := providers.logger) is not None:
        emit_verdicts(logger, run.verdicts)
        emit_command(logger, facts)
    providers.deliver()


def _declared(environ: Mapping[str, str]) -> Mapping[str, str]:
    """The ``OTEL_EXPORTER_OTLP_*`` variables that OTEL_CONFIG_FILE stands for."""
    if not environ.get("OTEL_CONFIG_FILE", "").strip():
        return {}
    from otelgpu.cli.declarative import declared_otlp

    return declared_otlp(environ)
