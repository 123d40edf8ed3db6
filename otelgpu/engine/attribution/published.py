"""Operations under the spans that their processes published: the most trusted context there is (DESIGN.md 5). Pure.

In: operations with the ids that a probe read on their threads, and the parents they had so far. Out: the same
operations, those with a published context under that.

Example: a request's ten launches, four of them made while the program said that it was in its span "sample": six
stay under the request's decode phase, four go under "sample", and the request's sums are still of ten.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from otelgpu.engine.folding import Folded
from otelgpu.engine.operation_spans import Parents
from otelgpu.model import context_sources
from otelgpu.model.codes import combine, distinct, examples
from otelgpu.model.operations import Operations

SAMPLED: Final = 1


def is_published(rows: Operations) -> npt.NDArray[np.bool_]:
    """Which operations were made under a context that their process published: shape (n,)."""
    return context_sources.is_published(rows["context_source"])


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


def under_published(work: Folded, parents: Parents) -> tuple[Folded, Parents]:
    """Move operations to the spans that were published on their threads; those of unsampled traces are left out.

    ``work`` is not folded yet.
    """
    published = is_published(work.operations)
    if not published.any():
        return work, parents
    own, codes = published_parents(work.operations.compress(published))
    group = work.group.copy()
    group[published] = len(parents.flags) + codes
    joined = Parents(
        trace_id=np.concatenate([parents.trace_id, own.trace_id]),
        span_id=np.concatenate([parents.span_id, own.span_id]),
        flags=np.concatenate([parents.flags, own.flags]),
    )
    reported = ~published
    reported[published] = (own.flags[codes] & SAMPLED).astype(np.bool_)
    if reported.all():
        return Folded(operations=work.operations, group=group, runs=None), joined
    return Folded(operations=work.operations.compress(reported), group=group[reported], runs=None), joined
