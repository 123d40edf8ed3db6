"""What a session says of itself: at its start what it observes and where results go, at its end what to type next."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from otelgpu.export.destination import Opening
from otelgpu.model.text import printable
from otelgpu.processes.listing import describe

_NAMED: Final = 3
"""Processes that are called by their names."""


class Guidance(Struct, frozen=True, kw_only=True):
    """Where one session's results go: what is exported, to a capture, into pictures."""

    openings: Sequence[Opening]
    capture: Path | None = None
    pictures: Sequence[Path] = ()

    @property
    def exports(self) -> str:
        """The destinations of what is exported; "" where nothing is."""
        return " and ".join(opening.place.shown for opening in self.openings)

    def beginning(self, what: str, ends: str = "") -> str:
        """One line. ``ends``: what ends the session, where its user has to know."""
        places = [str(self.capture)] if self.capture is not None else []
        places += [self.exports] if self.openings else []
        goes = f"results go to {' and '.join(places)}" if places else ""
        return "; ".join(filter(None, (f"observing {what}", goes, ends)))

    def ending(self) -> Iterator[str]:
        """Which files there are, and the command that shows them."""
        for path in self.pictures:
            yield f"written  {picture(path)}"
        commands = [opening.place.viewer for opening in self.openings]
        if self.capture is not None:
            yield f"written  {printable(str(self.capture))}"
            commands.append(f"otelgpu replay {shlex.quote(str(self.capture))} --export console")
        for command in dict.fromkeys(filter(None, commands)):
            yield f"next     {printable(command)}"


def picture(path: Path) -> str:
    """A file that was drawn, and what it is or what reads it."""
    from otelgpu.render.format import format_of  # all of what draws

    return f"{printable(str(path))} ({format_of(path.name).says})"


def named(tgids: Collection[int]) -> str:
    """Processes in words: ``process 4242 (python3) and its children``."""
    if len(tgids) > _NAMED:
        return f"{len(tgids)} processes and their children"
    shown = ", ".join(f"{tgid}{_program(tgid)}" for tgid in tgids)
    return f"process {shown} and its children" if len(tgids) == 1 else f"processes {shown} and their children"


def _program(tgid: int) -> str:
    facts = describe(tgid)
    return f" ({printable(Path(facts.executable).name)})" if facts is not None and facts.executable else ""
