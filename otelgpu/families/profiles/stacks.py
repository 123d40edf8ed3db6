"""Named stacks and the frames they are made of, each held once. Pure.

In: :class:`~otelgpu.model.samples.StackNamed`. Out: the frames of (process, stack) as numbers. Those that no sample has
asked for longest go first when there are too many; whoever names them reports them again at their next sample.

Example: 40 stacks of 30 frames that have 300 frames between them are 300 :class:`Frame` and 1,200 numbers.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Final

from otelgpu.families.profiles.gil import gil_marks
from otelgpu.families.profiles.names import GIL, truncated
from otelgpu.model.losses import Reasons
from otelgpu.model.profiles import FrameType
from otelgpu.model.samples import Frame, StackNamed

STACKS: Final = 65_536
"""Of all processes together; see ``MAX_STACKS`` of the watcher, which holds no more."""
FRAMES: Final = 262_144
"""Different ones; beyond, those of no stack that is held are forgotten."""
DEPTH: Final = 2048
"""Frames of a stack: more is no stack but a mistake of somebody's."""

REASONS: Final = Reasons(
    "profile",
    {
        "stacks_forgotten": "a stack made room for another, and is reported again with its next sample: there "
        "were too many",
        "stacks_cut": "a stack had more than 2,048 frames: the outermost are not reported",
    },
)
"""What is counted → what one count means."""

FrameIds = tuple[int, ...]


class StackTable:
    """One session's."""

    def __init__(self, *, stacks: int = STACKS, frames: int = FRAMES) -> None:
        self._stacks: OrderedDict[tuple[int, int], FrameIds] = OrderedDict()
        self._of_process: dict[int, set[int]] = {}
        self._ids: dict[Frame, int] = {}
        self._restart()
        self._limit, self._frame_limit = stacks, frames
        self.counters: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._stacks)

    def learn(self, named: StackNamed) -> None:
        """What a stack is, from here on."""
        frames = named.frames
        if len(frames) > DEPTH:
            self.counters["stacks_cut"] += 1
            frames = frames[:DEPTH]
        ids = tuple(map(self.frame, frames))
        if named.truncated:
            ids += (self.frame(truncated(named.truncated)),)
        key = named.tgid, named.stack
        self._stacks[key] = ids
        self._stacks.move_to_end(key)
        self._of_process.setdefault(named.tgid, set()).add(named.stack)
        if len(self._stacks) > self._limit:
            self._forget(next(iter(self._stacks)))
            self.counters["stacks_forgotten"] += 1

    def frame(self, frame: Frame) -> int:
        """The number of a frame. Numbers hold until :meth:`compact`."""
        number = self._ids.setdefault(frame, len(self.frames))
        if number == len(self.frames):
            self.frames.append(frame)
            self.gil_marks.append(gil_marks(frame))
            if frame.type is FrameType.PYTHON:
                self.python.add(number)
            if _is_shown(frame):
                self.shown.add(number)
        return number

    def ids(self, tgid: int, stack: int) -> FrameIds | None:
        """The frames of a stack, the leaf first; None of one that nobody named, or that was forgotten."""
        found = self._stacks.get((tgid, stack))
        if found is not None:
            self._stacks.move_to_end((tgid, stack))
        return found

    def has(self, key: tuple[int, int]) -> bool:
        """Whether somebody has named it: process, stack."""
        return key in self._stacks

    def forget_process(self, tgid: int) -> None:
        """Nothing asks for its stacks any more."""
        for stack in self._of_process.pop(tgid, ()):
            self._stacks.pop((tgid, stack), None)

    def compact(self) -> None:
        """Where there are too many frames: keep those of the stacks that are held. Numbers change."""
        if len(self.frames) <= self._frame_limit:
            return
        self._renumber()
        while len(self.frames) > self._frame_limit and len(self._stacks) > 1:
            for _ in range((len(self._stacks) + 1) // 2):
                self._forget(next(iter(self._stacks)))
                self.counters["stacks_forgotten"] += 1
            self._renumber()

    def _restart(self) -> None:
        """No frame has a number."""
        self._ids = {}
        self.frames: list[Frame] = []
        self.gil_marks: list[int] = []
        """Of each of them."""
        self.python: set[int] = set()
        """Numbers of Python frames."""
        self.shown: set[int] = set()
        """Numbers of frames that a profile by Python frames shows."""

    def _renumber(self) -> None:
        before = self.frames
        self._restart()
        for key, ids in self._stacks.items():
            self._stacks[key] = tuple(self.frame(before[each]) for each in ids)

    def _forget(self, key: tuple[int, int]) -> None:
        del self._stacks[key]
        mine = self._of_process.get(key[0])
        if mine is not None:
            mine.discard(key[1])
            if not mine:
                del self._of_process[key[0]]


def _is_shown(frame: Frame) -> bool:
    """Of a profile by Python frames: those, and that some of them are missing; native ones may be cut all the same."""
    return (
        frame.type is FrameType.PYTHON
        or frame == GIL
        or (frame.name.startswith("[truncated: python") and not frame.file)
    )
