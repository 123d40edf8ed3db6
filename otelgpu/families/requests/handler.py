"""Connections in a session: their records become facts of requests. Pure."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from otelgpu.engine.facts import TickBegins, TrafficParsed
from otelgpu.engine.services import Services
from otelgpu.families.requests.decode import HttpState
from otelgpu.model.inputs import Batch, ProcessGone
from otelgpu.model.shares import described

_log: Final = logging.getLogger("otelgpu.requests")


class HttpHandler:
    """All connections of a session."""

    def __init__(self, services: Services) -> None:
        self._emit, self._wake, self._clock = services.emit, services.wake, services.session.clock
        directions = services.btf.enumerators("http_direction")
        self._state = HttpState(
            write_direction=directions["HTTP_DIRECTION_WRITE"],
            ended_direction=directions.get("HTTP_DIRECTION_ENDED", -1),  # of older captures
            capture_content=services.session.settings.capture_content,
            stopwatch=services.session.stopwatch,
            headroom=services.session.headroom,
        )
        services.offers.tracked["connection"] = lambda: self._state.connection_count
        services.listen(ProcessGone, self._end)
        services.listen(TickBegins, self._expire)

    @property
    def counters(self) -> Mapping[str, int]:
        """Losses and anomalies by name, since the start."""
        return self._state.counters

    def take(self, batch: Batch) -> None:
        """Take a batch of records of connections."""
        self._pass_on(self._state.feed(batch))

    def _end(self, gone: ProcessGone) -> None:
        self._pass_on(self._state.process_gone(gone.tgid, gone.time_ns))

    def _expire(self, tick: TickBegins) -> None:
        now_ns = self._clock.now_ns
        self._pass_on(self._state.expire(now_ns, final=tick.final))
        for refused, what in self._state.refused:
            if found := refused.due(now_ns):
                _log.warning("http: %s has its share of %s; others have theirs", described(found), what)
        if self._state.connection_count:
            self._wake(self._state.expires_ns)

    def _pass_on(self, found: TrafficParsed) -> None:
        if (
            found.assignments
            or found.exchanges
            or found.opened
            or found.named
            or found.messages
            or found.tasks
        ):
            self._emit(found)
