"""What the pipeline learns of processes: what each is, before the first record of it, and again when more is known.

In: processes as a live source meets them, and where they publish of themselves. Out: inputs of the pipeline, kept until
they are taken.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from otelgpu.kernel import clock
from otelgpu.model.inputs import Input, ProcessSeen
from otelgpu.model.losses import Reasons
from otelgpu.processes.listing import describe
from otelgpu.processes.process_context import ProcessContexts
from otelgpu.processes.resources import ResourceDetector

REASONS: Final = Reasons(
    "live",
    {
        "process_not_described": "a process ended before it could be looked at: its telemetry has a resource "
        "without names",
    },
)
"""What one count of (``live``, reason) means."""


class DescribedProcesses:
    """One source's. ``renew`` is called with each process that may run another program than it did.

    ``counters`` counts ``process_not_described``: one of which records came and nothing else is known.
    """

    def __init__(
        self,
        resource_detector: ResourceDetector,
        renew: Callable[[int], object],
        counters: Counter[str],
        contexts: ProcessContexts,
    ) -> None:
        self._describer, self._renew, self._counters, self._contexts = (
            resource_detector,
            renew,
            counters,
            contexts,
        )
        self._seen: set[int] = set()
        self._ready: list[Input] = []

    def look_at(self, tgid: int) -> None:
        """Read what a process publishes of itself, before it is described."""
        self._contexts.look_at(tgid, time.monotonic())

    def see(self, tgid: int, time_ns: int, *, again: bool = False) -> None:
        """Describe a process; ``again``: it is the program that it was, of which more is known."""
        facts = describe(tgid)
        if facts is None:
            return  # a loss only if records of it turn up: see with_records
        again = again and tgid in self._seen
        self._seen.add(tgid)
        if not again:
            self._renew(tgid)
        context = self._contexts.of(tgid)
        described = self._describer.describe(facts, context.resource if context is not None else {})
        self._ready.append(
            ProcessSeen(
                tgid=tgid,
                time_ns=time_ns,
                resource=described,
                parent=facts.ppid,
                same_program=again,
                payer=facts.payer,
            )
        )

    def published(self, tgid: int, address: int, time_ns: int) -> None:
        """A process has published what it is, at an address of its memory."""
        if self._contexts.published(tgid, address, time.monotonic()):
            self.see(tgid, time_ns, again=True)

    def retry(self, now_ns: int) -> None:
        """What could not be read, or was not known, may be by now."""
        for tgid in self._contexts.retry(time.monotonic()):
            self.see(tgid, now_ns, again=True)

    def take(self) -> list[Input]:
        """What there is to report since the last call."""
        taken, self._ready = self._ready, []
        return taken

    def with_records(self, tgids: Iterable[int]) -> list[Input]:
        """The same, and what those are of which there are records now: each is reported, or counted, once."""
        for tgid in tgids:
            if tgid not in self._seen:
                self.see(tgid, clock.monotonic_ns())
                if tgid not in self._seen:
                    self._seen.add(tgid)
                    self._counters["process_not_described"] += 1
        return self.take()

    def forget_program(self, tgid: int) -> None:
        """A process runs another program, which has published nothing yet."""
        self._contexts.forget(tgid)

    def forget(self, tgid: int) -> None:
        """A process has ended."""
        self._seen.discard(tgid)
        self._contexts.forget(tgid)
