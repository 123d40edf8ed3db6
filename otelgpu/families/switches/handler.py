"""Switches in a session: which processes they are for, and an event for each that begins, ends or is refused. Pure.

Whose a process is, is what the kernel says (``k8s.pod.uid`` of its cgroup), and never what it says itself: a pod has
more detail of its own processes reported and of nobody else's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from otelgpu.engine.facts import DetailRaised, SettingsChanged, TickBegins
from otelgpu.engine.services import Services
from otelgpu.families.switches import names
from otelgpu.families.switches.audit import attributes_of
from otelgpu.families.switches.switching import Change, Limits, Switching
from otelgpu.model.events import Event
from otelgpu.model.resource import POD_UID
from otelgpu.model.settings import Detail, SignalSettings
from otelgpu.model.switches import DETAIL_ANNOTATION, SwitchesRead
from otelgpu.model.text import printable

_REFUSALS: Final = 20
"""That have an event, a minute."""
_MINUTE_S: Final = 60.0


class SwitchHandler:
    """Does nothing until there is an annotation."""

    def __init__(self, services: Services) -> None:
        self._services, self._session = services, services.session
        settings = self._session.settings
        self._switching = Switching(_limits(settings), settings.detail)
        self._seen: SwitchesRead | None = None
        self._raised: dict[int, Detail] = {}
        self._counters: Counter[str] = Counter()
        self._refused, self._since_s = 0, 0.0  # refusals that had an event, in the minute from then on
        services.listen(SwitchesRead, self._read)
        services.listen(SettingsChanged, self._reconfigure)
        services.listen(TickBegins, self._turn)

    @property
    def counters(self) -> Mapping[str, int]:
        """Refusals by reason: see :data:`~otelgpu.families.switches.names.REASONS`."""
        return self._counters

    def _now_s(self) -> float:
        clock = self._session.clock
        return (clock.now_ns + clock.offset_ns) / 1e9

    def _read(self, seen: SwitchesRead) -> None:
        """Decided at the next tick: there is no time before the first."""
        self._seen = seen
        self._services.wake()

    def _reconfigure(self, fact: SettingsChanged) -> None:
        self._switching.limits, self._switching.usual = _limits(fact.settings), fact.settings.detail

    def _turn(self, tick: TickBegins) -> None:
        """Before operations are decoded: what is raised holds for those of this tick, of the last one too."""
        if tick.final:
            self._report(self._switching.close(self._now_s()))
            return
        if self._seen is not None:
            seen, self._seen = self._seen, None
            self._report(self._switching.read(seen.switches, self._now_s()))
        self._report(self._switching.turn(self._now_s()))
        wanted = self._switching.raised(self._now_s())
        raised: dict[int, Detail] = {}
        if wanted:
            members = self._session.processes.having(POD_UID)
            raised = {tgid: wanted[str(uid)] for tgid, uid in members if uid in wanted}
            self._services.wake()
        if raised != self._raised:
            self._raised = raised
            self._services.emit(DetailRaised(raised))

    def _report(self, changes: Iterable[Change]) -> None:
        events = [self._event(each) for each in changes if self._has_event(each)]
        if events:
            self._services.report_events(events)

    def _has_event(self, change: Change) -> bool:
        if change.state != names.REFUSED:
            return True
        self._counters[change.reason] += 1
        now_s = self._now_s()
        if now_s >= self._since_s + _MINUTE_S:
            self._refused, self._since_s = 0, now_s
        self._refused += 1
        if self._refused > _REFUSALS:
            self._counters["events_withheld"] += 1
        return self._refused <= _REFUSALS

    def _event(self, change: Change) -> Event:
        return Event(
            name=names.EVENT,
            time_unix_ns=self._session.clock.now_ns + self._session.clock.offset_ns,
            text=_sentence(change),
            attributes=attributes_of(DETAIL_ANNOTATION, change.switch, change.state, change.reason),
            resource=self._session.own,
            warns=change.state == names.REFUSED,
        )


def _limits(settings: SignalSettings) -> Limits:
    return Limits(
        longest_s=settings.switch_longest_s,
        at_once=settings.switch_at_once,
        pause_s=settings.switch_pause_s,
    )


def _sentence(change: Change) -> str:
    place = printable(f"pod {change.switch.namespace}/{change.switch.pod}")
    if change.wish is None:
        return f"{place}: an annotation for more detail is refused: {change.reason}"
    asked = f"detail {change.wish.detail} for {change.wish.seconds:g} s"
    because = f": {change.reason}" if change.reason else ""
    return f"{place}: {asked} {'is refused' if change.state == names.REFUSED else change.state}{because}"
