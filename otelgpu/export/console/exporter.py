"""Finished traces as small trees on a terminal: name, duration and the attributes that matter.

A trace is printed when its local root has come: a span without a parent, or a SERVER span. Parts of a trace
whose root does not come are printed by ``flush`` and ``close``, or when too many wait. Names come from
the observed programs' peers, so control characters are never passed on to the terminal.

    trace 4bf92f3577b34da6a3ce929d0e0e4736  llm-server
      POST /v1/chat/completions  412 ms  200  ttft 35.1 ms  64 tokens
        prefill  35.0 ms
          cudaLaunchKernel flash_fwd  28.1 ms  ×32
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Final, TextIO

import numpy as np
from msgspec import Struct, field

from otelgpu.engine import names
from otelgpu.engine.presentation import ConsoleLabel, Unit, console_labels
from otelgpu.export.base import deliveries_of
from otelgpu.model.quantities import duration, size
from otelgpu.model.self_telemetry import Delivery
from otelgpu.model.spans import (
    Attribute,
    Codes,
    SpanBatch,
    SpanColumns,
    SpanKind,
    StatusCode,
    Text,
    in_columns,
)
from otelgpu.model.text import printable

if TYPE_CHECKING:
    from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

    from otelgpu.export.console.top_stacks import TopStacks
    from otelgpu.model.events import Event
    from otelgpu.model.profiles import ProfileColumns

MAX_LINES = 40
"""Lines per trace; what is beyond is counted in the last one."""

MAX_WAITING = 256
"""Traces that may wait for their root; then the oldest is printed without it."""

MAX_EVENT = 2_000
"""Characters of an event."""

_KEPT_SPANS = 512  # per waiting trace; further ones are only counted
_NAME_WIDTH = 72
_ROOT = bytes(8)

Value = str | tuple[str, ...] | int | float | bool


def _cut(text: str, width: int = _NAME_WIDTH) -> str:
    """``text`` as it can be shown, cut to ``width``."""
    shown = printable(text[: width + 1])
    return shown if len(shown) <= width else shown[: width - 1] + "…"


_FIRST: Final = (ConsoleLabel(key=names.COUNT, text="×{}"),)
_LAST: Final = (
    ConsoleLabel(key=names.UNATTRIBUTED_REASON),
    ConsoleLabel(key=names.DROPPED, text="{} operations not kept"),
    ConsoleLabel(key=names.ERROR_TYPE, text="error {}"),
)


@cache
def _shown() -> Mapping[str, ConsoleLabel]:
    """What stands behind a span's name, in this order: labels of every family's spans around a family's own."""
    return {label.key: label for label in (*_FIRST, *console_labels(), *_LAST)}


def _written(label: ConsoleLabel, value: Value) -> str:
    if label.unit is Unit.SECONDS and isinstance(value, int | float):
        return label.text.format(duration(float(value) * 1e9))
    if label.unit is Unit.COUNT and isinstance(value, int | float):
        return label.text.format(f"{value:.3g}")
    if label.unit is Unit.BYTES and isinstance(value, int):
        return label.text.format(size(float(value)))
    return label.text.format(value)


class _Span(Struct, frozen=True):
    span_id: bytes
    parent: bytes
    name: str
    start_ns: int
    duration_ns: int
    failed: bool
    notes: tuple[str, ...]


class _Trace(Struct):
    title: str
    spans: list[_Span] = field(default_factory=list)
    count: int = 0  # spans seen, kept or not
    complete: bool = False


class Line(Struct, frozen=True):
    """One line of a tree, in parts so that it can be coloured."""

    depth: int
    name: str
    duration: str
    notes: tuple[str, ...]
    failed: bool

    def __str__(self) -> str:
        return "  " * self.depth + "  ".join(filter(None, (self.name, self.duration, *self.notes)))


