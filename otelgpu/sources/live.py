"""The live source: rings, processes and mappings of the running system become pipeline inputs.

Process events are handled as soon as they arrive, because every microsecond a library goes unprobed is a
blind one; everything else is collected on a timer. The order of a collection is what makes joins exact: the
clock is read first, then the rings of API calls are drained, then those of conversations.
"""

from __future__ import annotations

import logging
import os
import select
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Set
from contextlib import ExitStack
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np
from msgspec.structs import replace

from otelgpu.elf.btf import Btf
from otelgpu.engine.contract import Family, Load
from otelgpu.kernel import clock, features
from otelgpu.kernel.attach import attach_tracepoints, functions_of, hooks_of
from otelgpu.kernel.holding import Holding
from otelgpu.kernel.libbpf import BpfError, detach_all
from otelgpu.kernel.loader import Image, LoadedFamily, read_image
from otelgpu.kernel.overload import Overload
from otelgpu.kernel.scope import Scope, is_listed, keep_only, put_cgroups, put_process
from otelgpu.kernel.trace_context_map import shared_trace_contexts
from otelgpu.model.codes import values_of
from otelgpu.model.inputs import Batch, CallsCounted, Input, Tick
from otelgpu.model.losses import LossReports, Reasons
from otelgpu.model.self_telemetry import Attachment, RingFill
from otelgpu.processes.address_resolver import AddressResolver
from otelgpu.processes.attachments import Attachments
from otelgpu.processes.described import DescribedProcesses
from otelgpu.processes.function_finder import session_function_finder
from otelgpu.processes.kernel_names import KernelNamer, NameKinds
from otelgpu.processes.listing import descendants, list_members, list_processes
from otelgpu.processes.maps import executable_mappings, inode_of, mapped_name, mapped_range
from otelgpu.processes.missed import MissedEvents
from otelgpu.processes.probes import ProbedFile, ProbePlacer
from otelgpu.processes.process_context import ProcessContexts
from otelgpu.processes.quiet import QuietProcesses
from otelgpu.processes.work_contexts import WorkContexts
from otelgpu.sources.discoveries import beside, choices, discovery_of
from otelgpu.sources.draining import Draining
from otelgpu.sources.family_discoveries import FamilyDiscoveries
from otelgpu.sources.live_settings import LiveSettings as LiveSettings
from otelgpu.sources.loading import Beginning, FamilyLoader
from otelgpu.sources.process_events import EXEC, EXIT, FORK, MAPPING, ProcessEvents, Shares
from otelgpu.sources.successions import Successions
from otelgpu.sources.turn import Turn

REASONS: Final = Reasons(
    "live",
    {
        "waits_not_reported": "the kernel did not let a program run that reports waits which still last: a profile "
        "lacks them",
        "family_not_loaded": "a family's library is there, but the kernel refused the family's programs",
        "programs_not_loaded": "a library is there that programs of a family waited for, and the kernel refused them",
        "scope_table_full": "a process could not be brought into scope: more than 32,768 are",
    },
)
"""What one count of (``live``, reason) means."""

_log = logging.getLogger("otelgpu.sources.live")

_PROCESS: Final = "process"
_COUNTERS_EVERY_NS: Final = 1_000_000_000


