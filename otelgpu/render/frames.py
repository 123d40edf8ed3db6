"""Frames by name, numbered once for all batches of a picture. Pure.

In: locations of :class:`~otelgpu.model.profiles.ProfileColumns`. Out: :class:`Frame` values, equal for equal
things whatever batch they come from, and a number for each. A location with inlined functions is several
frames.

Example: ``generate`` at line 42 of ``/app/handler.py`` is one frame in the profile of every interval and of
every kind. Line 43 is another, for a profile says which line; native frames are reported by function, not by
address.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from enum import StrEnum
from typing import Final, NamedTuple

from otelgpu.model.profiles import FrameType, ProfileColumns
from otelgpu.model.resource import Resource


class Kind(StrEnum):
    """What colours a frame: the types of stacks' frames, and what pictures add."""

    NATIVE = FrameType.NATIVE.value
    PYTHON = FrameType.PYTHON.value
    KERNEL = FrameType.KERNEL.value
    GPU = FrameType.GPU.value
    PROCESS = "process"  # above the frames of each of several processes
    MISSING = "missing"  # a stack that could not be taken
    FOLDED = "folded"  # frames too narrow to be distinguished


class Frame(NamedTuple):
    """A frame as it is shown."""

    kind: Kind
    name: str  # never empty
    file: str = ""  # Python: the source file; else the mapped file's path
    line: int = 0  # of Python frames; 0: not known, or of no matter

    @property
    def label(self) -> str:
        """The text in the picture: ``generate (handler.py:42)``, ``GPU: flash_fwd``."""
        if self.kind is Kind.PYTHON and self.file:
            place = posixpath.basename(self.file) or self.file
            return f"{self.name} ({place}:{self.line})" if self.line else f"{self.name} ({place})"
        if self.kind is Kind.GPU and not self.name.startswith(GPU_PREFIX):
            return GPU_PREFIX + self.name
        return self.name


GPU_PREFIX: Final = "GPU: "
_STANDS_FOR: Final = ("[no stack", "[stack not kept", "[too many stacks", "[truncated")
"""How names begin that stand for frames which are not known."""

NO_STACK: Final = Frame(Kind.MISSING, "[no stack]")
FOLDED: Final = Frame(Kind.FOLDED, "(narrower frames)")


class FrameTable:
    """Numbers frames by their first use. ``lines`` False: Python frames are reported by function only."""

    def __init__(self, *, lines: bool = True) -> None:
        self._lines = lines
        self.entries: list[Frame] = []
        self._codes: dict[Frame, int] = {}

    def __len__(self) -> int:
        return len(self.entries)

    def code(self, frame: Frame) -> int:
        """The frame's number."""
        code = self._codes.setdefault(frame, len(self.entries))
        if code == len(self.entries):
            self.entries.append(frame)
        return code

    def codes(self, columns: ProfileColumns, locations: Iterable[int]) -> dict[int, tuple[int, ...]]:
        """By location, the numbers of its frames, the innermost inlined first."""
        return {each: tuple(map(self.code, self._frames(columns, each))) for each in locations}

    def _frames(self, columns: ProfileColumns, location: int) -> list[Frame]:
        frames = location_frames(columns, location)
        return frames if self._lines else [frame._replace(line=0) for frame in frames]


def location_frames(columns: ProfileColumns, code: int) -> list[Frame]:
    """The frames of a location, the innermost inlined first. Positions outside their table name nothing."""
    if not 0 <= code < len(columns.locations):
        return [Frame(Kind.MISSING, f"[location {code}]")]
    location = columns.locations[code]
    kind = Kind(location.frame_type.value)
    mapped = ""
    if location.mapping is not None and 0 <= location.mapping < len(columns.mappings):
        mapped = columns.mappings[location.mapping].file_name
    frames = []
    for line in location.lines:
        if not 0 <= line.function < len(columns.functions):
            continue
        function = columns.functions[line.function]
        name = function.name or function.system_name
        if name.startswith(_STANDS_FOR):
            frames.append(Frame(Kind.MISSING, name))
            continue
        if kind is Kind.PYTHON:
            frames.append(Frame(kind, name or "<unknown>", function.file_name, max(line.line, 0)))
        else:
            where = mapped or function.file_name
            frames.append(Frame(kind, name or _by_address(where, location.address), where))
    return frames or [Frame(kind, _by_address(mapped, location.address), mapped)]


def _by_address(mapped: str, address: int) -> str:
    where = posixpath.basename(mapped)
    if address:
        return f"{where}+{address:#x}" if where else f"{address:#x}"
    return f"[{where}]" if where else "[unknown]"


def process_frame(resource: Resource, *, number: bool = True) -> Frame:
    """The frame above those of a process, where a picture has several. ``number``: with its process id."""
    keys = ("process.executable.name", "service.name", "process.command", "host.name")
    name = next((str(value) for key in keys if (value := resource.get(key))), "process")
    pid = resource.get("process.pid")
    return Frame(Kind.PROCESS, f"{name} ({pid})" if number and pid is not None else name)
