"""Profiles of a session: everything between what is fed and the columns that are exported. Pure.

In: samples, named stacks, operations, what devices did. Out: :class:`~otelgpu.model.profiles.ProfileColumns`, for each
interval. Without kinds that were asked for, nothing is held.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType

from otelgpu.engine.call_families import family_of
from otelgpu.engine.call_stacks import CallStacks
from otelgpu.engine.operation_spans import Vocabulary
from otelgpu.engine.profile_rows import ProfileRows
from otelgpu.engine.services import Offers
from otelgpu.families.profiles.intervals import ProfileSession
from otelgpu.families.profiles.operations import OperationProfiles
from otelgpu.families.profiles.samples import SampleProfiles
from otelgpu.families.profiles.span_links import SpanLinks
from otelgpu.families.profiles.storage.profile_rows import NameOf
from otelgpu.model.device_work import DeviceWork
from otelgpu.model.operations import Operations
from otelgpu.model.profiles import ProfileColumns
from otelgpu.model.profiling import CALL_KINDS, ProfileSettings
from otelgpu.model.resource import Resource
from otelgpu.model.samples import SampleKind, Samples, StackNamed


class Profiler:
    """One session's. ``stacks`` is where the calls' stacks are, ``offers`` what other families have rows of."""

    def __init__(
        self,
        settings: ProfileSettings,
        resource_of: Callable[[int], Resource],
        links: SpanLinks,
        vocabulary: Vocabulary,
        stacks: CallStacks,
        offers: Offers,
        probe_names: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        self._asked = bool(settings.kinds)
        self._of_calls = not CALL_KINDS.isdisjoint(settings.kinds)
        self._stacks, self._offers = stacks, offers
        self._samples = SampleProfiles(
            settings, probe_name=lambda number: probe_names.get(number, f"probe{number}")
        )
        self._operations = OperationProfiles(settings.kinds, stacks, vocabulary, launches=settings.launches)
        self._session = ProfileSession(settings, resource_of, links, levels=self._levels)

    @property
    def counters(self) -> Mapping[str, int]:
        """Losses and oddities by name, since the start."""
        return Counter(self._session.counters) + Counter(self._stacks.counters)

    def learn(self, named: StackNamed) -> None:
        """A stack is named."""
        if self._asked:
            self._session.learn(named)

    def take(self, samples: Samples, now_ns: int, name_of: NameOf | None = None) -> None:
        """What was sampled; ``name_of`` says the file or device of a sample's ``other``."""
        if not self._asked or not len(samples):
            return
        calls = samples["kind"] == SampleKind.CALL
        if calls.any():
            of_family = family_of(samples)
            own = calls.copy()
            for number, see in self._offers.call_samples.items():
                theirs = calls & (of_family == number)
                own &= ~theirs
                if theirs.any():
                    see(samples.compress(theirs), now_ns)
            if self._of_calls:
                self._operations.see_samples(samples.compress(own), now_ns)
            samples = samples.compress(~calls)
        self._samples.take(samples, name_of)

    def see_calls(self, rows: Operations) -> None:
        """Operations, whose names are set."""
        if self._of_calls:
            self._operations.see_calls(rows)

    def see_work(self, work: DeviceWork) -> None:
        """What devices did."""
        if self._of_calls:
            self._operations.see_work(work)

    def rename(self, before: Resource | None, after: Resource) -> None:
        """More is known of a process."""
        if self._asked and before is not None:
            self._session.rename(before, after)

    def end_process(self, tgid: int, time_ns: int) -> None:
        """A process ended."""
        if self._asked:
            self._session.end_process(tgid, time_ns)

    def report(self, now_ns: int, *, offset_ns: int, final: bool) -> None:
        """At a tick, after the requests and steps of it."""
        if not self._asked:
            return
        found = self._samples.report(final=final)
        if self._of_calls:
            found += self._operations.take(now_ns, final=final)
        for source in self._offers.profile_sources:
            found += source.take(now_ns, final=final)
        for rows in found:
            self._session.take_rows(rows)
        self._session.report(now_ns, offset_ns=offset_ns, final=final)

    @property
    def due_ns(self) -> int:
        """When there is something to report though nothing comes; 0: at the next tick."""
        if self._of_calls or self._offers.profile_sources or self._samples.waits_for_tick:
            return 0
        return self._session.due_ns

    def finished(self) -> list[ProfileColumns]:
        """The profiles that were completed since the last call."""
        return self._session.take()

    def _levels(self, time_ns: int) -> list[ProfileRows]:
        return [rows for source in self._offers.profile_sources for rows in source.held(time_ns)]
