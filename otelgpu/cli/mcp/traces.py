"""``get_trace``: a trace in outline, then a span of it with all that is known.

The outline has each span's longest children, and equal ones under one parent as one row; it goes ``depth`` deep. A span
is asked for by its id: its attributes, events, links, what links to it, and its own children in outline.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from otelgpu.cli.mcp import untrusted
from otelgpu.cli.mcp.answers import MOST_ROWS, Found, Next
from otelgpu.cli.mcp.arguments import InputName, SpanId, TraceId
from otelgpu.cli.mcp.recordings import Reading, SpanSeen
from otelgpu.cli.mcp.requests import number_of
from otelgpu.cli.mcp.session import Session
from otelgpu.errors import OtelgpuError
from otelgpu.families.steps.hints import HINTS
from otelgpu.families.steps.names import HINT_EVIDENCE
from otelgpu.otlp_json.reader import Unreadable, attributes, identity, time_ns
from otelgpu.store.clickhouse.traces import MOST_EVENTS, MOST_LINKS, MOST_SPANS

_FAN_OUT: Final = 8
"""Rows under one span."""
_NONE: Final = bytes(8)


class GetTrace(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments. ``depth``: so many levels of the outline."""

    input: InputName
    trace_id: TraceId
    span_id: SpanId = ""
    depth: Annotated[int, Meta(ge=1, le=12)] = 3


class OutlineRow(Struct, frozen=True, kw_only=True):
    """Spans of one name under one parent; ``span_id``: of the longest, whose ``start_s`` counts from the trace's begin.

    ``seconds``: of all ``count`` together. ``below``: spans under them, shown or not.
    """

    depth: int
    span_id: str
    name: str
    count: int
    start_s: float
    seconds: float
    errors: int
    below: int


class LinkRow(Struct, frozen=True, kw_only=True):
    """Another span that belongs to it: an engine's step that served a request, or the request."""

    trace_id: str
    span_id: str
    name: str
    seconds: float | None
    attributes: dict[str, str | int | float | bool]


class EventRow(Struct, frozen=True, kw_only=True):
    """Something at a time within a span."""

    name: str
    at_s: float
    attributes: dict[str, str | int | float | bool]


class SpanDetail(Struct, frozen=True, kw_only=True):
    """All that is known of one span. ``withheld``: keys of attributes whose values are not given: content, or unknown.

    ``noticed``: what otelgpu itself noticed of it. ``linked_from``: spans that link to it.
    """

    span_id: str
    parent_span_id: str
    name: str
    scope: str
    role: str
    is_error: bool
    start_unix_s: float
    seconds: float
    noticed: list[str]
    attributes: dict[str, str | int | float | bool]
    withheld: Sequence[str]
    resource: dict[str, str | int | float | bool]
    events: list[EventRow]
    links: list[LinkRow]
    linked_from: list[LinkRow]


class TraceFound(Struct, frozen=True, kw_only=True):
    """``detail``: of the span that was asked for, under which the outline then is; null: of none."""

    trace_id: str
    spans: int
    start_unix_s: float
    seconds: float
    services: list[str]
    outline: list[OutlineRow]
    detail: SpanDetail | None


