"""Process ids that were given again when their owners had ended: what is of the former is collected first.

In: what the kernel reports of processes, and records. Out: which of both must wait for the next collection, and the
ends of processes, each once.

Example: the agent is not run for a while; process 7 makes calls and ends at 20 s, and another process 7 begins at 21 s
and makes calls, too. The first collection has the former's calls, named by what it had mapped, and its end. The events
of the other, and its calls, those from 21 s on, are with the second.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from otelgpu.model.inputs import Batch, ProcessGone
from otelgpu.processes.described import DescribedProcesses
from otelgpu.sources.process_events import EXEC, EXIT, FORK

_NEVER: Final = np.uint64(2**64 - 1)


class Successions:
    """Those of one session. ``processes``: since when each is what it is."""

    def __init__(self, processes: DescribedProcesses) -> None:
        self._processes = processes
        self._ended: dict[int, ProcessGone] = {}  # not collected yet, in the order of their ends
        self._succeeded: dict[int, int] = {}  # of these, those whose number is another's, and since when
        self._late: list[Batch] = []  # the others' records
        self._unseen: list[int] = []

    @property
    def are_waiting(self) -> bool:
        """Whether there is something to collect before what waits is handled."""
        return bool(self._succeeded)

    def end(self, tgid: int, time_ns: int) -> None:
        """A process has ended. Said twice it is once; what is older than the process is of one before it."""
        if tgid not in self._ended and time_ns >= self._processes.began_ns(tgid):
            self._ended[tgid] = ProcessGone(tgid=tgid, time_ns=time_ns)

    def must_wait(self, kind: str, tgid: int, time_ns: int) -> bool:
        """Whether an event is of the next owner of a number whose former one is to be collected first."""
        ended = self._ended.get(tgid)
        if ended is None:
            if kind == FORK:
                is_another = self._processes.began_before(tgid, time_ns)
            else:
                is_another = kind == EXEC and self._processes.is_another_now(tgid)
            if not is_another:
                return False
            ended = self._ended[tgid] = ProcessGone(tgid=tgid, time_ns=time_ns - 1)  # it was not reported
        elif kind == EXIT or time_ns <= ended.time_ns:
            return False
        self._succeeded.setdefault(tgid, time_ns if kind == FORK else ended.time_ns + 1)
        return True

    def is_over(self, tgid: int, now_ns: int) -> bool:
        """Whether a process of which events were lost has ended. Its number may be another's then."""
        if not Path(f"/proc/{tgid}").exists():
            self.end(tgid, now_ns)
            return True
        if tgid in self._ended or not self._processes.is_another_now(tgid):
            return False
        self.end(tgid, now_ns)
        self._succeeded[tgid] = self._processes.starts_ns(tgid) or now_ns
        self._unseen.append(tgid)
        return True

    def take_unseen(self) -> list[int]:
        """Numbers of which :meth:`is_over` said so, and that are another's: to be looked at when the end is taken."""
        unseen, self._unseen = self._unseen, []
        return unseen

    def take(self, now_ns: int) -> list[ProcessGone]:
        """Who ended by then, for the collection that has all of theirs."""
        gone = [each for each in self._ended.values() if each.time_ns <= now_ns]
        for each in gone:
            del self._ended[each.tgid]
            self._succeeded.pop(each.tgid, None)
        return gone

    def collected(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """What waited for this collection, and these; without the records that wait for the next."""
        late, self._late = self._late, []
        for batch in (*late, *batches) if late else batches:
            yield from self._now(batch) if self._succeeded else (batch,)

    def _now(self, batch: Batch) -> Iterator[Batch]:
        waits = batch.heads["time_ns"] >= _since(self._succeeded, batch.heads["tgid"])
        if waits.any():
            self._late.append(replace(batch, records=batch.records[waits].copy()))
            batch = replace(batch, records=batch.records[~waits])
        if len(batch.records):
            yield batch


def _since(succeeded: Mapping[int, int], tgids: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint64]:
    """Of each record since when its number is another's; :data:`_NEVER` where not. ``succeeded`` has one at least.

    One search for all: when the agent is starved there are thousands of both.
    """
    numbers = np.fromiter(succeeded.keys(), dtype=np.uint32, count=len(succeeded))
    since_ns = np.fromiter(succeeded.values(), dtype=np.uint64, count=len(succeeded))
    order = np.argsort(numbers)
    places = order[np.minimum(np.searchsorted(numbers, tgids, sorter=order), len(numbers) - 1)]
    return np.where(numbers[places] == tgids, since_ns[places], _NEVER)
