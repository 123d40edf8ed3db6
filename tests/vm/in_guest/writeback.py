"""Three processes in two control groups write to a disk of the guest's, and it is written back: what is said of each.

In: a folder on that disk. Prints JSON: of the first process of each group, its ``Surroundings``.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import msgspec

from otelgpu.cli.stall_surroundings import between, read

GROUPS = Path("/sys/fs/cgroup")
MIB = 1 << 20


class Writer:
    """A process in a group that writes so many MiB when it is told to, and then stays."""

    def __init__(self, group: str, path: Path, mib: int) -> None:
        begin, self._begin = os.pipe()
        self._done, done = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            try:
                (GROUPS / group / "cgroup.procs").write_text(str(os.getpid()))
                os.write(done, b".")
                os.read(begin, 1)
                with path.open("wb", buffering=0) as file:
                    for _ in range(mib):
                        file.write(bytes(MIB))
                os.write(done, b".")
                os.read(begin, 1)
            finally:
                os._exit(0)
        os.read(self._done, 1)

    def write(self) -> None:
        os.write(self._begin, b".")
        os.read(self._done, 1)

    def end(self) -> None:
        """It is looked at as ``diagnose`` looks at the program that it started: ended, and not waited for."""
        os.write(self._begin, b".")
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)


def main(folder: Path) -> None:
    (GROUPS / "cgroup.subtree_control").write_text("+io +memory")
    for group in "ab":
        (GROUPS / group).mkdir()
    writers = [
        Writer(group, folder / str(number), mib)
        for number, (group, mib) in enumerate((("a", 40), ("b", 10), ("b", 30)))
    ]
    before = [read(each.pid) for each in writers[:2]]
    for each in writers:
        each.write()
    os.sync()
    for each in writers:
        each.end()
    found = [
        between(reading, read(each.pid), frozenset((each.pid,)), pid=each.pid)
        for reading, each in zip(before, writers, strict=False)
    ]
    print(json.dumps(msgspec.to_builtins(found)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
