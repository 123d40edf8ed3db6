"""The line on top: when, what is lost, what this program costs. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from msgspec import Struct

from otelgpu.engine.presentation import AGENT, LOSSES, PROCESSES, Unit
from otelgpu.render.top.frames import Frame
from otelgpu.render.top.values import NONE, written


class Tone(Enum):
    """How a part of it is to be seen."""

    PLAIN = "plain"
    STRONG = "strong"
    FAINT = "faint"
    WARNING = "warning"
    ALARM = "alarm"


class Status(Struct, frozen=True, kw_only=True):
    """What a frame does not say. ``time``: the frame's, as a clock shows it. ``before``: what is waited for."""

    time: str = ""
    before: str = ""
    filter: str = ""
    paused: bool = False
    failed: bool = False


def headline(frame: Frame | None, status: Status) -> Iterator[tuple[str, Tone]]:
    """Its parts from left to right; the last ones are cut where there is no room."""
    yield "otelgpu top", Tone.STRONG
    if frame is not None:
        yield status.time, Tone.PLAIN
    if status.failed:
        yield "ended", Tone.ALARM
    elif status.paused:
        yield "paused", Tone.WARNING
    if frame is None:
        if not status.failed:
            yield status.before, Tone.WARNING
        return
    if status.filter:
        yield f"/{status.filter}", Tone.WARNING
    lost = frame.figure(AGENT, LOSSES, "lost_per_s")
    yield f"lost {written(lost or 0.0, Unit.COUNT)}/s", Tone.ALARM if lost else Tone.PLAIN
    processes = len(frame.views.get(PROCESSES, {}).get(PROCESSES, ()))
    yield f"{processes} {'process' if processes == 1 else 'processes'}", Tone.PLAIN
    yield (
        f"agent {_own(frame, 'cpu_share', Unit.SHARE)} {_own(frame, 'memory_bytes', Unit.BYTES)}",
        Tone.FAINT,
    )


def _own(frame: Frame, key: str, unit: Unit) -> str:
    value = frame.figure(AGENT, AGENT, key)
    return NONE if value is None else written(value, unit)
