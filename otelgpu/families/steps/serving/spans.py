"""Steps → ``engine.step`` spans with links to the requests they served, and the links of those to them. Pure.

In: steps of which no more will be known, and where the requests' spans are. Out: spans in columns, each the root of a
trace of its own: a step serves many requests, and belongs to the trace of none. Both ends link to each other, and a
step's ids are made of its thread and time, so that a request can link to one that has not been reported yet.

A step all of whose requests are known and not sampled is not reported; its operations come back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from otelgpu.engine import names
from otelgpu.engine.folding import Parents
from otelgpu.engine.totals import Totals
from otelgpu.families.steps import names as step_names
from otelgpu.families.steps.hint_attributes import hint_values
from otelgpu.families.steps.serving.steps import EndedSteps
from otelgpu.families.steps.step import Member, Membership, RequestSteps, ServedStep, StepKey, StepPhase
from otelgpu.model.context import Context
from otelgpu.model.context_sources import ContextSource
from otelgpu.model.exchange import Published, TraceParent
from otelgpu.model.ids import span_ids, trace_ids
from otelgpu.model.operations import Operations
from otelgpu.model.resource import Resource
from otelgpu.model.spans import Attribute, Links, SpanColumns, SpanKind, attributes_of_rows, constant_text

LINKS: Final = 128
"""Requests that a step's span links to; OpenTelemetry SDKs keep as many links of a span."""

_TRACE_SALT: Final = 0x7374
_SPAN_SALT: Final = 0x7370  # or a step's span id would be half of its trace id
_SAMPLED: Final = 1

ContextOf = Callable[[int], Context | None]
HandedOver = Callable[[str], Published | TraceParent | None]


class StepSpans(Struct, frozen=True, kw_only=True):
    """Spans of the steps that are reported; their operations grouped by position in ``parents``; all others'."""

    spans: list[SpanColumns]
    operations: Operations  # context_source STEP
    step: npt.NDArray[np.int64]
    parents: Parents
    rest: Operations


def step_parents(keys: Iterable[StepKey], seed: int) -> Parents:
    """The spans of steps, known before they are reported, and after."""
    words = np.array([(key.tgid, key.tid, key.start_ns) for key in keys], dtype=np.uint64).reshape(-1, 3)
    columns = words[:, 0], words[:, 1], words[:, 2]
    return Parents(
        trace_id=trace_ids(seed ^ _TRACE_SALT, *columns),
        span_id=span_ids(seed ^ _SPAN_SALT, *columns),
        flags=np.full(len(words), _SAMPLED, dtype=np.uint32),
    )


def step_spans(
    reported: EndedSteps,
    context_of: ContextOf,
    totals: Totals,
    resource_of: Callable[[int], Resource],
    *,
    seed: int,
    unix_offset_ns: int,
    handed_over: HandedOver = lambda _: None,
    mbu: Callable[[ServedStep], float | None] = lambda _: None,
) -> StepSpans:
    """``context_of``: the span of an exchange, open or answered; None: not known; flags 0: not sampled.

    ``handed_over``: the context of a request of which no exchange is known. ``mbu``: of a step.
    """
    linked = [
        [_context(member, context_of, handed_over) for member in step.members] for step in reported.steps
    ]
    shown = np.array(
        [_is_reported(step, contexts) for step, contexts in zip(reported.steps, linked, strict=True)],
        dtype=np.bool_,
    )
    parents = step_parents([step.step.key for step in reported.steps], seed)
    sums = totals.by_group(reported.operations, reported.step, len(reported.steps))
    by_process: dict[int, list[int]] = {}
    for row in np.flatnonzero(shown).tolist():
        by_process.setdefault(reported.steps[row].step.tgid, []).append(row)
    made = _Made(reported.steps, linked, parents, sums, totals, unix_offset_ns, mbu)
    here = shown[reported.step]
    operations = reported.operations.compress(here)
    operations["context_source"] = ContextSource.STEP
    return StepSpans(
        spans=[made.batch(np.array(rows), resource_of(tgid)) for tgid, rows in by_process.items()],
        operations=operations,
        step=reported.step[here],
        parents=parents,
        rest=reported.operations.compress(~here),
    )


def _context(member: Member, context_of: ContextOf, handed_over: HandedOver) -> Context | None:
    if member.exchange:
        return context_of(member.exchange)
    given = handed_over(member.request_id)
    return None if given is None else Context(given.trace_id, given.span_id, given.flags)


def _is_reported(step: ServedStep, contexts: Sequence[Context | None]) -> bool:
    if step.membership is not Membership.KNOWN:
        return True
    return any(context is None or context.sampled for context in contexts)


class _Made(Struct, frozen=True):
    """What all batches have in common."""

    steps: Sequence[ServedStep]
    linked: Sequence[Sequence[Context | None]]
    parents: Parents
    sums: npt.NDArray[np.int64]
    totals: Totals
    offset: int
    mbu: Callable[[ServedStep], float | None]

    def batch(self, rows: npt.NDArray[np.intp], resource: Resource) -> SpanColumns:
        """The spans of steps of one process; ``rows`` are their positions among all."""
        chosen = [self.steps[row] for row in rows.tolist()]
        return SpanColumns(
            resource=resource,
            scope=step_names.SCOPE,
            kind=SpanKind.INTERNAL,
            trace_id=self.parents.trace_id[rows],
            span_id=self.parents.span_id[rows],
            parent_span_id=np.zeros((len(rows), 8), dtype=np.uint8),
            trace_state=None,
            flags=self.parents.flags[rows],
            start_unix_ns=np.array([each.step.start_ns + self.offset for each in chosen], dtype=np.uint64),
            end_unix_ns=np.array([each.step.end_ns + self.offset for each in chosen], dtype=np.uint64),
            name=constant_text(step_names.STEP, len(rows)),
            status=np.zeros(len(rows), dtype=np.uint8),
            status_message=None,
            attributes=(
                *attributes_of_rows([_attributes(each, self.mbu(each)) for each in chosen]),
                *self.totals.attributes(self.sums[rows]),
            ),
            links=_links_to_requests(chosen, [self.linked[row] for row in rows.tolist()]),
        )


