"""Whom the threads of a process work for, as they can be read at a probe: by what they publish, or by their tasks.

In: processes and what they map. Out: entries of the maps that lib/context.h of the BPF programs reads. One front for
:mod:`otelgpu.processes.thread_context` and :mod:`otelgpu.processes.task_runtimes`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping as Counts
from collections.abc import Sequence, Set
from typing import Final

from otelgpu.elf.image import ElfImage
from otelgpu.kernel.loader import LoadedFamily
from otelgpu.processes.maps import Inode, Mapping, executable_mappings
from otelgpu.processes.task_runtimes import SharedBits, TaskRuntimes, find_tasks
from otelgpu.processes.thread_context import ThreadContexts, may_publish
from otelgpu.symbols.cpython.image import may_be_interpreter


class WorkContexts:
    """Those of a session; ``process``: the family whose programs have the maps that all others share."""

    def __init__(self, process: LoadedFamily) -> None:
        published, btf = SharedBits(process.map("context_published")), process.image.btf
        self._published = ThreadContexts(process.map("context_processes"), published, btf)
        self._tasks = TaskRuntimes(process.map("task_processes"), published, btf)
        self._parts: Final = (self._published, self._tasks)

    @property
    def publishers(self) -> Set[int]:
        """Processes whose threads' contexts are read."""
        return self._published.publishers

    @property
    def counters(self) -> dict[str, Counts[str, int]]:
        """What is not read, and why, by part."""
        return {"contexts": self._published.counters, "tasks": self._tasks.counters}

    def knows(self, tgid: int) -> bool:
        """Whether anything was found in a process."""
        return any(part.knows(tgid) for part in self._parts)

    def may_concern(self, image: ElfImage, name: str) -> bool:
        """Whether anything may be found in a process whose program is this file. Raises ElfError."""
        return may_publish(image) or find_tasks(image, name) is not None

    def nothing_in(self, inode: Inode, name: str) -> bool:
        """Whether a library of that name was looked at, and nothing is to be found in a process for it."""
        device, number = inode
        identity = os.makedev(device >> 20, device & 0xFFFFF), number
        return not may_be_interpreter(name) and self._published.nothing_in(identity)

    def look_at(self, tgid: int, now_s: float, mappings: Sequence[Mapping] | None = None) -> None:
        """All that a running process has mapped; ``mappings``: what of it is executable, if that was read."""
        if mappings is None:
            mappings = executable_mappings(tgid)
        for part in self._parts:
            part.look_at(tgid, now_s, mappings)

    def look_at_mapping(self, tgid: int, start: int, end: int, offset: int, name: str, now_s: float) -> None:
        """What was mapped just now, executable: ``offset`` in the file of that name."""
        self._published.look_at_mapping(tgid, start, end, offset, now_s)
        self._tasks.look_at_mapping(tgid, name, now_s)

    def inherit(self, parent: int, child: int) -> None:
        """The child's memory is its parent's; the BPF programs have copied the parent's entries."""
        for part in self._parts:
            part.inherit(parent, child)

    def forget(self, tgid: int) -> None:
        """It has ended, or is another program."""
        for part in self._parts:
            part.forget(tgid)

    def due_in(self, now_s: float) -> float | None:
        """Seconds until :meth:`retry` is wanted; None: it is not."""
        due = [each for part in self._parts if (each := part.due_in(now_s)) is not None]
        return min(due, default=None)

    def retry(self, now_s: float) -> None:
        """Look again at those that are due."""
        for part in self._parts:
            part.retry(now_s)
