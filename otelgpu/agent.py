"""Wiring only: a source of inputs, the pipeline, a capture if wanted, and where the results go."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, BinaryIO, Final, Self

from msgspec import Struct, field

from otelgpu import __version__
from otelgpu.engine.contract import Family
from otelgpu.errors import OtelgpuError
from otelgpu.export.base import Exporter
from otelgpu.kernel import clock
from otelgpu.kernel.cut_files import pages_cut_off
from otelgpu.kernel.libbpf import exit_at_once
from otelgpu.kernel.stop_guard import StopGuard
from otelgpu.kernel.trace_context_map import TraceContextMap
from otelgpu.memory_limit import MemoryLimit
from otelgpu.model.inputs import Input, LossCounted
from otelgpu.model.losses import LossReports
from otelgpu.model.profiling import ProfileSettings
from otelgpu.model.resource import AttributeValue, resource
from otelgpu.model.settings import Settings, SignalSettings
from otelgpu.model.shares import Headroom
from otelgpu.pace import Pace
from otelgpu.processes.demangler import session_demangler
from otelgpu.processes.memory import session_memory
from otelgpu.rest import Rest
from otelgpu.self_telemetry import SelfWatch
from otelgpu.session import FLUSH_SECONDS, SHORTEST_FLUSH_SECONDS, Session, own_resource
from otelgpu.sources.joint import Source
from otelgpu.sources.pollers import Pollers
from otelgpu.symbols.demangle import short_name

if TYPE_CHECKING:
    from otelgpu.engine.summary import Summary
    from otelgpu.export.health import HealthServer
    from otelgpu.sources.capture import CaptureWriter

_log = logging.getLogger("otelgpu.agent")

EAGER_SECONDS: Final = 2.0
"""How long after its start a session looks often: somebody may be waiting for the first span."""
_EAGER_INTERVAL_S: Final = 0.03


class Outcome(Struct, frozen=True, kw_only=True):
    """What a session amounted to, for the summary that ends it."""

    summary: Summary | None
    exported: Mapping[str, int]
    libraries: Sequence[tuple[str, int, int]]  # path, probed symbols, blind ns
    submitted: Mapping[str, int]  # records by family
    seconds: float
    cut_off: bool = False  # of a capture that ends in the middle of a frame

    @property
    def undelivered(self) -> int:
        """Spans, data points and samples that did not reach their destination; what one refuses, it was asked.

        Jaeger takes no metrics, for one: that is warned of, and no failure.
        """
        lost = (each for each in self.exported.items() if "_lost_" in each[0])
        return sum(count for key, count in lost if not key.endswith(("_refused", "_rejected")))


class Interrupts:
    """SIGINT and SIGTERM ask to stop (the first one) or end the process at once (the second).

    ``abandon`` is called before that end: it is to remove what would be left of unfinished work, and must be quick.
    ``guard``: kills a program that does not notice that it was asked.
    """

    def __init__(
        self,
        forward: Callable[[int], None] | None = None,
        *,
        abandon: Callable[[], None] | None = None,
        guard: StopGuard | None = None,
    ) -> None:
        self.requested = 0
        self._forward = forward
        self._abandon = abandon
        self._guard = guard
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._previous: dict[int, object] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        os.close(self.fd)

    def noticed(self) -> None:
        """Whoever works has seen the request."""
        if self.requested and self._guard is not None:
            self._guard.noticed()

    def acknowledge(self) -> None:
        """Make ``fd`` unreadable again: the request is being seen to."""
        os.eventfd_read(self.fd)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            if self._abandon is not None:
                self._abandon()
            exit_at_once(128 + number)
        self.requested = number
        if self._forward is not None:
            self._forward(number)
        os.eventfd_write(self.fd, 1)


class Plan(Struct, frozen=True, kw_only=True):
    """How a live session works. ``exporters`` are opened late, because they start threads."""

    families: Mapping[str, Family]
    settings: SignalSettings
    open_exporters: Callable[[], Sequence[Exporter]]
    capture: Path | None
    capture_file: BinaryIO | None = None  # where it was opened before
    attributes: Mapping[str, AttributeValue]
    interval_s: float
    metric_interval_s: float
    whole_metrics: bool = False  # see Session
    polling: Settings = field(default_factory=Settings)  # what is read beside the source, and how often
    publish_context: bool = False  # what threads work for, to other eBPF tools
    health_address: str = ""  # where probes and scrapes are answered; "": nowhere
    memory_limit_bytes: int = 0  # 0: see MemoryLimit
    seed: int | None = None
    profiling: ProfileSettings = field(default_factory=ProfileSettings)


class Agent:
    """A live session from the first probe to the last flush."""

    def __init__(self, source: Source, plan: Plan) -> None:
        self._source = source
        self._plan = plan
        self._seed = int.from_bytes(os.urandom(8)) >> 1 if plan.seed is None else plan.seed
        self._own = own_resource(plan.attributes)
        self._began = time.monotonic()
        self._start = clock.anchor()
        self._writer = self._open_capture()
        self._demangler = session_demangler()
        self._memory = session_memory()
        self._losses = LossReports()
        self._reported = (
            TraceContextMap() if plan.publish_context else None
        )  # before exporters start threads: it forks
        self._headroom = Headroom()
        self._session = self._open_session()
        self._memory_limit = MemoryLimit(plan.memory_limit_bytes, self._headroom, self._source.give_back)
        self._rest, self._pace = Rest(self._session), Pace()
        self._pollers = Pollers(plan.polling)
        self.watch = SelfWatch(
            source, self._session, interval_s=plan.interval_s, memory_limit=self._memory_limit
        )
        self._session.before_metrics = partial(self.watch.publish, "export")
        self._health = self._open_health()
        self._feed([self._start])

    def _open_health(self) -> HealthServer | None:
        if not self._plan.health_address:
            return None
        from otelgpu.export.health import HealthServer  # most sessions have none
        from otelgpu.export.prometheus import CONTENT_TYPE, exposition

        server = HealthServer(
            self._plan.health_address, self.watch, lambda data: (CONTENT_TYPE, exposition(data))
        )
        server.start()
        _log.info("health and metrics at http://%s port %d", *server.address)
        return server

    def _open_capture(self) -> CaptureWriter | None:
        if self._plan.capture is None:
            return None
        from otelgpu.sources.capture import CaptureWriter, Header  # most sessions write none

        header = Header(
            version=__version__,
            seed=self._seed,
            start_unix_ns=self._start.unix_ns,
            own=dict(self._own.attributes),
            btf=dict(self._source.btf_sections),
        )
        return CaptureWriter(self._plan.capture, header, self._plan.capture_file)

    def _open_session(self) -> Session:
        from otelgpu.engine.pipeline import Pipeline  # meanwhile the probes were loaded

        btf = self._source.btf
        pipeline = Pipeline(
            {name: family for name, family in self._plan.families.items() if name in btf},
            btf,
            seed=self._seed,
            own=self._own,
            start_unix_ns=self._start.unix_ns,
            settings=self._plan.settings,
            profiling=self._plan.profiling,
            shorten=short_name,
            demangle=self._demangler,
            stopwatch=clock.working_time(),
            headroom=self._headroom,
        )
        return Session(
            pipeline,
            self._plan.open_exporters(),
            metric_interval_s=self._plan.metric_interval_s,
            whole_metrics=self._plan.whole_metrics,
        )

    def work(self, interrupts: Interrupts, *, until: float | None = None, also: int | None = None) -> None:
        """Collect until asked to stop, until ``until`` (time.monotonic) or until ``also`` is readable."""
        others = [interrupts.fd] + ([also] if also is not None else [])
        asking = [self._pollers.fd] + ([self._health.fd] if self._health is not None else [])
        while True:
            timeout = self.interval_s
            if time.monotonic() < self._began + EAGER_SECONDS:
                timeout = min(timeout, _EAGER_INTERVAL_S)
            longest = self._rest.longest_s
            if until is not None:
                left = max(until - time.monotonic(), 0)
                timeout, longest = min(timeout, left), min(longest, left)
            ready = self._source.wait(timeout, others + asking, longest_s=longest)
            self._collect(rested_s=max(timeout, longest))
            if ready & set(others) or (until is not None and time.monotonic() >= until):
                interrupts.noticed()
                return

    @property
    def interval_s(self) -> float:
        """How long a turn may be: as was asked for where memory is short, or others read what threads work for."""
        usual_s = self._plan.interval_s
        if self._headroom.steps or self._reported is not None:
            return usual_s
        return self._pace.interval_s(usual_s)

    def _collect(self, *, rested_s: float = 0.0) -> None:
        began = time.monotonic()
        collected = self._source.collect()
        self._rest.turned(collected)
        self._pace.turned(collected)
        inputs = self._pollers.join(collected, self._source.gpu_processes)
        readers = self._demangler.counters + self._memory.counters
        unread = {("reader", reason): count for reason, count in readers.items()}
        unread["files", "pages_cut_off"] = pages_cut_off()
        self._feed([*inputs, *self._losses.take(unread)])
        if self._session.awaits_readings:
            self._pollers.hasten()
        if self._memory_limit.look():
            self._session.fit(self._headroom)
        if self._reported is not None:
            self._reported.show(self._session.thread_contexts())
        self.watch.turned(began, inputs, rested_s=rested_s)
        if self._health is not None and self._health.is_asked():
            self.watch.publish("scrape")
            self._health.answer(self._session.read_own_metrics())

    @property
    def exporters(self) -> Sequence[Exporter]:
        """Where the results go."""
        return self._session.exporters

    def go_on(self, plan: Plan, exporters: Sequence[Exporter]) -> None:
        """Work as ``plan`` has it from now on, as far as that can be without a new start, and export there."""
        self._collect()  # what was recorded so far is reported as it was to be
        self._plan = plan
        self.watch.interval_s = plan.interval_s
        self._session.reconfigure(plan.settings, metric_interval_s=plan.metric_interval_s)
        self._session.replace_exporters(exporters)
        self._pollers.adjust(plan.polling)

    def _feed(self, inputs: list[Input]) -> None:
        if self._writer is not None:
            try:
                for item in inputs:
                    self._writer.write(item)
            except OtelgpuError as error:
                _log.error("%s; the capture ends here, observing goes on", error)
                with suppress(OtelgpuError):  # what it still holds finds no place either
                    self._writer.close()
                self._writer = None
                inputs = [*inputs, LossCounted(family="capture", reason="write_failed", count=1)]
        self._session.take(inputs)

    def finish(self) -> Outcome:
        """Collect what is left, detach, flush."""
        with clock.working_time().hurried():
            return self._finish()

    def _finish(self) -> Outcome:
        until = time.monotonic() + FLUSH_SECONDS
        self.watch.stop()
        self._pollers.stop()
        self._source.complete()
        self._collect()
        if self._reported is not None:
            self._reported.close()
            self._reported = None
        self._source.stop_holding()  # the flush may take seconds
        self._feed(self._source.losses())
        libraries = [(p.path, len(p.symbols), p.blind_ns) for p in self._source.probed_files]
        submitted = {
            family: count
            for (family, reason), count in self._source.totals().items()
            if reason == "submitted"
        }
        exported = self._session.finish(max(until - time.monotonic(), SHORTEST_FLUSH_SECONDS))
        self._source.close()
        if self._health is not None:
            self._health.close()
        if self._writer is not None:
            try:
                self._writer.close()
            except OtelgpuError as error:
                _log.error("%s", error)
        return Outcome(
            summary=self._session.summary,
            exported=exported,
            libraries=libraries,
            submitted=submitted,
            seconds=time.monotonic() - self._began,
        )


def replay(
    path: Path,
    families: Mapping[str, Family],
    exporters: Sequence[Exporter],
    *,
    settings: SignalSettings,
    profiling: ProfileSettings = ProfileSettings(),  # noqa: B008 (immutable)
) -> Outcome:
    """Feed a capture to the exporters. Raises :class:`OtelgpuError` on a damaged one, after a flush."""
    from otelgpu.engine.pipeline import Pipeline
    from otelgpu.sources.capture import CaptureReader

    began = time.monotonic()
    reader = CaptureReader(path)
    known = {name: family for name, family in families.items() if name in reader.btf}
    pipeline = Pipeline(
        known,
        reader.btf,
        seed=reader.header.seed,
        own=resource(reader.header.own),
        start_unix_ns=reader.header.start_unix_ns,
        settings=settings,
        profiling=profiling,
        shorten=short_name,
        demangle=session_demangler(),
    )
    session = Session(pipeline, exporters, metric_interval_s=None)
    try:
        session.take(reader)
    finally:
        exported = session.finish(deadline_s=60.0)
        reader.close()
    if reader.truncated:
        _log.warning("capture %s ends in the middle of a frame: replayed up to there", path)
    return Outcome(
        summary=session.summary,
        exported=exported,
        libraries=(),
        submitted={},
        seconds=time.monotonic() - began,
        cut_off=reader.truncated,
    )
