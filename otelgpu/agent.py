"""Wiring only: a source of inputs, the pipeline, a capture if wanted, and where the results go."""

from __future__ import annotations

import errno
import logging
import os
import secrets
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Final, Self

from otelgpu import __version__
from otelgpu.capture import CaptureError, CaptureReader, CaptureWriter, Header
from otelgpu.discover.devices import DeviceFollower
from otelgpu.errors import OtelgpuError
from otelgpu.export.base import Exporter
from otelgpu.families.base import Family
from otelgpu.kernel import clock
from otelgpu.kernel.libbpf import exit_at_once
from otelgpu.kernel.trace_context_map import TraceContextMap
from otelgpu.model.inputs import Input, LossCounted, Tick
from otelgpu.model.resource import AttributeValue, Resource, resource
from otelgpu.model.telling import Telling
from otelgpu.sensors.device_poller import DevicePoller
from otelgpu.sensors.fabric_poller import FabricPoller
from otelgpu.signals.summary import Summary
from otelgpu.sources import Source
from otelgpu.symbols.demangle import demangle, short_name

if TYPE_CHECKING:
    from otelgpu.pipeline import Pipeline, Spans

_log = logging.getLogger("otelgpu.agent")

FLUSH_SECONDS: Final = 5.0

EAGER_SECONDS: Final = 2.0
"""How long after its start a session looks often: somebody may be waiting for the first span."""
_EAGER_INTERVAL_S: Final = 0.03


def own_resource(extra: Mapping[str, AttributeValue]) -> Resource:
    """The resource of this program: what its own metrics are about."""
    return resource(
        {
            **extra,
            "service.name": "otelgpu",
            "service.version": __version__,
            "service.instance.id": f"{socket.gethostname()}-{os.getpid()}",
            "process.pid": os.getpid(),
        }
    )


class Session:
    """Inputs → pipeline → exporters. The same for a live source and for a capture."""

    def __init__(
        self, pipeline: Pipeline, exporters: Sequence[Exporter], *, metric_interval_s: float | None
    ) -> None:
        self._pipeline = pipeline
        self._exporters = exporters
        self._interval = metric_interval_s
        self._lost: Counter[str] = Counter()
        self._next_metrics = time.monotonic() + (metric_interval_s or 0)

    @property
    def summary(self) -> Summary:
        """Totals so far."""
        return self._pipeline.summary

    def take(self, inputs: Iterable[Input]) -> None:
        """Feed inputs and hand on what comes out; metrics when they are due."""
        for item in inputs:
            spans = self._pipeline.feed(item)
            if isinstance(item, Tick):
                self._export(spans)
        if self._interval is not None and time.monotonic() >= self._next_metrics:
            self._next_metrics += self._interval
            self.export_metrics()

    def export_metrics(self) -> None:
        """All metrics as of now, the exporters' own losses among them."""
        lost: Counter[str] = Counter()
        for exporter in self._exporters:
            for key, count in exporter.stats().items():
                _, _, reason = key.partition("_lost_")
                lost[reason] += count if reason else 0
        for reason, count in (lost - self._lost).items():
            self._pipeline.feed(LossCounted(family="export", reason=reason, count=count))
        self._lost = lost
        data, points = self._pipeline.read_metrics()
        for exporter in self._exporters:
            exporter.export_metrics(data, points)

    def thread_contexts(self) -> dict[tuple[int, int], tuple[bytes, bytes]]:
        """What threads work for now: see :meth:`Pipeline.thread_contexts`."""
        return self._pipeline.thread_contexts()

    def finish(self, deadline_s: float = FLUSH_SECONDS) -> dict[str, int]:
        """Tell everything, flush, close; what the exporters accepted and lost, summed over them."""
        self._export(self._pipeline.finish())
        self.export_metrics()
        until = time.monotonic() + deadline_s
        stats: dict[str, int] = {}
        for exporter in self._exporters:
            exporter.close(max(until - time.monotonic(), 0.1))
            for key, value in exporter.stats().items():
                stats[key] = stats.get(key, 0) + value
        return stats

    def _export(self, spans: Spans) -> None:
        if len(self._exporters) > 1:
            spans = list(spans)  # which are made as they are taken, once
        for exporter in self._exporters:
            exporter.export_spans(spans)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a session amounted to, for the summary that ends it."""

    summary: Summary | None
    exported: Mapping[str, int]
    libraries: Sequence[tuple[str, int, int]]  # path, probed symbols, blind ns
    submitted: Mapping[str, int]  # records by family
    seconds: float


class Interrupts:
    """SIGINT and SIGTERM ask to stop (the first one) or end the process at once (the second)."""

    def __init__(self, forward: Callable[[int], None] | None = None) -> None:
        self.requested = 0
        self._forward = forward
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

    def acknowledge(self) -> None:
        """Make ``fd`` unreadable again: the request is being seen to."""
        os.eventfd_read(self.fd)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            exit_at_once(128 + number)
        self.requested = number
        if self._forward is not None:
            self._forward(number)
        os.eventfd_write(self.fd, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a live session works. ``exporters`` are opened late, because they start threads."""

    families: Mapping[str, Family]
    telling: Telling
    open_exporters: Callable[[], Sequence[Exporter]]
    capture: Path | None
    attributes: Mapping[str, AttributeValue]
    interval_s: float
    metric_interval_s: float
    device_interval_s: float = 0.0  # how often NVML is read; 0: never
    fabric_interval_s: float = 0.0  # how often RDMA ports are, and whether the kernel's log is; 0: never
    publish_context: bool = False  # what threads work for, to other eBPF tools
    seed: int | None = None


