"""``otelgpu diagnose ranks --follow``: look again and again, and say what is new."""

from __future__ import annotations

import json
import math
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from threading import Event
from types import FrameType

import click
import msgspec

from otelgpu.diagnose.ranks.facts import Facts
from otelgpu.diagnose.ranks.following import Change, Following
from otelgpu.diagnose.ranks.sentences import sentence
from otelgpu.diagnose.ranks.verdicts import RanksReport
from otelgpu.errors import OtelgpuError
from otelgpu.model.text import printable
from otelgpu.model.verdict import ENDED

Look = Callable[[float], tuple[Facts, RanksReport]]
"""Of what begins at a Unix time or later."""


def follow(
    look: Look,
    emit: Callable[[Iterable[Change]], None],
    *,
    every_s: float,
    window_s: float,
    duration_s: float | None,
    as_json: bool,
) -> bool:
    """Until Ctrl-C, or for ``duration_s``; whether anything was found.

    An input that is not there yet, or has no operations of these minutes, is waited for, and that is said once; so is
    each reason for which something is left out.
    """
    following, problem, found = Following(), "", False
    rejected: set[str] = set()
    ends_s = math.inf if duration_s is None else time.monotonic() + duration_s
    with until_interrupted() as stopped:
        while True:
            next_s = time.monotonic() + every_s
            try:
                facts, report = look(time.time() - window_s)
            except OtelgpuError as error:
                if str(error) != problem:
                    problem = str(error)
                    click.echo(f"otelgpu: waiting: {problem}", err=True)
            else:
                problem = ""
                for reason in report.input.rejected.keys() - rejected:
                    click.echo(f"otelgpu: rejected: {reason}: {report.input.rejected[reason]}", err=True)
                rejected |= report.input.rejected.keys()
                news = following.take(report.verdicts, int(facts.steps[-1]) if len(facts.steps) else 0)
                _say(news, as_json=as_json)
                emit(news)
                found = found or bool(news)
            now_s = time.monotonic()
            if now_s >= ends_s or stopped.wait(max(min(next_s, ends_s) - now_s, 0)):
                return found


@contextmanager
def until_interrupted() -> Iterator[Event]:
    """An event that Ctrl-C sets, so that a look is not broken off; a second one breaks it off."""
    stopped = Event()

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        stopped.set()

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, before)


def _say(news: Iterable[Change], *, as_json: bool) -> None:
    now = datetime.now(UTC)
    for change in news:
        if as_json:
            document = {
                "time": f"{now:%Y-%m-%dT%H:%M:%SZ}",
                "state": change.state,
                "verdict": msgspec.to_builtins(change.verdict),
            }
            click.echo(json.dumps(document, ensure_ascii=False))
            continue
        click.echo(f"{now:%H:%M:%S}Z  {change.state:<8} {printable(sentence(change.verdict))}")
        if change.state != ENDED:
            click.echo(f"{'':19} next: {printable(change.verdict.next)}")
