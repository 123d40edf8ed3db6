"""Which process has which files with probes, and whether it was blind for a while: the state of attaching.

In: a probed_file whenever a process is seen with it. Out: an :class:`~otelgpu.model.self_telemetry.Attachment` per
process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from otelgpu.model.self_telemetry import Attachment
from otelgpu.processes.listing import list_processes
from otelgpu.processes.probes import ProbedFile, ProbePlacer


class Attachments:
    """Processes that have a file with probes, until they are forgotten."""

    def __init__(self, now_ns: int = 0) -> None:
        """``now_ns``: CLOCK_MONOTONIC."""
        self._released_ns = now_ns
        self._files: dict[int, dict[int, tuple[ProbedFile, bool]]] = {}  # by process, then by probed_file
        self._names: dict[int, str] = {}

    def note(self, tgid: int, probed_file: ProbedFile | None, *, blind: bool = False) -> None:
        """A process has a file. ``blind``: it had it before the probes were there."""
        if probed_file is not None:
            if tgid not in self._files:
                self._names[tgid] = _executable(tgid)
            found = self._files.setdefault(tgid, {})
            before = found.get(id(probed_file))
            found[id(probed_file)] = probed_file, blind or (before is not None and before[1])
            if before is None and probed_file.of_process is not None:
                probed_file.of_process.enter(tgid)

    def inherit(self, parent: int, tgid: int) -> None:
        """A process forked: it has what its parent has, and has missed nothing but of probes that are its own."""
        for probed_file, _ in self._files.get(parent, {}).values():
            self.note(tgid, probed_file, blind=probed_file.of_process is not None)

    def forget(self, tgid: int) -> None:
        """It ended, or is another program now."""
        for probed_file, _ in self._files.pop(tgid, {}).values():
            if probed_file.of_process is not None:
                probed_file.of_process.leave(tgid)
        self._names.pop(tgid, None)

    def probed_files(self) -> Iterator[ProbedFile]:
        """What the processes have, once for each that has it; those whose end was not reported are forgotten."""
        for tgid in self._files.keys() - set(list_processes()):
            self.forget(tgid)
        return (probed_file for files in self._files.values() for probed_file, _ in files.values())

    def release_unused(self, placer: ProbePlacer, now_ns: int, keep_ns: int) -> None:
        """Take the probes off files that nobody has any more, at a tenth of the time that they are kept."""
        if now_ns - self._released_ns >= keep_ns // 10:
            self._released_ns = now_ns
            placer.release(self.probed_files(), now_ns, keep_ns=keep_ns)

    def read(self) -> Iterator[tuple[int, Attachment]]:
        """Every process, the newest last."""
        for tgid, files in self._files.items():
            states = [
                "failed" if probed_file.refused else "blind" if blind else "attached"
                for probed_file, blind in files.values()
            ]
            yield (
                tgid,
                Attachment(
                    executable=self._names[tgid],
                    attached=states.count("attached"),
                    blind=states.count("blind"),
                    failed=states.count("failed"),
                ),
            )


def _executable(tgid: int) -> str:
    try:
        return os.readlink(f"/proc/{tgid}/exe").rpartition("/")[2]
    except OSError:
        return ""
