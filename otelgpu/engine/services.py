"""What the engine offers a family's handler, and what handlers offer each other through it.

A handler is given its :class:`Services` when it is opened. What it asks other families for it asks of ``offers``, and
only once it is fed or ticks: by then every handler was opened, and has put there what it can answer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from otelgpu.engine.facts import TickBegins
from otelgpu.model.context import Context, Unsettled
from otelgpu.model.operations import OperationKind, Operations
from otelgpu.model.shares import Headroom
from otelgpu.model.spans import Attribute, Links, SpanBatch, SpanColumns

if TYPE_CHECKING:
    from otelgpu.elf.btf import Btf
    from otelgpu.engine.attribution.owners import Attribution
    from otelgpu.engine.attribution.pending import Served
    from otelgpu.engine.call_roles import StepCalls
    from otelgpu.engine.call_stacks import CallStacks
    from otelgpu.engine.contract import OperationDecoder
    from otelgpu.engine.folding import Folded, Parents
    from otelgpu.engine.function_names import FunctionNames
    from otelgpu.engine.losses import Losses
    from otelgpu.engine.metrics import Metrics
    from otelgpu.engine.operation_metrics import Part
    from otelgpu.engine.operation_signals import OperationSignals
    from otelgpu.engine.operation_spans import OperationEmitter, Vocabulary
    from otelgpu.engine.processes import Processes
    from otelgpu.engine.profile_rows import ProfileRows
    from otelgpu.engine.span_budget import SpanBudget
    from otelgpu.engine.summary import Summary
    from otelgpu.engine.totals import Totals
    from otelgpu.model.events import Event
    from otelgpu.model.exchange import Exchange
    from otelgpu.model.profiles import ProfileColumns
    from otelgpu.model.profiling import ProfileSettings
    from otelgpu.model.resource import Resource
    from otelgpu.model.samples import Samples
    from otelgpu.model.settings import SignalSettings

Fact = TypeVar("Fact")

Consumer = Callable[[Operations, npt.NDArray[np.int64]], "npt.NDArray[np.bool_] | None"]
"""Given operations and the requests of their threads (≤ 0: none): which of them are taken; None: all."""


class Steps(Protocol):
    """Steps of a kind of program."""

    def step_at(self, tgid: int, tid: int, time_ns: int) -> Context | Unsettled | None:
        """The span of the step that a thread was in; None: of none; UNSETTLED: ask again later."""

    def watches(self, tgid: int) -> bool:
        """Whether any thread of a process may be in a step."""


class Requests(Protocol):
    """Requests of a session, by key."""

    def context_of(self, key: int) -> Context | None:
        """The span that a request has or will have; None where it is not to be reported."""

    def span_of(self, key: int) -> Context | Unsettled | None:
        """The span of a request once that is reported; UNSETTLED: not answered yet."""

    def is_finished(self, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which keys are of requests that were reported: shape (n,)."""

    def finished(self, key: int) -> Parents | None:
        """The span of a request that was reported."""

    def serves(self, tgid: int) -> bool:
        """Whether a process answers requests, or comes from one that does, as the workers of engines do."""


class Extras(NamedTuple):
    """What others know of the requests of a batch, in its order."""

    attributes: tuple[Attribute, ...] = ()
    links: Links | None = None


class EngineView(Protocol):
    """What engines did for some exchanges, by position among them."""

    def has_phases(self, row: int) -> bool:
        """Whether the engine's own phases of an exchange are known."""

    def extras(self, rows: Sequence[int]) -> Extras:
        """What the spans of some of them say besides."""

    def phases(
        self, parents: Parents, resource_of: Callable[[int], Resource], *, offset_ns: int
    ) -> list[SpanColumns]:
        """Spans of the phases; ``parents`` are the exchanges' own spans."""


class Engines(Protocol):
    """Serving engines, as the requests that they serve ask of them."""

    def match(self, now_ns: int, *, final: bool) -> None:
        """At a tick, before :meth:`take_up`: what engines said until now of the steps they made."""

    def waits_ns(self, exchange: Exchange) -> int:
        """How long after its end all that an engine has to say of an exchange is known."""

    def take_up(self, exchanges: Sequence[Exchange], served: Served) -> EngineView:
        """What engines did for exchanges that have ended, and what their own operations were like."""


class Accounts(Protocol):
    """What requests have used of something that many use at once."""

    def is_known(self, exchange: Exchange) -> bool:
        """Whether all is known that an exchange used, or ever will be."""

    def close(self, exchanges: Sequence[Exchange]) -> Sequence[Mapping[str, Any]]:
        """What each of them used, as attributes; more is not charged to it."""


