"""Where the members of a struct lie, by a tenant's debugging information: read by a worker, which a thread waits for.

Reading takes seconds and hundreds of megabytes, and whoever wrote the file decides how many. In: open files, on the
account of whose they are. Out: what :func:`otelgpu.elf.dwarf.struct_members` finds, later.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import cache
from queue import SimpleQueue
from typing import Final, NamedTuple

from otelgpu.elf.image import ElfError, ElfImage
from otelgpu.elf.struct_member import Member
from otelgpu.processes.function_finder import image_of
from otelgpu.processes.reader.accounts import Owner
from otelgpu.processes.reader.client import Limits, Reader
from otelgpu.processes.reader.forker import Forker, session_forker
from otelgpu.processes.reader.messages import Descriptor, question
from otelgpu.processes.reader.server import Confinement

Members = dict[str, Member]
Done = Callable[[Members | None, bool], None]
"""Called in the thread: with the members, None where the file has none; and whether it was read."""

_LIMITS: Final = Limits(busy_s=15.0, wall_s=60.0, share=0.05, advance_s=30.0, failure_s=60.0)
"""NCCL 2.32's takes 6 s."""
_MOST_BYTES: Final = 128 << 20
"""Of debugging information; NCCL 2.32 has 25 MiB."""
_WAITING: Final = 64
_MODULES: Final = ("otelgpu.elf.dwarf",)
_SECTIONS: Final = (".debug_info", ".debug_abbrev", ".debug_str", ".debug_line_str")


@question(ElfError)
def members_in(file: Descriptor, name: str) -> Members | None:
    """Those of ``struct name``; None where there are none. A file that shrinks meanwhile is the worker's end."""
    return members_of(image_of(file), name)


def members_of(image: ElfImage, name: str) -> Members | None:
    """The same of a file that is trusted, or read by who may die of it. Raises :class:`ElfError`."""
    from otelgpu.elf.dwarf import (
        struct_members,
    )  # with pyelftools: 3 MiB that the agent itself has no use for

    sections = [image.section(section) for section in _SECTIONS]
    contents = [section.content if section is not None else b"" for section in sections]
    if not contents[0] or sum(map(len, contents)) > _MOST_BYTES:
        return None
    info, abbreviations, strings, line_strings = contents
    return struct_members(info, abbreviations, strings, line_strings, name)


class _Wanted(NamedTuple):
    owner: Owner
    descriptor: int  # ours
    name: str
    done: Done


class StructFinder:
    """Asks a reader of its own, one question at a time, in the order in which they came."""

    def __init__(self, limits: Limits = _LIMITS, *, forker: Forker | None = None) -> None:
        self._reader = Reader(limits, Confinement(modules=_MODULES), forker=forker)
        self._wanted: SimpleQueue[_Wanted] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def find(self, owner: Owner, descriptor: int, name: str, done: Done) -> None:
        """Of an open file, which may be closed afterwards. So many may wait; what is beyond is not read."""
        if self._wanted.qsize() >= _WAITING:
            done(None, False)
            return
        self._wanted.put(_Wanted(owner, os.dup(descriptor), name, done))
        if self._thread is None:
            self._thread = threading.Thread(target=self._answer, name="struct-finder", daemon=True)
            self._thread.start()

    def _answer(self) -> None:
        while True:
            owner, descriptor, name, done = self._wanted.get()
            try:
                done(self._reader.ask(owner, members_in, Descriptor(descriptor), name), True)
            except ElfError:
                done(None, True)
            except OSError:
                done(None, False)
            finally:
                os.close(descriptor)


@cache
def session_struct_finder() -> StructFinder:
    """The one of this program. To be asked for before there are threads: the first time, it forks."""
    return StructFinder(forker=session_forker())
