"""Folded operations → spans, in columns, whatever the family. Pure.

In: folded operations with their parents. Out: batches of spans of one process, family and kind.

How. All that is text in a span (name, kernel, error, context source) is given by few columns; their distinct
combinations are *forms*. Rows are ordered by form once, which also parts them into batches, and the texts are
tables over forms that share one array of codes: no text is looked at per row. Batches are bounded, and made when
they are asked for: each is encoded, and its memory used again, before the next.

Example: 60,000 launches of 200 kernels through one function, 40 of which failed with one error, have some 240
forms and make four batches of at most 16,384 spans.

Operations whose process published a span for their thread (DESIGN.md 5) go under that. Example: a request's ten
launches, four of them made while the program said that it was in its span "sample": six stay under the request's
decode phase, four go under "sample", and the request's sums are still of ten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field
from msgspec.structs import replace

from otelgpu.engine import names
from otelgpu.engine.contract import OperationDecoder
from otelgpu.engine.folding import Folded, Parents, concatenate, fold, take, unfolded
from otelgpu.engine.operation_signals import Holds, OperationSignals
from otelgpu.engine.row_spans import Forms, FormText, RowForms, RowSpans, numbers_of, positions_by_form
from otelgpu.model.codes import Codes, all_of, combine, distinct, examples, order_of, values_of
from otelgpu.model.context_sources import IS_PUBLISHED, ContextSource
from otelgpu.model.ids import span_ids
from otelgpu.model.inputs import FunctionNamed
from otelgpu.model.operations import OperationKind, Operations, columns_of
from otelgpu.model.resource import Resource
from otelgpu.model.settings import Detail
from otelgpu.model.spans import Attribute, SpanBatch, SpanColumns, SpanKind, StatusCode, Text, text_of_codes
from otelgpu.spanwriter.library import library

ROWS_PER_BATCH: Final = 16_384
SAMPLED: Final = 1
"""The W3C trace flag."""
_BATCH: Final = ("tgid", "family", "kind")  # what the spans of a batch have in common
_SOURCES: Final = [source.exported for source in ContextSource]
_SALT: Final = 0x6F70  # keeps operation ids apart from request ids made of the same words


class Vocabulary(Struct, frozen=True, kw_only=True):
    """How a session's operations are called: by family position, and by kernel name index."""

    families: Sequence[tuple[OperationDecoder, OperationSignals]]
    kernels: Sequence[str]  # full names; index 0 is unknown
    short_kernels: Sequence[str]
    places: Mapping[int, FunctionNamed] = field(
        default_factory=dict
    )  # of kernels without a name: where they are

    def call_name(self, family: int, api: int) -> str:
        """The exported name of an API function."""
        return self.families[family][0].apis.get(api, f"api {api}")

    def result_name(self, family: int, api: int, status: int) -> str:
        """The vendor's name of a result code, which depends on whose function returned it."""
        return self.families[family][1].result_name(self.call_name(family, api), status)


def operation_spans(
    folded: Folded,
    parents: Parents,
    resources: dict[int, Resource],
    vocabulary: Vocabulary,
    *,
    seed: int,
    unix_offset_ns: int,
    rows: RowForms | None = None,
) -> Iterator[SpanBatch]:
    """Batches of one process, family and kind of operation, in the order of what they look like.

    Each is made when it is asked for, from what the arguments were at the call: nobody may change them.
    ``resources`` is by tgid. Start and end are host times; a span of a run covers from its first call's start
    to its last one's end. ``rows``: what may be written from its row is; without it, all is in columns.
    """
    making = _Making(parents, resources, vocabulary, seed, unix_offset_ns)
    return making.in_columns(folded) if rows is None else making.by_row(folded, rows)