class ConsoleExporter:
    """Prints traces to a text stream, in colour on a terminal; an :class:`~otelgpu.export.base.Exporter`.

    Metrics are taken and not shown; of profiles the largest stacks are, when it is closed. Losses: "write_failed" when
    the stream does not take the text.
    """

    def __init__(self, stream: TextIO, *, max_lines: int = MAX_LINES) -> None:
        """``max_lines`` bounds a trace's tree, the line about what was left out included."""
        self._max_lines = max_lines
        self._waiting: dict[bytes, _Trace] = {}
        self._counts: Counter[str] = Counter()
        self._profiles: TopStacks | None = None
        self._print = _printer(stream)

    def export_spans(self, batches: Iterable[SpanBatch]) -> None:
        """See :class:`~otelgpu.export.base.Exporter`. Prints the traces that are complete."""
        for columns in in_columns(batches):
            if len(columns):
                self._take(columns)
        for trace_id in [key for key, trace in self._waiting.items() if trace.complete]:
            self._show(trace_id)
        while len(self._waiting) > MAX_WAITING:
            self._show(next(iter(self._waiting)))

    def export_metrics(self, data: MetricsData, items: int) -> None:
        """See :class:`~otelgpu.export.base.Exporter`. Metrics have no place in a tree."""
        self._counts["points_given"] += items
        self._counts["points_accepted"] += items

    def export_profiles(self, batches: Sequence[ProfileColumns]) -> None:
        """See :class:`~otelgpu.export.base.Exporter`. They are summed up at the end."""
        from otelgpu.export.console.top_stacks import TopStacks  # most sessions have none

        if self._profiles is None:
            self._profiles = TopStacks()
        for columns in batches:
            self._profiles.add(columns)
            self._counts["profiles_given"] += len(columns)

    def export_events(self, events: Sequence[Event]) -> None:
        """See :class:`~otelgpu.export.base.EventExporter`. They are printed as they come."""
        self._counts["events_given"] += len(events)
        try:
            self._print([Line(0, _cut(event.text, MAX_EVENT), "", (), event.warns) for event in events])
        except (OSError, ValueError):
            self._counts["events_lost_write_failed"] += len(events)
        else:
            self._counts["events_accepted"] += len(events)

    def flush(self, deadline_s: float) -> bool:
        """Print what waits for a root."""
        for trace_id in list(self._waiting):
            self._show(trace_id)
        return True

    def close(self, deadline_s: float) -> None:
        """See :class:`~otelgpu.export.base.Exporter`. The stream stays open: it is the caller's."""
        self.flush(deadline_s)
        if self._profiles is None:
            return
        lines = [Line(0, _cut(text, 240), "", (), False) for text in self._profiles.lines()]
        self._profiles = None
        unshown = self._counts["profiles_given"] - self._counts["profiles_accepted"]
        try:
            self._print(lines)
        except (OSError, ValueError):
            self._counts["profiles_lost_write_failed"] += unshown
        else:
            self._counts["profiles_accepted"] += unshown

    def stats(self) -> Mapping[str, int]:
        """See :class:`~otelgpu.export.base.Exporter`."""
        keys = ("given", "accepted", "queued", "lost_write_failed")
        reported = ("spans", "points", *(("events",) if self._counts["events_given"] else ()))
        stats = {f"{items}_{key}": self._counts[f"{items}_{key}"] for items in reported for key in keys}
        stats |= {"spans_queued": sum(trace.count for trace in self._waiting.values())}
        given, accepted, lost = (
            self._counts[f"profiles_{key}"] for key in ("given", "accepted", "lost_write_failed")
        )
        if given:
            stats |= {
                "profiles_given": given,
                "profiles_accepted": accepted,
                "profiles_queued": given - accepted - lost,
                "profiles_lost_write_failed": lost,
            }
        return stats

    def deliveries(self) -> Sequence[Delivery]:
        """See :class:`~otelgpu.export.base.Exporter`."""
        return deliveries_of("console", self.stats())

    def _take(self, columns: SpanColumns) -> None:
        self._counts["spans_given"] += len(columns)
        ids = np.ascontiguousarray(columns.trace_id)
        whole = ids.view("<u8").reshape(-1, 2)
        _, first, inverse, counts = np.unique(
            whole[:, 1], return_index=True, return_inverse=True, return_counts=True
        )
        order = np.argsort(inverse.reshape(-1), kind="stable")
        roots = np.asarray(~columns.parent_span_id.any(axis=1) | (columns.kind == SpanKind.SERVER))
        service = str(columns.resource.get("service.name") or "")
        for rows, at in zip(np.split(order, np.cumsum(counts)[:-1]), first, strict=True):
            trace_id = ids[at].tobytes()
            title = f"trace {trace_id.hex()}  {_cut(service)}".rstrip()
            trace = self._waiting.setdefault(trace_id, _Trace(title))
            trace.count += len(rows)
            is_root = roots[rows]
            trace.complete |= bool(is_root.any())
            self._keep(trace, columns, rows[is_root], 2 * _KEPT_SPANS)  # a root finds room after many others
            self._keep(trace, columns, rows[~is_root], _KEPT_SPANS)

    def _keep(self, trace: _Trace, columns: SpanColumns, rows: Codes, limit: int) -> None:
        room = max(0, limit - len(trace.spans))
        trace.spans.extend(_span(columns, row) for row in rows[:room].tolist())

    def _show(self, trace_id: bytes) -> None:
        trace = self._waiting.pop(trace_id)
        try:
            self._print(
                [Line(0, trace.title, "", (), False), *tree(trace.spans, trace.count, self._max_lines)]
            )
        except (OSError, ValueError):  # a pipe without a reader, a closed stream
            self._counts["spans_lost_write_failed"] += trace.count
        else:
            self._counts["spans_accepted"] += trace.count


