"""In whose name the kernel writes back: control groups that it charges, each with a process of the scope.

In: processes as they are met, and end. Out: entries of the map ``block_owners`` (bpf/profile/block.h), by which BPF
tells whose a request is that a thread of the kernel makes. A group's first process stands for all of them; when it
ends, another does.
"""

from __future__ import annotations

import struct
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from otelgpu.kernel.libbpf import BpfError
from otelgpu.model.losses import Reasons
from otelgpu.processes.charged_groups import CGROUPS, charged_folder

NOT_CHARGED: Final = "writeback_not_charged"
GROUPS_FULL: Final = "writeback_groups_full"
REASONS: Final = Reasons(
    "profile",
    {
        NOT_CHARGED: "what the kernel writes back for a process is not known: it charges a control group for that with "
        "control groups v2 and their controllers io and memory alone, and the process is in none; such requests are of "
        "all who share the disk. Who made pages dirty meanwhile is said as a candidate",
        GROUPS_FULL: "a process in a control group beyond those that are kept: what is written back for it is nobody's",
    },
    unavailable=(NOT_CHARGED,),
)
"""What is counted, and what one count means."""

MOST_GROUPS: Final = 255
_ID: Final = struct.Struct("=Q")
_OWNER: Final = struct.Struct("=II")


class Owners(Protocol):
    """The map: a group's id → a process, and the group's number."""

    def put(self, key: bytes, value: bytes) -> None:
        """Raises :class:`BpfError` where there is no room."""

    def delete(self, key: bytes) -> bool:
        """Whether it was there."""


class ChargedGroups:
    """See :class:`~otelgpu.families.profiles.discover.watcher.Walked`."""

    def __init__(self, owners: Owners, *, proc: Path = Path("/proc"), cgroups: Path = CGROUPS) -> None:
        self.counters: Counter[str] = Counter(dict.fromkeys(REASONS, 0))
        self._owners, self._proc, self._cgroups = owners, proc, cgroups
        self._members: dict[int, list[int]] = {}  # of each group, by its id
        self._group_of: dict[int, int] = {}
        self._numbers: dict[int, int] = {}  # of groups
        self._free = list(range(MOST_GROUPS, 0, -1))

    def see(self, tgid: int) -> None:
        """A process of the scope: its group is charged with it from now on, unless it is with another."""
        group = self._group(tgid)
        if group is None:
            self.counters[NOT_CHARGED] += 1
            return
        if group not in self._numbers:
            if not self._free:
                self.counters[GROUPS_FULL] += 1
                return
            self._numbers[group] = self._free.pop()
            self._put(group, tgid)
        self._group_of[tgid] = group
        self._members.setdefault(group, []).append(tgid)

    def mapped(self, tgid: int) -> None:
        """Nothing of that is asked."""

    def forget(self, tgid: int) -> None:
        """A process has ended, or becomes another program."""
        group = self._group_of.pop(tgid, None)
        if group is None:
            return
        members = self._members[group]
        members.remove(tgid)
        if members:
            self._put(group, members[0])
        else:
            del self._members[group]
            self._free.append(self._numbers.pop(group))
            with suppress(BpfError):
                self._owners.delete(_ID.pack(group))

    def close(self) -> None:
        """Nothing is held."""

    def _group(self, tgid: int) -> int | None:
        """Its id, which is the number of its folder's inode."""
        folder = charged_folder(tgid, proc=self._proc, cgroups=self._cgroups)
        with suppress(OSError):
            return folder.stat().st_ino if folder is not None else None
        return None

    def _put(self, group: int, tgid: int) -> None:
        try:
            self._owners.put(_ID.pack(group), _OWNER.pack(tgid, self._numbers[group]))
        except BpfError:
            self.counters[GROUPS_FULL] += 1
