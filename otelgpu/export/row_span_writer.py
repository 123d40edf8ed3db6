"""Operations' rows made ready to be written, as :class:`~otelgpu.export.span_rows.SpanRows` makes columns. Pure.

In: :class:`~otelgpu.engine.row_spans.RowSpans`. Out: a writer of the same spans; what those of a form have in common
is encoded here, once, and the library puts it together with each row's own numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import numpy.typing as npt

from otelgpu.engine.operation_signals import Holds
from otelgpu.engine.row_spans import FORMS_KNOWN, FormText, RowNumber, RowSpans
from otelgpu.export.protobuf import (
    ANY_BOOL,
    ANY_DOUBLE,
    ANY_INT,
    KEY,
    VALUE,
    any_value,
    delimited,
    key_value,
    utf8,
    varint,
)
from otelgpu.export.span_rows import SPAN_ATTRIBUTE, SPAN_KIND, name_field, status_field, text_attribute
from otelgpu.model.operations import Field
from otelgpu.model.spans import SpanKind
from otelgpu.spanwriter import writer
from otelgpu.spanwriter.writer import OfRun, RowValue, RowWriter

_HOLDS: Final[Mapping[Holds, writer.Holds]] = {
    Holds.EQUAL: writer.Holds.NOT_MERGED,
    Holds.SINGLE: writer.Holds.SINGLE,
    Holds.SUM: writer.Holds.ALWAYS,
}
_KIND: Final = SPAN_KIND + varint(SpanKind.INTERNAL)


def row_writer(batch: RowSpans) -> RowWriter:
    """Raises ValueError where rows name a parent that is none."""
    work, parents = batch.work, batch.parents
    columns: dict[str, npt.NDArray[Any] | None] = {
        "rows": work.operations,
        "group": work.group,
        "form": batch.form,
        "chosen": batch.chosen,
        "trace_ids": parents.trace_id,
        "span_ids": parents.span_id,
        "flags": parents.flags,
    }
    if (runs := work.runs) is not None:
        columns |= {
            "count": runs.count,
            "end_ns": runs.end_ns,
            "least_ns": runs.least_ns,
            "most_ns": runs.most_ns,
            "merged": runs.merged,
        }
    return RowWriter(
        columns,
        list(zip(batch.forms.tolist(), map(_form_field, batch.texts), strict=True)),
        _values(batch.numbers),
        seed=batch.seed,
        unix_offset_ns=batch.unix_offset_ns,
    )


@lru_cache(maxsize=FORMS_KNOWN)
def _form_field(text: FormText) -> bytes:
    """All that the spans of a form have in common."""
    return b"".join(
        (
            *(_KIND, name_field(text.name), status_field(text.status, text.status_message)),
            *(
                text_attribute(key, value)
                if isinstance(value, str | tuple)
                else delimited(SPAN_ATTRIBUTE, key_value(key, any_value(value)))
                for key, value in text.attributes
            ),
        )
    )


@lru_cache(maxsize=256)
def _values(numbers: tuple[RowNumber, ...]) -> tuple[RowValue, ...]:
    return tuple(map(_value, numbers))


def _value(number: RowNumber) -> RowValue:
    if isinstance(number.value, Field):
        holds = writer.Holds.ALWAYS if number.holds is None else _HOLDS[number.holds]
        return RowValue(_lead(number.key, ANY_INT), number.value, holds, number.absent)
    if number.value is OfRun.MERGED:
        return RowValue(_lead(number.key, ANY_BOOL), number.value, writer.Holds.MERGED)
    tag = ANY_INT if number.value is OfRun.COUNT else ANY_DOUBLE
    return RowValue(_lead(number.key, tag), number.value, writer.Holds.SEVERAL)


def _lead(key: str, tag: bytes) -> bytes:
    """A field of ``Span.attributes`` up to its value, with zeros for the lengths of the field and of the value."""
    return SPAN_ATTRIBUTE + b"\0" + delimited(KEY, utf8(key)) + VALUE + b"\0" + tag
