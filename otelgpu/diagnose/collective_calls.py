"""The calls of collectives in OTLP/JSON: what ``otelgpu.nccl`` spans of any number of hosts report. Pure.

In: lines of OTLP/JSON. Out: columns, a row per call of a rank. What is no such span is passed over, what is one and
cannot be read is counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from otelgpu.families.nccl import collective_names as names
from otelgpu.model.resource import AttributeValue
from otelgpu.otlp_json.messages import Resource, Span
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

UNKNOWN_HOST: Final = "unknown host"
_HOSTS: Final = ("host.id", "host.name")


class Call(NamedTuple):
    """A rank's call. Times are Unix nanoseconds of its host's clock."""

    trace: int
    host: str
    communicator: str
    operation: str
    rank: int
    start_ns: int
    algorithm: float  # bytes per second; NaN: not known
    bus: float
    time_source: str


class Gatherer(Struct):
    """Takes lines in any order, then says what was in them."""

    skips: Skips = field(default_factory=Skips)
    calls: dict[bytes, Call] = field(default_factory=dict)  # by span id
    waits: dict[bytes, int] = field(default_factory=dict)  # span id of the call → end of its wait

    def take(self, lines: Iterable[bytes | None], source: str = UNKNOWN_HOST) -> None:
        """``source`` names the host of spans whose resource does not: the file, say."""
        reader = Reader(source, self.skips)
        for document in reader.documents(lines):
            for of_resource in document.resource_spans:
                host = _host(reader, of_resource.resource)
                for of_scope in of_resource.scope_spans:
                    if of_scope.scope.name == names.SCOPE:
                        for span in reader.spans(of_scope):
                            self._take(reader, host, span)

    def _take(self, reader: Reader, host: str, span: Span) -> None:
        try:
            described = attributes(span.attributes)
            if names.PHASE in described:
                self._add(reader, host, span, described)
        except ValueError as error:
            reader.skip(SPANS, error)
        except KeyError as error:
            reader.skip(SPANS, f"a call without {error}")

    def _add(self, reader: Reader, host: str, span: Span, described: Mapping[str, AttributeValue]) -> None:
        phase = described[names.PHASE]
        if phase == "wait":
            self.waits[identity(span.parent_span_id, 8)] = time_ns(span.end_time_unix_nano)
        elif phase == "enqueue" and names.SEQUENCE in described and names.RANK in described:
            call = Call(
                trace=int.from_bytes(identity(span.trace_id, 16), "big"),
                host=host,
                communicator=str(described[names.HASH]),
                operation=str(described[names.OPERATION]),
                rank=int(str(described[names.RANK])),
                start_ns=time_ns(span.start_time_unix_nano),
                algorithm=float(str(described.get(names.ALGORITHM_BANDWIDTH, np.nan))),
                bus=float(str(described.get(names.BUS_BANDWIDTH, np.nan))),
                time_source=str(described.get(names.TIME_SOURCE, "")),
            )
            span_id = identity(span.span_id, 8)
            if span_id in self.calls:
                reader.skip("spans_repeated", span.span_id)
            self.calls[span_id] = call

    def columns(self) -> CallColumns:
        """Everything, in the order of span ids: the same for every order of documents."""
        found = sorted(self.calls.items())
        calls = [call for _, call in found]
        base = min((call.start_ns for call in calls), default=0)
        ends = [self.waits.get(identity) for identity, _ in found]
        hosts = sorted({call.host for call in calls})
        places = {host: place for place, host in enumerate(hosts)}
        traces = {trace: code for code, trace in enumerate(sorted({call.trace for call in calls}))}
        return CallColumns(
            calls=calls,
            hosts=hosts,
            host=np.array([places[call.host] for call in calls], dtype=np.intp),
            trace=np.array([traces[call.trace] for call in calls], dtype=np.intp),
            traces=len(traces),
            start=np.array([call.start_ns - base for call in calls], dtype=np.float64),
            end=np.array([np.nan if end is None else end - base for end in ends], dtype=np.float64),
        )


class CallColumns(Struct, frozen=True, kw_only=True):
    """n calls. Times are nanoseconds since the first one, by each host's own clock."""

    calls: list[Call]
    hosts: list[str]
    host: npt.NDArray[np.intp]  # indices into ``hosts``
    trace: npt.NDArray[np.intp]  # in range(traces)
    traces: int
    start: npt.NDArray[np.float64]
    end: npt.NDArray[np.float64]  # of the wait; NaN: none was seen


def _host(reader: Reader, resource: Resource) -> str:
    try:
        described = attributes(resource.attributes)
    except Unreadable as error:
        reader.skip(RESOURCES, error)
        return reader.source
    return next((str(described[key]) for key in _HOSTS if described.get(key)), reader.source)
