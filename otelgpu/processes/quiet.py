"""Processes that need not be looked at before they do something, and the files by which the kernel knows them.

In: files that were examined, and nothing in them concerns this program. Out: entries of the maps of
``bpf/process/quiet.h``, whose programs wake nobody for a process that has mapped nothing else. Such a process is looked
at when this program comes round, or has a record of it; one that has ended by then without any is not looked at at all.

Example: a shell that runs ``sed`` a hundred times a second. Once ``sed`` and the C library are known its processes are
four records each, that are skipped together, five times a second.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from otelgpu.elf.image import ElfError
from otelgpu.kernel.libbpf import BpfError
from otelgpu.kernel.loader import LoadedFamily
from otelgpu.kernel.statx import cached_status
from otelgpu.processes.elf_files import map_elf, open_regular
from otelgpu.processes.maps import Inode
from otelgpu.processes.probes import IN_EVERY_PROCESS, FileState, ProbedFile, ProbePlacer
from otelgpu.processes.work_contexts import WorkContexts

_PROCESS: Final = struct.Struct("<I")
_IDENTITY: Final = struct.Struct("<QIxxxx")
"""``struct file_identity``."""
_STATE: Final = struct.Struct("<QQ")
"""``struct file_state``."""


class QuietProcesses:
    """Those of one session; ``process``: the family that follows processes."""

    def __init__(self, process: LoadedFamily, probes: ProbePlacer, contexts: WorkContexts) -> None:
        self._process, self._probes, self._contexts = process, probes, contexts
        self._processes, self._files = process.map("quiet_processes"), process.map("quiet_files")
        self._judged: dict[Inode, FileState] = {}  # files, as they were then
        self._capacity = self._files.max_entries
        self._are_allowed = False

    def allow(self, allowed: bool) -> None:
        """Whether there may be any: not while somebody wants to know at once of every process."""
        self._process.set_variable("quiet_allowed", int(allowed))
        self._are_allowed = allowed

    def begin(self, tgid: int) -> None:
        """A running process is about to be looked at: what it maps from now on makes the kernel take it out."""
        with suppress(BpfError):  # full: it is as others
            self._processes.put(_PROCESS.pack(tgid), b"\1")

    def end(self, tgid: int, probed_files: Iterable[ProbedFile]) -> None:
        """It was looked at, and these are its files with probes."""
        says_nothing = all(each.library in IN_EVERY_PROCESS for each in probed_files)
        if not says_nothing or self._contexts.knows(tgid):
            self._processes.delete(_PROCESS.pack(tgid))

    def has(self, tgid: int) -> bool:
        """Whether a process has done nothing of concern until now."""
        return self._are_allowed and self._processes.get(_PROCESS.pack(tgid)) is not None

    def executed(self, tgid: int, inode: Inode) -> None:
        """A process has become the program that is this file: before anything else, for it may end at any moment."""
        try:
            descriptor = open_regular(f"/proc/{tgid}/exe")
        except OSError:
            return
        try:
            status = cached_status(descriptor)
            state = (status.size_bytes, status.changed_ns)
            if (status.kernel_device, status.inode) != inode or self._judged.get(inode) == state:
                return
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            self._probes.examine_open(descriptor, path, tgid)
            may_concern = self._contexts.may_concern(map_elf(descriptor), os.path.basename(path))
            if self._probes.nothing_in(inode) == state and not may_concern:
                self._judge(inode, state)
        except (OSError, ElfError):
            return
        finally:
            os.close(descriptor)

    def mapped(self, inode: Inode, name: str) -> None:
        """A library was looked at, now or before."""
        state = self._probes.nothing_in(inode)
        if state is not None and self._judged.get(inode) != state and self._contexts.nothing_in(inode, name):
            self._judge(inode, state)

    def _judge(self, inode: Inode, state: FileState) -> None:
        device, number = inode
        with suppress(BpfError):
            self._files.put(_IDENTITY.pack(number, device), _STATE.pack(*state))
            if len(self._judged) >= self._capacity:
                self._judged.clear()
            self._judged[inode] = state
