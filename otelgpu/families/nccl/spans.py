"""Collectives → spans: ``ncclAllReduce`` of each rank under one ``AllReduce``, each with its wait. Pure.

In: calls of which no more will be known. Out: spans in columns, per process. The span of the whole collective is
reported by the agent that sees rank 0, and by no other; that of a pair of ranks is the sender's own.

A rank's span is its host call, which queues the collective and returns: its duration is no time of the collective's.
When a synchronisation of the host followed on the same stream, that is a span of its own under it, ``nccl wait``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from otelgpu.engine import names
from otelgpu.engine.operation_spans import ROWS_PER_BATCH, Vocabulary
from otelgpu.families.nccl import collective_names
from otelgpu.families.nccl.calls import Calls, Found, wait_ids
from otelgpu.families.nccl.collective_names import Function
from otelgpu.families.nccl.metrics import Times
from otelgpu.families.nccl.numbering import IN_PROGRESS, Numbered
from otelgpu.model.codes import Codes, combine, distinct, order_of
from otelgpu.model.communicators import hash_text
from otelgpu.model.context import Context
from otelgpu.model.operations import Operations, api_and_status, results
from otelgpu.model.resource import Resource
from otelgpu.model.spans import (
    Attribute,
    Links,
    SpanColumns,
    SpanKind,
    StatusCode,
    Text,
    constant_text,
    text_of_codes,
)

Bools = npt.NDArray[np.bool_]
F64 = npt.NDArray[np.float64]

NO_LINK: Final = -1


class Carriers(NamedTuple):
    """The RDMA connections of a communicator in one process."""

    contexts: tuple[int, ...]
    dropped: int  # of them that are not in ``contexts``


class CallLinks(Struct, frozen=True, kw_only=True):
    """What calls are linked to: what they were made under, and the connections that carry their bytes.

    ``context``: of each call, an index into ``contexts``; ``carrier``: of each call, an index into ``carriers``, which
    are of indices into ``contexts`` too. NO_LINK: there is none.
    """

    context: npt.NDArray[np.int64]
    carrier: npt.NDArray[np.int64]
    contexts: Sequence[tuple[Context, str]]  # with how it is known
    carriers: Sequence[Carriers]

    def take(self, chosen: Codes) -> CallLinks:
        """Of some calls."""
        return replace(self, context=self.context[chosen], carrier=self.carrier[chosen])

    def of(self, rows: Codes) -> Links | None:
        """Links of the spans of some calls."""
        span, chosen, dropped = self._joined(rows)
        if not len(span):
            return None
        used, codes = np.unique(chosen, return_inverse=True)
        contexts = [self.contexts[index] for index in used.tolist()]
        codes = codes.reshape(-1)
        ids = np.frombuffer(b"".join(each.trace_id + each.span_id for each, _ in contexts), dtype=np.uint8)
        both = ids.reshape(-1, 24)[codes]
        source = Text(codes=codes, table=tuple(how for _, how in contexts))
        return Links(
            span=span,
            trace_id=both[:, :16],
            span_id=both[:, 16:],
            flags=np.array([each.flags for each, _ in contexts], dtype=np.uint32)[codes],
            attributes=(Attribute(key=names.CONTEXT_SOURCE, values=source),),
            dropped=dropped,
        )

    def _joined(self, rows: Codes) -> tuple[Codes, Codes, npt.NDArray[np.uint32] | None]:
        """Both kinds of links: whose they are, ascending, and their contexts; how many each span lacks."""
        under, carrier = self.context[rows], self.carrier[rows]
        spans = [np.flatnonzero(under != NO_LINK)]
        chosen = [under[spans[0]]]
        if not (carrier != NO_LINK).any():
            return spans[0], chosen[0], None
        dropped = np.zeros(len(rows), dtype=np.uint32)
        for index in np.unique(carrier[carrier != NO_LINK]).tolist():
            members, (contexts, left_out) = np.flatnonzero(carrier == index), self.carriers[index]
            spans.append(np.repeat(members, len(contexts)))
            chosen.append(np.tile(np.array(contexts, dtype=np.int64), len(members)))
            dropped[members] = left_out
        span = np.concatenate(spans)
        order = np.argsort(span, kind="stable")
        return span[order], np.concatenate(chosen)[order], dropped


class SpanReport(Struct, frozen=True, kw_only=True):
    """What all batches of a tick have in common."""

    vocabulary: Vocabulary
    functions: Sequence[Function]
    resource_of: Callable[[int], Resource]
    seed: int
    offset_ns: int
    trace_state: str

    def text(self, rows: int) -> Text | None:
        """W3C trace state of spans."""
        return constant_text(self.trace_state, rows) if self.trace_state else None


def call_spans(
    reporting: SpanReport, calls: Calls, lateness: F64, times: Times, links: CallLinks
) -> Iterator[SpanColumns]:
    """The spans of calls. ``lateness``: seconds, NaN where there was nothing to compare."""
    for chosen in _batches(calls.rows):
        yield _call_batch(reporting, calls.take(chosen), lateness[chosen], times.of(chosen), links.of(chosen))


def _batches(rows: Operations) -> Iterator[Codes]:
    """Calls of one process, family and kind, in their order; bounded."""
    coded = [distinct(np.ascontiguousarray(rows[name])) for name in ("tgid", "family", "kind")]
    codes, count = combine([(code, len(values)) for values, code in coded], len(rows))
    order = order_of(codes, count)
    begin = 0
    for end in np.cumsum(np.bincount(codes, minlength=count)).tolist():
        for at in range(begin, end, ROWS_PER_BATCH):
            yield order[at : min(at + ROWS_PER_BATCH, end)]
        begin = end


def _call_batch(
    reporting: SpanReport, calls: Calls, lateness: F64, timed: Times, links: Links | None
) -> SpanColumns:
    rows, found = calls.rows, calls.found
    family, vocabulary = int(rows["family"][0]), reporting.vocabulary
    failed = (rows["status"] != 0) & (rows["returned"] == 1) & (rows["status"] != IN_PROGRESS)
    reported = _of_family(rows, family, vocabulary)
    reported |= {each.key: each for each in _of_call(found, reporting.functions)}
    reported |= {each.key: each for each in _measured(lateness, found, timed)}
    reported[names.THREAD_ID] = Attribute(key=names.THREAD_ID, values=rows["tid"].astype(np.int64))
    if failed.any():
        shown = text_of_codes(
            results(rows), lambda each: vocabulary.result_name(family, *api_and_status(each))
        )
        reported[names.ERROR_TYPE] = Attribute(key=names.ERROR_TYPE, values=shown, present=failed)
    start_ns = rows["start_ns"] + np.int64(reporting.offset_ns).astype(np.uint64)
    return SpanColumns(
        resource=reporting.resource_of(int(rows["tgid"][0])),
        scope=collective_names.SCOPE,
        kind=SpanKind.INTERNAL,
        trace_id=found["trace_id"],
        span_id=found["span_id"],
        parent_span_id=found["parent"],
        trace_state=reporting.text(len(rows)),
        flags=np.ones(len(rows), dtype=np.uint32),
        start_unix_ns=start_ns,
        end_unix_ns=start_ns + rows["duration_ns"],
        name=text_of_codes(rows["api"], lambda api: vocabulary.call_name(family, api)),
        status=np.where(failed, np.uint8(StatusCode.ERROR), np.uint8(StatusCode.UNSET)),
        status_message=None,
        attributes=tuple(reported.values()),
        links=links,
    )


def _of_family(rows: Operations, family: int, vocabulary: Vocabulary) -> dict[str, Attribute]:
    """What the family reports of such calls."""
    decoder, signals = vocabulary.families[family]
    kind = int(rows["kind"][0])
    reported: dict[str, Attribute] = {}
    for spec in next((specs for of, specs in signals.attributes.items() if of == kind), ()):
        values = np.ascontiguousarray(spec.column(rows))
        present = None if spec.absent is None else values != spec.absent
        if present is None or present.any():
            reported[spec.key] = Attribute(key=spec.key, values=values, present=present)
    for key, label, column in next((each for of, each in signals.labels.items() if of == kind), ()):
        text = text_of_codes(column(rows), label)
        reported[key] = Attribute(key=key, values=text, present=_where_text(text))
    for key, of_api in signals.api_labels:
        values, codes = distinct(np.ascontiguousarray(rows["api"]))
        text = Text(codes=codes, table=tuple(of_api(decoder.apis.get(api, "")) for api in values.tolist()))
        reported[key] = Attribute(key=key, values=text, present=_where_text(text))
    return reported


def _where_text(text: Text) -> Bools | None:
    there = np.array([bool(entry) for entry in text.table], dtype=np.bool_)
    return None if there.all() else there[text.codes]


def _of_call(found: Found, functions: Sequence[Function]) -> Iterator[Attribute]:
    phases = Text(codes=found["run"].astype(np.intp), table=("enqueue", collective_names.RUN))
    yield Attribute(key=collective_names.PHASE, values=phases)
    yield from _identity(found, functions)
    yield _present(collective_names.RANK, found["rank"].astype(np.int64), found["rank"] >= 0)


def _identity(found: Found, functions: Sequence[Function]) -> Iterator[Attribute]:
    """Which collective, of which communicator."""
    yield Attribute(
        key=collective_names.OPERATION,
        values=text_of_codes(found["function"], lambda code: functions[code].name),
    )
    hashes, codes = np.unique(found["hash"], return_inverse=True)
    text = Text(codes=codes.reshape(-1), table=tuple(map(hash_text, hashes.tolist())))
    yield Attribute(key=collective_names.HASH, values=text, present=_unless_all(found["hash"] != 0))
    yield _present(collective_names.RANKS, found["ranks"].astype(np.int64), found["ranks"] > 0)
    source = text_of_codes(found["source"], lambda code: collective_names.SOURCES[Numbered(code)])
    yield Attribute(key=collective_names.SEQUENCE_SOURCE, values=source)
    numbered = np.isin(found["source"], [each for each in Numbered if each.shared])
    yield _present(collective_names.SEQUENCE, found["number"].astype(np.int64), numbered)


def _measured(lateness: F64, found: Found, timed: Times) -> Iterator[Attribute]:
    yield from _where_known(collective_names.LATENESS, lateness)
    yield from _where_known(
        collective_names.GPU_TIME, np.where(found["device_ns"] > 0, found["device_ns"] * 1e-9, np.nan)
    )
    known = np.isfinite(timed.bus)
    if known.any():
        yield from _where_known(collective_names.ALGORITHM_BANDWIDTH, timed.algorithm)
        yield from _where_known(collective_names.BUS_BANDWIDTH, timed.bus)
        source = Text(codes=timed.source, table=collective_names.TIME_SOURCES)
        yield Attribute(key=collective_names.TIME_SOURCE, values=source, present=_unless_all(known))


def _where_known(key: str, values: F64) -> Iterator[Attribute]:
    known = np.isfinite(values)
    if known.any():
        yield Attribute(key=key, values=np.where(known, values, 0.0), present=_unless_all(known))


def _present(key: str, values: npt.NDArray[Any], present: Bools) -> Attribute:
    return Attribute(key=key, values=values, present=_unless_all(present))


def _unless_all(present: Bools) -> Bools | None:
    return None if present.all() else present


def _constant(key: str, value: str, rows: int) -> Attribute:
    return Attribute(key=key, values=constant_text(value, rows))


def wait_spans(reporting: SpanReport, calls: Calls) -> Iterator[SpanColumns]:
    """The waits for calls, each of which has one, under their spans."""
    for chosen in _batches(calls.rows):
        yield _wait_batch(reporting, calls.take(chosen))


def _wait_batch(reporting: SpanReport, calls: Calls) -> SpanColumns:
    rows, found, count = calls.rows, calls.found, len(calls)
    offset = np.int64(reporting.offset_ns).astype(np.uint64)
    waited = found["wait_family"].astype(np.int64) << 16 | found["wait_api"]
    called = text_of_codes(waited, lambda code: reporting.vocabulary.call_name(code >> 16, code & 0xFFFF))
    return SpanColumns(
        resource=reporting.resource_of(int(rows["tgid"][0])),
        scope=collective_names.SCOPE,
        kind=SpanKind.INTERNAL,
        trace_id=found["trace_id"],
        span_id=wait_ids(found, seed=reporting.seed),
        parent_span_id=found["span_id"],
        trace_state=reporting.text(count),
        flags=np.ones(count, dtype=np.uint32),
        start_unix_ns=found["wait_start_ns"] + offset,
        end_unix_ns=found["wait_end_ns"] + offset,
        name=constant_text(collective_names.WAIT, count),
        status=np.zeros(count, dtype=np.uint8),
        status_message=None,
        attributes=(
            _constant(collective_names.PHASE, "wait", count),
            *_identity(found, reporting.functions),
            _present(collective_names.RANK, found["rank"].astype(np.int64), found["rank"] >= 0),
            Attribute(key=collective_names.WAIT_CALL, values=called),
            Attribute(key=collective_names.WAIT_COUNT, values=found["wait_count"].astype(np.int64)),
            Attribute(key=names.THREAD_ID, values=found["wait_tid"].astype(np.int64)),
        ),
    )


class Gatherings(Struct, frozen=True, kw_only=True):
    """What is known of m collectives as a whole."""

    calls: Calls  # of rank 0
    start_ns: npt.NDArray[np.uint64]  # of the first rank that was seen
    end_ns: npt.NDArray[np.uint64]  # of the last, with its wait
    seen: npt.NDArray[np.int64]  # ranks
    last_rank: npt.NDArray[np.int64]
    skew: F64  # seconds; NaN where one rank was seen


def root_spans(reporting: SpanReport, reported: Gatherings) -> Iterator[SpanColumns]:
    """The spans of whole collectives, under the process of rank 0."""
    for chosen in _batches(reported.calls.rows):
        yield _root_batch(reporting, reported, reported.calls.take(chosen), chosen)


def _root_batch(reporting: SpanReport, reported: Gatherings, calls: Calls, chosen: Codes) -> SpanColumns:
    rows, found, count = calls.rows, calls.found, len(calls)
    offset = np.int64(reporting.offset_ns).astype(np.uint64)
    several = np.isfinite(reported.skew[chosen])
    return SpanColumns(
        resource=reporting.resource_of(int(rows["tgid"][0])),
        scope=collective_names.SCOPE,
        kind=SpanKind.INTERNAL,
        trace_id=found["trace_id"],
        span_id=found["parent"],
        parent_span_id=np.zeros((count, 8), dtype=np.uint8),
        trace_state=reporting.text(count),
        flags=np.ones(count, dtype=np.uint32),
        start_unix_ns=reported.start_ns[chosen] + offset,
        end_unix_ns=reported.end_ns[chosen] + offset,
        name=text_of_codes(found["function"], lambda code: reporting.functions[code].name),
        status=np.zeros(count, dtype=np.uint8),
        status_message=None,
        attributes=(
            _constant(collective_names.PHASE, "collective", count),
            *_identity(found, reporting.functions),
            Attribute(key=collective_names.RANKS_SEEN, values=reported.seen[chosen]),
            Attribute(key=collective_names.BYTES, values=rows["size_bytes"].astype(np.uint64)),
            _present(collective_names.LAST_RANK, reported.last_rank[chosen], several),
            *_where_known(collective_names.SKEW, reported.skew[chosen]),
        ),
    )
