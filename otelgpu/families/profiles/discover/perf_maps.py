"""Names of code that was made at run time, from the ``/tmp/perf-PID.map`` that its process writes.

In: (process, address). Out: names. The file lies in the process' mount namespace, under the number that the process has
in its own PID namespace. It is that process' own, and so may be anything: a FIFO, a link to elsewhere, gigabytes.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections import Counter, OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

from otelgpu.processes.mounts import UntrustedMount
from otelgpu.processes.reader.door import open_folder
from otelgpu.symbols.perf_map import MAX_BYTES, PerfMap

MAX_PROCESSES: Final = 16
MAX_TOTAL_BYTES: Final = 64 << 20

_AGAIN_S: Final = 1.0
_FILE_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW
_DIRECTORY_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW

REASONS: Final[Mapping[str, str]] = {
    "jit_map_refused": "a perf-PID.map that is no regular file, or neither the process' user's nor one of root's that "
    "it may read",
    "jit_map_not_asked": "a process whose perf-PID.map was not looked for: it may have made the file systems below its "
    "root folder itself",
    "jit_lines_damaged": "lines of a perf-PID.map that make no sense",
    "jit_lines_cut": "a perf-PID.map beyond the bound: functions behind it have no names",
}
"""What is counted, and what one count means."""


class _Kept(Struct):
    functions: PerfMap | None = None
    state: tuple[int, int, int] = (0, 0, 0)  # inode, size, time of change
    looked_s: float = -_AGAIN_S
    refused: bool = False  # for its mounts; counted


class PerfMaps:
    """Those of all processes. What a process does to its file is counted, never raised."""

    def __init__(self, *, proc: Path = Path("/proc")) -> None:
        self.counters: Counter[str] = Counter(dict.fromkeys(REASONS, 0))
        self._proc = proc
        self._kept: OrderedDict[int, _Kept] = OrderedDict()

    def name(self, tgid: int, address: int) -> str | None:
        """What its compiler calls the code at ``address``; None where it does not report.

        A file that has grown is read again when it lacks an address, at most once a second.
        """
        kept = self._kept.setdefault(tgid, _Kept())
        self._kept.move_to_end(tgid)
        found = kept.functions.name_at(address) if kept.functions is not None else None
        if found is None and time.monotonic() - kept.looked_s >= _AGAIN_S:
            kept.looked_s = time.monotonic()
            if self._read(tgid, kept):
                self._bound()
                found = kept.functions.name_at(address) if kept.functions is not None else None
        return found

    def forget(self, tgid: int) -> None:
        """The process has ended, or runs another program."""
        self._kept.pop(tgid, None)

    def _read(self, tgid: int, kept: _Kept) -> bool:
        """Whether there was something new to read."""
        try:
            descriptor = self._open(tgid)
        except UntrustedMount:
            self.counters["jit_map_not_asked"] += not kept.refused
            kept.refused = True
            return False
        except OSError:
            return False
        with open(descriptor, "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or not self._may_be_its(tgid, status):
                self.counters["jit_map_refused"] += 1
                return False
            state = (status.st_ino, status.st_size, status.st_mtime_ns)
            if state == kept.state:
                return False
            kept.state = state
            text = bytearray()
            try:
                while len(text) <= MAX_BYTES and (part := file.read(1 << 20)):
                    text += part
            except OSError:
                pass  # what was read counts
        kept.functions = PerfMap(bytes(text))
        self.counters.update(kept.functions.counters)
        return True

    def _open(self, tgid: int) -> int:
        """Step by step: a link on the way would be followed in this program's file system."""
        name = f"perf-{self._number_inside(tgid)}.map"
        root = open_folder(str(self._proc / str(tgid) / "root"))
        try:
            directory = os.open("tmp", _DIRECTORY_FLAGS, dir_fd=root)
        finally:
            os.close(root)
        try:
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            if not stat.S_ISREG(status.st_mode):  # before it is opened: some devices act on that
                self.counters["jit_map_refused"] += 1
                raise OSError(errno.EINVAL, "no regular file", name)
            return os.open(name, _FILE_FLAGS, dir_fd=directory)
        finally:
            os.close(directory)

    def _number_inside(self, tgid: int) -> int:
        """The process' id in its own PID namespace; in those above it has others (proc_pid_status(5), NSpid)."""
        with open(self._proc / str(tgid) / "status", "rb") as file:
            for line in file.read(1 << 16).split(b"\n"):
                if line.startswith(b"NSpid:"):
                    return int(line.split()[-1])
        return tgid

    def _may_be_its(self, tgid: int, status: os.stat_result) -> bool:
        """Its user's, or root's that it could read itself: another may have been mounted there."""
        its = status.st_uid == self._owner(tgid)
        return its or (status.st_uid == 0 and bool(status.st_mode & stat.S_IROTH))

    def _owner(self, tgid: int) -> int:
        try:
            return os.stat(self._proc / str(tgid)).st_uid
        except OSError:
            return 0

    def _bound(self) -> None:
        while len(self._kept) > 1 and (
            len(self._kept) > MAX_PROCESSES
            or sum(k.functions.size_bytes for k in self._kept.values() if k.functions is not None)
            > MAX_TOTAL_BYTES
        ):
            self._kept.popitem(last=False)
