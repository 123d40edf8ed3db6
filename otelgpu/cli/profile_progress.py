"""How far a profile is: a line at the start, and on a terminal one that is said anew."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from otelgpu.cli.logs import say
from otelgpu.sources.joint import Source

if TYPE_CHECKING:
    from rich.status import Status

_FAMILY: Final = "profile"
_REFRESH_S: Final = 0.25


class Progress:
    """One line at the start, and on a terminal one that says how far it is. ``goes``: where the profiles do."""

    def __init__(self, source: Source, what: str, goes: str, seconds: float | None) -> None:
        self._source = source
        self._what = what
        self._goes = goes
        self._seconds = seconds
        self._began = time.monotonic()
        self._status: Status | None = None

    @contextmanager
    def shown(self) -> Iterator[Progress]:
        """While it goes on."""
        for_long = f"for {self._seconds:g} s" if self._seconds is not None else "until it ends"
        say(f"profiling {self._what} {for_long}; results go to {self._goes}; Ctrl-C ends it early")
        if not sys.stderr.isatty():
            yield self
            return
        from rich.console import Console

        with Console(stderr=True, markup=False, emoji=False, highlight=False).status(self._line()) as status:
            self._status = status
            try:
                yield self
            finally:
                self._status = None

    def _line(self) -> str:
        passed = time.monotonic() - self._began
        taken = self._source.totals().get((_FAMILY, "submitted"), 0)
        of = f" of {self._seconds:g}" if self._seconds is not None else ""
        return f"profiling {self._what}: {passed:.0f}{of} s, {taken:,} records"

    def refresh(self) -> None:
        """Say it anew."""
        if self._status is not None:
            self._status.update(self._line())

    @property
    def every_s(self) -> float | None:
        """How often it is said; None: never."""
        return _REFRESH_S if self._status is not None else None
