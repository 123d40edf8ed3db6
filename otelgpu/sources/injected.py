"""The in-process source: programs that write their CUDA calls themselves become pipeline inputs.

As :mod:`otelgpu.sources.live`, without a privilege and without BPF: what is in scope is what was started with
:meth:`InjectedSource.environment`, and whatever that starts. Only family ``cuda`` is seen this way.
"""

from __future__ import annotations

import select
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Set
from pathlib import Path
from typing import Final

from msgspec import Struct

from otelgpu.elf.btf import Btf
from otelgpu.engine.contract import Family
from otelgpu.errors import OtelgpuError
from otelgpu.kernel import clock
from otelgpu.kernel.injection.live import LIVE_FUNCTION, live_request
from otelgpu.kernel.injection.records import FAMILY
from otelgpu.kernel.injection.server import DEVICE_TIME_VARIABLE, InjectListener, environment, read_library
from otelgpu.kernel.loader import read_image
from otelgpu.model.inputs import Input, ProcessGone, ProcessSeen, Tick
from otelgpu.model.losses import LossReports
from otelgpu.model.self_telemetry import Attachment, RingFill
from otelgpu.processes.address_resolver import AddressResolver
from otelgpu.processes.kernel_names import KernelNamer, NameKinds
from otelgpu.processes.listing import ProcessFacts, describe
from otelgpu.processes.live_injection.answers import refuse_answer
from otelgpu.processes.live_injection.loading import load_library
from otelgpu.processes.maps import Mapping as Mapped
from otelgpu.processes.maps import executable_mappings
from otelgpu.processes.probes import ProbedFile
from otelgpu.processes.resources import ResourceDetector

_LOOK_EVERY_S: Final = 0.02  # at how full the rings are: they wake nobody
_FULL_ENOUGH: Final = 0.25
_COUNTERS_EVERY_NS: Final = 1_000_000_000


class _Look(Struct, frozen=True):
    """A process in its first call, which waits for us: none of its calls has had an effect by ``time_ns``."""

    time_ns: int
    facts: ProcessFacts | None
    mapped: list[Mapped]