def get_trace(session: Session, arguments: GetTrace) -> Found[TraceFound]:
    """Look through all spans once; once more for the names of what a span is linked to."""
    wanted, reading = bytes.fromhex(arguments.trace_id), Reading()
    chosen = bytes.fromhex(arguments.span_id)
    mine: dict[bytes, SpanSeen] = {}
    linking: list[tuple[SpanSeen, Any]] = []
    beyond = 0
    for span in session.recordings.trace(arguments.input, reading, arguments.trace_id, arguments.span_id):
        if chosen and len(linking) < MOST_LINKS:
            linking += [(span, link) for link in span.raw.links if _leads_to(link, wanted, chosen)]
        if span.trace != wanted:
            continue
        if len(mine) < MOST_SPANS or span.id == chosen:
            mine[span.id] = span
        else:
            beyond += 1
    if not mine:
        raise OtelgpuError(
            f"no span of trace {arguments.trace_id} is in the input", hint="list_requests names traces"
        )
    if chosen and chosen not in mine:
        raise OtelgpuError(
            f"trace {arguments.trace_id} has no span {arguments.span_id}", hint="its outline names spans"
        )
    cut = reading.cut()
    if beyond:
        cut.append(f"{beyond} spans of the trace beyond {MOST_SPANS}; otelgpu view shows them")
    rows, hidden = _outline(mine, chosen, arguments.depth)
    if hidden:
        cut.append(f"{hidden} spans are below rows of the outline: ask with span_id, or with a larger depth")
    detail = _detail(session, arguments.input, mine[chosen], linking) if chosen else None
    begin = min(span.begin_ns for span in mine.values())
    end = max(span.end_ns for span in mine.values())
    services = dict.fromkeys(str(span.resource.get("service.name", "")) for span in mine.values())
    found = TraceFound(
        trace_id=arguments.trace_id,
        spans=len(mine) + beyond,
        start_unix_s=begin * 1e-9,
        seconds=max(end - begin, 0) * 1e-9,
        services=[untrusted.name(each) for each in services if each][:16],
        outline=rows,
        detail=detail,
    )
    return Found(result=found, next=_next(arguments, rows, detail), cut=cut)


def _leads_to(link: Any, trace: bytes, span: bytes) -> bool:
    try:
        return identity(link.span_id, 8) == span and identity(link.trace_id, 16) == trace
    except Unreadable:
        return False


def _outline(spans: dict[bytes, SpanSeen], root: bytes, depth: int) -> tuple[list[OutlineRow], int]:
    """Its rows, each before those under it, and how many spans are in none."""
    children: dict[bytes, list[SpanSeen]] = defaultdict(list)
    for span in spans.values():
        children[span.parent if span.parent in spans and span.parent != span.id else _NONE].append(span)
    begin = min(span.begin_ns for span in spans.values())
    below = _counts(children)
    rows: list[OutlineRow] = []
    shown = 0
    waiting = [(1, group) for group in reversed(_groups(children[root or _NONE]))]
    while waiting and len(rows) < MOST_ROWS:
        level, group = waiting.pop()
        longest = group[0]
        shown += len(group)
        rows.append(
            OutlineRow(
                depth=level,
                span_id=longest.id.hex(),
                name=untrusted.name(longest.name),
                count=len(group),
                start_s=(longest.begin_ns - begin) * 1e-9,
                seconds=sum(span.seconds for span in group),
                errors=sum(span.is_error for span in group),
                below=sum(below[span.id] for span in group),
            )
        )
        if level < depth:
            under = [child for span in group for child in children.get(span.id, ())]
            waiting += [(level + 1, each) for each in reversed(_groups(under))]
    whole = below[root] if root else sum(len(each) for each in children.values())
    return rows, max(whole - shown, 0)


def _groups(spans: Iterable[SpanSeen]) -> list[list[SpanSeen]]:
    """By name, the longest group and the longest of each first."""
    groups: dict[str, list[SpanSeen]] = defaultdict(list)
    for span in spans:
        groups[span.name].append(span)
    ordered = [
        sorted(group, key=lambda span: (-span.seconds, span.begin_ns, span.id)) for group in groups.values()
    ]
    return sorted(ordered, key=lambda group: (-sum(span.seconds for span in group), group[0].begin_ns))[
        :_FAN_OUT
    ]


def _counts(children: dict[bytes, list[SpanSeen]]) -> dict[bytes, int]:
    """How many spans are under each. Of parents in a circle, which no root leads to, none is counted."""
    order: list[SpanSeen] = []
    waiting = list(children.get(_NONE, ()))
    while waiting:
        span = waiting.pop()
        order.append(span)
        waiting += children.get(span.id, ())
    below: dict[bytes, int] = defaultdict(int)
    for span in reversed(order):
        below[span.id] += 0
        below[span.parent] += below[span.id] + 1
    return below