class _Making(NamedTuple):
    """Spans of what is reported together."""

    parents: Parents
    resources: dict[int, Resource]
    vocabulary: Vocabulary
    seed: int
    unix_offset_ns: int

    def in_columns(self, folded: Folded) -> Iterator[SpanColumns]:
        """All of them."""
        rows = folded.operations
        if not len(rows):
            return
        forms, count = _forms(rows)
        order = order_of(forms, count)
        ends = np.cumsum(np.bincount(forms, minlength=count)).tolist()
        first_rows = rows.take(examples(forms, count))
        for first, last in _stretches([first_rows[name] for name in _BATCH]):
            begin, end = (ends[first - 1] if first else 0), ends[last - 1]
            look = _look(first_rows[first:last], self.vocabulary)
            resource = self.resources[int(first_rows["tgid"][first])]
            for at in range(begin, end, ROWS_PER_BATCH):
                chosen = order[at : min(at + ROWS_PER_BATCH, end)]
                maker = _Batch(take(folded, chosen), forms[chosen] - first, look, self.vocabulary)
                yield maker.spans(self.parents, resource, seed=self.seed, unix_offset_ns=self.unix_offset_ns)

    def by_row(self, folded: Folded, rows: RowForms) -> Iterator[SpanBatch]:
        """The same spans; in columns are those of kinds that report what is in no row."""
        if not len(folded):
            return
        form, firsts = rows.finder.find(folded.operations)
        looks = folded.operations.take(firsts)
        order = np.lexsort([looks[name] for name in reversed(_BATCH)])
        stretches = _stretches([looks[name][order] for name in _BATCH])
        batches = [np.sort(order[first:last]) for first, last in stretches]
        for forms, chosen in zip(batches, positions_by_form(form, batches), strict=True):
            if rows.are_plain(looks[forms[:1]]):
                yield self._rows(folded, chosen, form, forms, looks.take(forms), rows)
            else:
                yield from self.in_columns(folded if chosen is None else take(folded, chosen))

    def _rows(
        self,
        folded: Folded,
        chosen: Codes | None,
        form: Forms,
        forms: Codes,
        looks: Operations,
        rows: RowForms,
    ) -> RowSpans:
        signals = self.vocabulary.families[int(looks["family"][0])][1]
        kind = OperationKind(int(looks["kind"][0]))
        return RowSpans(
            resource=self.resources[int(looks["tgid"][0])],
            scope=signals.scope,
            work=folded,
            parents=self.parents,
            chosen=chosen,
            form=form,
            forms=forms,
            texts=rows.texts(looks, self._texts),
            numbers=numbers_of(signals, kind, runs=folded.runs is not None),
            seed=self.seed ^ _SALT,
            unix_offset_ns=self.unix_offset_ns,
            columns=lambda: self.in_columns(folded if chosen is None else take(folded, chosen)),
        )

    def _texts(self, looks: Operations) -> list[FormText]:
        """What forms look like, of each of which there is an operation."""
        one_each = unfolded(looks, np.zeros(len(looks), dtype=np.int64))
        look = _look(looks, self.vocabulary)
        return _Batch(one_each, np.arange(len(looks)), look, self.vocabulary).texts()


def _forms(rows: Operations) -> tuple[Codes, int]:
    """A code for all that is text in a span, in the order of the batches; and how many there are."""
    columns = columns_of(rows, (*_BATCH, "api", "context_source", "name", "status", "returned"))
    columns["name"][columns["kind"] != OperationKind.LAUNCH] = 0
    status, returned = columns.pop("status"), columns.pop("returned")
    coded = [(codes, len(values)) for values, codes in map(distinct, columns.values())]
    failed = np.flatnonzero(status)
    failed = failed[returned[failed] == 1]
    if len(failed):
        values, codes = distinct(status[failed])
        result = np.zeros(len(rows), dtype=np.intp)
        result[failed] = codes + 1
        coded.append((result, len(values) + 1))
    return combine(coded, len(rows))


def _stretches(columns: Sequence[npt.NDArray[Any]]) -> list[tuple[int, int]]:
    """``[first, last)`` of each run of rows that are equal in all columns."""
    change = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    bounds = [0, *(np.flatnonzero(change) + 1).tolist(), len(columns[0])]
    return list(pairwise(bounds))


