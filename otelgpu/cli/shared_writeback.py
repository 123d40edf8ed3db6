"""What was written to disks in nobody's name beside a profile of block requests, and whose it may be.

Where the kernel charges no control group for what it writes back, such requests are of all who share the disk. Whoever
made pages dirty meanwhile is a candidate and no more: what is written now may have been made dirty before, and what is
made dirty now is written later.

In: readings at the beginning and at the end, and the requests that the profile has. Out: a sentence.

Source: Documentation/block/stat.rst ("write sectors").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

from otelgpu.cli.dirty_pages import DirtyPages, dirty_pages, made_dirty
from otelgpu.diagnose.profile_rows import value_of
from otelgpu.families.profiles import names
from otelgpu.families.profiles.discover.charged_groups import NOT_CHARGED
from otelgpu.model.profiles import ProfileColumns
from otelgpu.model.quantities import size
from otelgpu.model.text import printable
from otelgpu.processes.kernel_files import kernel_text
from otelgpu.processes.listing import cpu_use, descendants, list_processes

LEAST_BYTES: Final = 1 << 20
"""Of a disk: less is the file system's own, as its journal."""
MOST_CANDIDATES: Final = 4
_SECTOR: Final = 512
_WRITE_SECTORS: Final = 6  # of the fields of ``stat``, from 0


class Reading(Struct, frozen=True, kw_only=True):
    """At one time. ``written``: bytes by disk, whoever asked for it."""

    dirty: dict[int, DirtyPages]
    written: dict[str, int]


def read(*, proc: Path = Path("/proc"), disks: Path = Path("/sys/block")) -> Reading:
    """Of all processes and disks."""
    uses = {pid: use for pid in list_processes(proc=proc) if (use := cpu_use(pid, proc=proc)) is not None}
    return Reading(dirty=dirty_pages(uses, proc=proc), written=_written(disks))


def _written(disks: Path) -> dict[str, int]:
    """Devices that are made of others are left out: those have what was written to them."""
    found = {}
    for disk in disks.iterdir() if disks.is_dir() else ():
        fields = kernel_text(disk / "stat").split()
        is_stacked = (disk / "slaves").is_dir() and any((disk / "slaves").iterdir())
        if len(fields) > _WRITE_SECTORS and fields[_WRITE_SECTORS].isdecimal() and not is_stacked:
            found[disk.name] = int(fields[_WRITE_SECTORS]) * _SECTOR
    return found


def own_writes(batches: Iterable[ProfileColumns]) -> Counter[str]:
    """Bytes by disk of the writes that a profile has."""
    found: Counter[str] = Counter()
    for batch in batches:
        if batch.sample_type != names.BLOCK_BYTES:
            continue
        attributes = {each.key: each for each in batch.attributes}
        device, operation = (attributes.get(key) for key in (names.BLOCK_DEVICE, names.BLOCK_OPERATION))
        for row in range(len(batch)):
            if value_of(operation, row) == "write":
                found[str(value_of(device, row))] += int(batch.value[row])
    return found


class SharedWriteback:
    """Between its making and :meth:`end`."""

    def __init__(self, read: Callable[[], Reading] = read) -> None:
        self._read = read
        self._before = self._after = read()
        self._profiled: frozenset[int] = frozenset()

    def end(self, profiled: Collection[int]) -> None:
        """While the processes that were ``profiled`` can still be looked at."""
        self._after = self._read()
        self._profiled = frozenset((*profiled, *descendants(*profiled)))

    def sentence(self, batches: Iterable[ProfileColumns], reasons: Collection[str]) -> str:
        """Empty where the kernel tells whose it is, by the ``reasons`` counted, or where the profile has all of it."""
        unowned = self._unowned(own_writes(batches)) if NOT_CHARGED in reasons else []
        if not unowned:
            return ""
        disks = ", ".join(f"{size(count)} to {printable(disk)}" for disk, count in unowned)
        writers = made_dirty(self._before.dirty, self._after.dirty)
        total = sum(each.dirtied_bytes for each in writers)
        said = (
            f"{printable(each.name)} (PID {each.pid}{', profiled' if each.pid in self._profiled else ''}) "
            f"{size(each.dirtied_bytes)}, {each.dirtied_bytes / total:.0%}"
            for each in writers[:MOST_CANDIDATES]
        )
        return (
            f"written meanwhile, and in no request of this profile: {disks}; candidates, by the pages that they made "
            f"dirty meanwhile: {'; '.join(said) or 'none that still runs and may be looked at'}"
        )

    def _unowned(self, own: Mapping[str, int]) -> list[tuple[str, int]]:
        """(disk, bytes), the most first."""
        before, after = self._before.written, self._after.written
        rest = [
            (disk, after[disk] - before[disk] - own.get(disk, 0)) for disk in before.keys() & after.keys()
        ]
        return sorted((each for each in rest if each[1] >= LEAST_BYTES), key=lambda each: (-each[1], each[0]))
