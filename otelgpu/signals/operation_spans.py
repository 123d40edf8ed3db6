"""Folded operations → spans, in columns, whatever the family."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from otelgpu.correlate.fold import Folded
from otelgpu.families.base import Holds, OperationDecoder, OperationSignals
from otelgpu.model.ids import span_ids
from otelgpu.model.operations import ContextSource, OperationKind, Operations
from otelgpu.model.resource import Resource
from otelgpu.model.spans import Attribute, SpanColumns, SpanKind, StatusCode, Text
from otelgpu.signals import names
from otelgpu.signals.columns import text_of_codes

_SALT = 0x6F70  # keeps operation ids apart from request ids made of the same words


@dataclass(frozen=True, slots=True, kw_only=True)
class Parents:
    """What ``Folded.group`` indexes: the span that a group's operations go under. Columns of length m."""

    trace_id: npt.NDArray[np.uint8]  # (m, 16)
    span_id: npt.NDArray[np.uint8]  # (m, 8)
    flags: npt.NDArray[np.uint32]  # (m,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """How a session's operations are called: by family position, and by kernel name index."""

    families: Sequence[tuple[OperationDecoder, OperationSignals]]
    kernels: Sequence[str]  # full names; index 0 is unknown
    short_kernels: Sequence[str]

    def call_name(self, family: int, api: int) -> str:
        """The exported name of an API function."""
        return self.families[family][0].apis.get(api, f"api {api}")

    def result_name(self, family: int, status: int) -> str:
        """The vendor's name of a result code."""
        return self.families[family][1].result_name(status)


def operation_spans(
    folded: Folded,
    parents: Parents,
    resources: dict[int, Resource],
    vocabulary: Vocabulary,
    *,
    seed: int,
    unix_offset_ns: int,
) -> list[SpanColumns]:
    """One batch per (process, family, kind of operation). ``resources`` is by tgid.

    Start and end are host times; a span of a run covers from its first call's start to its last one's end.
    """
    rows = folded.operations
    batches = []
    keys = rows["tgid"].astype(np.uint64) << np.uint64(16)
    keys |= rows["family"].astype(np.uint64) << np.uint64(8)
    keys |= rows["kind"].astype(np.uint64)
    for key in np.unique(keys):
        chosen = np.flatnonzero(keys == key)
        tgid, family, kind = int(key) >> 16, (int(key) >> 8) & 0xFF, OperationKind(int(key) & 0xFF)
        batches.append(
            _batch(
                folded,
                chosen,
                parents,
                resources[tgid],
                vocabulary,
                family,
                kind,
                seed=seed,
                unix_offset_ns=unix_offset_ns,
            )
        )
    return batches


def _batch(
    folded: Folded,
    chosen: npt.NDArray[np.intp],
    parents: Parents,
    resource: Resource,
    vocabulary: Vocabulary,
    family: int,
    kind: OperationKind,
    *,
    seed: int,
    unix_offset_ns: int,
) -> SpanColumns:
    rows = folded.operations.take(chosen)
    group = folded.group[chosen]
    signals = vocabulary.families[family][1]
    failed = (rows["status"] != 0) & (rows["returned"] == 1)
    words = rows["tid"].astype(np.uint64) | (rows["api"].astype(np.uint64) << np.uint64(32))
    offset = np.int64(unix_offset_ns).astype(np.uint64)
    return SpanColumns(
        resource=resource,
        scope=signals.scope,
        kind=SpanKind.INTERNAL,
        trace_id=parents.trace_id[group],
        span_id=span_ids(seed ^ _SALT, rows["start_ns"], words),
        parent_span_id=parents.span_id[group],
        trace_state=None,
        flags=parents.flags[group],
        start_unix_ns=rows["start_ns"] + offset,
        end_unix_ns=folded.end_ns[chosen] + offset,
        name=_names(rows, vocabulary, family, kind),
        status=np.where(failed, StatusCode.ERROR, StatusCode.UNSET).astype(np.uint8),
        status_message=text_of_codes(
            np.where(failed, rows["status"], 0),
            lambda code: vocabulary.result_name(family, code) if code else "",
        ),
        attributes=_attributes(rows, folded, chosen, vocabulary, family, kind, failed),
    )


def _names(rows: npt.NDArray[np.void], vocabulary: Vocabulary, family: int, kind: OperationKind) -> Text:
    codes = (rows["api"].astype(np.int64) << 32) | rows["name"]

    def label(code: int) -> str:
        call = vocabulary.call_name(family, code >> 32)
        if kind is not OperationKind.LAUNCH:
            return call
        return f"{call} {vocabulary.short_kernels[code & 0xFFFFFFFF]}"

    return text_of_codes(codes, label)


def _attributes(
    rows: Operations,
    folded: Folded,
    chosen: npt.NDArray[np.intp],
    vocabulary: Vocabulary,
    family: int,
    kind: OperationKind,
    failed: npt.NDArray[np.bool_],
) -> tuple[Attribute, ...]:
    signals = vocabulary.families[family][1]
    attributes = [Attribute(key=names.THREAD_ID, values=rows["tid"].astype(np.int64))]
    if kind is OperationKind.LAUNCH:
        kernels = text_of_codes(rows["name"], lambda code: vocabulary.kernels[code])
        attributes.append(Attribute(key=signals.kernel_name, values=kernels))
    count, merged = folded.count[chosen], folded.merged[chosen]
    told = {Holds.EQUAL: ~merged, Holds.SINGLE: count == 1, Holds.SUM: np.ones(len(rows), dtype=np.bool_)}
    for spec in signals.attributes[kind]:
        present = told[spec.holds]
        values = spec.column(rows).astype(np.uint64)
        attributes.append(Attribute(key=spec.key, values=values, present=None if present.all() else present))
    for key, label, column in signals.labels.get(kind, ()):
        attributes.append(Attribute(key=key, values=text_of_codes(column(rows), label)))
    sources = text_of_codes(rows["context_source"], lambda code: ContextSource(code).name.lower())
    attributes.append(Attribute(key=names.CONTEXT_SOURCE, values=sources))
    several = count > 1
    if several.any():
        attributes.append(Attribute(key=names.COUNT, values=count, present=several))
        host = rows["duration_ns"].astype(np.int64)
        attributes.append(Attribute(key=names.HOST_TIME, values=host, present=several))
    if merged.any():
        attributes.append(Attribute(key=names.MERGED, values=merged, present=merged))
    if failed.any():
        errors = text_of_codes(rows["status"], lambda code: vocabulary.result_name(family, code))
        attributes.append(Attribute(key=names.ERROR_TYPE, values=errors, present=failed))
    return tuple(attributes)