def _span(columns: SpanColumns, row: int) -> _Span:
    start, end = int(columns.start_unix_ns[row]), int(columns.end_unix_ns[row])
    labels = _shown()
    shown = (a for a in columns.attributes if a.key in labels and (a.present is None or a.present[row]))
    notes = {a.key: _cut(_written(labels[a.key], _value(a, row))) for a in shown}
    return _Span(
        span_id=columns.span_id[row].tobytes(),
        parent=columns.parent_span_id[row].tobytes(),
        name=_cut(str(columns.name.table[columns.name.codes[row]])),
        start_ns=start,
        duration_ns=max(0, end - start),
        failed=int(columns.status[row]) == StatusCode.ERROR,
        notes=(*(notes[key] for key in labels if key in notes), *_links(columns, row)),
    )


def _links(columns: SpanColumns, row: int) -> tuple[str, ...]:
    """How many links a span has, those that were left out included."""
    links = columns.links
    if links is None:
        return ()
    first, last = np.searchsorted(links.span, [row, row + 1]).tolist()
    count = last - first + (int(links.dropped[row]) if links.dropped is not None else 0)
    return (f"{count} links" if count > 1 else "1 link",) if count else ()


def _value(attribute: Attribute, row: int) -> Value:
    values = attribute.values
    if isinstance(values, Text):
        return values.table[int(values.codes[row])]
    value: int | float | bool = values[row].item()
    return value


def tree(spans: Sequence[_Span], total: int, max_lines: int) -> list[Line]:
    """The spans depth first, children by start; ``total`` counts those that were not kept too."""
    known = {span.span_id for span in spans}
    children: dict[bytes, list[_Span]] = {}
    for span in sorted(spans, key=lambda span: span.start_ns):
        children.setdefault(span.parent if span.parent in known else _ROOT, []).append(span)
    lines: list[Line] = []
    stack = [(1, span) for span in reversed(children.get(_ROOT, []))]
    while stack and len(lines) < max_lines:
        depth, span = stack.pop()
        lines.append(Line(depth, span.name, duration(span.duration_ns), span.notes, span.failed))
        stack.extend((depth + 1, child) for child in reversed(children.pop(span.span_id, [])))
    if total > len(lines):
        del lines[max_lines - 1 :]
        lines.append(Line(1, f"… and {total - len(lines)} more spans", "", (), False))
    return lines


def _printer(stream: TextIO) -> Callable[[Sequence[Line]], None]:
    """Plain lines, or coloured ones when the stream is a terminal."""

    def plain(lines: Sequence[Line]) -> None:
        encoding = getattr(stream, "encoding", None) or "utf-8"
        text = "".join(f"{line}\n" for line in lines)
        stream.write(text.encode(encoding, "replace").decode(encoding))
        stream.flush()

    if not stream.isatty():
        return plain
    from rich.console import Console
    from rich.text import Text as Styled

    console = Console(file=stream, highlight=False, markup=False, emoji=False)

    def coloured(lines: Sequence[Line]) -> None:
        for line in lines:
            head = (
                "bold red" if line.failed else "dim" if line.depth == 0 else "bold" if line.depth == 1 else ""
            )
            text = Styled("  " * line.depth, no_wrap=True, overflow="ellipsis").append(line.name, style=head)
            if line.duration:
                text.append(f"  {line.duration}", style="cyan")
            for note in line.notes:
                text.append(f"  {note}", style="red" if note.startswith("error ") else "green")
            console.print(text)

    return coloured
