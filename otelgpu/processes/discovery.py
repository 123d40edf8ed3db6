"""The contract of a family's live side: what it chooses before it is loaded, what it finds out while it is observed.

A family that needs more than its probes has a module or package ``discover`` with a module-level ``DISCOVERY``, an
instance of :class:`Discovery`. A live source asks for it; a replay imports none of it. (A function ``asked`` beside it
says whether the settings of a session ask for the family: see :mod:`otelgpu.sources.discoveries`.) What ``watch`` gives
is any object: it takes part in what it has methods for, each of which is a protocol of this module.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from msgspec import Struct, field

from otelgpu.kernel.loader import LoadedFamily
from otelgpu.model.inputs import Batch, Input
from otelgpu.model.profiling import ProfileKind
from otelgpu.model.settings import Settings
from otelgpu.processes.probes import ProbePlacer

if TYPE_CHECKING:
    from otelgpu.processes.coverage import Inspection


class Choice(Struct, frozen=True, kw_only=True):
    """What to load of a family's BPF object. ``programs``: whether to load one, by its name (None: all).

    ``later``: libraries whose programs are loaded only once a file with one of their functions is found, together:
    few hosts have one, and the kernel takes its time to verify them.
    ``ring_bytes``: of the size that rings have in this session, the size that is enough for this family.
    """

    constants: Mapping[str, int] = field(default_factory=dict)  # ``const volatile`` globals of its programs
    shared_constants: Mapping[str, int] = field(
        default_factory=dict
    )  # the same, of the programs of all families
    programs: Callable[[str], bool] | None = None
    later: frozenset[str] = frozenset()
    ring_bytes: Callable[[int], int] | None = None


_FEW_RECORDS_BYTES: Final = 2 << 20


def ring_of_few(usual: int) -> int:
    """Bytes for a family whose records are few beside calls of CUDA and bytes of requests.

    Every page of a ring is resident memory. Of rings that are larger than usual it has its part.
    """
    return max(min(usual, _FEW_RECORDS_BYTES), usual // 4)


FEW_RECORDS: Final = Choice(ring_bytes=ring_of_few)
"""All of a family, in such a ring."""


class Profiles(Struct, frozen=True, kw_only=True):
    """Which profiles a family is for. ``kinds``: those that need its records, or are linked by them to requests.

    ``suggested``: library name → the kinds that are of use for a process which has mapped it.
    """

    kinds: frozenset[ProfileKind] = frozenset()
    suggested: Mapping[str, tuple[ProfileKind, ...]] = field(default_factory=dict)


Watch = Callable[[LoadedFamily, ProbePlacer, Settings], Sequence[object]]
"""Opens the watchers of a family that was loaded and has no probes yet. Raises :class:`OtelgpuError`."""


class Discovery(Struct, frozen=True, kw_only=True):
    """One family's. What it does not need is left out.

    ``watch``: by the name of the family that was loaded, its own or another whose programs it uses too.
    """

    prepare: Callable[[], None] | None = None  # makes what must be there before threads are
    required: bool = True  # False: where the kernel refuses it, the session goes on without it
    choose: Callable[[Settings], Choice] | None = None  # raises BpfError where nothing of it can be loaded
    watch: Mapping[str, Watch] = field(default_factory=dict)
    profiles: Profiles = field(default_factory=Profiles)
    inspect: Callable[[], Inspection] | None = None  # what ``otelgpu check`` says of the family
    in_any_order: bool = False  # records of different kinds: those of a kind are one batch a collection


# What a watcher may have methods for. Processes may vanish at any time: that is counted, never raised.


@runtime_checkable
class CountsLosses(Protocol):
    """Loses something, and counts it."""

    @property
    def counters(self) -> Mapping[str, int]:
        """By reason, since the start."""


@runtime_checkable
class SeesBatches(Protocol):
    """Reads records of its family."""

    def look(self, batch: Batch) -> None:
        """Each batch, as soon as it is drained and before anybody else has it."""


@runtime_checkable
class SeesLibraries(Protocol):
    """Wants to know of the processes that have files with probes."""

    def library_mapped(self, tgid: int) -> None:
        """A process has mapped a file that carries probes, or was found to have."""


@runtime_checkable
class SeesProcesses(Protocol):
    """Wants to know of every process, and of what it maps.

    With cgroups for a scope, those of the whole host that run at the start are among them: who is moved into one says
    nothing. What is costly waits for :meth:`SeesScope.expect`, or for records.
    """

    def mapped(self, tgid: int) -> None:
        """A process has mapped a file, or was found to have."""

    def program_changed(self, tgid: int) -> None:
        """A process has exec'd: what it had mapped is gone, and what it maps now follows."""

    def prepare(self, path: Path) -> None:
        """A program is about to load a file."""


@runtime_checkable
class SeesScope(Protocol):
    """Has something to find out of a process before its records are of use."""

    def expect(self, tgid: int) -> None:
        """A process of the scope runs, or has mapped something: it may have records soon."""

    def settle(self, tgids: Collection[int], seconds: float) -> None:
        """Wait until what has to be known of these processes, and of what was prepared, is known; at most so long."""


@runtime_checkable
class SeesEntries(Protocol):
    """Has something to put into the kernel's maps before a process comes into scope."""

    def enter(self, tgid: int) -> None:
        """A process will be in scope at once, or may come to be."""


@runtime_checkable
class SeesEnds(Protocol):
    """Remembers processes."""

    def forget(self, tgid: int) -> None:
        """A process has ended: what is left of it is in the collection that follows at once."""


@runtime_checkable
class Starts(Protocol):
    """Has more to attach than probes and tracepoints."""

    def start(self) -> None:
        """All tracepoints of the family are attached. Raises :class:`BpfError`."""


@runtime_checkable
class Asks(Protocol):
    """Has records that the kernel writes only when it is asked."""

    def ask(self, now_ns: int) -> None:
        """A collection begins: its rings are drained next."""


@runtime_checkable
class Collects(Protocol):
    """Has inputs of its own."""

    def collect(self, now_ns: int) -> Sequence[Input]:
        """A collection's rings were drained: what goes before its tick."""


@runtime_checkable
class Polls(Protocol):
    """May have inputs of which nothing says that they are there."""

    @property
    def is_polled(self) -> bool:
        """Whether to collect as often as usual, though no ring has anything."""


@runtime_checkable
class Completes(Protocol):
    """Puts work off."""

    def complete(self) -> None:
        """The collection that follows is the last."""


@runtime_checkable
class Closes(Protocol):
    """Puts something on, or holds something open."""

    def close(self) -> None:
        """Take it off; idempotent."""
