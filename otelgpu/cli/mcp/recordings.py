"""Recordings by the names of inputs: their spans, profiles and operations of ranks. A capture is replayed once.

In: :class:`~otelgpu.cli.mcp.inputs.Inputs`. Out: what the tools look through. Of files that are long the newest part is
read, and how much is left out is reported.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct, field, structs

from otelgpu.cli.mcp.inputs import Inputs
from otelgpu.cli.mcp.stored_values import restored
from otelgpu.cli.profile_inputs import is_capture, read_profiles_of, replay_capture
from otelgpu.config import Config
from otelgpu.errors import OtelgpuError
from otelgpu.export.file.exporter import FileExporter
from otelgpu.model.profiles import ProfileColumns
from otelgpu.model.resource import AttributeValue
from otelgpu.otlp_json.messages import Span
from otelgpu.otlp_json.reader import (
    RESOURCES,
    SPANS,
    Reader,
    Skips,
    Unreadable,
    attributes,
    identity,
    time_ns,
)
from otelgpu.store.clickhouse.address import address_of
from otelgpu.store.clickhouse.client import Client
from otelgpu.store.clickhouse.span_lines import are_spans, columns_of
from otelgpu.store.clickhouse.traces import Requests, StoredSpans
from otelgpu.store.files import BrokenFile, is_compressed, pieces
from otelgpu.store.inputs import open_files, open_tables
from otelgpu.store.line_files import first_offset, split_lines
from otelgpu.store.queries import Tables
from otelgpu.store.reasons import FILES_UNREADABLE

NEWEST_BYTES: Final = 256 << 20
"""Of one input so much is read of spans: some 300,000."""
LARGEST_BYTES: Final = 512 << 20
"""Of a capture, and of a file of profiles, which are read whole."""
_PIECE_BYTES: Final = 1 << 20
_SOON_S: Final = 5.0
"""What is asked of every store, whether it is needed or not, waits no longer."""
_SERVER, _CLIENT = 2, 3
_ERROR: Final = 2
_NONE: Final = bytes(8)


class SpanSeen(Struct, frozen=True, kw_only=True):
    """A span. Ids are bytes; times Unix nanoseconds; ``parent`` of a root is zeros; ``raw``: for its other members."""

    trace: bytes
    id: bytes
    parent: bytes
    name: str
    scope: str
    begin_ns: int
    end_ns: int
    role: str  # server, client or ""
    is_error: bool
    resource: Mapping[str, AttributeValue]
    raw: Span

    def attributes(self) -> Mapping[str, AttributeValue]:
        """Its attributes; none where they cannot be read."""
        try:
            return attributes(self.raw.attributes)
        except Unreadable:
            return {}

    @property
    def seconds(self) -> float:
        """How long it took."""
        return max(self.end_ns - self.begin_ns, 0) * 1e-9


class Reading(Struct):
    """What was left out of one look: ``bytes_before`` the newest part, ``limits`` of a store, what is unreadable."""

    skips: Skips = field(default_factory=Skips)
    bytes_before: int = 0
    limits: list[str] = field(default_factory=list)

    def cut(self) -> list[str]:
        """In sentences."""
        said = [*self.limits]
        if self.bytes_before:
            said.append(
                f"{self.bytes_before:,} bytes of the input were not read, only the newest {NEWEST_BYTES >> 20} MiB: "
                "cut the file in parts"
            )
        said += [f"{reason}: {count}" for reason, count in sorted(self.skips.counts.items())]
        return said


class Recordings:
    """``folder``: a private one, for what captures are replayed to."""

    def __init__(self, inputs: Inputs, folder: Path) -> None:
        self.inputs = inputs
        self.folder = folder
        self._replayed: dict[tuple[Path, int, int], tuple[Path, Sequence[ProfileColumns]]] = {}

    def spans(self, named: str, reading: Reading) -> Iterator[SpanSeen]:
        """All spans of an input, in no order. Raises :class:`OtelgpuError` where there is no such input."""
        left = NEWEST_BYTES
        for path in reversed(self._line_files(named)):
            if left <= 0:
                reading.bytes_before += path.stat().st_size
                continue
            left = yield from _spans(path, Reader(path.name, reading.skips), reading, left)

    def requests(self, named: str, reading: Reading, wanted: Requests) -> Iterator[SpanSeen]:
        """At least the requests that are wanted; of a store only these. Raises as :meth:`spans` does."""
        if named in self.inputs.stores:
            return self._stored(named, reading, lambda spans: spans.requests(wanted))
        return self.spans(named, reading)

    def trace(self, named: str, reading: Reading, trace: str, span: str) -> Iterator[SpanSeen]:
        """At least a trace and what links to one of its spans ("": none), which are ids in hex. Raises likewise.

        Of a store that one span alone has its attributes, events and links.
        """
        if named in self.inputs.stores:
            return self._stored(named, reading, lambda spans: spans.trace(trace, span))
        return self.spans(named, reading)

    def targets(self, named: str, ids: Sequence[tuple[bytes, bytes]]) -> dict[bytes, SpanSeen]:
        """Spans by their ids, of (trace, span); of a store without attributes. Raises likewise."""
        wanted, reading = {span for _, span in ids}, Reading()
        traces, spans = {trace.hex() for trace, _ in ids}, {span.hex() for span in wanted}
        if named in self.inputs.stores:
            found = self._stored(named, reading, lambda stored: stored.named(traces, spans))
        else:
            found = self.spans(named, reading)
        return {span.id: span for span in found if span.id in wanted}

    def of_store(self, named: str) -> list[str]:
        """What a store holds, in the words of :func:`~otelgpu.cli.mcp.inputs.contents`. Raises `StoreError`."""
        given = address_of(self.inputs.stores[named], os.environ)
        address = structs.replace(given, timeout_s=min(given.timeout_s, _SOON_S))
        columns = columns_of(Client(address), address, address.table)
        return ["spans", "operations"] if are_spans(columns) else ["operations"]

    def may_have_spans(self, named: str) -> bool:
        """Of a store whether it has; of what is in files that is seen when they are read. Raises `StoreError`."""
        return named not in self.inputs.stores or "spans" in self.of_store(named)

    def _stored(
        self, named: str, reading: Reading, ask: Callable[[StoredSpans], Iterable[bytes]]
    ) -> Iterator[SpanSeen]:
        address = address_of(self.inputs.stores[named], os.environ)
        lines = ask(StoredSpans(address, restored, reading.limits))
        yield from _seen_in(Reader(address.shown, reading.skips), lines)

    def whole_file(self, named: str) -> Path:
        """One that is read whole. Raises :class:`OtelgpuError` for one that is too large."""
        path = self.inputs.file(named)
        _require_room(path)
        return path

    def profiles(self, named: str) -> Sequence[ProfileColumns]:
        """Of one file. Raises :class:`OtelgpuError` where it has none."""
        path = self.whole_file(named)
        found = self._replay(path)[1] if is_capture(path) else read_profiles_of(path, Config()).profiles
        if not any(len(batch) for batch in found):
            raise OtelgpuError(
                f"there are no profiles in {named!r}", hint="list_inputs says which inputs have some"
            )
        return found

    def operations(
        self, named: str, *, job: str | None = None, begin_s: float | None = None, end_s: float | None = None
    ) -> Tables:
        """Those of ranks; of a store they stay there. Raises :class:`OtelgpuError`."""
        if (address := self.inputs.stores.get(named)) is not None:
            return open_tables((address,), job=job, begin_s=begin_s, end_s=end_s)
        return open_files(self._line_files(named), job=job, begin_s=begin_s, end_s=end_s)

    def _line_files(self, named: str) -> list[Path]:
        files = self.inputs.files(named)
        return [self._replay(path)[0] if is_capture(path) else path for path in files if _is_regular(path)]

    def _replay(self, path: Path) -> tuple[Path, Sequence[ProfileColumns]]:
        _require_room(path)
        status = path.stat()
        key = (path, status.st_size, status.st_mtime_ns)
        if key not in self._replayed:
            lines = self.folder / f"replayed-{len(self._replayed)}.jsonl"
            exporter = FileExporter(str(lines), private=True)
            memory, _ = replay_capture(path, Config(), [exporter])
            self._replayed[key] = lines, memory.profiles
        return self._replayed[key]


def _spans(path: Path, reader: Reader, reading: Reading, most: int) -> Generator[SpanSeen, None, int]:
    """Of the newest ``most`` bytes; gives how many of them are left."""
    taken = 0

    def read() -> Iterator[bytes]:
        nonlocal taken
        for piece in _newest(path, most, reading):
            taken += len(piece)
            yield piece
            if taken >= most:
                return

    try:
        yield from _seen_in(reader, split_lines(read()))
    except (BrokenFile, OSError):
        reading.skips.counts[FILES_UNREADABLE] += 1
    return most - taken


def _seen_in(reader: Reader, lines: Iterable[bytes | None]) -> Iterator[SpanSeen]:
    for document in reader.documents(lines):
        for of_resource in document.resource_spans:
            try:
                resource = attributes(of_resource.resource.attributes)
            except Unreadable as error:
                reader.skip(RESOURCES, error)
                resource = {}
            for of_scope in of_resource.scope_spans:
                for span in reader.spans(of_scope):
                    try:
                        yield _seen(span, of_scope.scope.name, resource)
                    except Unreadable as error:
                        reader.skip(SPANS, error)


def _newest(path: Path, most: int, reading: Reading) -> Iterator[bytes]:
    if is_compressed(path):  # from its beginning: nobody knows where its newest part is
        yield from pieces(path, _PIECE_BYTES)
        return
    with path.open("rb") as file:
        at = first_offset(file, most, _PIECE_BYTES)
        reading.bytes_before += at
        file.seek(at)
        while piece := file.read(_PIECE_BYTES):
            yield piece


def _seen(span: Span, scope: str, resource: Mapping[str, AttributeValue]) -> SpanSeen:
    own = identity(span.span_id, 8)
    if own == _NONE:  # which is the parent of a root
        raise Unreadable("a span's id is zero")
    return SpanSeen(
        trace=identity(span.trace_id, 16),
        id=own,
        parent=identity(span.parent_span_id, 8) if span.parent_span_id else _NONE,
        name=span.name,
        scope=scope,
        begin_ns=time_ns(span.start_time_unix_nano),
        end_ns=time_ns(span.end_time_unix_nano),
        role={_SERVER: "server", _CLIENT: "client"}.get(span.kind, ""),
        is_error=span.status.code == _ERROR,
        resource=resource,
        raw=span,
    )


def _require_room(path: Path) -> None:
    if os.path.getsize(path) > LARGEST_BYTES:
        raise OtelgpuError(
            f"{path.name} has more than {LARGEST_BYTES >> 20} MiB",
            hint="record for a shorter time, or read a part of it by otelgpu replay",
        )


def _is_regular(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False
