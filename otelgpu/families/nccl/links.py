"""What collectives are linked to: what they were called under, and the RDMA connections that carry them. Pure.

They are called under a span that the process published, a request or a step: of what applies the first, in the order of
trust of DESIGN.md section 5. Whom a call was made for is asked of others call by call, which costs more than all else
here; a step that has two calls of a thread has those between them, so that it is asked about as often as there are
steps, not calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from otelgpu.engine.operation_spans import published_parents
from otelgpu.families.nccl.calls import Calls
from otelgpu.families.nccl.spans import NO_LINK, CallLinks, Carriers
from otelgpu.model.codes import Codes, combine, distinct, order_of
from otelgpu.model.context import UNSETTLED, Context, Unsettled
from otelgpu.model.context_sources import IS_PUBLISHED, ContextSource

ASKED: Final = 8192
"""Questions about steps at a tick; of calls beyond, the step is asked for at a later one."""

_REQUEST: Final = ContextSource.THREAD.exported
_STEP: Final = ContextSource.STEP.exported
_COMMUNICATOR: Final = "communicator"

CONNECTIONS: Final = 4
"""Connections that one call is linked to; a communicator of many hosts has hundreds, which its hash finds."""

StepAt = Callable[[int, int, int], Context | Unsettled | None]
Connections = Callable[[int, int], Sequence[Context]]


class LinkFinder:
    """One session's."""

    def __init__(
        self,
        request_context: Callable[[int], Context | None],
        step_at: StepAt,
        connections: Connections,
    ) -> None:
        self._request_context, self._step_at, self._connections = request_context, step_at, connections
        self._asked = 0
        self.counters: Counter[str] = Counter()

    def find(self, calls: Calls) -> tuple[CallLinks, npt.NDArray[np.bool_]]:
        """What calls were made under; and of which that is not known yet."""
        self._asked = 0
        found = np.full(len(calls), NO_LINK, dtype=np.int64)
        unsettled = np.zeros(len(calls), dtype=np.bool_)
        contexts: list[tuple[Context, str]] = []
        published = np.flatnonzero(IS_PUBLISHED[calls.rows["context_source"]])
        if len(published):
            some = calls.rows.take(published)
            parents, codes = published_parents(some)
            sources = some["context_source"]
            for code in range(len(parents.flags)):
                context = Context(
                    parents.trace_id[code].tobytes(),
                    parents.span_id[code].tobytes(),
                    int(parents.flags[code]),
                )
                source = ContextSource(int(sources[np.argmax(codes == code)])).exported
                contexts.append((context, source))
            found[published] = codes
        self._find_requests(calls, found, contexts)
        rest = np.flatnonzero(found == NO_LINK)
        if len(rest):
            self._find_steps(calls, rest, found, unsettled, contexts)
        carrier, carriers = self._find_connections(calls, contexts)
        return CallLinks(context=found, carrier=carrier, contexts=contexts, carriers=carriers), unsettled

    def _find_connections(
        self, calls: Calls, contexts: list[tuple[Context, str]]
    ) -> tuple[npt.NDArray[np.int64], list[Carriers]]:
        """Of each call, those of its process that were made for its communicator."""
        found = np.full(len(calls), NO_LINK, dtype=np.int64)
        carriers: list[Carriers] = []
        tgids, tgid_codes = distinct(np.ascontiguousarray(calls.rows["tgid"]))
        hashes, hash_codes = distinct(np.ascontiguousarray(calls.found["hash"]))
        codes, _ = combine([(tgid_codes, len(tgids)), (hash_codes, len(hashes))], len(calls))
        for code, row in zip(*np.unique(codes, return_index=True), strict=True):
            hashed = int(calls.found["hash"][row])
            reported = self._connections(int(calls.rows["tgid"][row]), hashed) if hashed else ()
            if reported:
                found[codes == code] = len(carriers)
                first = len(contexts)
                contexts += [(each, _COMMUNICATOR) for each in reported[:CONNECTIONS]]
                carriers.append(
                    Carriers(tuple(range(first, len(contexts))), max(len(reported) - CONNECTIONS, 0))
                )
        return found, carriers

    def _find_requests(
        self, calls: Calls, found: npt.NDArray[np.int64], contexts: list[tuple[Context, str]]
    ) -> None:
        owners = np.where(found == NO_LINK, calls.found["owner"], 0)
        for key in np.unique(owners[owners > 0]).tolist():
            context = self._request_context(key)
            if context is not None:
                found[owners == key] = len(contexts)
                contexts.append((context, _REQUEST))

    def _find_steps(
        self,
        calls: Calls,
        rest: Codes,
        found: npt.NDArray[np.int64],
        unsettled: npt.NDArray[np.bool_],
        contexts: list[tuple[Context, str]],
    ) -> None:
        rows = calls.rows
        tgids, tgid_codes = distinct(np.ascontiguousarray(rows["tgid"][rest]))
        tids, tid_codes = distinct(np.ascontiguousarray(rows["tid"][rest]))
        codes, count = combine([(tgid_codes, len(tgids)), (tid_codes, len(tids))], len(rest))
        order = order_of(codes, count)
        known: dict[Context, int] = {}
        begin = 0
        for end in np.cumsum(np.bincount(codes, minlength=count)).tolist():
            mine = rest[order[begin:end]]
            begin = end
            mine = mine[np.argsort(rows["start_ns"][mine], kind="stable")]
            thread = int(rows["tgid"][mine[0]]), int(rows["tid"][mine[0]])
            for first, last, answer in self._of_thread(*thread, rows["start_ns"][mine].tolist()):
                if isinstance(answer, Unsettled):
                    unsettled[mine[first:last]] = True
                elif answer is not None:
                    if answer not in known:
                        known[answer] = len(contexts)
                        contexts.append((answer, _STEP))
                    found[mine[first:last]] = known[answer]

    def _of_thread(
        self, tgid: int, tid: int, times_ns: list[int]
    ) -> list[tuple[int, int, Context | Unsettled | None]]:
        """Runs ``[first, last)`` of calls in order of time, and what each run was called under."""
        answers: dict[int, Context | Unsettled | None] = {}

        def ask(row: int) -> Context | Unsettled | None:
            if row not in answers:
                if self._asked >= ASKED:
                    return UNSETTLED
                self._asked += 1
                answers[row] = self._step_at(tgid, tid, times_ns[row])
            return answers[row]

        runs: list[tuple[int, int, Context | Unsettled | None]] = []
        stack = [(0, len(times_ns) - 1)]
        while stack:
            first, last = stack.pop()
            before, after = ask(first), ask(last)
            if first == last or (before is not None and before == after):
                runs.append((first, last + 1, before))
            elif last == first + 1:
                runs += [(first, last, before), (last, last + 1, after)]
            else:
                middle = (first + last) // 2
                stack += [(first, middle), (middle + 1, last)]
        return runs
