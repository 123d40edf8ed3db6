"""Whether a function of a running process is probed by now, told by its code and not by who probes it.

The kernel writes a breakpoint over the first instruction of a function that has a uprobe, in each process that has the
file mapped. Formats: ``/proc/PID/maps`` and ``/proc/PID/mem``, proc(5).
"""

from __future__ import annotations

from pathlib import Path

from tests.rig.elf_symbols import offset_of


class Code:
    """The first byte of an exported function of a library that a process has mapped.

    Raises ValueError where it has not mapped it.
    """

    def __init__(self, pid: int, library: Path, symbol: str) -> None:
        offset = offset_of(library, symbol)
        self._memory = Path(f"/proc/{pid}/mem")
        self._address = _address_of(pid, library, offset)
        self._of_file = library.read_bytes()[offset]

    def is_probed(self) -> bool:
        """Now. Raises OSError when the process is gone."""
        with self._memory.open("rb", buffering=0) as memory:
            memory.seek(self._address)
            return memory.read(1)[0] != self._of_file


def _address_of(pid: int, library: Path, offset: int) -> int:
    """Where a process has this place of a file."""
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        if fields[-1] != str(library) or "x" not in fields[1]:
            continue
        begin, end = (int(each, 16) for each in fields[0].split("-"))
        first = int(fields[2], 16)
        if first <= offset < first + end - begin:
            return begin + offset - first
    raise ValueError(f"process {pid} has not mapped {library}")