def _attributes(served: ServedStep, mbu: float | None) -> dict[str, Any]:
    step = served.step
    found: dict[str, Any] = {
        names.THREAD_ID: step.tid,
        step_names.NUMBER: step.number,
        step_names.MEMBERSHIP: str(served.membership),
        step_names.WAIT: step.evidence.wait_ns / 1e9,
        step_names.GAP: step.gap_ns / 1e9,
    }
    if served.members:
        found[names.CONTEXT_SOURCE] = served.source.exported
    if served.membership is Membership.KNOWN:
        found[step_names.BATCH_SIZE] = len(served.members)
        found[step_names.TOKENS] = served.tokens
        found[step_names.PREFILLS] = served.count(StepPhase.PREFILL)
        found[step_names.DECODES] = served.count(StepPhase.DECODE)
    if mbu is not None:
        found[step_names.MBU] = mbu
    return found | hint_values(step.evidence, step.duration_ns)


def _links_to_requests(
    steps: Sequence[ServedStep], linked: Sequence[Sequence[Context | None]]
) -> Links | None:
    """Links to the sampled requests, with what each of them got."""
    found: list[tuple[int, Context, Member]] = []
    dropped = np.zeros(len(steps), dtype=np.uint32)
    for row, (served, contexts) in enumerate(zip(steps, linked, strict=True)):
        mine = [
            (row, context, member)
            for member, context in zip(served.members, contexts, strict=True)
            if context is not None and context.sampled
        ]
        found += mine[:LINKS]
        dropped[row] = max(len(mine) - LINKS, 0)
    if not found:
        return None
    members = [member for _, _, member in found]
    return Links(
        span=np.array([row for row, _, _ in found], dtype=np.intp),
        trace_id=_bytes([context.trace_id for _, context, _ in found], 16),
        span_id=_bytes([context.span_id for _, context, _ in found], 8),
        flags=np.array([context.flags for _, context, _ in found], dtype=np.uint32),
        attributes=(
            Attribute.of(step_names.TOKENS, [member.new_tokens for member in members]),
            Attribute.of(names.PHASE, [str(member.phase) for member in members]),
        ),
        dropped=dropped if dropped.any() else None,
    )


def _bytes(ids: Sequence[bytes], width: int) -> npt.NDArray[np.uint8]:
    return np.frombuffer(b"".join(ids), dtype=np.uint8).reshape(-1, width)


def request_links(views: Sequence[RequestSteps | None], seed: int) -> Links | None:
    """The steps of the requests of a batch: ``SpanColumns.links`` of their spans, in the same order."""
    rows = [row for row, view in enumerate(views) if view is not None for _ in view.links]
    if not rows:
        return None
    steps = step_parents((key for view in views if view is not None for key in view.links), seed)
    dropped = np.array([view.dropped_links if view is not None else 0 for view in views], dtype=np.uint32)
    return Links(
        span=np.array(rows, dtype=np.intp),
        trace_id=steps.trace_id,
        span_id=steps.span_id,
        flags=steps.flags,
        dropped=dropped if dropped.any() else None,
    )


def request_attributes(
    views: Sequence[RequestSteps | None], starts_ns: Sequence[int]
) -> tuple[Attribute, ...]:
    """``gen_ai.latency.*`` and what the steps gave: attributes of the requests' spans.

    ``starts_ns``: of the requests, from which their time in the queue counts where no engine was seen to take them.
    """
    rows = [{} if view is None else _view(view, start) for view, start in zip(views, starts_ns, strict=True)]
    return attributes_of_rows(rows)


def _view(view: RequestSteps, start_ns: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        step_names.STEPS: view.steps,
        step_names.STEPS_SOURCE: view.source.exported,
        step_names.STEPS_LAUNCHES: view.shared_launches,
    }
    if view.unattributed:
        found[step_names.STEPS_UNATTRIBUTED] = view.unattributed
    if view.first is not None:
        queued_ns = max(view.first_start_ns - (view.added_ns or start_ns), 0)
        found[step_names.QUEUE_LATENCY] = queued_ns * 1e-9
        found[step_names.PREFILL_LATENCY] = (view.first_end_ns - view.first_start_ns) * 1e-9
        found[step_names.DECODE_LATENCY] = max(view.last_end_ns - view.first_end_ns, 0) * 1e-9
        found[step_names.INFERENCE_LATENCY] = max(view.last_end_ns - view.first_start_ns, 0) * 1e-9
    if view.mean_batch_size is not None:
        found[step_names.STEPS_BATCH_SIZE] = view.mean_batch_size
    if view.mean_token_share is not None:
        found[step_names.STEPS_TOKEN_SHARE] = view.mean_token_share
    if view.attributed_ns is not None:
        found[step_names.STEPS_TIME] = view.attributed_ns * 1e-9
    return found
