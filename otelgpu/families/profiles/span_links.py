"""Which span each observation of a profile belongs to, in the order of trust of DESIGN.md section 5. Pure.

In: rows of (process, thread, time), what the process published on the thread. Out: for each row the ids of a span
that is reported, by us or by the process itself, or zeros; or that this cannot be said yet.

The first that applies: the span that the process published; the request that the thread read, or was woken for, once
that is answered and reported; the step that the thread was in. Work of several requests at once is nobody's.

A request may be answered long after: a row waits for it as long as its interval is held open, and then takes the
context that the request has so far, which is the span that will be said when it is answered.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from otelgpu.engine.profile_rows import PROFILE_ROW
from otelgpu.model.codes import distinct, values_of
from otelgpu.model.context import Context, Unsettled
from otelgpu.model.context_sources import IS_PUBLISHED, ContextSource

OwnersByTask = Callable[
    [
        npt.NDArray[np.uint32],
        npt.NDArray[np.uint32],
        npt.NDArray[np.uint8],
        npt.NDArray[np.uint64],
        bool,
    ],
    npt.NDArray[np.int64],
]
"""The same by process, thread, ``span_id`` of a record of a task, and time."""

OwnersAt = Callable[[npt.NDArray[np.uint32], npt.NDArray[np.uint64], bool], npt.NDArray[np.int64]]
"""By thread and time, and whether no more will be known: the request; 0 none, else :data:`UNDECIDED` or ambiguous."""

SpanOf = Callable[[int, bool], Context | Unsettled | None]
"""Of a request, and whether it is waited for no more."""

StepAt = Callable[[int, int, int], Context | Unsettled | None]
"""Of a process, thread and time."""

HasSteps = Callable[[int], bool]
"""Whether any thread of a process may be in a step at any time: most processes have none."""

UNDECIDED: Final = -2
"""The same number as :data:`otelgpu.engine.attribution.returns.UNSETTLED`."""

_SAMPLED: Final = 1
STEPS_ASKED: Final = 20_000
"""Times a tick that a step is asked for: of what is left the next tick asks."""


class LinkState(IntEnum):
    """How far the link of a row is known."""

    NEW = 0
    OF_REQUEST = 1  # ``owner`` is a request that is not answered yet
    OF_STEP = 2  # of no request; perhaps of a step
    SETTLED = 3


LINKED_ROW: Final = np.dtype(
    [
        *((name, PROFILE_ROW[name]) for name in PROFILE_ROW.names or ()),
        ("owner", "<i8"),
        ("resource", "<u4"),
        ("series", "<u4"),
        ("link", "u1"),  # LinkState
    ]
)
"""Shape (n,): PROFILE_ROW, and what a session knows besides. ``leaf`` and ``label`` are of the session's tables."""

LinkedRows = npt.NDArray[np.void]


