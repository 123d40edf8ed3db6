"""What engines did for a request → its ``queue``, ``prefill`` and ``decode`` spans. Pure.

In: requests with the steps that served them. Out: spans of the engine's process under the request's span: from when
the request was handed to the engine to the first call of the step that gave its first token; that step; and from
there to the end of the last. Earlier steps that worked on parts of its prompt cannot be distinguished from waiting:
their time is in ``queue``. Where the first token's step is not known there are none of these spans.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from otelgpu.engine import names
from otelgpu.engine.folding import Parents
from otelgpu.families.steps import names as step_names
from otelgpu.families.steps.step import RequestSteps
from otelgpu.model.exchange import Exchange
from otelgpu.model.ids import span_ids
from otelgpu.model.resource import Resource
from otelgpu.model.spans import Attribute, SpanColumns, SpanKind, Text

PHASES: Final = ("queue", "prefill", "decode")
_SALT: Final = 0x7068


def request_phases(
    exchanges: Sequence[Exchange],
    views: Sequence[RequestSteps | None],
    parents: Parents,
    resource_of: Callable[[int], Resource],
    *,
    seed: int,
    unix_offset_ns: int,
) -> list[SpanColumns]:
    """``views`` and ``parents`` (the requests' own spans) are per exchange; those not sampled get no spans."""
    by_engine: dict[int, list[int]] = {}
    for row, view in enumerate(views):
        if view is not None and view.first is not None and parents.flags[row] & 1:
            by_engine.setdefault(view.first.tgid, []).append(row)
    return [
        _batch(exchanges, views, parents, rows, resource_of(tgid), seed, unix_offset_ns)
        for tgid, rows in by_engine.items()
    ]


def _batch(
    exchanges: Sequence[Exchange],
    views: Sequence[RequestSteps | None],
    parents: Parents,
    chosen: Sequence[int],
    resource: Resource,
    seed: int,
    unix_offset_ns: int,
) -> SpanColumns:
    times = np.array([_bounds(views[row], exchanges[row].start_ns) for row in chosen], dtype=np.uint64)
    rows = np.repeat(np.array(chosen, dtype=np.intp), len(PHASES))
    phase = np.tile(np.arange(len(PHASES)), len(chosen))
    keys = np.array([exchanges[row].key for row in rows.tolist()], dtype=np.uint64)
    starts = np.array([exchanges[row].start_ns for row in rows.tolist()], dtype=np.uint64)
    offset = np.int64(unix_offset_ns).astype(np.uint64)
    name = Text(codes=phase, table=PHASES)
    return SpanColumns(
        resource=resource,
        scope=step_names.SCOPE,
        kind=SpanKind.INTERNAL,
        trace_id=parents.trace_id[rows],
        span_id=span_ids(seed ^ _SALT, keys, starts, phase.astype(np.uint64)),
        parent_span_id=parents.span_id[rows],
        trace_state=None,
        flags=parents.flags[rows],
        start_unix_ns=times[:, :-1].reshape(-1) + offset,
        end_unix_ns=times[:, 1:].reshape(-1) + offset,
        name=name,
        status=np.zeros(len(rows), dtype=np.uint8),
        status_message=None,
        attributes=(Attribute(key=names.PHASE, values=name),),
    )


def _bounds(view: RequestSteps | None, start_ns: int) -> tuple[int, int, int, int]:
    """Where the phases begin, each where the one before ends, and where the last one ends."""
    assert view is not None
    queued = min(view.added_ns or start_ns, view.first_start_ns)
    return queued, view.first_start_ns, view.first_end_ns, max(view.last_end_ns, view.first_end_ns)
