"""Where inputs come from, whichever way: what a session asks of a source, and two sources as one.

In: :mod:`otelgpu.sources.live` (probes) and :mod:`otelgpu.sources.injected` (a library in the program). Out: one
sequence of inputs with one :class:`~otelgpu.model.inputs.Tick` at the end of each collection.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Final, Protocol

from otelgpu.elf.btf import Btf
from otelgpu.model.inputs import Input, ProcessGone, ProcessSeen, Tick
from otelgpu.model.resource import AttributeValue, Resource
from otelgpu.model.self_telemetry import Attachment, RingFill
from otelgpu.processes.probes import ProbedFile

_TURN_S: Final = 0.5  # who is held at a mapping waits for a source that says within two seconds that it lives
_PROGRAM: Final = ("service.instance.id", "process.executable.path")
"""What differs once a process has become another program, or its number another process."""


class Source(Protocol):
    """Observes from its construction on, until it is closed."""

    @property
    def btf(self) -> Mapping[str, Btf]:
        """Record descriptions by family."""

    @property
    def btf_sections(self) -> Mapping[str, bytes]:
        """The same, raw, for a capture."""

    @property
    def probed_files(self) -> Sequence[ProbedFile]:
        """Libraries and programs that carry probes."""

    @property
    def library_names(self) -> frozenset[str]:
        """Library names that probes are for."""

    @property
    def gpu_processes(self) -> Set[int]:
        """Processes that have a vendor's library."""

    @property
    def rings(self) -> Mapping[str, RingFill]:
        """How full the rings have been since the last call, by family."""

    @property
    def attachments(self) -> Mapping[int, Attachment]:
        """The state of the libraries of each process that has some."""

    def observe(self, tgid: int, *, execs: bool = False) -> None:
        """Bring a process into scope, and look at what it has mapped.

        ``execs``: it is a fork of this program that is about to become another: what it has mapped is of no concern.
        """

    def observe_running(self) -> None:
        """Look at the processes that run already."""

    def rescope(self, admits: Callable[[int], bool]) -> None:
        """Observe those processes, of the running ones too, that it admits, and what they start; and no others."""

    def prepare_file(self, path: Path) -> None:
        """A program is about to load a file."""

    def wait(self, timeout_s: float, others: Collection[int] = (), *, longest_s: float = 0.0) -> set[int]:
        """Until the time is over, there is much to collect, or one of ``others`` is readable; those that are.

        ``longest_s``: with nothing there by then, until something comes, but no longer than that in all.
        """

    def collect(self) -> list[Input]:
        """Everything up to now, ended by a :class:`Tick`."""

    def losses(self) -> list[Input]:
        """What was lost since the last call."""

    def totals(self) -> Mapping[tuple[str, str], int]:
        """Every counter since the start: (family or part of the agent, reason) → count; ``submitted`` included."""

    def start_holding(self) -> None:
        """Hold processes at what they map, where that was asked for."""

    def stop_holding(self) -> None:
        """Hold nobody from here on."""

    def settle(self, tgids: Collection[int], seconds: float) -> None:
        """Find out what profiles of these processes, and of what was prepared for, need before they are observed."""

    def give_back(self) -> None:
        """Forget what can be read again."""

    def complete(self) -> None:
        """The collection that follows is the last: what is under way is to be reported in it as far as it is."""

    def close(self) -> None:
        """End observing; idempotent."""


class WakingSource(Source, Protocol):
    """One that another can wait for."""

    def fileno(self) -> int:
        """Readable when ``wait(0)`` has something to do."""