class Sensors:
    """What is read beside the source, in front of whose ticks its inputs go: GPUs, RDMA ports, the kernel's log."""

    def __init__(self, device_interval_s: float, fabric_interval_s: float) -> None:
        self._poller = DevicePoller(device_interval_s) if device_interval_s else None
        self._fabric = FabricPoller(fabric_interval_s) if fabric_interval_s else None
        self._follower = DeviceFollower()
        self._reported: Counter[tuple[str, str]] = Counter()
        if self._poller is not None:
            self._poller.start()
        if self._fabric is not None:
            self._fabric.start()

    def join(self, inputs: list[Input], users: Set[int]) -> list[Input]:
        """``inputs`` end with a tick or hold none. ``users``: processes whose devices are wanted."""
        now_ns = clock.monotonic_ns()
        found: list[Input] = []
        counted: Counter[tuple[str, str]] = Counter()
        if self._poller is not None:
            devices = self._poller.collect(now_ns)
            self._follower.take(devices)
            found += [*devices, *self._follower.follow(users, now_ns)]
            counted.update({("devices", reason): count for reason, count in self._poller.counters.items()})
        if self._fabric is not None:
            found += self._fabric.collect(now_ns)
            counted.update({("fabric", reason): count for reason, count in self._fabric.counters.items()})
        grown = counted - self._reported
        self._reported += grown
        losses = [
            LossCounted(family=room, reason=reason, count=count) for (room, reason), count in grown.items()
        ]
        return [*found, *losses, *inputs]

    def stop(self) -> None:
        """Read no more."""
        if self._poller is not None:
            self._poller.stop()
        if self._fabric is not None:
            self._fabric.stop()


