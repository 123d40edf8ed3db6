"""Operations whose spans are written from their rows, without a column of them being made. Pure.

In: folded operations with their parents. Out: batches of :class:`RowSpans`, each of one process, family and kind. All
that is text in a span is said once for each *form* of row (:mod:`otelgpu.engine.operation_spans`); numbers are where
they lie in the row. Kinds that report what does not lie there are not for this module: :func:`is_plain`.

Example: 60,000 launches of 200 kernels are one batch with 200 forms, and ten numbers of each row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Final, cast

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from otelgpu.engine import names
from otelgpu.engine.contract import OperationDecoder
from otelgpu.engine.folding import Folded, Parents
from otelgpu.engine.operation_signals import Holds, OperationSignals
from otelgpu.model.codes import Codes
from otelgpu.model.operations import OPERATION, Field, OperationKind, Operations, concatenate
from otelgpu.model.resource import Resource
from otelgpu.model.spans import SpanColumns
from otelgpu.spanwriter.forms import FormFinder, Key
from otelgpu.spanwriter.writer import OfRun

Forms = npt.NDArray[np.uint32]


class RowNumber(Struct, frozen=True, cache_hash=True):
    """An attribute whose value lies in a row, or is a run's. ``holds`` None: it is reported of every row."""

    key: str
    value: Field | OfRun
    holds: Holds | None = None
    absent: int | None = None


FORMS_KNOWN: Final = 4096
"""What so many forms look like is kept."""

_TOLD_APART_BY: Final = ("tgid", "family", "kind", "api", "context_source")

THREAD_ID: Final = RowNumber(names.THREAD_ID, Field("tid"))
OF_RUNS: Final = (
    RowNumber(names.COUNT, OfRun.COUNT),
    RowNumber(names.HOST_TIME, OfRun.SUM_S),
    RowNumber(names.HOST_LEAST, OfRun.LEAST_S),
    RowNumber(names.HOST_MOST, OfRun.MOST_S),
    RowNumber(names.MERGED, OfRun.MERGED),
)
"""Reported of runs of several calls; the last one of merged ones."""


class FormText(Struct, frozen=True, kw_only=True, cache_hash=True):
    """What all spans of a form have in common."""

    name: str
    status: int  # StatusCode
    status_message: str
    attributes: tuple[tuple[str, str | tuple[str, ...] | float], ...]  # each key once


class RowSpans(Struct, frozen=True, kw_only=True):
    """Spans of those rows of ``work`` whose form is among ``forms``; all rows are of one family.

    ``chosen``: their positions; None: all. ``form``: (n,) of each row of ``work``; ``forms``: (k,) ascending, those of
    this batch, and ``texts`` what each looks like. ``seed``: of span ids. ``columns``: makes the same spans as columns.
    """

    resource: Resource
    scope: str
    work: Folded
    parents: Parents
    chosen: Codes | None
    form: Forms
    forms: Codes
    texts: Sequence[FormText]
    numbers: tuple[RowNumber, ...]
    seed: int
    unix_offset_ns: int
    columns: Callable[[], Iterator[SpanColumns]]

    def __len__(self) -> int:
        return len(self.work) if self.chosen is None else len(self.chosen)

    def in_columns(self) -> Iterator[SpanColumns]:
        """The same spans, some thousand at once."""
        return self.columns()