class ProfileSource(Protocol):
    """Rows of profiles that are made of something else than samples."""

    def take(self, now_ns: int, *, final: bool = False) -> list[ProfileRows]:
        """What is known since the last time."""

    def held(self, time_ns: int) -> list[ProfileRows]:
        """Levels, as they stand at a time."""


def _no_connections(tgid: int, communicator_hash: int) -> Sequence[Context]:
    return ()


def _no_name(handle: int) -> str:
    return ""


class AllocatorLevel(NamedTuple):
    """Bytes that a framework's allocator has from the driver, and of these what tensors hold."""

    reserved: int
    allocated: int


def _no_level(tgid: int, device: int) -> AllocatorLevel | None:
    return None


def _no() -> bool:
    return False


class Offers(Struct):
    """What families answer each other, by noun. Nobody need be there: each has an answer that says so."""

    steps: list[Steps] = field(default_factory=list)  # who is asked first is first
    requests: Requests | None = None
    engines: Engines | None = None
    accounts: Accounts | None = None
    awaits_readings: Callable[[], bool] = _no  # of what devices use, in short intervals
    connections: Callable[[int, int], Sequence[Context]] = _no_connections  # of a process's communicator
    file_name: Callable[[int], str] = _no_name  # of a handle
    profile_sources: list[ProfileSource] = field(default_factory=list)
    call_samples: dict[int, Callable[[Samples, int], None]] = field(default_factory=dict)
    """By the number that samples of calls have for their family: who takes them, and when it is."""
    probe_names: dict[int, str] = field(default_factory=dict)
    """Of a user's probes by their number, as samples have it."""
    allocator_levels: Callable[[int, int], AllocatorLevel | None] = _no_level
    """Of a process and a device's ordinal: what the framework's allocator says; None where nobody knows."""
    tracked: dict[str, Callable[[], int]] = field(default_factory=dict)  # how many of what is remembered

    def step_at(self, tgid: int, tid: int, time_ns: int) -> Context | Unsettled | None:
        """The span of the step that a thread was in, whoever knows it."""
        for steps in self.steps:
            if found := steps.step_at(tgid, tid, time_ns):
                return found
        return None

    def has_steps(self, tgid: int) -> bool:
        """Whether any thread of a process may be in a step at any time: most processes have none."""
        return any(steps.watches(tgid) for steps in self.steps)

    def context_of(self, key: int) -> Context | None:
        """The span of a request."""
        return self.requests.context_of(key) if self.requests is not None else None

    def serves(self, tgid: int) -> bool:
        """Whether a process answers requests."""
        return self.requests is not None and self.requests.serves(tgid)


class Clock(Struct):
    """Where a session stands in time."""

    now_ns: int = 0  # of the last tick
    offset_ns: int = 0  # from CLOCK_MONOTONIC to Unix time
    final: bool = False


class Session(Struct, frozen=True, kw_only=True):
    """What all handlers of a session have in common."""

    settings: SignalSettings
    profiling: ProfileSettings
    limit: int  # operation spans under one parent, at the start
    seed: int
    own: Resource
    clock: Clock
    metrics: Metrics
    processes: Processes
    functions: FunctionNames
    vocabulary: Vocabulary
    totals: Totals
    summary: Summary
    attribution: Attribution
    call_roles: StepCalls
    call_stacks: CallStacks
    demangle: Callable[[str, int], str]
    operations: Sequence[
        tuple[OperationDecoder, OperationSignals]
    ]  # by the number that rows have as ``family``
    family_index: Mapping[str, int]  # that number, by name
    offers: Offers
    losses: Losses
    headroom: Headroom
    emitter: OperationEmitter
    span_budget: SpanBudget
    stopwatch: Callable[[], int] | None  # nanoseconds, for shares of time; None: in replay, which has time


