"""Stacks that were named → where in the code an allocation is, in a few words. Pure, bounded by :data:`STACKS`."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Final

from otelgpu.model.profiles import FrameType
from otelgpu.model.samples import Frame, StackNamed

STACKS: Final = 20_000
PYTHON_FRAMES: Final = 3
"""Innermost lines of Python that are named."""


class StackPlaces:
    """Of one session."""

    def __init__(self) -> None:
        self._places: dict[tuple[int, int], str] = {}

    def learn(self, named: StackNamed) -> None:
        """A stack is named; beyond the bound it is not kept."""
        if len(self._places) < STACKS and (place := place_of(named.frames)):
            self._places[named.tgid, named.stack] = place

    def forget(self, tgid: int) -> None:
        """The process ended."""
        for key in [key for key in self._places if key[0] == tgid]:
            del self._places[key]

    def __getitem__(self, key: tuple[int, int]) -> str:
        """The place of a process's stack; "" where it is not known."""
        return self._places.get(key, "")


def place_of(frames: tuple[Frame, ...]) -> str:
    """``leak (leak.py:14) ← main (leak.py:20)``; without Python the innermost functions."""
    python = [frame for frame in frames if frame.type == FrameType.PYTHON]
    if python:
        return " ← ".join(
            f"{frame.name} ({PurePosixPath(frame.file).name}:{frame.line})"
            for frame in python[:PYTHON_FRAMES]
        )
    return " ← ".join(frame.name for frame in frames[:PYTHON_FRAMES])