class _Look(Struct, frozen=True, kw_only=True):
    """The texts of the m forms of a process, family and kind: tables of m entries, or one for all forms."""

    name: tuple[str, ...]
    kernel: tuple[str, ...]  # full names; of launches only
    places: tuple[
        FunctionNamed | None, ...
    ]  # (m,) of launches: where a kernel without a name is; (): there is none
    by_api: tuple[
        tuple[str, tuple[str, ...]], ...
    ]  # key and table of each attribute that the function reports
    source: tuple[str, ...]
    failed: npt.NDArray[np.bool_]  # (m,)
    result: tuple[str, ...]  # names of errors; "" where the call did not fail


def _look(forms: Operations, vocabulary: Vocabulary) -> _Look:
    """``forms``: an operation of each form."""
    family, kind = int(forms["family"][0]), int(forms["kind"][0])
    apis = forms["api"].tolist()
    called = {api: vocabulary.call_name(family, api) for api in dict.fromkeys(apis)}
    calls = [called[api] for api in apis]
    names_of, kernels = calls, []
    if kind == OperationKind.LAUNCH:
        kernels = forms["name"].tolist()
        names_of = [f"{call} {vocabulary.short_kernels[k]}" for call, k in zip(calls, kernels, strict=True)]
    by_api = []
    for key, name_of in vocabulary.families[family][1].api_labels:
        reported = {api: name_of(call) for api, call in called.items()}
        by_api.append((key, _table([reported[api] for api in apis])))
    failed = (forms["status"] != 0) & (forms["returned"] == 1)
    return _Look(
        name=_table(names_of),
        kernel=_table([vocabulary.kernels[k] for k in kernels]),
        places=tuple(map(vocabulary.places.get, kernels))
        if not vocabulary.places.keys().isdisjoint(kernels)
        else (),
        by_api=tuple(by_api),
        source=_table([_SOURCES[source] for source in forms["context_source"].tolist()]),
        failed=failed,
        result=_table(
            [
                vocabulary.result_name(family, api, status) if wrong else ""
                for api, status, wrong in zip(apis, forms["status"].tolist(), failed.tolist(), strict=True)
            ]
            if failed.any()
            else [""]
        ),
    )


def _table(texts: list[str]) -> tuple[str, ...]:
    """The texts of all forms; one entry where they are all the same."""
    return tuple(texts) if texts and texts.count(texts[0]) < len(texts) else tuple(texts[:1])


def _spread(table: tuple[str, ...], forms: int) -> tuple[str, ...]:
    """An entry for each form."""
    return table if len(table) == forms else table * forms


