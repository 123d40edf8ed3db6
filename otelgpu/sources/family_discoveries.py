"""The watchers of a session: what its families find out in the observed processes, beside their probes.

In: records as they are drained, processes as they map libraries and end. Out: inputs of their own (what maps of the
kernel hold), and probes that could not be placed before. Which watcher takes part in what follows from the methods that
it has: see :mod:`otelgpu.processes.discovery`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from otelgpu.kernel.loader import LoadedFamily
from otelgpu.kernel.lost_records import LostRecords
from otelgpu.model.inputs import Batch, Input
from otelgpu.model.settings import Settings
from otelgpu.processes.discovery import (
    Asks,
    Closes,
    Collects,
    Completes,
    CountsLosses,
    Discovery,
    Polls,
    SeesBatches,
    SeesEnds,
    SeesEntries,
    SeesLibraries,
    SeesProcesses,
    SeesScope,
    Starts,
)
from otelgpu.processes.probes import ProbePlacer


class FamilyDiscoveries:
    """Those of a session whose families have these ``discoveries``, by name."""

    def __init__(self, discoveries: Mapping[str, Discovery] | None = None) -> None:
        self._discoveries = dict(discoveries or {})
        self._of: dict[str, list[object]] = {}  # by family
        self._losing: list[tuple[str, CountsLosses]] = []
        self._reading: dict[str, list[SeesBatches]] = {}  # by the family whose records they are
        self._on_library: list[SeesLibraries] = []
        self._on_process: list[SeesProcesses] = []
        self._on_scope: list[SeesScope] = []
        self._on_entry: list[SeesEntries] = []
        self._on_end: list[SeesEnds] = []
        self._asking: list[Asks] = []
        self._collecting: list[Collects] = []
        self._polled: list[Polls] = []
        self._completing: list[Completes] = []
        self._closing: list[Closes] = []

    def open(self, loaded: LoadedFamily, placer: ProbePlacer, settings: Settings) -> Sequence[object]:
        """Those of a family that was loaded, of whichever families they are, and the one of its lost records.

        Raises :class:`OtelgpuError`.
        """
        found: list[object] = []
        for family, discovery in self._discoveries.items():
            if loaded.family in discovery.watch:
                for watcher in discovery.watch[loaded.family](loaded, placer, settings):
                    self.add(family, loaded.family, watcher)
                    found.append(watcher)
        self.add(loaded.family, loaded.family, LostRecords(loaded))
        return found

    def add(self, family: str, records: str, watcher: object) -> None:
        """One more of ``family``, which is shown the records of family ``records``."""
        self._of.setdefault(family, []).append(watcher)
        if isinstance(watcher, CountsLosses):
            self._losing.append((family, watcher))
        if isinstance(watcher, SeesBatches):
            self._reading.setdefault(records, []).append(watcher)
        if isinstance(watcher, SeesLibraries):
            self._on_library.append(watcher)
        if isinstance(watcher, SeesProcesses):
            self._on_process.append(watcher)
        if isinstance(watcher, SeesScope):
            self._on_scope.append(watcher)
        if isinstance(watcher, SeesEntries):
            self._on_entry.append(watcher)
        if isinstance(watcher, SeesEnds):
            self._on_end.append(watcher)
        if isinstance(watcher, Asks):
            self._asking.append(watcher)
        if isinstance(watcher, Collects):
            self._collecting.append(watcher)
        if isinstance(watcher, Polls):
            self._polled.append(watcher)
        if isinstance(watcher, Completes):
            self._completing.append(watcher)
        if isinstance(watcher, Closes):
            self._closing.append(watcher)

    @property
    def follow_processes(self) -> bool:
        """Whether any wants to know at once of every process: see :class:`SeesProcesses`."""
        return bool(self._on_process)

    @staticmethod
    def start(watchers: Sequence[object]) -> None:
        """See :class:`Starts`."""
        for watcher in watchers:
            if isinstance(watcher, Starts):
                watcher.start()

    def __getitem__(self, family: str) -> object:
        """The first of a family."""
        return self._of[family][0]

    @property
    def counters(self) -> dict[str, Mapping[str, int]]:
        """Losses by reason, since the start, by family."""
        found: dict[str, Counter[str]] = {}
        for family, watcher in self._losing:
            found.setdefault(family, Counter()).update(watcher.counters)
        return dict(found)

    def look(self, batch: Batch) -> None:
        """See :class:`SeesBatches`."""
        for watcher in self._reading.get(batch.family, ()):
            watcher.look(batch)

    def mapped(self, tgid: int, *, placed: bool, in_scope: bool = True) -> None:
        """A process has mapped a file, or was found to have; ``placed``: one that carries probes."""
        if placed:
            for each in self._on_library:
                each.library_mapped(tgid)
        for watcher in self._on_process:
            watcher.mapped(tgid)
        if in_scope:
            for one in self._on_scope:
                one.expect(tgid)

    def program_changed(self, tgid: int) -> None:
        """See :class:`SeesProcesses`."""
        for watcher in self._on_process:
            watcher.program_changed(tgid)

    def prepare(self, path: Path) -> None:
        """See :class:`SeesProcesses`."""
        for watcher in self._on_process:
            watcher.prepare(path)

    def settle(self, tgids: Collection[int], seconds: float) -> None:
        """Have processes looked at before they come into scope; see :class:`SeesScope`."""
        for watcher in self._on_scope:
            watcher.settle(tgids, seconds)

    def enter(self, tgid: int) -> None:
        """See :class:`SeesEntries`."""
        for watcher in self._on_entry:
            watcher.enter(tgid)

    def ask(self, now_ns: int) -> None:
        """See :class:`Asks`."""
        for watcher in self._asking:
            watcher.ask(now_ns)

    @property
    def are_polled(self) -> bool:
        """See :class:`Polls`."""
        return any(watcher.is_polled for watcher in self._polled)

    def complete(self) -> None:
        """See :class:`Completes`."""
        for watcher in self._completing:
            watcher.complete()

    def collect(self, now_ns: int, gone: Collection[int]) -> list[Input]:
        """What goes before a tick; ``gone`` have ended."""
        for watcher in self._on_end:
            for tgid in gone:
                watcher.forget(tgid)
        return [item for each in self._collecting for item in each.collect(now_ns)]

    def close(self) -> None:
        """All; what fails keeps no other from being closed."""
        with ExitStack() as last_first:
            for watcher in self._closing:
                last_first.callback(watcher.close)