class LiveSource:
    """Observes until closed. Construction loads and attaches; it raises :class:`BpfError` when it cannot."""

    def __init__(self, families: Mapping[str, Family], scope: Scope, settings: LiveSettings) -> None:
        self._scope = scope
        self._settings = settings
        self.counters: Counter[str] = Counter()
        features.mount_tracefs()
        self.with_returns = settings.return_probes is not False
        self._loaded: dict[str, LoadedFamily] = {}
        self._events = select.epoll()
        self._finder = session_function_finder()  # before threads are: it forks
        self._shares = Shares(self._finder.accounts)
        self._placer = ProbePlacer((), self._finder, with_returns=self.with_returns)
        self._discoveries = {name: discovery_of(name) for name in families}
        for prepare in filter(None, (each.prepare for each in self._discoveries.values())):
            prepare()
        self._watchers = FamilyDiscoveries(self._discoveries)
        self._images: dict[str, Image] = {}
        self._draining = Draining(clock.monotonic_ns)
        self.overloads: list[Overload] = []
        self._name_kinds: dict[str, NameKinds] = {}
        self._loader: FamilyLoader | None = None
        self._holding: Holding | None = None
        self._found_mapped: frozenset[str] = frozenset()
        try:
            self._load(families)
        except BaseException:
            self.close()
            raise
        process = self._loaded[_PROCESS]
        if settings.hold_on_load:
            self._holding = Holding(process, self.counters)
        self._missed = MissedEvents(process)
        self._attachments = Attachments(clock.monotonic_ns())
        self._contexts = WorkContexts(process)
        self._process_contexts = ProcessContexts()
        self._mappers: set[int] = set()  # processes that have mapped a probed library
        self._resolver = AddressResolver()
        self._namer = KernelNamer(self._resolver)
        self._processes = DescribedProcesses(
            settings.resource_detector, self._namer.renew, self.counters, self._process_contexts
        )
        self._successions = Successions(self._processes)
        must_wait = self._successions.must_wait
        self._quiet = QuietProcesses(process, self._placer, self._contexts)
        self._allow_quiet()
        self._process_events = ProcessEvents(
            process, self._shares, self._placer.is_wanted, must_wait, self._quiet.has
        )
        self._reports, self._anchors = LossReports(), clock.Anchors()
        self._counted_ns = 0

    @property
    def btf(self) -> dict[str, Btf]:
        """Record descriptions by family."""
        return {name: image.btf for name, image in self._described.items()}

    @property
    def btf_sections(self) -> dict[str, bytes]:
        """The same, raw, for a capture."""
        return {name: image.btf_section for name, image in self._described.items()}

    @property
    def _described(self) -> dict[str, Image]:
        """Of all families, whether they were loaded or not yet."""
        return {_PROCESS: self._loaded[_PROCESS].image, **self._images}

    @property
    def probed_files(self) -> list[ProbedFile]:
        """Libraries and programs that carry probes."""
        return self._placer.probed_files

    @property
    def library_names(self) -> frozenset[str]:
        """Names of the libraries that are looked for before a program has them."""
        return self._placer.library_names - self._found_mapped

    @property
    def attachments(self) -> dict[int, Attachment]:
        """Every process that has a file with probes."""
        return dict(self._attachments.read())

    @property
    def rings(self) -> dict[str, RingFill]:
        """By family; what each has as its high water is forgotten."""
        return {name: loaded.ring.take_fill() for name, loaded in self._loaded.items()}

    @property
    def gpu_processes(self) -> Set[int]:
        """Processes that have mapped a file with probes."""
        return self._mappers

    @property
    def publishers(self) -> Set[int]:
        """Processes that publish the trace contexts of their threads."""
        return self._contexts.publishers

    def _load(self, families: Mapping[str, Family]) -> None:
        self._choices = choices(self._discoveries, self._settings.families, self._go_without)
        constants = self._scope.constants() | {"hold_on_load": int(self._settings.hold_on_load)}
        for choice in self._choices.values():
            constants |= choice.shared_constants
        self._images = {name: read_image(name) for name in families}
        settings = self._settings
        at_once = [n for n in self._choices if settings.begin_with(families[n], families, self._images[n])]
        beginning = Beginning(
            choices=self._choices,
            settings=settings,
            constants=constants,
            ring_bytes=self._ring_bytes,
            trace_contexts=partial(shared_trace_contexts, settings.trace_contexts, self.counters),
        )
        begun = beginning.load(
            read_image(_PROCESS), [self._images[n] for n in at_once], self._images.values()
        )
        self._loaded[_PROCESS], self._loader = begun.process, begun.loader
        self.with_returns = begun.with_returns
        begun.process.set_variable("execs_of_others", int(self._scope.admits is not None))
        put_cgroups(begun.process, self._scope.cgroups)
        self._operations = {n for n, f in families.items() if f.operations is not None}
        functions = {name: functions_of(image) for name, image in self._images.items()}
        self._beside = beside(families, self._choices)
        mapped = [functions[n] for n, family in families.items() if family.load is Load.MAPPED]
        self._found_mapped = frozenset(chain.from_iterable(each.values() for each in mapped))
        self._call_symbols = frozenset(chain.from_iterable(functions[name] for name in self._operations))
        self._placer = ProbePlacer((), self._finder, with_returns=self.with_returns)
        adopted = [begun.process]
        for name, found in begun.families.items():
            if not isinstance(found, BpfError):
                adopted.append(found)
            elif self._discoveries[name].required:
                raise found
            else:
                self._go_without(name, found)
        for loaded in adopted:
            self._adopt(loaded)
            refused = partial(self._go_incomplete, loaded.family)
            self._loader.complete_when_needed(loaded, self._placer, refused)
        for name, family in families.items():
            if name in self._choices and isinstance(family.load, Load) and name not in at_once:
                self._placer.add_later(functions[name], partial(self._load_late, name))

    def _allow_quiet(self) -> None:
        self._quiet.allow(self._holding is None and not self._watchers.follow_processes)

    def _ring_bytes(self, family: str) -> int:
        usual, wanted = self._settings.default_ring_bytes, self._choices[family].ring_bytes
        chosen = wanted(usual) if wanted is not None else usual
        return self._settings.ring_bytes.get(family, chosen)

    def _load_late(self, name: str) -> None:
        """A family whose first library is there."""
        assert self._loader is not None
        try:
            self._adopt(self._loader.load(self._images[name]))
            self._allow_quiet()
            for other in self._beside.get(name, ()):
                if other not in self._loaded:
                    self._load_late(other)
        except BpfError as error:
            self._go_without(name, error)

    def _go_without(self, family: str, error: BpfError) -> None:
        """All others are observed; who lives by this one asks :attr:`rings`."""
        self.counters["family_not_loaded"] += 1
        _log.warning("family %s is not observed: %s", family, error)

    def _go_incomplete(self, family: str, error: BpfError) -> None:
        self.counters["programs_not_loaded"] += 1
        _log.warning("family %s goes without the programs that were to be loaded now: %s", family, error)

    def _adopt(self, loaded: LoadedFamily) -> None:
        """Make a loaded family part of everything; its hooks are to be placed from here on."""
        family = loaded.family
        self._loaded[family] = loaded
        self._events.register(loaded.ring.fd, select.EPOLLIN | select.EPOLLET)  # once a fill: lib/emit.h
        if Overload.is_for(loaded):
            self.overloads.append(Overload(loaded))
        if family != _PROCESS:
            # Calls first, then what says whose they are: every request that a call was made for is known.
            joined = family in self._discoveries and self._discoveries[family].in_any_order
            self._draining.add(loaded, first=family in self._operations, joined=joined)
        self._name_kinds[family] = NameKinds.of(family, loaded.image.btf.enumerators(f"{family}_kind"))
        self._placer.add(hooks_of(loaded))
        watchers = self._watchers.open(loaded, self._placer, self._settings.families)
        attach_tracepoints(loaded)
        self._watchers.start(watchers)

    # -- scope ------------------------------------------------------------------------------------

    def observe(self, tgid: int, *, execs: bool = False) -> None:
        """See :class:`otelgpu.sources.joint.Source`."""
        self._watchers.enter(tgid)  # first: what it does then is known from its beginning
        if not put_process(self._loaded[_PROCESS], tgid):
            self.counters["scope_table_full"] += 1
            return
        self._processes.look_at(tgid)
        self._processes.see(tgid, clock.monotonic_ns())
        if not execs:
            self._look_at(tgid)

    def observe_running(self) -> None:
        """Look at the processes that run already and are in scope, may come to be, or are admitted to it."""
        inside = {tgid for directory in self._scope.cgroups for tgid in list_members(directory)}
        for tgid in list_processes():
            if tgid == os.getpid():
                continue
            self._shares.turn.begin()  # nobody waits for turns here, and each owner's share has an end
            if self._scope.admits is None:
                self._watchers.enter(tgid)
                self._processes.look_at(tgid)
                self._look_at(tgid, in_scope=self._scope.everything or tgid in inside)
            elif self._scope.admits(tgid):
                self.observe(tgid)

    def rescope(self, admits: Callable[[int], bool]) -> None:
        """For a scope that admits some processes: see :class:`otelgpu.sources.joint.Source`."""
        self._scope = replace(self._scope, admits=admits)
        self._loaded[_PROCESS].set_variable("execs_of_others", 1)
        picked = [tgid for tgid in list_processes() if tgid != os.getpid() and admits(tgid)]
        for tgid in sorted(keep_only(self._loaded[_PROCESS], {*picked, *descendants(*picked)})):
            self.observe(tgid)

    def _look_at(self, tgid: int, *, in_scope: bool = True) -> None:
        self._within_share(tgid, lambda: self._look_at_now(tgid, in_scope))

    def _within_share(self, tgid: int, look: Callable[[], None]) -> None:
        """Look at what a process has, on its owner's account; later, if nothing is left in that, or of its turn."""
        if not self._shares.look(tgid, look):
            self._resolver.forget(tgid)  # what it had mapped may be gone
            self._placer.postpone(tgid)

    def _look_at_now(self, tgid: int, in_scope: bool) -> None:
        self._quiet.begin(tgid)
        mappings = executable_mappings(tgid)
        probed_files = self._placer.examine_process(tgid, mappings)
        for probed_file in probed_files:
            self._attachments.note(tgid, probed_file)
        if any(map(self._has_calls, probed_files)):
            self._note_mapper(tgid)
        self._watchers.mapped(tgid, placed=bool(probed_files), in_scope=in_scope)
        self._contexts.look_at(tgid, time.monotonic(), mappings)
        self._quiet.end(tgid, probed_files)

    def prepare_file(self, path: Path) -> None:
        """Put probes on a file that a program is about to load."""
        self._placer.examine_file(path)
        self._watchers.prepare(path)

    def settle(self, tgids: Collection[int], seconds: float) -> None:
        """See :class:`otelgpu.sources.joint.Source`."""
        self._watchers.settle(tgids, seconds)

    # -- events -----------------------------------------------------------------------------------

    def fileno(self) -> int:
        """Readable when there are process events, or a ring fills."""
        return self._events.fileno()

    def wait(self, timeout_s: float, others: Collection[int] = (), *, longest_s: float = 0.0) -> set[int]:
        """Handle process events until the time is over, a ring fills or one of ``others`` is readable."""
        for descriptor in others:
            self._events.register(descriptor, select.EPOLLIN)
        process_fd, wanted = self._loaded[_PROCESS].ring.fd, set(others)
        longest_s = 0.0 if self._watchers.are_polled else longest_s
        try:
            with Turn(self._draining, timeout_s, longest_s) as turn:
                while True:
                    ready = self._poll(turn.left_s())
                    # Any ring: a process of which nothing is known may have waited for its first record.
                    waiting = ready or self._process_events.are_waiting
                    if waiting and self._handle_process_events():
                        turn.disturb()
                    self._contexts.retry(time.monotonic())
                    ready.discard(process_fd)
                    if turn.rests and ready:  # the first record since
                        turn.disturb()
                        ready &= wanted
                    if ready or self._successions.are_waiting or not turn.left_s():
                        return ready
        finally:
            for descriptor in others:
                self._events.unregister(descriptor)

    def _poll(self, left_s: float) -> set[int]:
        """Descriptors with something to do, once there are any or something else is due."""
        if self._holding is not None:
            left_s = min(left_s, 0.5)
            self.start_holding()
        if self._process_events.are_waiting:
            left_s = 0
        due_s = self._contexts.due_in(time.monotonic())
        return {d for d, _ in self._events.poll(left_s if due_s is None else min(left_s, due_s))}

    def _handle_process_events(self) -> bool:
        """Whether there was any."""
        ours = False
        for event in self._process_events.take():
            ours = True
            self._process_event(*event)
        return ours

    def _process_event(self, kind: str, tgid: int, time_ns: int, record: np.void) -> None:
        if kind == EXIT:
            self._successions.end(tgid, time_ns)
        elif kind == MAPPING:
            self._mapping_event(tgid, record)
        elif kind == FORK:
            self._processes.begin(tgid, time_ns)
            self._namer.inherit(int(record["parent"]), tgid)
            self._contexts.inherit(int(record["parent"]), tgid)
            self._attachments.inherit(int(record["parent"]), tgid)
            if int(record["parent"]) in self._mappers:
                self._mappers.add(tgid)
                self._resolver.inherit(int(record["parent"]), tgid)
        elif kind == EXEC and record["in_scope"]:
            self._within_share(tgid, lambda: self._quiet.executed(tgid, inode_of(record)))
            self._program_changed(tgid, time_ns)
            if not self._process_events.is_anothers(tgid, time_ns):
                self._within_share(tgid, lambda: self._executed(tgid))
        elif kind == "process_context":
            self._processes.published(tgid, int(record["address"]), time_ns)
        elif kind == EXEC and self._scope.admits is not None and self._scope.admits(tgid):
            self.observe(tgid)

    def _executed(self, tgid: int) -> None:
        if not self._scope.everything:  # first: it may end before it is known to have mapped a library
            self._resolver.remember(tgid)
        program = self._placer.examine_program(tgid)
        self._attachments.note(tgid, program)
        if self._has_calls(program):
            self._note_mapper(tgid)
        self._contexts.look_at(tgid, time.monotonic())

    def _program_changed(self, tgid: int, time_ns: int) -> None:
        """What was known of a process was another program's."""
        for part in (self._resolver, self._attachments, self._contexts):
            part.forget(tgid)
        self._processes.forget_program(tgid)
        self._processes.see(tgid, time_ns)
        self._namer.forget(tgid)
        self._watchers.program_changed(tgid)
        self._mappers.discard(tgid)

    def _look_at_missed(self, now_ns: int) -> None:
        """Processes whose events were lost: they may have ended, exec'd or mapped anything."""
        self._shares.turn.begin()
        if self._missed.take_all(now_ns):
            self.observe_running()
        missed = self._missed.take(now_ns)
        cgroups = self._scope.cgroups if missed else ()
        inside = {tgid for directory in cgroups for tgid in list_members(directory)}
        for tgid, has_execed in missed:
            if self._successions.is_over(tgid, now_ns):
                continue
            if self._scope.admits is not None and self._scope.admits(tgid):
                self.observe(tgid)
            elif self._scope.everything or tgid in inside or is_listed(self._loaded[_PROCESS], tgid):
                if has_execed:
                    self._program_changed(tgid, now_ns)
                self._look_at(tgid)
        for tgid in self._placer.take_postponed(now_ns):
            self._look_at(tgid)
            self._placer.settle_postponed(tgid)

    def _mapping_event(self, tgid: int, record: np.void) -> None:
        self._namer.remap(tgid, *mapped_range(record))
        try:
            if not self._process_events.is_anothers(tgid, int(record["head"]["time_ns"])):
                self._within_share(tgid, lambda: self._mapped(tgid, record))
        finally:
            if self._holding is not None:
                self._holding.let_go(record)

    def _mapped(self, tgid: int, record: np.void) -> None:
        (start, end), name = mapped_range(record), mapped_name(record)
        mapped_ns = int(record["head"]["time_ns"]) + int(record["head"]["duration_ns"])
        inode = inode_of(record)
        probed_file = self._placer.examine_mapping(tgid, start, end, name, mapped_ns, inode)
        if probed_file is not None:
            held = self._holding is not None and self._holding.holds(record)
            if held:
                probed_file.blind_ns = 0
            late = not held and 0 < mapped_ns < probed_file.ready_ns
            self._attachments.note(tgid, probed_file, blind=late)
            if self._has_calls(probed_file):
                self._mappers.add(tgid)
        self._watchers.mapped(tgid, placed=probed_file is not None)
        self._contexts.look_at_mapping(tgid, start, end, int(record["offset"]), name, time.monotonic())
        if tgid in self._mappers:
            self._note_mapper(tgid)
        self._quiet.mapped(inode, name)

    def _has_calls(self, probed_file: ProbedFile | None) -> bool:
        """Whether a file has functions that make operations, and not TLS alone."""
        return probed_file is not None and not self._call_symbols.isdisjoint(probed_file.symbols)

    def _note_mapper(self, tgid: int) -> None:
        """Its kernels' names are in what it maps, and it may have ended when they are wanted."""
        self._mappers.add(tgid)
        self._resolver.remember(tgid)

    def start_holding(self) -> None:
        """Hold processes at what they map, for two seconds; :meth:`wait` prolongs it."""
        if self._holding is not None:
            self._holding.start()

    def stop_holding(self) -> None:
        """Hold nobody from here on, and let those go that are held now: before the source ends, or pauses."""
        if self._holding is not None and _PROCESS in self._loaded:
            self._holding.stop()

    # -- collection -------------------------------------------------------------------------------

    def collect(self) -> list[Input]:
        """Everything up to now, or until when all has been written, ended by a :class:`Tick` of that time."""
        now_ns = clock.monotonic_ns()
        self._handle_process_events()
        self._look_at_missed(now_ns)
        self._contexts.retry(time.monotonic())
        self._processes.retry(now_ns)
        found: list[Input] = []
        if (anchor := self._anchors.due()) is not None:
            found.append(anchor)
        for overload in self.overloads:
            overload.adjust(now_ns)
        self._watchers.ask(now_ns)
        drained: list[tuple[Batch, list[int]]] = []
        for batch in self._successions.collected(self._draining.drained()):
            # Of all batches, before any is named: a launch may pass a handle, and another record say what it is of.
            self._namer.learn(batch, self._name_kinds[batch.family])
            self._watchers.look(batch)
            drained.append((batch, values_of(np.ascontiguousarray(batch.heads["tgid"]))))
        now_ns = self._draining.complete_ns(now_ns)
        found += self._processes.take()
        for batch, tgids in drained:
            found += self._processes.with_records(tgids, batch.heads)
            found += self._namer.name(batch)
            found.append(batch)
        gone = self._successions.take(now_ns)
        found += self._watchers.collect(now_ns, [each.tgid for each in gone])
        if gone:
            found += self._counted({each.tgid for each in gone})  # before what they were is forgotten
        for each in gone:
            self._forget(each.tgid)
        for tgid in self._successions.take_unseen():
            self._look_at(tgid)
        found += gone
        if now_ns - self._counted_ns >= _COUNTERS_EVERY_NS:
            self._counted_ns = now_ns
            found += self.losses()
        self._attachments.release_unused(self._placer, now_ns, int(self._settings.keep_probes_s * 1e9))
        found.append(Tick(time_ns=now_ns))
        return found

    def give_back(self) -> None:
        """See :class:`otelgpu.sources.joint.Source`."""
        self._resolver.give_back()

    def complete(self) -> None:
        """Have what is under way reported as far as it is, in the collection that follows, the last."""
        self._draining.is_last = True
        self._watchers.complete()

    def _forget(self, tgid: int) -> None:
        for part in (self._processes, self._namer, self._resolver, self._attachments, self._contexts):
            part.forget(tgid)
        self._mappers.discard(tgid)
        self._placer.forget_process(tgid)

    def _counted(self, gone: Collection[int] = ()) -> list[CallsCounted]:
        return [each for overload in self.overloads for each in overload.counted(gone)]

    def totals(self) -> dict[tuple[str, str], int]:
        """Every counter since the start: (family or part of the agent, reason) → count; ``submitted`` included."""
        totals = {
            (name, reason): count
            for name, loaded in self._loaded.items()
            for reason, count in loaded.counters().items()
        }
        for part, counters in (
            ("live", self.counters),
            ("probes", self._placer.counters),
            ("reader", self._finder.counters),
            ("symbols", self._resolver.counters),
            *((overload.family, overload.counters) for overload in self.overloads),
            ("symbols", self._namer.counters),
            *self._contexts.counters.items(),
            ("contexts", self._process_contexts.counters),
            *self._watchers.counters.items(),
        ):
            totals |= {(part, reason): count for reason, count in counters.items()}
        return totals

    def losses(self) -> list[Input]:
        """What was lost since the last call, and what was counted in place of being recorded."""
        lost = {key: total for key, total in self.totals().items() if key[1] != "submitted"}
        return [*self._counted(), *self._settings.resource_detector.losses(), *self._reports.take(lost)]

    def close(self) -> None:
        """Detach everything, in two processes for all; idempotent. What fails keeps nothing else from being closed."""
        attached: list[ProbePlacer | LoadedFamily] = [self._placer, *self._loaded.values()]
        closers: list[Callable[[], None]] = [
            *(self.stop_holding, self._watchers.close),
            lambda: detach_all(chain.from_iterable(each.take_links() for each in attached)),
            *(loaded.close for loaded in self._loaded.values()),
            *(self._loaded.clear, self._events.close),
        ]
        with ExitStack() as last_first:
            if self._loader is not None:
                last_first.callback(self._loader.close)
            for closer in reversed(closers):
                last_first.callback(closer)
