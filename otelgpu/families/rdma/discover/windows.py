"""When the probes of RDMA providers are attached: posts as long as they are affordable, polls in windows.

In: files with the offsets of functions, and how often these ran. Out: probes that come and go, and how long each kind
was there. What decides is :mod:`otelgpu.kernel.probe_budget`; this attaches, detaches and keeps time. It has a thread
of its own, as a window is shorter than a collection and detaching takes the kernel tens of milliseconds.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Callable
from typing import Final, Protocol

from msgspec import Struct, field

from otelgpu.kernel.clock import monotonic_ns
from otelgpu.kernel.libbpf import BpfError, Link
from otelgpu.kernel.probe_budget import ProbeBudget, Window
from otelgpu.processes.due_thread import DueThread

_log = logging.getLogger("otelgpu.discover")

MAKERS, POSTS, POLLS = "verbs_makers", "verbs_posts", "verbs_polls"
"""What bpf/verbs/verbs.bpf.c calls the kinds of functions."""

_CHECK_NS: Final = 100_000_000  # how often the rate is looked at where probes stay
_FIRST_CHECK_NS: Final = 20_000_000  # what is not known yet may be a program that does nothing else
_RETRY_NS: Final = 60_000_000_000  # where the budget allows no window

Calls = dict[int, tuple[int, int]]
"""tgid → posts and polls that were probed so far."""


class Placer(Protocol):
    """What :class:`~otelgpu.processes.probes.ProbePlacer` does here."""

    def place_at(self, path: str, library: str, offsets: dict[str, int]) -> tuple[list[Link], list[BpfError]]:
        """Attach."""


class ProviderFile(Struct, kw_only=True):
    """One provider: its open file, offsets by kind, and the probes that are there now."""

    descriptor: int
    places: dict[str, set[tuple[str, int]]] = field(default_factory=dict)
    links: dict[str, list[Link]] = field(default_factory=dict)


class _Phase(Struct):
    is_open: bool = False
    since_ns: int = 0  # opened, or looked at while open
    due_ns: int = 0
    observed_ns: int = 0  # in what ended
    calls: Calls = field(default_factory=dict)  # at since_ns
    began_ns: int = 0  # when it was opened first

    def observed(self, now_ns: int) -> int:
        return self.observed_ns + (now_ns - self.since_ns if self.is_open else 0)


class ProbeWindows:
    """Opens and closes. ``read_calls`` and ``set_window`` reach into the kernel's maps."""

    def __init__(
        self,
        placer: Placer,
        budget: ProbeBudget,
        *,
        read_calls: Callable[[], Calls],
        set_window: Callable[[int], None],
        measure_trap: Callable[[], float] | None = None,
    ) -> None:
        """``measure_trap``: tries what a probed call costs in ns, once the first probes are there."""
        self._placer = placer
        self._budget = budget
        self._read_calls = read_calls
        self._set_window = set_window
        self._measure_trap = measure_trap
        self._files: list[ProviderFile] = []
        self._phases = {POSTS: _Phase(), POLLS: _Phase()}
        self._leaving: list[Link] = []
        self._number = 0
        self._lock = threading.RLock()
        self._thread = DueThread("verbs windows", self._try_trap, self.step)
        self.counters: Counter[str] = Counter()

    def add(self, file: ProviderFile, kind: str, places: set[tuple[str, int]]) -> None:
        """Probe these functions from now on, or whenever their kind is probed."""
        with self._lock:
            if file not in self._files:
                self._files.append(file)
            known = file.places.setdefault(kind, set())
            taken = {offset for each in file.places.values() for _, offset in each}
            fresh = {place for place in places - known if place[1] not in taken}
            self.counters["functions_shared"] += len(
                places - known - fresh
            )  # one body for two: counted as the first
            known |= fresh
            if fresh and (kind == MAKERS or self._phases[kind].is_open):
                self._attach(file, kind, fresh)

    def start(self) -> None:
        """Keep the windows from now on; idempotent."""
        with self._lock:
            if self._thread.was_started:
                return
            self.step(monotonic_ns())  # what is always probed is so before anything else happens
            now_ns, calls = monotonic_ns(), self._read_calls()
            for phase in self._phases.values():
                if phase.is_open:  # attaching takes long: what is made from here on was observed by both
                    phase.since_ns, phase.began_ns, phase.calls = now_ns, now_ns, calls
            self._thread.start()

    def observed(self, now_ns: int) -> tuple[int, int]:
        """ns that posts and polls were probed so far."""
        with self._lock:
            return self._phases[POSTS].observed(now_ns), self._phases[POLLS].observed(now_ns)

    @property
    def began_ns(self) -> int:
        """When posts or polls were first probed; 0: not yet."""
        with self._lock:
            return min((phase.began_ns for phase in self._phases.values() if phase.began_ns), default=0)

    def step(self, now_ns: int) -> int:
        """Do what is due; when the next is."""
        with self._lock:
            for kind, phase in self._phases.items():
                if now_ns >= phase.due_ns:
                    self._turn(kind, phase, now_ns)
            due_ns = min(phase.due_ns for phase in self._phases.values())
        self._let_go()
        return due_ns

    def close(self) -> None:
        """Take everything off; idempotent."""
        self._thread.stop()
        with self._lock:
            for kind in (POLLS, POSTS, MAKERS):
                self._detach(kind)
            for file in self._files:
                os.close(file.descriptor)
            self._files.clear()
        self._let_go()

    # -- windows ------------------------------------------------------------------------------------

    def _try_trap(self) -> None:
        if self._measure_trap is not None:
            trap_ns = self._measure_trap()
            with self._lock:
                self._budget.cost(trap_ns)

    def _turn(self, kind: str, phase: _Phase, now_ns: int) -> None:
        if phase.is_open:
            self._measure(kind, phase, now_ns)
        window = self._wanted(kind)
        if phase.is_open and not window.is_always:
            self._close(kind, phase, now_ns)
            rest_ns = window.period_ns - window.open_ns if window.open_ns else _RETRY_NS
            phase.due_ns = now_ns + rest_ns
        elif window.open_ns:
            self._open(kind, phase, window, now_ns)
        else:
            phase.due_ns = now_ns + _RETRY_NS

    def _wanted(self, kind: str) -> Window:
        return self._budget.posts if kind == POSTS else self._budget.polls

    def _open(self, kind: str, phase: _Phase, window: Window, now_ns: int) -> None:
        stays_ns = _CHECK_NS if phase.began_ns else _FIRST_CHECK_NS
        if not phase.is_open:
            if kind == POLLS:
                self._number += 1
                self._set_window(self._number)
                # A post that nobody saw cannot be matched with its completion.
                posts = self._phases[POSTS]
                if not posts.is_open and self._budget.posts.open_ns:
                    self._open(POSTS, posts, self._budget.posts, now_ns)
            phase.calls = self._read_calls()
            for file in self._files:
                self._attach(file, kind, file.places.get(kind, set()))
            phase.is_open = True
            phase.since_ns = monotonic_ns() if self._files else now_ns
            phase.began_ns = phase.began_ns or phase.since_ns
        phase.due_ns = now_ns + (stays_ns if window.is_always else window.open_ns)

    def _close(self, kind: str, phase: _Phase, now_ns: int) -> None:
        if kind == POLLS:
            self._set_window(0)
        phase.observed_ns += now_ns - phase.since_ns
        phase.is_open = False
        self._detach(kind)

    def _measure(self, kind: str, phase: _Phase, now_ns: int) -> None:
        """Report the budget what the busiest process did."""
        place = 0 if kind == POSTS else 1
        calls = self._read_calls()
        most = max(
            (counts[place] - phase.calls.get(tgid, (0, 0))[place] for tgid, counts in calls.items()),
            default=0,
        )
        elapsed_ns = now_ns - phase.since_ns
        if kind == POSTS:
            self._budget.measured(posts=max(most, 0), posts_ns=elapsed_ns)
        else:
            self._budget.measured(polls=max(most, 0), polls_ns=elapsed_ns)
        phase.observed_ns += elapsed_ns
        phase.since_ns = now_ns
        phase.calls = calls

    # -- probes -------------------------------------------------------------------------------------

    def _attach(self, file: ProviderFile, kind: str, places: set[tuple[str, int]]) -> None:
        path = f"/proc/self/fd/{file.descriptor}"
        for offsets in _rounds(places):
            links, refused = self._placer.place_at(path, kind, offsets)
            file.links.setdefault(kind, []).extend(links)
            self.counters["probes_refused"] += len(refused)
            for refusal in refused:
                _log.warning("provider of RDMA: %s", refusal)

    def _detach(self, kind: str) -> None:
        for file in self._files:
            self._leaving += file.links.pop(kind, ())

    def _let_go(self) -> None:
        """The kernel takes tens of milliseconds for each, in which nobody else is to wait."""
        leaving, self._leaving = self._leaving, []
        for link in leaving:
            link.detach()


def _rounds(places: set[tuple[str, int]]) -> list[dict[str, int]]:
    """A symbol may stand for several functions, of kinds of queue pairs: one of each at a time."""
    rounds: list[dict[str, int]] = []
    for symbol, offset in sorted(places):
        for offsets in rounds:
            if symbol not in offsets:
                offsets[symbol] = offset
                break
        else:
            rounds.append({symbol: offset})
    return rounds
