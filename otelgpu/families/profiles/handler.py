"""Profiles in a session: what they listen to, and when intervals end. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from otelgpu.engine.facts import CallsNamed, DeviceWorkJoined, ProcessDescribed, TickBegins
from otelgpu.engine.services import Services
from otelgpu.families.profiles.decode import ProfileDecoder
from otelgpu.families.profiles.profiler import Profiler
from otelgpu.families.profiles.span_links import SpanLinks
from otelgpu.families.profiles.storage.block import BlockSession
from otelgpu.model.context import Context, Unsettled
from otelgpu.model.inputs import Batch, joined_batches
from otelgpu.model.samples import StackNamed
from otelgpu.model.spans import SpanColumns


class ProfileHandler:
    """Batches of samples wait for the tick: they are short, for stacks come in between."""

    def __init__(self, services: Services) -> None:
        session = services.session
        self._services, self._clock, self._offers = services, session.clock, services.offers
        self._decoder = ProfileDecoder()
        self._batches: dict[str, list[Batch]] = {}  # by kind of record
        self._block = BlockSession(session.metrics, session.processes.resource)
        self._profiler = profiler = Profiler(
            session.profiling,
            session.processes.resource,
            SpanLinks(
                session.attribution.owners_at,
                session.attribution.owners_by_task,
                self._span_of,
                services.offers.step_at,
                services.offers.has_steps,
            ),
            session.vocabulary,
            session.call_stacks,
            services.offers,
            services.offers.probe_names,
        )
        services.listen(TickBegins, self._read)
        self._asked = bool(session.profiling.kinds)
        if self._asked:
            services.listen(StackNamed, profiler.learn)
            services.listen(CallsNamed, lambda fact: profiler.see_calls(fact.rows))
            services.listen(DeviceWorkJoined, lambda fact: profiler.see_work(fact.work))
            services.listen(ProcessDescribed, lambda fact: profiler.rename(fact.before, fact.after))

    @property
    def counters(self) -> Mapping[str, int]:
        """Losses and oddities by name, since the start."""
        return self._profiler.counters

    def take(self, batch: Batch) -> None:
        """Samples."""
        self._batches.setdefault(batch.kind, []).append(batch)

    def _read(self, _: TickBegins) -> None:
        batches, self._batches = self._batches, {}
        for of_kind in batches.values():
            samples = self._decoder.samples(joined_batches(of_kind))
            self._block.take(samples, self._decoder.name_of)
            self._profiler.take(samples, self._clock.now_ns, self._decoder.name_of)

    def _span_of(self, key: int, final: bool) -> Context | Unsettled | None:
        """The span of a request, once that is reported; ``final``: what it will be, unless the session ends."""
        requests = self._offers.requests
        if requests is None:
            return None
        span = requests.span_of(key)
        if not isinstance(span, Unsettled) or not final:
            return span
        return None if self._clock.final else requests.context_of(key)

    def tick(self, now_ns: int, *, final: bool) -> Iterable[SpanColumns]:
        """End the intervals that can be; nothing of it is a span."""
        self._profiler.report(now_ns, offset_ns=self._clock.offset_ns, final=final)
        if self._asked:
            self._services.wake(self._profiler.due_ns)  # intervals end by time
        self._services.report_profiles(self._profiler.finished())
        return ()

    def end_process(self, tgid: int, time_ns: int) -> None:
        """What its threads worked for is not known for much longer."""
        self._profiler.end_process(tgid, time_ns)