class Services:
    """One family's in one session. Everything of :class:`Session` can be asked of ``session``."""

    def __init__(self, session: Session, routes: Routes, slot: Slot, btf: Btf | None) -> None:
        self.session = session
        self._routes, self._slot, self._btf = routes, slot, btf

    @property
    def btf(self) -> Btf:
        """What describes the family's records; AssertionError where it has none."""
        assert self._btf is not None, f"family {self._slot.family} has no records"
        return self._btf

    @property
    def offers(self) -> Offers:
        """What families answer each other."""
        return self.session.offers

    def wake(self, at_ns: int = 0) -> None:
        """Give the handler a turn from that time on, whether it is fed or not; the default: at the next tick."""
        self._slot.wake_ns = min(self._slot.wake_ns, at_ns)

    def listen(self, kind: type[Fact], take: Callable[[Fact], object]) -> None:
        """Have all facts, and inputs, of that type."""
        self._routes.listen(self._slot, kind, take)

    def watch(self, kinds: Collection[OperationKind], take: Callable[[Part], object]) -> None:
        """Have a look at operations of these kinds, as they come."""
        self._routes.watch(self._slot, kinds, take)

    def consume(self, kinds: Collection[OperationKind], take: Consumer) -> None:
        """Have operations of these kinds, before they are attributed; see :data:`Consumer`."""
        self._routes.consume(self._slot, kinds, take)

    def emit(self, fact: object) -> None:
        """Report whoever listens."""
        self._routes.emit(fact)

    def report(self, spans: Iterable[SpanBatch]) -> None:
        """Spans, at once; those that a tick returns come after them."""
        self._routes.spans.append(spans)

    def report_work(self, work: Folded, parents: Parents) -> None:
        """Operations under their parents, as far as the detail asked for has them and there is room for their spans."""
        self._routes.report_work(work, parents)

    def report_profiles(self, profiles: Sequence[ProfileColumns]) -> None:
        """Profiles of intervals that have ended."""
        self._routes.profiles += profiles

    def report_events(self, events: Sequence[Event]) -> None:
        """Things that happened once."""
        self._routes.events += events


NEVER_NS: Final = 1 << 63
"""When what has no time set is due."""


class Slot(Struct):
    """A family's place in the session's ticks."""

    family: str
    fed: bool = False
    wake_ns: int = 0  # it asked for a tick from then on; its first comes in any case
    active: bool = True  # something was done since its counters were read
    ticks: bool = False  # its handler does; else what it is fed lasts until the tick begins

    def feed(self) -> None:
        """It is given something."""
        self.fed = self.active = True

    def is_due(self, now_ns: int) -> bool:
        """Whether it was fed, or has asked for it."""
        return self.due_ns <= now_ns

    @property
    def due_ns(self) -> int:
        """From when on; 0: at the next tick."""
        return 0 if self.fed else self.wake_ns

    def begin(self) -> None:
        """Its turn: what it is fed from here on, and asks for, is for the next one."""
        self.fed, self.wake_ns, self.active = False, NEVER_NS, True


class Routes:
    """Who has what. ``report_work`` makes spans of operations."""

    def __init__(self, report_work: Callable[[Folded, Parents], None]) -> None:
        self.spans: list[Iterable[SpanBatch]] = []  # of this tick
        self.profiles: list[ProfileColumns] = []
        self.events: list[Event] = []
        self.report_work = report_work
        self._listeners: dict[type, list[tuple[Slot, Callable[[Any], object]]]] = {}
        self._watchers: dict[OperationKind, list[tuple[Slot, Callable[[Part], object]]]] = {}
        self.consumers: list[tuple[npt.NDArray[np.bool_], Slot, Consumer]] = []  # with the kinds, by number

    def listen(self, slot: Slot, kind: type[Fact], take: Callable[[Fact], object]) -> None:
        """See :meth:`Services.listen`."""
        self._listeners.setdefault(kind, []).append((slot, take))

    def watch(self, slot: Slot, kinds: Collection[OperationKind], take: Callable[[Part], object]) -> None:
        """See :meth:`Services.watch`."""
        for kind in kinds:
            self._watchers.setdefault(kind, []).append((slot, take))

    def consume(self, slot: Slot, kinds: Collection[OperationKind], take: Consumer) -> None:
        """See :meth:`Services.consume`."""
        wanted = np.zeros(1 << 16, dtype=np.bool_)
        wanted[list(kinds)] = True
        self.consumers.append((wanted, slot, take))

    def emit(self, fact: object) -> None:
        """To all who listen, in the order in which they began to."""
        for slot, take in self._listeners.get(type(fact), ()):
            slot.feed()
            take(fact)

    @property
    def due_ns(self) -> int:
        """When the first of those who listen to :class:`TickBegins` has its turn."""
        return min((slot.due_ns for slot, _ in self._listeners.get(TickBegins, ())), default=NEVER_NS)

    def begin_tick(self, now_ns: int, *, final: bool) -> None:
        """:class:`TickBegins` to those who listen and whose turn it is; the last one to all of them."""
        for slot, take in self._listeners.get(TickBegins, ()):
            if final or slot.is_due(now_ns):
                if not slot.ticks:
                    slot.begin()
                take(TickBegins(final=final))

    def show(self, part: Part) -> None:
        """A part of new operations to those who watch its kind."""
        for slot, take in self._watchers.get(part.kind, ()):
            slot.feed()
            take(part)
