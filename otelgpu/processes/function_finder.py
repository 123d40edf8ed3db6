"""Which wanted functions a tenant's ELF file has, and where: asked of a worker, on the account of whose file it is.

Whoever maps a file chooses how many symbols it has, what they are called, and when the file shrinks. In: open files.
Out: :class:`FoundFunctions`. What is refused, or ended the worker, is to be asked again later.
"""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import Set
from dataclasses import dataclass
from functools import cache
from typing import Final

from otelgpu.elf.image import ElfError, ElfImage
from otelgpu.processes.reader.accounts import Accounts, Owner
from otelgpu.processes.reader.client import Limits, Reader
from otelgpu.processes.reader.messages import Descriptor, question

_LIMITS: Final = Limits(busy_s=0.5, wall_s=1.0, advance_s=5.0, failure_s=10.0)
"""libLLVM's 50,000 functions take 5 ms, two million named like wanted ones 0.5 s; who waits meanwhile is the agent."""


@dataclass(frozen=True, slots=True)
class FoundFunctions:
    """``offsets``: in the file, by name. ``is_go``: of a Go program, whose stacks move."""

    offsets: dict[str, int]
    is_go: bool


@question(ElfError)
def functions_in(file: Descriptor, names: tuple[str, ...]) -> FoundFunctions:
    """Those of ``names`` that are defined. A file that shrinks meanwhile is the worker's end, on purpose."""
    try:
        mapped = mmap.mmap(file, 0, access=mmap.ACCESS_READ)
    except ValueError as error:  # an empty file
        raise ElfError("not an ELF file: it is empty") from error
    image = ElfImage(memoryview(mapped))
    return FoundFunctions(image.function_offsets(names), image.is_go)


class FunctionFinder:
    """Asks a reader of its own."""

    def __init__(self, limits: Limits = _LIMITS) -> None:
        self._reader = Reader(limits)
        self._names: tuple[Set[str], tuple[str, ...]] = frozenset(), ()

    @property
    def counters(self) -> Counter[str]:
        """The reader's: files that were not read, by reason."""
        return self._reader.counters

    @property
    def accounts(self) -> Accounts:
        """Who may have how much read, here or by this program itself."""
        return self._reader.accounts

    def find(self, owner: Owner, descriptor: int, names: frozenset[str]) -> FoundFunctions:
        """Of an open file. Raises :class:`~.reader.client.ReaderError`, OSError, :class:`ElfError`."""
        if self._names[0] is not names:
            self._names = names, tuple(sorted(names))
        return self._reader.ask(owner, functions_in, Descriptor(descriptor), self._names[1])

    def close(self) -> None:
        """End the worker."""
        self._reader.close()


@cache
def session_function_finder() -> FunctionFinder:
    """The one of this program. To be asked for before there are threads: the first time, it forks."""
    return FunctionFinder()