class RowForms:
    """Which rows of a session's families may be written as they are, and what makes their text.

    What forms look like is kept from one report to the next, for a program makes the same calls again and again.
    """

    def __init__(self, families: Sequence[tuple[OperationDecoder, OperationSignals]]) -> None:
        self._plain = np.zeros((len(families), max(OperationKind) + 1), dtype=np.bool_)
        labels: dict[Field, set[int]] = {}
        for family, (_, signals) in enumerate(families):
            for kind in filter(partial(is_plain, signals), OperationKind):
                self._plain[family, kind] = True
                for _, _, column in signals.labels.get(kind, ()):
                    labels.setdefault(cast(Field, column), set()).add(kind)
        keys = [Key(Field(name)) for name in _TOLD_APART_BY]
        keys.append(Key(Field("name"), kinds=(OperationKind.LAUNCH,)))
        keys.append(Key(Field("status"), condition=Field("returned")))
        keys += [Key(field, kinds=kinds) for field, kinds in labels.items()]
        self.finder = FormFinder(keys, kind=Field("kind"))
        self._masks = np.stack([_mask(keys, kind) for kind in range(max(OperationKind) + 1)])
        self._texts: dict[bytes, FormText] = {}

    def are_plain(self, rows: Operations) -> npt.NDArray[np.bool_]:
        """Of each row: shape (n,)."""
        found: npt.NDArray[np.bool_] = self._plain[rows["family"], rows["kind"]]
        return found

    def texts(
        self, looks: Operations, make: Callable[[Operations], Sequence[FormText]]
    ) -> Sequence[FormText]:
        """What forms of one family and kind look like: ``make`` is asked for those that are not known yet.

        ``looks``: an operation of each.
        """
        keys = self._keys(looks)
        found = list(map(self._texts.get, keys))
        new = [place for place, text in enumerate(found) if text is None]
        if new:
            if len(self._texts) + len(new) > FORMS_KNOWN:
                self._texts.clear()
            for place, text in zip(new, make(looks.take(new)), strict=True):
                found[place] = text
                if len(self._texts) < FORMS_KNOWN:
                    self._texts[keys[place]] = text
        return cast(list[FormText], found)

    def _keys(self, looks: Operations) -> list[bytes]:
        """The bytes of each that its text is made of; the others are zeros."""
        looks = concatenate([looks])
        looks["status"][looks["returned"] != 1] = 0
        masked = (looks.view(np.uint8).reshape(len(looks), -1) & self._masks[looks["kind"][0]]).tobytes()
        width = OPERATION.itemsize
        return [masked[at : at + width] for at in range(0, len(masked), width)]


def _mask(keys: Sequence[Key], kind: int) -> npt.NDArray[np.uint8]:
    """Which bits of a row of a kind its text is made of: not the process, which has its own resource."""
    mask = np.zeros(OPERATION.itemsize, dtype=np.uint8)
    for key in keys:
        if key.field.name != "tgid" and (key.kinds is None or kind in key.kinds):
            form, offset = key.field.place
            mask[offset : offset + form.itemsize] = 0xFF
    return mask


def is_plain(signals: OperationSignals, kind: OperationKind) -> bool:
    """Whether all that a family reports of a kind lies in its rows."""
    numbers = (spec.column for spec in signals.attributes.get(kind, ()))
    labels = (column for _, _, column in signals.labels.get(kind, ()))
    return kind in signals.attributes and all(isinstance(column, Field) for column in (*numbers, *labels))


def numbers_of(signals: OperationSignals, kind: OperationKind, *, runs: bool) -> tuple[RowNumber, ...]:
    """Those of a plain kind."""
    own = [
        RowNumber(spec.key, spec.column, spec.holds, spec.absent)
        for spec in signals.attributes.get(kind, ())
        if isinstance(spec.column, Field)
    ]
    return (THREAD_ID, *own, *(OF_RUNS if runs else ()))


def positions_by_form(form: Forms, batches: Sequence[Codes]) -> Iterator[Codes | None]:
    """For each batch of forms, which have all of them, the rows that are of its, in their order; None: all rows."""
    if len(batches) == 1:
        yield None
        return
    batch_of_form = np.empty(sum(map(len, batches)), dtype=np.uint8 if len(batches) < 256 else np.intp)
    for number, forms in enumerate(batches):
        batch_of_form[forms] = number
    batch = batch_of_form[form]
    order = batch.argsort(kind="stable")
    ends = np.cumsum(np.bincount(batch, minlength=len(batches))).tolist()
    for first, last in pairwise([0, *ends]):
        yield order[first:last]