class InjectedSource:
    """Observes until closed. Raises :class:`OtelgpuError` when the library or its socket cannot be had.

    ``device_time`` has programs ask CUPTI when work ran on the GPU; ``ring_bytes`` is for each thread, a power
    of two; ``socket_path`` is for programs in containers, which must reach it.
    """

    def __init__(
        self,
        families: Mapping[str, Family],
        *,
        resource_detector: ResourceDetector | None = None,
        device_time: bool = False,
        ring_bytes: int = 1 << 20,
        socket_path: Path | None = None,
    ) -> None:
        if FAMILY not in families:
            raise OtelgpuError(
                f"source inject sees family {FAMILY} only, and that is not asked for",
                hint=f"add {FAMILY} to --families, or leave --source at uprobe",
            )
        self._image = read_image(FAMILY)
        self._library = read_library()
        self.resource_detector = resource_detector or ResourceDetector()
        self._device_time = device_time
        self.unseen = tuple(name for name in families if name != FAMILY)
        self.counters: Counter[str] = Counter()
        self._events = select.epoll()
        self._ready: list[Input] = []
        self._present: set[int] = set()
        self._looked_at: dict[int, _Look] = {}  # until they are welcomed
        self._images: dict[int, Mapped] = {}  # where each has its program
        self._resolver = AddressResolver()
        self._namer = KernelNamer(self._resolver)
        self._kinds = NameKinds.of(FAMILY, self._image.btf.enumerators(f"{FAMILY}_kind"))
        self._reports = LossReports()
        self._anchors = clock.Anchors()
        self._counted_ns = 0
        self._listener = InjectListener(
            self._library.layout,
            self._image.btf,
            path=socket_path,
            ring_bytes=ring_bytes,
            look_at=self._look_at,
        )
        self._events.register(self._listener.fileno(), select.EPOLLIN)

    def environment(self, present: Mapping[str, str]) -> dict[str, str]:
        """``present`` with what makes a program started with it be observed."""
        wanted = environment(self._library.path, self._listener.path, present)
        return {**present, **wanted, **({DEVICE_TIME_VARIABLE: "1"} if self._device_time else {})}

    def load_into(self, tgid: int) -> None:
        """Have a running process be observed from now on. Raises :class:`InjectionRefused` where it is not.

        Before threads of this process are started. It is observed by CUPTI alone: launches, copies and memsets in
        times of measuring. When this source is closed, or its process dies, the library does nothing any more.
        """
        loaded = load_library(
            tgid,
            self._library.path,
            LIVE_FUNCTION,
            live_request(self._library.layout),
            self._listener.answer,
        )
        refuse_answer(self._library.layout, tgid, loaded.answer)

    @property
    def library(self) -> Path:
        """What programs load: family profile has a probe on it."""
        return self._library.path

    @property
    def btf(self) -> dict[str, Btf]:
        """Record descriptions by family."""
        return {FAMILY: self._image.btf}

    @property
    def btf_sections(self) -> dict[str, bytes]:
        """The same, raw, for a capture."""
        return {FAMILY: self._image.btf_section}

    @property
    def probed_files(self) -> list[ProbedFile]:
        """No library carries probes."""
        return []

    @property
    def library_names(self) -> frozenset[str]:
        """No library needs any."""
        return frozenset()

    @property
    def gpu_processes(self) -> Set[int]:
        """Those that made a call."""
        return self._present

    @property
    def rings(self) -> dict[str, RingFill]:
        """The fullest of the threads' rings, as it is now."""
        limit = self._listener.ring_bytes
        return {FAMILY: RingFill(high_water=round(self._listener.pressure() * limit), limit=limit)}

    @property
    def attachments(self) -> dict[int, Attachment]:
        """The library writes what each process calls, from the first call on."""
        return {
            tgid: Attachment(
                executable=Path(self._images[tgid].path).name if tgid in self._images else "", attached=1
            )
            for tgid in self._present
        }

    def observe(self, tgid: int, *, execs: bool = False) -> None:
        """A process is in scope by its environment, not by its number; but it exists now, so threads may."""
        self._listener.start()

    def observe_running(self) -> None:
        """What runs already has no library in it; what has one and waits for the agent may come now."""
        self._listener.start()

    def rescope(self, admits: Callable[[int], bool]) -> None:
        """In scope is who comes."""

    def prepare_file(self, path: Path) -> None:
        """There is nothing to prepare in a file."""

    def start_holding(self) -> None:
        """Nobody need be held: no call is missed."""

    def stop_holding(self) -> None:
        """See :meth:`start_holding`."""

    def settle(self, tgids: Collection[int], seconds: float) -> None:
        """Nothing is found out beforehand."""

    def give_back(self) -> None:
        """Names of functions."""
        self._resolver.give_back()

    def complete(self) -> None:
        """What was made so far is in the rings."""

    def wait(self, timeout_s: float, others: Collection[int] = (), *, longest_s: float = 0.0) -> set[int]:
        """Until the time is over, a ring is a quarter full or one of ``others`` is readable; those that are."""
        self._listener.start()
        deadline = time.monotonic() + timeout_s
        for descriptor in others:
            self._events.register(descriptor, select.EPOLLIN)
        try:
            while True:
                left = max(deadline - time.monotonic(), 0)
                ready = {descriptor for descriptor, _ in self._events.poll(min(left, _LOOK_EVERY_S))}
                if self._listener.fileno() in ready:
                    ready.remove(self._listener.fileno())
                    self._welcome()
                if ready or left <= _LOOK_EVERY_S or self._listener.pressure() >= _FULL_ENOUGH:
                    return ready
        finally:
            for descriptor in others:
                self._events.unregister(descriptor)

    def _look_at(self, tgid: int) -> None:
        """In the listener's thread: soon the process may have ended."""
        self._looked_at[tgid] = _Look(clock.monotonic_ns(), describe(tgid), executable_mappings(tgid))

    def _welcome(self) -> None:
        for tgid in self._listener.arrived():
            self._present.add(tgid)
            self._namer.forget(tgid)  # its number may have been another's, or another program's
            look = self._looked_at.pop(tgid, None)
            if look is None:
                continue  # it came again meanwhile, as another program, and was described as that
            self._resolver.remember(tgid, look.mapped)  # it may have ended when names are wanted, or already
            self._inherit(tgid, look)
            if look.facts is None:
                self.counters["process_not_described"] += 1
                continue
            described = self.resource_detector.describe(look.facts)
            self._ready.append(
                ProcessSeen(
                    tgid=tgid,
                    time_ns=look.time_ns,
                    resource=described,
                    parent=look.facts.ppid,
                    payer=look.facts.payer,
                )
            )

    def _inherit(self, tgid: int, look: _Look) -> None:
        """A child that forked and executed nothing has its parent's kernels, under the same handles."""
        if not look.mapped:
            return
        image = self._images[tgid] = look.mapped[0]
        if look.facts is not None and self._images.get(look.facts.ppid) == image:
            self._namer.inherit(look.facts.ppid, tgid)

    # -- collection -------------------------------------------------------------------------------

    def collect(self) -> list[Input]:
        """Everything up to now, ended by a :class:`Tick`."""
        found: list[Input] = []
        gone = self._listener.gone()  # first: what they wrote to the end is in this collection then
        now_ns = clock.monotonic_ns()
        if (anchor := self._anchors.due()) is not None:
            found.append(anchor)
        self._welcome()
        batches = self._listener.drain(now_ns)
        found += self._ready
        self._ready = []
        for batch in batches:
            self._namer.learn(batch, self._kinds)
        for batch in batches:
            found += self._namer.name(batch)
            found.append(batch)
        for tgid in gone:
            self._present.discard(tgid)
            self._images.pop(tgid, None)
            self._namer.forget(tgid)
            self._resolver.forget(tgid)
            found.append(ProcessGone(tgid=tgid, time_ns=now_ns))
        if now_ns - self._counted_ns >= _COUNTERS_EVERY_NS:
            self._counted_ns = now_ns
            found += self.losses()
        found.append(Tick(time_ns=now_ns))
        return found

    def totals(self) -> dict[tuple[str, str], int]:
        """Every counter since the start: (family or part of the agent, reason) → count; ``submitted`` included."""
        return {
            (part, reason): count
            for part, counters in (
                (FAMILY, self._listener.counters()),
                ("live", self.counters),
                ("symbols", {**self._resolver.counters, **self._namer.counters}),
            )
            for reason, count in counters.items()
        }

    def losses(self) -> list[Input]:
        """What was lost since the last call."""
        lost = {key: total for key, total in self.totals().items() if key[1] != "submitted"}
        return [*self.resource_detector.losses(), *self._reports.take(lost)]

    def close(self) -> None:
        """Stop listening; programs go on, unobserved. Idempotent."""
        self._listener.close()
        self._events.close()
        self._resolver.close()