class JointSource:
    """Calls from one source, conversations from another, of the same processes.

    Both report of a process. Where it makes calls, the calls' source is believed: to describe it anew undoes the
    names of its functions, and its end is that of its memory, which the last calls must come before.
    """

    def __init__(self, calls: Source, conversations: WakingSource) -> None:
        self._calls, self._conversations = calls, conversations
        self._both = (calls, conversations)
        self._callers: dict[int, tuple[AttributeValue | None, ...]] = {}  # the program of each

    @property
    def btf(self) -> dict[str, Btf]:
        """Of both."""
        return {**self._calls.btf, **self._conversations.btf}

    @property
    def btf_sections(self) -> dict[str, bytes]:
        """Of both."""
        return {**self._calls.btf_sections, **self._conversations.btf_sections}

    @property
    def probed_files(self) -> list[ProbedFile]:
        """Of both."""
        return [probed_file for source in self._both for probed_file in source.probed_files]

    @property
    def library_names(self) -> frozenset[str]:
        """Of both."""
        return self._calls.library_names | self._conversations.library_names

    @property
    def gpu_processes(self) -> Set[int]:
        """Of both."""
        return {*self._calls.gpu_processes, *self._conversations.gpu_processes}

    @property
    def rings(self) -> dict[str, RingFill]:
        """Of both."""
        return {**self._calls.rings, **self._conversations.rings}

    @property
    def attachments(self) -> dict[int, Attachment]:
        """Of both; a process's libraries are reported by the source of its calls."""
        return {**self._conversations.attachments, **self._calls.attachments}

    def observe(self, tgid: int, *, execs: bool = False) -> None:
        """Bring a process into scope of both."""
        for source in self._both:
            source.observe(tgid, execs=execs)

    def observe_running(self) -> None:
        """Have both look."""
        for source in self._both:
            source.observe_running()

    def rescope(self, admits: Callable[[int], bool]) -> None:
        """Of both."""
        for source in self._both:
            source.rescope(admits)

    def prepare_file(self, path: Path) -> None:
        """Report both."""
        for source in self._both:
            source.prepare_file(path)

    def wait(self, timeout_s: float, others: Collection[int] = (), *, longest_s: float = 0.0) -> set[int]:
        """As the calls' source waits, half a second at most; what the other has to do at once is done at once."""
        until = time.monotonic() + min(timeout_s, _TURN_S)
        wakes = self._conversations.fileno()
        while True:
            ready = self._calls.wait(max(until - time.monotonic(), 0), (*others, wakes))
            full = self._conversations.wait(0)
            if ready != {wakes} or full:
                return ready - {wakes}

    def collect(self) -> list[Input]:
        """Calls first, conversations last: then every request that a call was made for is known.

        The tick is the earlier one, most often the calls': what came after it is with the next one, whichever source it
        is of.
        """
        calls, beside = self._calls.collect(), self._conversations.collect()
        conversations = list(self._beside(calls, beside))
        first = [item for item in conversations if isinstance(item, ProcessSeen)]
        then = [item for item in conversations if not isinstance(item, ProcessSeen)]
        ticks = [item for item in (*calls, *beside) if isinstance(item, Tick)]
        tick = min(ticks, key=lambda each: each.time_ns)
        return [*first, *(item for item in calls if not isinstance(item, Tick)), *then, tick]

    def _beside(self, calls: list[Input], conversations: list[Input]) -> Iterator[Input]:
        """Of the conversations' inputs those that the calls' leave to be said."""
        gone = {item.tgid for item in calls if isinstance(item, ProcessGone)}
        for item in calls:
            if isinstance(item, ProcessSeen):
                self._callers[item.tgid] = _program(item.resource)
        for item in conversations:
            match item:
                case ProcessSeen(same_program=False) if self._callers.get(item.tgid) == _program(
                    item.resource
                ):
                    continue
                case ProcessGone() if item.tgid in self._callers:
                    continue
                case Tick():
                    continue
            yield item
        for tgid in gone:
            self._callers.pop(tgid, None)

    def losses(self) -> list[Input]:
        """Of both."""
        return [loss for source in self._both for loss in source.losses()]

    def totals(self) -> dict[tuple[str, str], int]:
        """Of both."""
        totals: dict[tuple[str, str], int] = {}
        for source in self._both:
            for key, count in source.totals().items():
                totals[key] = totals.get(key, 0) + count
        return totals

    def start_holding(self) -> None:
        """Both."""
        for source in self._both:
            source.start_holding()

    def stop_holding(self) -> None:
        """Both."""
        for source in self._both:
            source.stop_holding()

    def settle(self, tgids: Collection[int], seconds: float) -> None:
        """Both."""
        for source in self._both:
            source.settle(tgids, seconds)

    def give_back(self) -> None:
        """Both."""
        for source in self._both:
            source.give_back()

    def complete(self) -> None:
        """Both."""
        for source in self._both:
            source.complete()

    def close(self) -> None:
        """Both."""
        for source in self._both:
            source.close()


def _program(described: Resource) -> tuple[AttributeValue | None, ...]:
    return tuple(described.get(key) for key in _PROGRAM)
