"""The files that say what a process runs its code by, and what was found in each, once for all processes.

In: processes and what they have mapped. Out: the mappings in which an interpreter or a runtime may be, and the answers
of whoever looks into them. Files are read through ``map_files``, so that containers and deleted files are no different.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, Generic, TypeVar

from otelgpu.elf.image import ElfImage, Load
from otelgpu.processes.elf_files import NOT_KNOWN, Identity, identity_of, open_mapping
from otelgpu.processes.maps import Mapping, distinct_files
from otelgpu.symbols.cpython.image import may_be_interpreter

MAX_FILES: Final = 1 << 12
"""That are remembered; of more, the one that was not asked for for longest is forgotten."""

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")

Answer = TypeVar("Answer")


def program_and_interpreters(
    tgid: int, mappings: Iterable[Mapping], *, proc: Path = Path("/proc")
) -> list[Mapping]:
    """One mapping of each: the program, whatever it is called, then what is called python."""
    try:
        program = os.readlink(f"{proc}/{tgid}/exe").removesuffix(" (deleted)")
    except OSError:
        program = ""
    first, others = [], []
    for mapping in distinct_files(mappings):
        if mapping.path == program:
            first.append(mapping)
        elif may_be_interpreter(name_of(mapping)):
            others.append(mapping)
    return first + others


def name_of(mapping: Mapping) -> str:
    """The last part of the path of the file that is mapped."""
    return mapping.path.rpartition("/")[2]


class FileAnswers(Generic[Answer]):
    """What ``look`` makes of an image and the file's name, remembered by the file's identity."""

    def __init__(self, look: Callable[[ElfImage, str], Answer], *, proc: Path = Path("/proc")) -> None:
        self._look = look
        self._proc = proc
        self._answers: OrderedDict[Identity, Answer] = OrderedDict()

    def of(self, tgid: int, mapping: Mapping) -> Answer:
        """Raises OSError or ElfError for a file that cannot be read, which is tried again."""
        identity = identity_of(tgid, mapping, proc=self._proc)
        if identity != NOT_KNOWN and identity in self._answers:
            self._answers.move_to_end(identity)
            return self._answers[identity]
        with open_mapping(tgid, mapping, proc=self._proc) as opened:
            answer = self._look(opened.image, name_of(mapping))
            identity = opened.identity
            opened.forget_pages()
        self._answers[identity] = answer
        if len(self._answers) > MAX_FILES:
            self._answers.popitem(last=False)
        return answer


def base_of(loads: Sequence[Load], mapping: Mapping) -> int | None:
    """What is added to the file's addresses in this process; None when the mapping shows none of its code."""
    for load in loads:
        first = load.offset // _PAGE_BYTES * _PAGE_BYTES
        if load.executable and first <= mapping.offset < load.offset + load.size:
            return mapping.start - (load.address + mapping.offset - load.offset)
    return None
