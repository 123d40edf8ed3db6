"""Three processes in two control groups write to a disk of the guest's, and it is written back: what is said of each.

In: a folder on that disk. Prints JSON: of the first process of each group, its ``Surroundings``, and by group the bytes
of the requests that threads of the kernel made in its name (profile kind block).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec

from otelgpu.cli.stall_surroundings import between, read
from otelgpu.families.profiles.decode import ProfileDecoder
from otelgpu.families.profiles.storage.profile_rows import block_label
from otelgpu.model.inputs import Batch
from otelgpu.model.profiling import ProfileKind, ProfileSettings
from tests.kernel.observing import Watch

GROUPS = Path("/sys/fs/cgroup")
_PROGRAM = "read; for n in $(seq {mib}); do printf %1048576s; done > {path}; echo .; read"


class Writer:
    """A process in a group that writes so many MiB when it is told to, and then stays."""

    def __init__(self, group: str, path: Path, mib: int) -> None:
        self._shell = subprocess.Popen(
            ["bash", "-c", _PROGRAM.format(mib=mib, path=path)],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.pid = self._shell.pid
        (GROUPS / group / "cgroup.procs").write_text(str(self.pid))

    def write(self) -> None:
        self._go_on()
        assert self._shell.stdout is not None
        self._shell.stdout.read(1)

    def end(self) -> None:
        """It is looked at as ``diagnose`` looks at the program that it started: ended, and not waited for."""
        self._go_on()
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

    def _go_on(self) -> None:
        assert self._shell.stdin is not None
        self._shell.stdin.write(b"\n")


def written_back(watch: Watch) -> Counter[str]:
    """Bytes by process and group."""
    decoder, found = ProfileDecoder(), Counter[str]()
    for each in watch.inputs:
        if isinstance(each, Batch):
            for row in decoder.samples(each):
                device, operation, *groups = (
                    text for _, text in block_label(int(row["other"]), decoder.name_of)
                )
                for group in groups:
                    found[f"{int(row['tgid'])} {group} {device} {operation}"] += int(row["size_bytes"])
    return found


def main(folder: Path) -> None:
    (GROUPS / "cgroup.subtree_control").write_text("+io +memory")
    for group in "ab":
        (GROUPS / group).mkdir()
    writers = [
        Writer(group, folder / str(number), mib)
        for number, (group, mib) in enumerate((("a", 40), ("b", 10), ("b", 30)))
    ]
    before = [read(each.pid) for each in writers[:2]]
    with Watch(
        families=("profile",), profile=ProfileSettings(kinds=frozenset((ProfileKind.BLOCK,)))
    ) as watch:
        watch.observe(*(each.pid for each in writers[:2]))
        watch.pump(1)
        for each in writers:
            each.write()
        os.sync()
        watch.pump(1)
        requests = written_back(watch)
    for each in writers:
        each.end()
    found = [
        between(reading, read(each.pid), frozenset((each.pid,)), pid=each.pid)
        for reading, each in zip(before, writers, strict=False)
    ]
    names = {str(each.pid): name for each, name in zip(writers, ("first", "second"), strict=False)}
    named = {f"{names[key.split()[0]]} {key.partition(' ')[2]}": size for key, size in requests.items()}
    print(json.dumps({"surroundings": msgspec.to_builtins(found), "requests": named}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
