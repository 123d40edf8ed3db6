"""Work without a request: one trace per process and window of time, so that it stays visible.

Operations join the window in which they ended. Memory is bounded: a window that grows is folded on the
way, which keeps every sum exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from otelgpu.engine import names
from otelgpu.engine.folding import Folded, Parents, concatenate, fold, unfolded
from otelgpu.engine.services import NEVER_NS
from otelgpu.engine.totals import Totals
from otelgpu.model.codes import combine, distinct, examples
from otelgpu.model.ids import span_ids, trace_ids
from otelgpu.model.operations import OperationKind, Operations
from otelgpu.model.resource import Resource
from otelgpu.model.spans import Attribute, SpanColumns, SpanKind, constant_text

WINDOW_NS: Final = 5_000_000_000
GRACE_NS: Final = 3_000_000_000
"""How long after its end a window still takes what ended in it: steps give back what is of none after a second."""

SPAN_NAME: Final = "unattributed gpu work"
PROBE_SPAN_NAME: Final = "unattributed probe hits"
_SCOPE: Final = "otelgpu"
_TRACE_SALT: Final = 0x756E
_ROOT_SALT: Final = 0x7572  # or a root's span id would be half of its trace id

_FOLD_AT_LEAST: Final = 8192

Key = tuple[int, int, int]  # tgid, window, position in names.UNATTRIBUTED_REASONS


def window_roots(
    tgids: npt.NDArray[np.uint64],
    windows: npt.NDArray[np.uint64],
    reasons: npt.NDArray[np.uint64],
    *,
    seed: int,
) -> Parents:
    """The root spans of windows, made of what names them: known before they are reported, and after."""
    return Parents(
        trace_id=trace_ids(seed ^ _TRACE_SALT, tgids, windows, reasons),
        span_id=span_ids(seed ^ _ROOT_SALT, tgids, windows, reasons),
        flags=np.ones(len(tgids), dtype=np.uint32),
    )


class _Window(Struct):
    totals: npt.NDArray[np.int64]
    parts: list[Folded] = field(default_factory=list)
    rows: int = 0


class ClosedWindows(Struct, frozen=True, kw_only=True):
    """m finished windows: their root spans, and their operations grouped by position in ``parents``."""

    roots: list[SpanColumns]
    parents: Parents
    work: Folded


class UnattributedWindows:
    """Collects until a window is over. ``limit``: spans kept apart per window; ``runs``: fold equal calls."""

    def __init__(self, totals: Totals, *, limit: int, runs: bool) -> None:
        self._totals = totals
        self._limit = limit
        self._runs = runs
        self._raised: Mapping[int, tuple[int, bool]] = {}
        self._open: dict[Key, _Window] = {}
        self._closed_until = 0  # first window that may still be opened

    def keep(self, limit: int, *, runs: bool) -> None:
        """Another bound from now on, for windows that are open too."""
        self._limit, self._runs = limit, runs

    def raise_limits(self, raised: Mapping[int, tuple[int, bool]]) -> None:
        """Other bounds for some processes, by tgid: ``limit`` and ``runs``."""
        self._raised = raised

    @property
    def due_ns(self) -> int:
        """When the first of those that are open is over."""
        return (min(key[1] for key in self._open) + 1) * WINDOW_NS + GRACE_NS if self._open else NEVER_NS

    def add(self, rows: Operations, reason: npt.NDArray[np.int64]) -> None:
        """Take operations without a request; ``reason`` indexes ``names.UNATTRIBUTED_REASONS``.

        The array is kept, not copied.
        """
        if not len(rows):
            return
        ends = rows["start_ns"] + rows["duration_ns"]
        window = np.maximum(ends // WINDOW_NS, np.uint64(self._closed_until)).astype(np.int64)
        tgids, tgid_codes = distinct(np.ascontiguousarray(rows["tgid"]))
        windows, window_codes = distinct(window)
        codes, count = combine(
            [
                (tgid_codes, len(tgids)),
                (window_codes, len(windows)),
                (reason.astype(np.intp), len(names.UNATTRIBUTED_REASONS)),
            ],
            len(rows),
        )
        sums = self._totals.by_group(rows, codes, count)
        for position, row in enumerate(examples(codes, count).tolist()):
            mine = rows if count == 1 else rows.compress(codes == position)
            key = (int(rows["tgid"][row]), int(window[row]), int(reason[row]))
            held = self._open.setdefault(key, _Window(np.zeros(len(self._totals), dtype=np.int64)))
            held.totals += sums[position]
            held.parts.append(unfolded(mine, np.zeros(len(mine), dtype=np.int64)))
            held.rows += len(mine)
            limit, _ = self._raised.get(key[0], (self._limit, self._runs))
            if held.rows > _FOLD_AT_LEAST + 2 * limit:
                self._fold(key[0], held)

    def _fold(self, tgid: int, held: _Window) -> None:
        limit, runs = self._raised.get(tgid, (self._limit, self._runs))
        held.parts = [fold(concatenate(held.parts), limit=limit, runs=runs)]
        held.rows = len(held.parts[0])

    def close(
        self, now_ns: int, resource_of: Callable[[int], Resource], *, seed: int, offset_ns: int, final: bool
    ) -> ClosedWindows | None:
        """Windows that are over by ``now_ns``, or all when ``final``; None when there are none."""
        over = max((now_ns - GRACE_NS) // WINDOW_NS, 0)
        self._closed_until = max(self._closed_until, over)
        keys = sorted(key for key in self._open if final or key[1] < over)
        if not keys:
            return None
        held = [self._open.pop(key) for key in keys]
        for key, window in zip(keys, held, strict=True):
            self._fold(key[0], window)
        words = np.array(keys, dtype=np.uint64)
        parents = window_roots(words[:, 0], words[:, 1], words[:, 2], seed=seed)
        for position, window in enumerate(held):
            window.parts[0].group[:] = position
        roots = [
            self._root(key, window, position, parents, resource_of(key[0]), offset_ns)
            for position, (key, window) in enumerate(zip(keys, held, strict=True))
        ]
        return ClosedWindows(
            roots=roots, parents=parents, work=concatenate([window.parts[0] for window in held])
        )

    def _root(
        self, key: Key, window: _Window, position: int, parents: Parents, owner: Resource, offset_ns: int
    ) -> SpanColumns:
        work = window.parts[0]
        start, end = int(work.operations["start_ns"].min()), int(work.end_ns.max())
        only_probes = bool((work.operations["kind"] == OperationKind.PROBE).all())
        reason = Attribute.of(names.UNATTRIBUTED_REASON, [names.UNATTRIBUTED_REASONS[key[2]]])
        return SpanColumns(
            resource=owner,
            scope=_SCOPE,
            kind=SpanKind.INTERNAL,
            trace_id=parents.trace_id[position : position + 1],
            span_id=parents.span_id[position : position + 1],
            parent_span_id=np.zeros((1, 8), dtype=np.uint8),
            trace_state=None,
            flags=parents.flags[position : position + 1],
            start_unix_ns=np.array([start + offset_ns], dtype=np.uint64),
            end_unix_ns=np.array([end + offset_ns], dtype=np.uint64),
            name=constant_text(PROBE_SPAN_NAME if only_probes else SPAN_NAME, 1),
            status=np.zeros(1, dtype=np.uint8),
            status_message=None,
            attributes=(reason, *self._totals.attributes(window.totals[None, :])),
        )
