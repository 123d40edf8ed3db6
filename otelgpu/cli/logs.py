"""The log on standard error, and what commands say there: as text, or as a JSON object a line."""

from __future__ import annotations

import json
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, Literal

import click
from msgspec import Struct

from otelgpu.model.text import printable

ALIKE_LINES: Final = 5
"""So many lines that differ in their figures at most are written in :data:`ALIKE_SECONDS`; the others are counted."""
ALIKE_SECONDS: Final = 600.0
_ALIKE_KEPT: Final = 1000

LogFormat = Literal["text", "json"]


def start_log(level: str, form: LogFormat) -> None:
    """Log from now on, unless somebody who uses this as a library does already."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    handler.addFilter(Repetitions())
    logging.basicConfig(level=level.upper(), handlers=[handler])


def set_log_level(level: str) -> None:
    """Log more, or less, from now on."""
    logging.getLogger().setLevel(level.upper())


def say(text: str, form: LogFormat = "text") -> None:
    """What a command reports its user whatever the level is."""
    if form == "json":
        text = _object(datetime.now(UTC), "INFO", "otelgpu.cli", text)
    click.echo(text if form == "json" else f"otelgpu: {_lines(text)}", err=True)


class TextFormatter(logging.Formatter):
    """``otelgpu: LEVEL: message``. Nothing in a message steers a terminal, and no line of it looks like another."""

    def format(self, record: logging.LogRecord) -> str:
        """See :class:`logging.Formatter`."""
        trace = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
        return f"otelgpu: {record.levelname}: {_lines(record.getMessage() + trace)}"


class JsonFormatter(logging.Formatter):
    """A JSON object a line: ``time`` (RFC 3339, UTC), ``level``, ``logger``, ``message`` and, of faults, ``trace``."""

    def format(self, record: logging.LogRecord) -> str:
        """See :class:`logging.Formatter`."""
        trace = self.formatException(record.exc_info) if record.exc_info else ""
        at = datetime.fromtimestamp(record.created, UTC)
        return _object(at, record.levelname, record.name, record.getMessage(), trace)


def _object(at: datetime, level: str, logger: str, message: str, trace: str = "") -> str:
    reported = {
        "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": level.lower(),
        "logger": logger,
        "message": _shown(message),
    }
    return json.dumps(reported | ({"trace": _shown(trace)} if trace else {}), ensure_ascii=False)


def _lines(text: str) -> str:
    """Every line but the first indented."""
    return _shown(text).replace("\n", "\n  ")


def _shown(text: str) -> str:
    """Every line of a message as it can be shown: a message quotes names that are anybody's choice."""
    return "\n".join(map(printable, text.split("\n")))


class _Alike(Struct):
    since: float
    written: int = 0
    left_out: int = 0


class Repetitions(logging.Filter):
    """Leaves out lines that say again what has been said: what is broken for hours is not reported every second.

    Lines are alike when they come from one statement. The first one after a time in which some were left out says
    how many. With level debug nothing is left out.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._alike: OrderedDict[tuple[str, int, str], _Alike] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        """See :class:`logging.Filter`."""
        if logging.getLogger().level <= logging.DEBUG:
            return True
        key, now = (record.name, record.levelno, str(record.msg)), self._clock()
        alike = self._alike.setdefault(key, _Alike(now))
        self._alike.move_to_end(key)
        if len(self._alike) > _ALIKE_KEPT:
            self._alike.popitem(last=False)
        if now - alike.since >= ALIKE_SECONDS:
            if alike.left_out:
                record.msg = f"{record.getMessage()} ({alike.left_out} lines like this were left out)"
                record.args = ()
            alike.since, alike.written, alike.left_out = now, 0, 0
        if alike.written >= ALIKE_LINES:
            alike.left_out += 1
            return False
        alike.written += 1
        return True
