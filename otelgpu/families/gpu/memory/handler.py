"""Device memory in a session: which calls are looked at, and when what they did is settled. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from otelgpu.engine.facts import ProcessForgotten, ProgramReplaced
from otelgpu.engine.metrics import Metrics
from otelgpu.engine.services import Services
from otelgpu.families.gpu.memory.ledger import KINDS, MemoryLedger
from otelgpu.families.gpu.memory.metrics import MemoryMetrics
from otelgpu.families.gpu.memory.process import ProcessMemory
from otelgpu.families.gpu.memory.profile_rows import MemoryProfiles
from otelgpu.families.gpu.memory.reports import FailureReports
from otelgpu.model.inputs import CallsCounted, ProcessGone
from otelgpu.model.operations import OperationKind
from otelgpu.model.profiling import ProfileKind
from otelgpu.model.spans import SpanColumns

_CHANGING = (OperationKind.ALLOCATION, OperationKind.FREE, OperationKind.MAPPING)


class MemoryHandler:
    """Offers profiles what is in use, by stack, where memory is profiled."""

    def __init__(self, services: Services) -> None:
        session = services.session
        self._services, self._losses = services, session.losses
        profiled = ProfileKind.MEM in session.profiling.kinds
        names = [signals.memory for _, signals in session.operations]
        self._reports = FailureReports(services, names, with_stacks=profiled)
        self._ledger = MemoryLedger(
            [decoder for decoder, _ in session.operations],
            stacks=session.call_stacks.stacks_of if profiled else None,
            failures=self._reports.failures,
            at_end=self._see_end if profiled else None,
        )
        self._metrics = MemoryMetrics(names, self._ledger, session.processes.resource, session.functions.name)
        self._profiles = MemoryProfiles(self._ledger, names)
        if profiled:
            services.offers.profile_sources.append(self._profiles)
        self._families = session.family_index
        services.watch(KINDS, lambda part: self._ledger.add(part.rows))
        services.listen(CallsCounted, self._count)
        services.listen(ProcessGone, lambda gone: self._ledger.end_process(gone.tgid, gone.time_ns))
        services.listen(ProgramReplaced, lambda fact: self._ledger.end_process(fact.tgid, fact.time_ns))
        services.listen(ProcessForgotten, lambda fact: self._forget(fact.tgid))

    @property
    def counters(self) -> Mapping[str, int]:
        """What could not be followed, by reason."""
        return {**self._ledger.counters, "failure_not_reported": self._reports.unreported}

    def _see_end(self, process: ProcessMemory, time_ns: int) -> None:
        self._profiles.see_end(process, time_ns)

    def _forget(self, tgid: int) -> None:
        self._metrics.forget(tgid)
        self._reports.forget(tgid)

    def _count(self, counted: CallsCounted) -> None:
        if counted.family in self._families and counted.kind in _CHANGING:
            self._losses.add("memory", "calls_counted", counted.count)

    def tick(self, now_ns: int, *, final: bool) -> Iterable[SpanColumns]:
        """Apply the calls of this tick; what failed for want of memory is an event, and nothing of it a span."""
        self._ledger.settle(now_ns, final=final)
        self._reports.report(now_ns, final=final)
        self._metrics.see_ended()
        if self._ledger.processes or self._ledger.is_waiting:
            self._services.wake()
        return ()

    def publish(self, metrics: Metrics) -> None:
        """How things stand."""
        self._metrics.publish(metrics)