class _Batch:
    """Spans of rows of one process, family and kind, whose texts are given by ``form``, shape (n,)."""

    def __init__(self, folded: Folded, form: Codes, look: _Look, vocabulary: Vocabulary) -> None:
        self._folded = folded
        self._rows = folded.operations
        self._form = form
        self._look = look
        self._kind = OperationKind(int(self._rows["kind"][0]))
        self._signals = vocabulary.families[int(self._rows["family"][0])][1]
        self._one_for_all = np.zeros(len(form), dtype=np.intp)
        self._failed = look.failed[form]
        self._any_failed = bool(self._failed.any())

    def spans(self, parents: Parents, resource: Resource, *, seed: int, unix_offset_ns: int) -> SpanColumns:
        """The batch under its ``parents``."""
        rows, group = self._rows, self._folded.group
        start_ns = np.ascontiguousarray(rows["start_ns"])
        words = rows["tid"].astype(np.uint64) | (rows["api"].astype(np.uint64) << np.uint64(32))
        offset = np.int64(unix_offset_ns).astype(np.uint64)
        return SpanColumns(
            resource=resource,
            scope=self._signals.scope,
            kind=SpanKind.INTERNAL,
            trace_id=parents.trace_id.take(group, axis=0),
            span_id=span_ids(seed ^ _SALT, start_ns, words),
            parent_span_id=parents.span_id.take(group, axis=0),
            trace_state=None,
            flags=parents.flags.take(group),
            start_unix_ns=start_ns + offset,
            end_unix_ns=self._folded.end_ns + offset,
            name=self._text(self._look.name),
            status=self._failed * np.uint8(StatusCode.ERROR),
            status_message=self._text(self._look.result) if self._any_failed else None,
            attributes=tuple(self._attributes()),
        )

    def texts(self) -> list[FormText]:
        """What is the same for all rows of a form: of rows of which each is a form's example."""
        rows = len(self._rows)
        attributes = list(chain(self._kernels(), self._labels(), self._errors()))
        keys = [attribute.key for attribute in attributes]
        values = zip(*(attribute.rows(rows) for attribute in attributes), strict=True)
        look, failed = self._look, self._failed.tolist()
        return [
            FormText(
                name=name,
                status=StatusCode.ERROR if has_failed else StatusCode.UNSET,
                status_message=result,
                attributes=tuple(
                    (key, value) for key, value in zip(keys, row, strict=True) if value is not None
                ),
            )
            for name, has_failed, result, row in zip(
                *(_spread(look.name, rows), failed, _spread(look.result, rows), values), strict=True
            )
        ]

    def _text(self, table: tuple[str, ...]) -> Text:
        return Text(codes=self._form if len(table) > 1 else self._one_for_all, table=table)

    def _attributes(self) -> Iterator[Attribute]:
        yield Attribute(key=names.THREAD_ID, values=np.ascontiguousarray(self._rows["tid"]))
        yield from self._kernels()
        yield from self._numbers()
        yield from self._labels()
        yield from self._of_runs()
        yield from self._errors()

    def _kernels(self) -> Iterator[Attribute]:
        look = self._look
        if look.kernel:
            yield Attribute(key=self._signals.kernel_name, values=self._text(look.kernel))
        if look.places:
            yield from self._kernel_places(look.places)

    def _labels(self) -> Iterator[Attribute]:
        for key, label, column in self._signals.labels.get(self._kind, ()):
            yield Attribute(key=key, values=text_of_codes(column(self._rows), label))
        for key, table in self._look.by_api:
            yield Attribute(key=key, values=self._text(table))
        yield Attribute(key=names.CONTEXT_SOURCE, values=self._text(self._look.source))

    def _of_runs(self) -> Iterator[Attribute]:
        if (runs := self._folded.runs) is None:
            return
        several = runs.count > 1
        if several.any():
            host_time = self._rows["duration_ns"] / 1e9
            yield Attribute(key=names.COUNT, values=runs.count, present=several)
            yield Attribute(key=names.HOST_TIME, values=host_time, present=several)
            yield Attribute(key=names.HOST_LEAST, values=runs.least_ns / 1e9, present=several)
            yield Attribute(key=names.HOST_MOST, values=runs.most_ns / 1e9, present=several)
        if runs.merged.any():
            yield Attribute(key=names.MERGED, values=runs.merged, present=runs.merged)

    def _errors(self) -> Iterator[Attribute]:
        if self._any_failed:
            yield Attribute(key=names.ERROR_TYPE, values=self._text(self._look.result), present=self._failed)

    def _kernel_places(self, places: Sequence[FunctionNamed | None]) -> Iterator[Attribute]:
        """Where kernels without a name are, so that they can be told from each other."""
        module, build_id, offset = self._signals.kernel_place
        form = self._form
        present = np.array([place is not None for place in places])[form]
        modules = tuple(place.module if place is not None else "" for place in places)
        yield Attribute(key=module, values=Text(codes=form, table=modules), present=present)
        offsets = np.array([place.offset if place is not None else 0 for place in places], dtype=np.int64)
        yield Attribute(key=offset, values=offsets[form], present=present)
        build_ids = tuple(place.build_id if place is not None else "" for place in places)
        has_build_id = np.array(list(map(bool, build_ids)))[form]
        if has_build_id.any():
            yield Attribute(key=build_id, values=Text(codes=form, table=build_ids), present=has_build_id)

    def _numbers(self) -> Iterator[Attribute]:
        """The integers that the family reports of calls of this kind, where they hold."""
        reported: dict[Holds, npt.NDArray[np.bool_] | None] = {}  # of all rows, where it has nothing
        if (runs := self._folded.runs) is not None:
            reported = {Holds.EQUAL: _unless_all(~runs.merged), Holds.SINGLE: _unless_all(runs.count == 1)}
        for spec in self._signals.attributes[self._kind]:
            values, present = np.ascontiguousarray(spec.column(self._rows)), reported.get(spec.holds)
            if spec.absent is not None:
                known = values != spec.absent
                present = _unless_all(known if present is None else present & known)
            if present is None or np.count_nonzero(present):
                yield Attribute(key=spec.key, values=values, present=present)


