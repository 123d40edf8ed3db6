"""Probes that a process has for itself, and that are taken off it alone while it calls them too often.

In: files and the processes that have them, as :class:`~otelgpu.processes.attachments.Attachments` knows; how often the
probes were hit, by process. Out: links, one for each process and file. What decides is
:class:`~otelgpu.kernel.probe_budget.CallBudget`; this attaches, detaches and keeps time, in a thread of its own, for a
window is shorter than a collection. The trap is what a probe costs, so that nothing less than taking it off helps; and
a probe of a file is every process's. Hence links that are one process's from the start.

Calls that are made while the probes are off are in no record and no count: for how long that was is reported.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from msgspec import Struct, field

from otelgpu.kernel.attach import Hook, attach_hooks
from otelgpu.kernel.clock import monotonic_ns
from otelgpu.kernel.features import kernel_version
from otelgpu.kernel.libbpf import BpfError, Link, allow_descriptors, detach_all
from otelgpu.kernel.probe_budget import CallBudget
from otelgpu.kernel.trap_cost import UNTRIED_NS
from otelgpu.kernel.uprobe_links import UprobeLinks, uprobe_links
from otelgpu.model.inputs import CallsUnobserved, Input
from otelgpu.model.losses import Reasons
from otelgpu.processes.due_thread import DueThread

_FAMILY: Final = "cuda"
REASONS: Final = Reasons(
    _FAMILY,
    {
        "probes_taken_off": "launches, copies and events of a process cost it more than `max_overhead`: from then on "
        "they are observed in windows, and those between are in no span and no metric (`otelgpu.unobserved.duration`)",
        "probes_kept_again": "they cost no more than that: all of the process are observed again",
        "process_probes_refused": "the kernel refused a process probes that it has for itself; the log says why",
    },
    intended=("probes_taken_off", "probes_kept_again"),
)
"""What one count of (``cuda``, reason) means."""

_log = logging.getLogger("otelgpu.discover")

_BY_PROCESS: Final = (6, 10)
"""Before, a link for a process is one for a single thread of it (Linux 46ba0e49b642)."""
_CHECK_NS: Final = 200_000_000  # how often the rate is looked at where probes stay
_RETRY_NS: Final = 60_000_000_000  # where the budget allows no window
_SHORTEST_NS: Final = 2_000_000
_ENTERED: Final = 16
_SECOND_NS: Final = 1_000_000_000


class FileProbes:
    """The probes of one file that each process has for itself. ``descriptor`` is kept open until :meth:`close`."""

    def __init__(
        self,
        owner: ProcessProbes,
        descriptor: int,
        hooks: Sequence[Hook],
        offsets: Mapping[str, int],
        *,
        with_returns: bool,
        file_cookies: Mapping[str, int],
    ) -> None:
        self._owner, self._descriptor = owner, os.dup(descriptor)
        self._hooks, self._offsets = hooks, dict(offsets)
        self._with_returns, self._file_cookies = with_returns, file_cookies
        self.places = {offsets[hook.symbol] for hook in hooks}

    def enter(self, tgid: int) -> None:
        """A process has the file."""
        self._owner.add(tgid, self)

    def expect(self) -> None:
        """A program that is about to be started will have the file."""
        self._owner.expect(self)

    def leave(self, tgid: int) -> None:
        """It has ended, or is another program."""
        self._owner.forget(tgid)

    def attach(self, tgid: int) -> tuple[list[Link], list[BpfError]]:
        """Put them on, in one process."""
        path = f"/proc/self/fd/{self._descriptor}"
        return attach_hooks(
            self._hooks,
            path,
            self._offsets,
            with_returns=self._with_returns,
            file_cookies=self._file_cookies,
            tgid=tgid,
        )

    def close(self) -> None:
        """Nobody has the file any more."""
        self._owner.drop(self)
        os.close(self._descriptor)


class _Process(Struct, kw_only=True):
    budget: CallBudget
    files: list[FileProbes] = field(default_factory=list)
    links: dict[int, list[Link]] = field(default_factory=dict)  # by id of the file; of those it has now
    is_open: bool = True
    is_lowered: bool = False
    since_ns: int = 0  # opened, closed, or looked at while open
    due_ns: int = 0
    hits: int = 0  # at since_ns


class ProcessProbes:
    """Those of a session. ``symbols``: the functions whose probes each process has for itself.

    ``percent`` of a core is what they may cost a process, ``trap_ns`` what a call that is probed costs; ``read_hits``
    gives the calls by process, and ``forget_hits`` has them forgotten.
    """

    def __init__(
        self,
        symbols: Collection[str],
        percent: float,
        trap_ns: Callable[[], float],
        read_hits: Callable[[], Mapping[int, int]],
        forget_hits: Callable[[int], object],
    ) -> None:
        if uprobe_links() < UprobeLinks.MULTI or kernel_version() < _BY_PROCESS:
            raise BpfError("max_overhead needs Linux 6.10: earlier ones probe no single process")
        allow_descriptors()
        self._symbols = frozenset(symbols)
        self._percent, self._measure, self._trap_ns = percent, trap_ns, UNTRIED_NS
        self._read_hits, self._forget_hits = read_hits, forget_hits
        self._entered: deque[int] = deque(maxlen=_ENTERED)
        self._processes: dict[int, _Process] = {}
        self._leaving: list[Link] = []
        self._lock = threading.RLock()
        self._thread = DueThread("process probes", self._try_traps, self.step)
        self._unobserved: Counter[int] = Counter()  # ns, by process, since the last collection
        self.counters: Counter[str] = Counter()

    def of_file(
        self,
        descriptor: int,
        hooks: Sequence[Hook],
        offsets: Mapping[str, int],
        *,
        with_returns: bool,
        file_cookies: Mapping[str, int],
    ) -> FileProbes | None:
        """Those of a file that each process has for itself; None: of these ``hooks`` it has none."""
        mine = [hook for hook in hooks if hook.symbol in offsets and hook.symbol in self._symbols]
        if not mine:
            return None
        return FileProbes(
            self, descriptor, mine, offsets, with_returns=with_returns, file_cookies=file_cookies
        )

    def enter(self, tgid: int) -> None:
        """A process will be in scope: one that is about to be started is so before the files it will have are known."""
        self._entered.append(tgid)

    def expect(self, file: FileProbes) -> None:
        """A program that is about to be started will have a file: its process has the probes from the beginning."""
        for tgid in self._entered:
            self.add(tgid, file)

    def add(self, tgid: int, file: FileProbes) -> None:
        """A process has a file."""
        with self._lock:
            process = self._processes.get(tgid)
            if process is None:
                now_ns = monotonic_ns()
                process = self._processes[tgid] = _Process(
                    budget=CallBudget(self._percent, self._trap_ns),
                    since_ns=now_ns,
                    due_ns=now_ns + _CHECK_NS,
                )
            if file in process.files:
                return
            process.files.append(file)
            if process.is_open:
                self._attach(tgid, process, file)
            self._thread.start()
        self._thread.wake()

    def forget(self, tgid: int) -> None:
        """A process has ended, or is another program."""
        with self._lock:
            process = self._processes.pop(tgid, None)
            if process is not None:
                self._count_unobserved(tgid, process, monotonic_ns())
                self._detach(process)
            self._forget_hits(tgid)
        self._thread.wake()

    def drop(self, file: FileProbes) -> None:
        """Nobody has a file any more."""
        with self._lock:
            for process in self._processes.values():
                if file in process.files:
                    process.files.remove(file)
                    self._leaving += process.links.pop(id(file), ())
        self._thread.wake()

    def collect(self, now_ns: int) -> list[Input]:
        """For how long which processes were not observed since the last time."""
        with self._lock:
            for tgid, process in self._processes.items():
                self._count_unobserved(tgid, process, now_ns)
            found, self._unobserved = self._unobserved, Counter()
        return [
            CallsUnobserved(tgid=tgid, family=_FAMILY, duration_ns=duration_ns)
            for tgid, duration_ns in found.items()
            if duration_ns > 0
        ]

    def step(self, now_ns: int) -> int:
        """Do what is due; when the next is."""
        with self._lock:
            due = [(tgid, each) for tgid, each in self._processes.items() if now_ns >= each.due_ns]
            hits = self._read_hits() if due else {}
            for tgid, process in due:
                self._turn(tgid, process, hits.get(tgid, 0), now_ns)
            due_ns = min((each.due_ns for each in self._processes.values()), default=now_ns + _SECOND_NS)
            leaving, self._leaving = self._leaving, []
        for link in leaving:  # tens of milliseconds for each, in which nobody else is to wait
            link.detach()
        return due_ns

    def close(self) -> None:
        """Take everything off; idempotent."""
        self._thread.stop()
        with self._lock:
            links = self._leaving + [
                link for each in self._processes.values() for found in each.links.values() for link in found
            ]
            self._processes.clear()
        detach_all(links)

    # -- windows ------------------------------------------------------------------------------------

    def _try_traps(self) -> None:
        trap_ns = self._measure()
        with self._lock:
            self._trap_ns = trap_ns
            for process in self._processes.values():
                process.budget.cost_of(trap_ns)

    def _turn(self, tgid: int, process: _Process, hits: int, now_ns: int) -> None:
        if not process.is_open:
            self._open(tgid, process, hits, now_ns)
            return
        process.budget.measured(max(hits - process.hits, 0), now_ns - process.since_ns)
        process.since_ns, process.hits = now_ns, hits
        window = process.budget.window
        if window.is_always:
            if process.is_lowered:
                self._raise(tgid, process)
            process.due_ns = now_ns + _CHECK_NS
            return
        if not process.is_lowered:
            self._lower(tgid, process)
        self._detach(process)
        process.is_open = False
        process.due_ns = now_ns + (window.period_ns - window.open_ns if window.open_ns else _RETRY_NS)

    def _open(self, tgid: int, process: _Process, hits: int, now_ns: int) -> None:
        self._count_unobserved(tgid, process, now_ns)
        process.is_open = True
        for file in process.files:
            self._attach(tgid, process, file)
        process.since_ns, process.hits = monotonic_ns(), hits
        process.due_ns = process.since_ns + max(process.budget.window.open_ns, _SHORTEST_NS)

    def _count_unobserved(self, tgid: int, process: _Process, now_ns: int) -> None:
        if not process.is_open:
            self._unobserved[tgid] += now_ns - process.since_ns
            process.since_ns = now_ns

    def _lower(self, tgid: int, process: _Process) -> None:
        process.is_lowered = True
        self.counters["probes_taken_off"] += 1
        _log.warning(
            "process %d: to observe %.0f calls a second costs it %.1f %% of a core: from now on they are observed "
            "in windows (--max-overhead %g)",
            *(tgid, process.budget.rate, 100 * process.budget.cost, self._percent),
        )

    def _raise(self, tgid: int, process: _Process) -> None:
        process.is_lowered = False
        self.counters["probes_kept_again"] += 1
        _log.warning("process %d: all its calls are observed again", tgid)

    # -- probes -------------------------------------------------------------------------------------

    def _attach(self, tgid: int, process: _Process, file: FileProbes) -> None:
        links, refused = file.attach(tgid)
        process.links[id(file)] = links
        self.counters["process_probes_refused"] += len(refused)
        for refusal in refused:
            _log.warning("process %d: %s", tgid, refusal)

    def _detach(self, process: _Process) -> None:
        self._leaving += [link for links in process.links.values() for link in links]
        process.links.clear()
