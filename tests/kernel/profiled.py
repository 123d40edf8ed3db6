"""A program under profile as these tests use it: its samples, its stacks by name, and what it says of itself."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from otelgpu.families.profiles.decode import ProfileDecoder
from otelgpu.families.profiles.discover.unwind_tables import UnwindTables
from otelgpu.model.inputs import Batch
from otelgpu.model.profiling import ProfileKind, ProfileSettings
from otelgpu.model.samples import Frame, SampleKind, Samples, StackNamed, concatenated
from tests.kernel.observing import Watch

SOURCE: Final = Path(__file__).parent / "data" / "known_times.c"


class Known(NamedTuple):
    """What a function of the program knows of itself."""

    calls: int
    ns: int


def compiled(folder: Path, source: Path = SOURCE) -> Path:
    """A program of one file."""
    made = folder / source.stem
    options = (
        "-O1",
        "-fno-omit-frame-pointer",
        "-fno-optimize-sibling-calls",
        "-pthread",
        "-Wall",
        "-Wextra",
        "-Werror",
    )
    subprocess.run(["gcc", *options, "-o", made, source], check=True)
    return made


class Profiled:
    """A profile of one run of a program that says "ready", does its part after a line, and says what it did."""

    def __init__(self, watching: Watch) -> None:
        self.watching = watching
        self.tgid = 0
        self.known: dict[str, list[Known]] = {}

    def run(
        self,
        command: Sequence[str | Path],
        *,
        before: Callable[[int], None] = lambda pid: None,
        also: Callable[[], None] = lambda: None,
    ) -> None:
        """To its end; ``before`` is done before its part, ``also`` when it said what it did, while it still runs."""
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        try:
            assert process.stderr.readline() == "ready\n"
            self.tgid = process.pid
            self.watching.observe(process.pid)
            self.watching.pump(0.2)
            self._await_tables()
            before(process.pid)
            process.stdin.write("\n")
            process.stdin.flush()
            output = process.stdout
            self.watching.during(lambda: self._hear(iter(output.readline, "")))
            self.watching.pump(0.2)
            also()
            process.communicate("\n", timeout=30)
            assert process.returncode == 0
            self.watching.pump(0.2)
            self.report()
        finally:
            process.kill()
            process.wait()

    def _await_tables(self) -> None:
        """Stacks are whole from the first on, in place of from the time that the tables are there."""
        for each in self.watching.source._watchers["profile"]._walked:  # type: ignore[attr-defined]
            each.see(self.tgid)
            if isinstance(each, UnwindTables):
                assert each.settle(20)

    def report(self) -> None:
        """Ask for what has not been reported."""
        self.watching.source.complete()
        self.watching.pump(0.1)

    def _hear(self, lines: Iterable[str]) -> None:
        for line in lines:
            name, calls, ns = line.split()
            if name == "done":
                return
            self.known.setdefault(name, []).append(Known(int(calls), int(ns)))

    @cached_property
    def decoder(self) -> ProfileDecoder:
        """What decoded the samples."""
        return ProfileDecoder()

    @property
    def samples(self) -> Samples:
        """All of the program."""
        batches = [
            each for each in self.watching.inputs if isinstance(each, Batch) and each.family == "profile"
        ]
        found = concatenated([self.decoder.samples(each) for each in batches])
        mine: Samples = found[found["tgid"] == self.tgid]
        return mine

    def of_kind(self, kind: SampleKind) -> Samples:
        """Those of one kind."""
        samples = self.samples
        found: Samples = samples[samples["kind"] == kind]
        return found

    @property
    def stacks(self) -> dict[int, tuple[Frame, ...]]:
        """Stacks by number, the leaf first."""
        return {
            item.stack: item.frames
            for item in self.watching.inputs
            if isinstance(item, StackNamed) and item.tgid == self.tgid
        }

    def under(self, samples: Samples, function: str) -> Samples:
        """Those whose stacks have a frame of that function."""
        numbers = [
            number
            for number, frames in self.stacks.items()
            if any(frame.name == function for frame in frames)
        ]
        found: Samples = samples[np.isin(samples["stack"], np.array(numbers, dtype=np.uint64))]
        return found


def profiled(
    watch: Callable[..., Watch],
    *kinds: ProfileKind,
    frequency_hz: int = 99,
    off_cpu_least_us: int = 1000,
    file_slow_ms: int = 1,
) -> Profiled:
    """A session that profiles those kinds and nothing else."""
    settings = ProfileSettings(
        kinds=frozenset(kinds),
        frequency_hz=frequency_hz,
        off_cpu_least_us=off_cpu_least_us,
        file_slow_ms=file_slow_ms,
        interval_s=3600,
    )
    return Profiled(watch(families=("profile",), profile=settings))


PYTHON: Final = sys.executable