def _unless_all(present: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_] | None:
    return None if all_of(present) else present


def published_parents(rows: Operations) -> tuple[Parents, npt.NDArray[np.int64]]:
    """The distinct published spans of operations that all have one, and the index of each operation's."""
    ids = np.ascontiguousarray(np.concatenate([rows["trace_id"], rows["span_id"]], axis=1)).view(np.uint64)
    coded = [distinct(np.ascontiguousarray(ids[:, word])) for word in range(3)]
    codes, count = combine([(code, len(values)) for values, code in coded], len(rows))
    firsts = examples(codes, count)
    parents = Parents(
        trace_id=rows["trace_id"][firsts].copy(),
        span_id=rows["span_id"][firsts].copy(),
        flags=rows["trace_flags"][firsts].astype(np.uint32),
    )
    return parents, codes.astype(np.int64)


class FoldedWork(Struct, frozen=True):
    """Operations as they are reported: what :class:`OperationEmitter` makes spans of."""

    folded: Folded
    parents: Parents
    origin: npt.NDArray[np.intp]  # of each parent: the one under which its work came here

    def __len__(self) -> int:
        return len(self.folded)

    def sizes(self, units: npt.NDArray[np.intp], count: int) -> npt.NDArray[np.int64]:
        """Spans of each of ``count`` units: shape (count,). ``units``: of each parent under which work came here."""
        return np.bincount(units[self._origins()], minlength=count)

    def cut(
        self, units: npt.NDArray[np.intp], reported: npt.NDArray[np.bool_]
    ) -> tuple[FoldedWork, npt.NDArray[np.int64]]:
        """The work of the units that are ``reported``, and of each unit how many calls are left out."""
        unit = units[self._origins()]
        kept = reported[unit]
        if kept.all():
            return self, np.zeros(len(reported), dtype=np.int64)
        calls = np.bincount(unit[~kept], weights=self.folded.count[~kept], minlength=len(reported))
        return replace(self, folded=take(self.folded, np.flatnonzero(kept))), calls.astype(np.int64)

    def _origins(self) -> npt.NDArray[np.intp]:
        return self.origin[self.folded.group]


def under_published(work: Folded, parents: Parents) -> FoldedWork:
    """Move operations to the spans that were published on their threads; those of unsampled traces are left out.

    ``work`` is not folded yet. A span that was published for several parents' work is the first one's.
    """
    every = np.arange(len(parents.flags))
    published = IS_PUBLISHED[work.operations["context_source"]]
    if not published.any():
        return FoldedWork(work, parents, every)
    own, codes = published_parents(work.operations.compress(published))
    origin = np.r_[every, work.group[published][examples(codes, len(own.flags))]]
    group = work.group.copy()
    group[published] = len(parents.flags) + codes
    joined = Parents(
        trace_id=np.concatenate([parents.trace_id, own.trace_id]),
        span_id=np.concatenate([parents.span_id, own.span_id]),
        flags=np.concatenate([parents.flags, own.flags]),
    )
    reported = ~published
    reported[published] = (own.flags[codes] & SAMPLED).astype(np.bool_)
    rows = work.operations
    if not reported.all():
        rows, group = rows.compress(reported), group[reported]
    return FoldedWork(unfolded(rows, group), joined, origin)