def _detail(
    session: Session, named: str, span: SpanSeen, linking: Sequence[tuple[SpanSeen, Any]]
) -> SpanDetail:
    shown = untrusted.attributes(span.attributes())
    resource = untrusted.attributes(span.resource)
    targets = [(trace, target) for link in span.raw.links[:MOST_LINKS] for trace, target in _ids(link)]
    named_spans = session.recordings.targets(named, targets) if targets else {}
    return SpanDetail(
        span_id=span.id.hex(),
        parent_span_id=span.parent.hex() if span.parent != _NONE else "",
        name=untrusted.name(span.name),
        scope=untrusted.name(span.scope),
        role=span.role,
        is_error=span.is_error,
        start_unix_s=span.begin_ns * 1e-9,
        seconds=span.seconds,
        noticed=_noticed(shown),
        attributes=dict(shown),
        withheld=[*shown.withheld[:50], *resource.withheld[:20]],
        resource=dict(resource),
        events=[row for event in span.raw.events[:MOST_EVENTS] for row in _event(event, span)],
        links=[
            _link(trace, target, named_spans.get(target), link)
            for (trace, target), link in zip(targets, span.raw.links, strict=False)
        ],
        linked_from=[_link(other.trace, other.id, other, link) for other, link in linking[:MOST_LINKS]],
    )


def _noticed(given: Mapping[str, str | int | float | bool]) -> list[str]:
    """Hints, in words."""
    return [
        f"{hint}: {share:.0%}, {known.description}"
        for hint, known in HINTS.items()
        if (share := number_of(given, HINT_EVIDENCE + hint)) is not None
    ]


def _ids(link: Any) -> Iterator[tuple[bytes, bytes]]:
    try:
        yield identity(link.trace_id, 16), identity(link.span_id, 8)
    except Unreadable:
        yield bytes(16), _NONE


def _link(trace: bytes, span: bytes, seen: SpanSeen | None, link: Any) -> LinkRow:
    return LinkRow(
        trace_id=trace.hex(),
        span_id=span.hex(),
        name=untrusted.name(seen.name) if seen is not None else "",
        seconds=seen.seconds if seen is not None else None,
        attributes=_given(link),
    )


def _event(event: Any, span: SpanSeen) -> Iterator[EventRow]:
    try:
        at = time_ns(event.time_unix_nano)
    except Unreadable:
        return
    yield EventRow(
        name=untrusted.name(event.name), at_s=(at - span.begin_ns) * 1e-9, attributes=_given(event)
    )


def _given(raw: Any) -> dict[str, str | int | float | bool]:
    try:
        return dict(untrusted.attributes(attributes(raw.attributes)))
    except Unreadable:
        return {}


def _next(arguments: GetTrace, rows: Sequence[OutlineRow], detail: SpanDetail | None) -> list[Next]:
    linked = [*detail.linked_from, *detail.links] if detail is not None else []
    slowest = sorted(rows, key=lambda row: -row.seconds)
    return [
        *(
            Next(
                tool="get_trace",
                arguments={"input": arguments.input, "trace_id": row.trace_id, "span_id": row.span_id},
                why="a span that is linked with it: a step of the engine, or what that served",
            )
            for row in sorted(linked, key=lambda row: -(row.seconds or 0.0))[:2]
            if row.seconds is not None
        ),
        *(
            Next(
                tool="get_trace",
                arguments={
                    "input": arguments.input,
                    "trace_id": arguments.trace_id,
                    "span_id": row.span_id,
                },
                why="what is known of one of the longest spans",
            )
            for row in slowest[:3]
            if row.span_id != arguments.span_id
        ),
    ]
