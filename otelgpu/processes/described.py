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
from otelgpu.model.inputs import Input, ProcessSeen, Records
from otelgpu.model.losses import Reasons
from otelgpu.processes.listing import describe, start_time_ns
from otelgpu.processes.process_context import ProcessContexts
from otelgpu.processes.process_ids import ProcessIds
from otelgpu.processes.resources import ResourceDetector

REASONS: Final = Reasons(
    "live",
    {
        "process_not_described": "a process ended before it could be looked at: its telemetry has a resource "
        "without names",
    },
)
"""What one count of (``live``, reason) means."""

_READING_NS: Final = 1_000_000
"""For so long it may take to read two clocks. That starts are as coarse as 10 ms makes them earlier, never later."""
_APART_NS: Final = 100_000_000
"""Of one number, starts that lie further apart are of two processes: between them all others were given."""


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
        self._began: dict[int, int] = {}  # CLOCK_MONOTONIC, ns
        self._ended = ProcessIds()  # that may be given out again
        self._ready: list[Input] = []

    def look_at(self, tgid: int) -> None:
        """Read what a process publishes of itself, before it is described."""
        self._contexts.look_at(tgid, time.monotonic())

    def see(self, tgid: int, time_ns: int, *, again: bool = False) -> None:
        """Describe a process as of a time; ``again``: it is the program that it was, of which more is known."""
        facts = describe(tgid)
        began_ns = clock.since_boot_ns(facts.start_time_ns) if facts is not None else 0
        if facts is None or began_ns > time_ns + _READING_NS:  # its number is another's now
            return  # a loss only if records of it turn up: see with_records
        self._began.setdefault(tgid, began_ns)
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

    def begin(self, tgid: int, time_ns: int) -> None:
        """A process was forked then. One of which nothing is known is reported if its number was another's."""
        self._began[tgid] = time_ns
        self.see(tgid, time_ns)
        if tgid not in self._seen and tgid in self._ended:
            self._ready.append(
                ProcessSeen(tgid=tgid, time_ns=time_ns, resource=self._describer.unnamed(tgid))
            )

    def began_ns(self, tgid: int) -> int:
        """Since when a number is whose it is, CLOCK_MONOTONIC; 0 where that is not known."""
        return self._began.get(tgid, 0)

    def began_before(self, tgid: int, time_ns: int) -> bool:
        """Whether what is known under a number is of a process from long before a time."""
        return tgid in self._began and self._began[tgid] < time_ns - _APART_NS

    def is_another_now(self, tgid: int) -> bool:
        """Whether a number is given to another process now than the one that is known under it."""
        started_ns = self.starts_ns(tgid) if tgid in self._began else 0
        return started_ns > 0 and self.began_before(tgid, started_ns)

    def starts_ns(self, tgid: int) -> int:
        """When the process that has a number now began, CLOCK_MONOTONIC; 0 where there is none."""
        started_ns = start_time_ns(tgid)
        return clock.since_boot_ns(started_ns) if started_ns is not None else 0

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

    def with_records(self, tgids: Iterable[int], heads: Records) -> list[Input]:
        """The same, and what those are of which there are records now: each is reported, or counted, once.

        ``heads``: of the records, which may be of a process whose number is another's now.
        """
        for tgid in tgids:
            if tgid not in self._seen:
                self.see(tgid, int(heads["time_ns"][heads["tgid"] == tgid].max()))
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
        self._began.pop(tgid, None)
        self._ended.add(tgid)
        self._contexts.forget(tgid)
