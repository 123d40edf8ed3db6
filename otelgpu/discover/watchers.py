"""What a family needs to find out in the observed processes while it is observed, beside its probes.

In: records as they are drained, processes as they map libraries and end. Out: inputs of their own (what maps of the
kernel hold), and probes that could not be placed before: where a provider's functions are is known only once a
process has opened a device, how a communicator is laid out only once a library's version is known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from otelgpu.discover.probes import ProbePlacer
from otelgpu.kernel.loader import LoadedFamily
from otelgpu.model.inputs import Batch, Input
from otelgpu.model.user_probes import UserProbe

_SAMPLED: Final = "probe, sampled"  # a user's probes that are samples of a profile
_ROOMS: Final = {_SAMPLED: "probe"}  # whose losses are told with others'
_EVERYTHING: Final = 100.0  # percent of a core: whoever allows that wants all posts and polls counted


class Watcher(Protocol):
    """One family's. Processes may vanish at any time: that is counted, never raised."""

    @property
    def counters(self) -> Mapping[str, int]:
        """Losses by reason, since the start."""

    def look(self, batch: Batch) -> None:
        """Each batch of the family, as soon as it is drained and before it is told to anybody."""

    def mapped(self, tgid: int) -> None:
        """A process has mapped a file that carries probes, or was found to have."""

    def program_changed(self, tgid: int) -> None:
        """A process has exec'd: what it had mapped is gone, and what it maps now follows."""

    def collect(self, now_ns: int) -> Sequence[Input]:
        """At each collection, after the rings were drained: what goes before its tick."""

    def forget(self, tgid: int) -> None:
        """A process has ended: what is left of it is in the collection that follows at once."""

    def close(self) -> None:
        """Take off what it put on; idempotent."""


@runtime_checkable
class ProcessWatcher(Watcher, Protocol):
    """One that is told of every process, not only of those that have mapped files with probes.

    With cgroups for a scope, those of the whole host that run at the start are among them: who is moved into one says
    nothing. What is costly waits for :meth:`expect`, or for records.
    """

    def expect(self, tgid: int) -> None:
        """A process of the scope runs, or has mapped something: it may have records soon."""

    def prepare(self, path: Path) -> None:
        """A program is about to load a file."""

    def settle(self, tgids: Collection[int], seconds: float) -> None:
        """Wait until what has to be known of these processes, and of what was prepared, is known; at most so long."""

    def complete(self) -> None:
        """The collection that follows is the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSettings:
    """What watchers are told of a session's configuration."""

    rdma_budget: float = 1.0  # percent of a core per observed process that probes of posts and polls may cost
    rdma_transfers: bool = False  # tell single work requests
    probes: tuple[UserProbe, ...] = ()  # of the user's own
    probe_program: tuple[str, str] | None = (
        None  # a program in C for some of them: its text, and what it is called
    )


def open_watcher(loaded: LoadedFamily, placer: ProbePlacer, settings: WatchSettings) -> Watcher | None:
    """The watcher of a family that was loaded; None for those that need none."""
    if loaded.family == "nccl":
        from otelgpu.discover.communicators import NcclLayouts  # as its family, seldom wanted

        return NcclLayouts(loaded, placer)
    if loaded.family == "verbs":
        from otelgpu.discover.verbs_providers import VerbsProviders

        return VerbsProviders(
            loaded,
            placer,
            budget=settings.rdma_budget if settings.rdma_budget < _EVERYTHING else inf,
            transfers=settings.rdma_transfers,
        )
    if loaded.family == "torch":
        from otelgpu.discover.torch_levels import TorchLevels

        return TorchLevels(loaded)
    if loaded.family == "probe":
        return _user_probes(loaded, placer, settings)
    if loaded.family == "profile":
        from otelgpu.discover.profile_watcher import open_profile_watcher

        return open_profile_watcher(loaded)
    return None


def _user_probes(loaded: LoadedFamily, placer: ProbePlacer, settings: WatchSettings) -> Watcher:
    from otelgpu.discover.user_probes import UserProbes  # few sessions have any

    program = settings.probe_program if loaded.family == "probe" else None
    return UserProbes(loaded, settings.probes, with_returns=placer.with_returns, program=program)


class Watchers:
    """Those of a session, by family."""

    def __init__(self) -> None:
        self._all: dict[str, Watcher] = {}
        self._of_all_processes: list[ProcessWatcher] = []

    def open(self, loaded: LoadedFamily, placer: ProbePlacer, settings: WatchSettings) -> None:
        """For a family that was loaded, where it needs one."""
        found = {loaded.family: open_watcher(loaded, placer, settings)}
        if loaded.family == "profile" and any(probe.profile for probe in settings.probes):
            found[_SAMPLED] = _user_probes(loaded, placer, settings)
        for name, watcher in found.items():
            if watcher is not None:
                self._all[name] = watcher
                if isinstance(watcher, ProcessWatcher):
                    self._of_all_processes.append(watcher)

    def __getitem__(self, family: str) -> Watcher:
        return self._all[family]

    @property
    def counters(self) -> dict[str, Mapping[str, int]]:
        """Losses by reason, since the start, by family."""
        found: dict[str, Counter[str]] = {}
        for name, watcher in self._all.items():
            found.setdefault(_ROOMS.get(name, name), Counter()).update(watcher.counters)
        return dict(found)

    def look(self, batch: Batch) -> None:
        """See :class:`Watcher`."""
        if watcher := self._all.get(batch.family):
            watcher.look(batch)

    def mapped(self, tgid: int, *, placed: bool, in_scope: bool = True) -> None:
        """A process has mapped a file, or was found to have; ``placed``: one that carries probes."""
        for watcher in self._all.values() if placed else self._of_all_processes:
            watcher.mapped(tgid)
        if in_scope:
            for watcher in self._of_all_processes:
                watcher.expect(tgid)

    def program_changed(self, tgid: int) -> None:
        """See :class:`Watcher`."""
        for watcher in self._all.values():
            watcher.program_changed(tgid)

    def prepare(self, path: Path) -> None:
        """See :class:`ProcessWatcher`."""
        for watcher in self._of_all_processes:
            watcher.prepare(path)

    def settle(self, tgids: Collection[int], seconds: float) -> None:
        """Have processes looked at before they come into scope; see :class:`ProcessWatcher`."""
        for watcher in self._of_all_processes:
            watcher.settle(tgids, seconds)

    def complete(self) -> None:
        """See :class:`ProcessWatcher`."""
        for watcher in self._of_all_processes:
            watcher.complete()

    def collect(self, now_ns: int, gone: Collection[int]) -> list[Input]:
        """What goes before a tick; ``gone`` have ended."""
        found: list[Input] = []
        for watcher in self._all.values():
            for tgid in gone:
                watcher.forget(tgid)
            found += watcher.collect(now_ns)
        return found

    def close(self) -> None:
        """All; what fails keeps no other from being closed."""
        with ExitStack() as last_first:
            for watcher in self._all.values():
                last_first.callback(watcher.close)
