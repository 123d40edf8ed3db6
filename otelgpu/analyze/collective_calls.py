"""The calls of collectives in OTLP/JSON: what ``otelgpu.nccl`` spans of any number of hosts tell. Pure.

In: documents, each a ``TracesData`` as OTLP/JSON has it. Out: columns, a row per call of a rank. What is no such span
is passed over, what is one and cannot be read is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from otelgpu.signals import collective_names as names

UNKNOWN_HOST: Final = "unknown host"
_HOSTS: Final = ("host.id", "host.name")
_MOST: Final = 1 << 62  # nanoseconds: in 2116

Document = Mapping[str, Any]


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


@dataclass
class Gatherer:
    """Takes documents in any order, then says what was in them."""

    counters: Counter[str] = field(default_factory=Counter)
    calls: dict[bytes, Call] = field(default_factory=dict)  # by span id
    waits: dict[bytes, int] = field(default_factory=dict)  # span id of the call → end of its wait

    def take(self, documents: Iterable[Document], source: str = UNKNOWN_HOST) -> None:
        """``source`` names the host of spans whose resource does not: the file, say."""
        for document in documents:
            try:
                for host, span in _spans(document, source):
                    self._take(host, span)
            except (AttributeError, KeyError, TypeError, ValueError):
                self.counters["documents_invalid"] += 1

    def _take(self, host: str, span: Document) -> None:
        try:
            told = dict(_attributes(span))
            if names.PHASE not in told:
                return
            self._add(host, span, told)
        except (AttributeError, KeyError, TypeError, ValueError):
            self.counters["spans_invalid"] += 1

    def _add(self, host: str, span: Document, told: Mapping[str, Any]) -> None:
        phase = told[names.PHASE]
        if phase == "wait":
            self.waits[bytes.fromhex(span["parentSpanId"])] = _time(span["endTimeUnixNano"])
        elif phase == "enqueue" and names.SEQUENCE in told and names.RANK in told:
            identity = bytes.fromhex(span["spanId"])
            if identity in self.calls:
                self.counters["spans_repeated"] += 1
            self.calls[identity] = Call(
                trace=int(span["traceId"], 16),
                host=host,
                communicator=str(told[names.HASH]),
                operation=str(told[names.OPERATION]),
                rank=int(told[names.RANK]),
                start_ns=_time(span["startTimeUnixNano"]),
                algorithm=float(told.get(names.ALGORITHM_BANDWIDTH, np.nan)),
                bus=float(told.get(names.BUS_BANDWIDTH, np.nan)),
                time_source=str(told.get(names.TIME_SOURCE, "")),
            )

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


@dataclass(frozen=True, slots=True, kw_only=True)
class CallColumns:
    """n calls. Times are nanoseconds since the first one, by each host's own clock."""

    calls: list[Call]
    hosts: list[str]
    host: npt.NDArray[np.intp]  # indices into ``hosts``
    trace: npt.NDArray[np.intp]  # in range(traces)
    traces: int
    start: npt.NDArray[np.float64]
    end: npt.NDArray[np.float64]  # of the wait; NaN: none was seen


def _spans(document: Document, source: str) -> Iterator[tuple[str, Document]]:
    for of_resource in document.get("resourceSpans", ()):
        described = dict(_attributes(of_resource.get("resource", {})))
        host = next((str(described[key]) for key in _HOSTS if described.get(key)), source)
        for of_scope in of_resource.get("scopeSpans", ()):
            if of_scope.get("scope", {}).get("name") == names.SCOPE:
                for span in of_scope.get("spans", ()):
                    yield host, span


def _attributes(of: Document) -> Iterator[tuple[str, Any]]:
    for attribute in of.get("attributes", ()):
        for kind, value in attribute.get("value", {}).items():
            yield attribute["key"], int(value) if kind == "intValue" else value


def _time(text: str) -> int:
    time_ns = int(text)
    if not 0 <= time_ns < _MOST:
        raise ValueError(text)
    return time_ns