class SpanLinks:
    """One session's."""

    def __init__(
        self,
        owners_at: OwnersAt,
        owners_by_task: OwnersByTask,
        span_of: SpanOf,
        step_at: StepAt,
        has_steps: HasSteps,
    ) -> None:
        self._owners_at, self._owners_by_task, self._span_of = owners_at, owners_by_task, span_of
        self._step_at, self._has_steps = step_at, has_steps

    def settle(self, rows: LinkedRows, *, final: bool) -> npt.NDArray[np.bool_]:
        """Set what is known now; which rows are settled. ``final``: all are, as well as can be."""
        new = rows["link"] == LinkState.NEW
        if new.any():
            self._begin(rows, np.flatnonzero(new), final)
        waiting = np.flatnonzero(rows["link"] == LinkState.OF_REQUEST)
        if len(waiting):
            self._of_requests(rows, waiting, final)
        waiting = np.flatnonzero(rows["link"] == LinkState.OF_STEP)
        if len(waiting):
            self._of_steps(rows, waiting, final)
        return np.asarray(rows["link"] == LinkState.SETTLED)

    def leave(self, rows: LinkedRows) -> None:
        """Rows of processes that have ended: what their threads were given to do is asked for the last time."""
        new = np.flatnonzero(rows["link"] == LinkState.NEW)
        if len(new):
            self._begin(rows, new, True)

    def _begin(self, rows: LinkedRows, new: npt.NDArray[np.intp], final: bool) -> None:
        source = rows["context_source"][new]
        published = IS_PUBLISHED[source]
        named = new[published]
        if len(named):
            unsampled = named[(rows["trace_flags"][named] & _SAMPLED) == 0]
            rows["trace_id"][unsampled] = 0
            rows["span_id"][unsampled] = 0
            rows["link"][named] = LinkState.SETTLED
        rest = new[~published]
        if not len(rest):
            return
        of_tasks = rows["context_source"][rest] == ContextSource.TASK
        tids, times_ns = (np.ascontiguousarray(rows[name][rest]) for name in ("tid", "time_ns"))
        if not of_tasks.any():
            owners = self._owners_at(tids, times_ns, final)
        else:
            owners = np.empty(len(rest), dtype=np.int64)
            owners[~of_tasks] = self._owners_at(tids[~of_tasks], times_ns[~of_tasks], final)
            some = rest[of_tasks]
            tgids, span_ids = np.ascontiguousarray(rows["tgid"][some]), rows["span_id"][some]
            owners[of_tasks] = self._owners_by_task(
                tgids, tids[of_tasks], span_ids, times_ns[of_tasks], final
            )
        known = rest[final | (owners != UNDECIDED)]
        rows["trace_id"][known] = 0
        rows["span_id"][known] = 0
        rows["owner"][rest] = owners
        state = np.where(owners > 0, np.uint8(LinkState.OF_REQUEST), np.uint8(LinkState.OF_STEP))
        state[owners == UNDECIDED] = LinkState.OF_STEP if final else LinkState.NEW
        rows["link"][rest] = state

    def _of_requests(self, rows: LinkedRows, waiting: npt.NDArray[np.intp], final: bool) -> None:
        keys, codes = distinct(np.ascontiguousarray(rows["owner"][waiting]))
        for code, key in enumerate(keys.tolist()):
            span = self._span_of(key, final)
            self._give(rows, waiting[codes == code], span, final)

    def _of_steps(self, rows: LinkedRows, waiting: npt.NDArray[np.intp], final: bool) -> None:
        """Steps are intervals: where a thread was in the same one at two times, it was in between."""
        tgids = np.ascontiguousarray(rows["tgid"][waiting])
        stepping = [tgid for tgid in values_of(tgids) if self._has_steps(tgid)]
        if not stepping:
            _set(rows, waiting, None)
            return
        inside = np.isin(tgids, stepping)
        _set(rows, waiting[~inside], None)
        waiting = waiting[inside]
        order = waiting[np.lexsort([rows[name][waiting] for name in ("time_ns", "tid", "tgid")])]
        threads = rows["tgid"][order].astype(np.uint64) << np.uint64(32) | rows["tid"][order]
        asked = 0
        for some in np.split(order, np.flatnonzero(np.diff(threads)) + 1):
            parts = [(0, len(some))]
            while parts and (final or asked < STEPS_ASKED):
                first, last = parts.pop()
                begin, end = self._step(rows[some[first]]), self._step(rows[some[last - 1]])
                asked += 2
                if (begin == end and begin is not None) or last - first <= 1:
                    self._give(rows, some[first:last], begin, final)
                elif last - first == 2:
                    self._give(rows, some[first : first + 1], begin, final)
                    self._give(rows, some[first + 1 : last], end, final)
                else:
                    middle = (first + last) // 2
                    parts += [(middle, last), (first, middle)]

    def _step(self, row: np.void) -> Context | Unsettled | None:
        return self._step_at(int(row["tgid"]), int(row["tid"]), int(row["time_ns"]))

    @staticmethod
    def _give(
        rows: LinkedRows, chosen: npt.NDArray[np.intp], span: Context | Unsettled | None, final: bool
    ) -> None:
        if not isinstance(span, Unsettled):
            _set(rows, chosen, span)
        elif final:
            _set(rows, chosen, None)


def _set(rows: LinkedRows, chosen: npt.NDArray[np.intp], span: Context | None) -> None:
    rows["link"][chosen] = LinkState.SETTLED
    if span is not None and span.sampled:
        rows["trace_id"][chosen] = np.frombuffer(span.trace_id, dtype=np.uint8)
        rows["span_id"][chosen] = np.frombuffer(span.span_id, dtype=np.uint8)
