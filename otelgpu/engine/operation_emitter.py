"""Operations under their parents as spans, as far as the detail asked for has them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from otelgpu.engine.attribution.published import under_published
from otelgpu.engine.folding import Folded, fold
from otelgpu.engine.operation_spans import Parents, Vocabulary, operation_spans
from otelgpu.model.codes import values_of
from otelgpu.model.resource import Resource
from otelgpu.model.settings import Detail
from otelgpu.model.spans import SpanColumns


class OperationEmitter:
    """One session's."""

    def __init__(self, vocabulary: Vocabulary, resource_of: Callable[[int], Resource], *, seed: int) -> None:
        self._vocabulary, self._resource_of, self._seed = vocabulary, resource_of, seed
        self._detail: Detail = "ops"
        self._limit = 0

    def keep(self, detail: Detail, limit: int) -> None:
        """Report in this detail from here on, at most ``limit`` spans under a parent."""
        self._detail, self._limit = detail, limit

    def report(self, work: Folded, parents: Parents, *, offset_ns: int) -> Iterable[SpanColumns]:
        """The spans of some work; batches are made as they are taken."""
        if self._detail == "phases" or not len(work):
            return ()
        if work.runs is None:
            work, parents = under_published(work, parents)
        folded = fold(work, limit=self._limit, runs=self._detail == "ops")
        tgids = values_of(np.ascontiguousarray(folded.operations["tgid"]))
        return operation_spans(
            folded,
            parents,
            {tgid: self._resource_of(tgid) for tgid in tgids},
            self._vocabulary,
            seed=self._seed,
            unix_offset_ns=offset_ns,
        )