def _joined(parts: Sequence[FoldedWork]) -> FoldedWork:
    """One after the other, each under parents of its own: the same one is there as often as it has parts."""
    if len(parts) == 1:
        return parts[0]
    counts = [len(each.parents.flags) for each in parts]
    firsts = np.cumsum([0, *counts[:-1]])
    moved = [
        replace(each.folded, group=each.folded.group + first)
        for each, first in zip(parts, firsts.tolist(), strict=True)
    ]
    return FoldedWork(
        concatenate(moved),
        Parents(
            trace_id=np.concatenate([each.parents.trace_id for each in parts]),
            span_id=np.concatenate([each.parents.span_id for each in parts]),
            flags=np.concatenate([each.parents.flags for each in parts]),
        ),
        np.concatenate([each.origin for each in parts]),
    )


class OperationEmitter:
    """Operations of one session under their parents as spans, as far as the detail asked for has them."""

    def __init__(self, vocabulary: Vocabulary, resource_of: Callable[[int], Resource], *, seed: int) -> None:
        self._vocabulary, self._resource_of, self._seed = vocabulary, resource_of, seed
        self._detail: Detail = "ops"
        self._limit = 0
        self._raised: Mapping[int, tuple[Detail, int]] = {}
        self._rows = RowForms(vocabulary.families) if library() is not None else None

    def keep(self, detail: Detail, limit: int) -> None:
        """Report in this detail from here on, at most ``limit`` spans under a parent."""
        self._detail, self._limit = detail, limit

    def raise_detail(self, raised: Mapping[int, tuple[Detail, int]]) -> None:
        """Report calls of some processes, by tgid, in more detail than those of the others."""
        self._raised = raised

    def fold(self, work: Folded, parents: Parents) -> FoldedWork:
        """Some work as it is to be reported: none of it where operations are not."""
        if self._raised and len(work):
            return self._fold_by_process(work, parents)
        return self._fold(work, parents, self._detail, self._limit)

    def _fold(self, work: Folded, parents: Parents, detail: Detail, limit: int) -> FoldedWork:
        if detail == "phases":
            work = take(work, np.zeros(0, dtype=np.intp))
        if work.runs is None:
            found = under_published(work, parents)
        else:
            found = FoldedWork(work, parents, np.arange(len(parents.flags)))
        return replace(found, folded=fold(found.folded, limit=limit, runs=detail == "ops"))

    def _fold_by_process(self, work: Folded, parents: Parents) -> FoldedWork:
        """Each process's in its detail; where one parent has work of several, each has its own limit under it."""
        tgids = work.operations["tgid"]
        done: list[FoldedWork] = []
        usual = (self._detail, self._limit)
        for level in {usual, *self._raised.values()}:
            own = [tgid for tgid, each in self._raised.items() if each == level]
            mine = np.isin(tgids, own)
            if level == usual:
                mine |= ~np.isin(tgids, list(self._raised))
            if mine.any():
                done.append(self._fold(take(work, np.flatnonzero(mine)), parents, *level))
        return _joined(done)

    def report(self, work: FoldedWork, *, offset_ns: int) -> Iterable[SpanBatch]:
        """The spans of some work; batches are made as they are taken."""
        if not len(work):
            return ()
        folded = work.folded
        tgids = values_of(np.ascontiguousarray(folded.operations["tgid"]))
        return operation_spans(
            folded,
            work.parents,
            {tgid: self._resource_of(tgid) for tgid in tgids},
            self._vocabulary,
            seed=self._seed,
            unix_offset_ns=offset_ns,
            rows=self._rows,
        )