class Agent:
    """A live session from the first probe to the last flush."""

    def __init__(self, source: Source, plan: Plan) -> None:
        self._source = source
        self._plan = plan
        self._seed = secrets.randbits(63) if plan.seed is None else plan.seed
        self._own = own_resource(plan.attributes)
        self._began = time.monotonic()
        self._start = clock.anchor()
        self._writer = self._open_capture()
        self._session = self._open_session()
        self._sensors = Sensors(plan.device_interval_s, plan.fabric_interval_s)
        self._told = TraceContextMap() if plan.publish_context else None
        self._feed([self._start])

    def _open_capture(self) -> CaptureWriter | None:
        if self._plan.capture is None:
            return None
        header = Header(
            version=__version__,
            seed=self._seed,
            start_unix_ns=self._start.unix_ns,
            own=dict(self._own.attributes),
            btf=dict(self._source.btf_sections),
        )
        return CaptureWriter(self._plan.capture, header)

    def _open_session(self) -> Session:
        from otelgpu.pipeline import Pipeline  # meanwhile the probes were loaded

        btf = self._source.btf
        pipeline = Pipeline(
            {name: family for name, family in self._plan.families.items() if name in btf},
            btf,
            seed=self._seed,
            own=self._own,
            start_unix_ns=self._start.unix_ns,
            telling=self._plan.telling,
            shorten=short_name,
            demangle=demangle,
        )
        return Session(pipeline, self._plan.open_exporters(), metric_interval_s=self._plan.metric_interval_s)

    def work(self, interrupts: Interrupts, *, until: float | None = None, also: int | None = None) -> None:
        """Collect until asked to stop, until ``until`` (time.monotonic) or until ``also`` is readable."""
        others = [interrupts.fd] + ([also] if also is not None else [])
        while True:
            timeout = self._plan.interval_s
            if time.monotonic() < self._began + EAGER_SECONDS:
                timeout = min(timeout, _EAGER_INTERVAL_S)
            if until is not None:
                timeout = min(timeout, max(until - time.monotonic(), 0))
            ready = self._source.wait(timeout, others)
            self._collect()
            if ready & set(others) or (until is not None and time.monotonic() >= until):
                return

    def _collect(self) -> None:
        self._feed(self._sensors.join(self._source.collect(), self._source.gpu_processes))
        if self._told is not None:
            self._told.show(self._session.thread_contexts())

    def _feed(self, inputs: list[Input]) -> None:
        if self._writer is not None:
            try:
                for item in inputs:
                    self._writer.write(item)
            except CaptureError as error:
                _log.error("%s; the capture ends here, observing goes on", error)
                self._writer.close()
                self._writer = None
                inputs = [*inputs, LossCounted(family="capture", reason="write_failed", count=1)]
        self._session.take(inputs)

    def finish(self) -> Outcome:
        """Collect what is left, detach, flush."""
        self._sensors.stop()
        self._collect()
        if self._told is not None:
            self._told.close()
            self._told = None
        self._source.stop_holding()  # the flush may take seconds
        self._feed(self._source.losses())
        libraries = [(p.path, len(p.symbols), p.blind_ns) for p in self._source.placements]
        submitted = {
            room: count for (room, reason), count in self._source.totals().items() if reason == "submitted"
        }
        exported = self._session.finish()
        self._source.close()
        if self._writer is not None:
            try:
                self._writer.close()
            except CaptureError as error:
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
    telling: Telling,
) -> Outcome:
    """Feed a capture to the exporters. Raises :class:`OtelgpuError` on a damaged one, after a flush."""
    from otelgpu.pipeline import Pipeline

    began = time.monotonic()
    reader = CaptureReader(path)
    known = {name: family for name, family in families.items() if name in reader.btf}
    pipeline = Pipeline(
        known,
        reader.btf,
        seed=reader.header.seed,
        own=resource(reader.header.own),
        start_unix_ns=reader.header.start_unix_ns,
        telling=telling,
        shorten=short_name,
        demangle=demangle,
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
    )


class CannotStartError(OtelgpuError):
    """The program to observe could not be started; ``exit_code`` is what a shell gives."""

    def __init__(self, program: str, number: int) -> None:
        super().__init__(f"cannot start {program}: {os.strerror(number)}")
        self.errno = number
        self.exit_code = 127 if number == errno.ENOENT else 126


class Child:
    """A program that waits before exec until everything that watches it is in place."""

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str] | None = None) -> None:
        self._go_read, self._go_write = os.pipe()
        failed_read, failed_write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self._go_write)
                os.close(failed_read)
                if os.read(self._go_read, 1):
                    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python, and inherited across exec
                        signal.signal(ignored, signal.SIG_DFL)
                    os.execvpe(argv[0], list(argv), dict(environ if environ is not None else os.environ))
            except OSError as error:
                os.write(failed_write, str(error.errno).encode())
            finally:
                os._exit(127)
        os.close(self._go_read)
        os.close(failed_write)
        self._failed_read = failed_read
        self.pidfd = os.pidfd_open(self.pid)
        self._argv = argv

    def start(self) -> None:
        """Let it exec. Raises :class:`CannotStartError`."""
        os.write(self._go_write, b"!")
        os.close(self._go_write)
        with os.fdopen(self._failed_read, "rb") as pipe:
            failure = pipe.read()
        if failure:
            os.waitpid(self.pid, 0)
            raise CannotStartError(self._argv[0], int(failure))

    def abandon(self) -> None:
        """End it without having started the program."""
        os.close(self._go_write)
        os.waitpid(self.pid, 0)

    def signal(self, number: int) -> None:
        """Pass a signal on; nothing happens when it has ended."""
        try:
            signal.pidfd_send_signal(self.pidfd, number)
        except ProcessLookupError:
            return

    def wait(self) -> int:
        """The exit code as a shell gives it: 128 + n when signal n ended it."""
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self.pidfd)
        return code if code >= 0 else 128 - code
