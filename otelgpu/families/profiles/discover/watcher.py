"""What family ``profile`` needs to find out in observed processes: interpreters, unwind tables, names of stacks.

In: batches as they are drained, and what processes do. Out: :class:`StackNamed`, in the collection in which a stack was
reported, so before the tick after which its samples count. It puts three together: tables by which BPF walks stacks of
code without frame pointers, interpreters whose frames it reads, and the names of all that.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from otelgpu.families.profiles.discover.stacks import REASONS as STACK_REASONS
from otelgpu.families.profiles.discover.stacks import SLICE_S, Pythons, StackNamer
from otelgpu.kernel.libbpf import BpfError
from otelgpu.kernel.loader import LoadedFamily
from otelgpu.model.codes import values_of
from otelgpu.model.inputs import Batch, Input
from otelgpu.model.losses import Reasons
from otelgpu.model.samples import StackNamed
from otelgpu.processes.listing import age_s, is_child, is_copy_of_this

STACK: Final = "profile_stack"
"""The struct of records that report stacks."""

MAX_SEEN: Final = 8192
"""Processes that are known to have samples; beyond, the first is looked at again with its next one."""

REASONS: Final = Reasons(
    "profile",
    {
        "stack_not_reported_again": "a stack that the BPF program could not be asked for again: it comes in a minute",
        **STACK_REASONS,
    },
    unavailable=("kernel_symbols_hidden", "kernel_symbols_unreadable"),
)
"""What is counted, and what one count means; beside it, what interpreters and unwind tables count."""

BLOCK_PROGRAM: Final = "block_completed"
"""Loaded where requests to block devices are asked for (bpf/profile/block.h)."""
_LONG_S: Final = 1.0
_LAST_S: Final = 5.0  # for all stacks that are left at the end of a session
_NUMBER: Final = struct.Struct("<Q")


class Walked(Protocol):
    """What BPF has to know of a process: unwind tables, interpreters, its control group."""

    @property
    def counters(self) -> Mapping[str, int]:
        """Losses by reason, since the start."""

    def see(self, tgid: int) -> object:
        """A process has a sample, for the first time or as another program."""

    def mapped(self, tgid: int) -> object:
        """It has mapped something."""

    def forget(self, tgid: int) -> object:
        """It has ended, or becomes another program."""

    def close(self) -> object:
        """Let everything go."""


class Interpreting(Walked, Pythons, Protocol):
    """The interpreters: what they are called, beside where they are."""


class Ahead(Protocol):
    """What can be found out before a program runs."""

    def prepare(self, path: Path) -> object:
        """A program is about to load a file."""

    def hurry(self, tgid: int) -> object:
        """A process has samples: what it waits for comes before what others may need."""

    def settle(self, seconds: float) -> object:
        """Wait until what is under way is done, at most so long."""


class ToldStacks(Protocol):
    """BPF's map of the stacks that it has reported: what is deleted from it is reported again."""

    def delete(self, key: bytes) -> bool:
        """Whether it was there."""


class ProfileWatcher:
    """A watcher: see :mod:`otelgpu.processes.discovery`."""

    def __init__(
        self,
        namer: StackNamer,
        reported: ToldStacks,
        walked: Sequence[Walked] = (),
        ahead: Ahead | None = None,
    ) -> None:
        self._ahead = ahead
        self._namer = namer
        self._reported = reported
        self._walked = walked
        self._own: Counter[str] = Counter()
        self._seen: dict[int, None] = {}  # in their order
        self._named: list[StackNamed] = []
        self._ended: set[int] = set()
        self._is_last = False

    @property
    def counters(self) -> Mapping[str, int]:
        """Losses by reason, since the start."""
        total = Counter(self._namer.counters)
        for each in (self._own, *(walked.counters for walked in self._walked)):
            total.update(each)
        return total

    def look(self, batch: Batch) -> None:
        """Stacks are put together; a process that was not seen before is looked at."""
        for tgid in values_of(np.ascontiguousarray(batch.heads["tgid"])):
            if tgid not in self._seen:
                self._see(tgid)
            if self._ahead is not None:
                self._ahead.hurry(tgid)
        if batch.kind == STACK:
            self._namer.add(batch.records)

    def mapped(self, tgid: int) -> None:
        """A process has mapped a file: of those that were seen it is looked at anew."""
        if tgid in self._seen:
            self._namer.mapped(tgid)
            for walked in self._walked:
                walked.mapped(tgid)

    def expect(self, tgid: int) -> None:
        """A process of the scope runs, or has mapped something.

        One that has run for a while will have samples, and so has the program that is run for a profile: it is looked
        at now, unless it has yet to begin. Others are with their first, for most processes of a host end before that.
        """
        if (
            tgid not in self._seen
            and (age_s(tgid) >= _LONG_S or is_child(tgid))
            and not is_copy_of_this(tgid)
        ):
            self._see(tgid)

    def complete(self) -> None:
        """The collection that follows is the last: it takes its time."""
        self._is_last = True

    def prepare(self, path: Path) -> None:
        """A program is about to load a file: how its stacks are walked is found out before it runs."""
        if self._ahead is not None:
            self._ahead.prepare(path)

    def settle(self, tgids: Collection[int], seconds: float) -> None:
        """Wait until stacks of these processes, and of what was prepared, can be walked, at most so long."""
        for tgid in tgids:
            if tgid not in self._seen:
                self._see(tgid)
        if self._ahead is not None:
            self._ahead.settle(seconds)

    def program_changed(self, tgid: int) -> None:
        """A process runs another program, in which nothing is where it was."""
        if tgid in self._seen:
            self._named += self._namer.collect()  # while it is known what was where
            self._forget(tgid)

    def collect(self, now_ns: int) -> Sequence[Input]:
        """The stacks that were reported since the last time, by name."""
        last, self._is_last = self._is_last, False
        fresh = self._namer.collect(_LAST_S if last else SLICE_S, last=last)
        named, self._named = self._named + fresh, []
        for tgid in self._ended:
            self._forget(tgid)
        self._ended.clear()
        again, self._namer.to_report_again = self._namer.to_report_again, []
        self._report_again(again)
        return named

    def forget(self, tgid: int) -> None:
        """A process has ended; its last stacks are named in the collection that follows."""
        if tgid in self._seen:
            self._ended.add(tgid)

    def close(self) -> None:
        """Let files and maps go; idempotent."""
        walked, self._walked = self._walked, ()
        with ExitStack() as last_first:
            last_first.callback(self._namer.close)
            for each in walked:
                last_first.callback(each.close)

    def _see(self, tgid: int) -> None:
        if len(self._seen) >= MAX_SEEN:
            self._forget(next(iter(self._seen)))
        self._seen[tgid] = None
        self._ended.discard(tgid)  # its number is another process' by now
        for walked in self._walked:
            walked.see(tgid)
        self._namer.see(tgid)

    def _forget(self, tgid: int) -> None:
        self._seen.pop(tgid, None)
        self._namer.forget(tgid)
        for walked in self._walked:
            walked.forget(tgid)

    def _report_again(self, stacks: Iterable[int]) -> None:
        for stack in stacks:
            try:
                self._reported.delete(_NUMBER.pack(stack))
            except BpfError:
                self._own["stack_not_reported_again"] += 1  # it is, after a minute


def open_profile_watcher(loaded: LoadedFamily) -> ProfileWatcher:
    """The watcher of the loaded family, with all that its maps are for."""
    from otelgpu.families.profiles.discover.charged_groups import ChargedGroups
    from otelgpu.families.profiles.discover.interpreters import Interpreters
    from otelgpu.families.profiles.discover.unwind_tables import UnwindTables

    tables, interpreters = UnwindTables(loaded), Interpreters(loaded)
    walked: list[Walked] = [tables, interpreters]
    if any(program.name == BLOCK_PROGRAM for program in loaded.programs):
        walked.append(ChargedGroups(loaded.map("block_owners")))
    ends = {number: word for word, number in loaded.image.btf.enumerators("stack_end").items()}
    return ProfileWatcher(StackNamer(ends, interpreters), loaded.map("reported_stacks"), walked, tables)
