"""By which thread and when the nodes of a tree were observed: what its page filters and orders by. Pure.

In: a tree and the batches that it was made of. Out: columns for the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from otelgpu.engine.names import THREAD_ID
from otelgpu.model.codes import combine, examples
from otelgpu.model.profiles import ProfileColumns
from otelgpu.model.spans import Text, plain
from otelgpu.render.frames import FrameTable, process_frame
from otelgpu.render.page_columns import clean, column
from otelgpu.render.stack_tree import StackTree
from otelgpu.render.stacks import Codes, Values, stack_rows

THREAD_NAME: Final = "thread.name"
MOST_THREADS: Final = 200
"""What a page lists: of more, those with the least are one."""


def observed_nodes(tree: StackTree, batches: Sequence[ProfileColumns]) -> list[Codes]:
    """The node of each observation, by batch."""
    row_of = stack_rows([batches], FrameTable()).row_of
    return [tree.leaf[rows[batch.stack]] for batch, rows in zip(batches, row_of, strict=True)]


def threads(tree: StackTree, batches: Sequence[ProfileColumns]) -> dict[str, Any] | None:
    """Values by thread and node; None where there is but one thread, or none is reported.

    ``name`` and ``process`` are of the threads; ``thread``, ``node`` and ``value`` of the sums.
    """
    thread, names = threads_of(batches)
    if len(names) < 2:
        return None
    nodes = np.concatenate(observed_nodes(tree, batches))
    values: Values = np.concatenate([batch.value for batch in batches]).astype(np.float64)
    code, size = combine([(thread, len(names)), (nodes, len(tree))], len(nodes))
    example = examples(code, size)
    return {
        "name": [clean(name) for _, name in names],
        "process": [clean(process) for process, _ in names],
        "thread": column(thread[example], "I"),
        "node": column(nodes[example], "I"),
        "value": column(np.maximum(np.bincount(code, weights=values, minlength=size), 0), "d"),
    }


def threads_of(batches: Sequence[ProfileColumns]) -> tuple[Codes, list[tuple[str, str]]]:
    """The thread of each observation, and process and name of each thread: at most :data:`MOST_THREADS` and one."""
    known: dict[tuple[str, int, str], int] = {}
    thread = np.concatenate([_threads_of(batch, known) for batch in batches])
    names = [
        (process, f"{name or 'thread'} ({number})" if number else "no thread")
        for process, number, name in known
    ]
    values: Values = np.concatenate([batch.value for batch in batches]).astype(np.float64)
    return _most(thread, names, values)


def _most(thread: Codes, names: list[tuple[str, str]], values: Values) -> tuple[Codes, list[tuple[str, str]]]:
    """The threads with the most, and one for all others, if they are too many."""
    if len(names) <= MOST_THREADS:
        return thread, names
    order = np.argsort(-np.bincount(thread, weights=values, minlength=len(names)), kind="stable")
    place = np.empty(len(names), dtype=np.intp)
    place[order] = np.minimum(np.arange(len(names)), MOST_THREADS)
    kept = [names[code] for code in order[:MOST_THREADS].tolist()]
    return place[thread], [*kept, ("", f"({len(names) - MOST_THREADS:,} other threads)")]


def _threads_of(batch: ProfileColumns, known: dict[tuple[str, int, str], int]) -> Codes:
    """The thread of each observation, as numbers of ``known``: process, number and name."""
    process = process_frame(batch.resource).name
    numbers, names = thread_numbers(batch), _names(batch)
    found: Codes = np.empty(len(batch), dtype=np.intp)
    code, size = combine(
        [(numbers - min(numbers.min(initial=0), 0), int(numbers.max(initial=0)) + 1), names[:2]], len(batch)
    )
    for number, row in enumerate(examples(code, size).tolist()):
        key = (process, int(numbers[row]), names[2][int(names[0][row])])
        found[code == number] = known.setdefault(key, len(known))
    return found


def thread_numbers(batch: ProfileColumns) -> Codes:
    """The thread id of each observation; 0: not reported."""
    for each in batch.attributes:
        if each.key == THREAD_ID and isinstance(each.values, np.ndarray) and each.values.dtype.kind in "iu":
            numbers = np.maximum(each.values.astype(np.intp), 0)
            return numbers if each.present is None else np.where(each.present, numbers, 0)
    return np.zeros(len(batch), dtype=np.intp)


def _names(batch: ProfileColumns) -> tuple[Codes, int, list[str]]:
    """Codes, the size of their range, and the names; "" is not reported."""
    for each in batch.attributes:
        if each.key == THREAD_NAME and isinstance(each.values, Text):
            names = [plain(name) for name in each.values.table]
            codes = each.values.codes
            return (
                (codes if each.present is None else np.where(each.present, codes, len(names))),
                len(names) + 1,
                [*names, ""],
            )
    return np.zeros(len(batch), dtype=np.intp), 1, [""]


def first_seen(tree: StackTree, batches: Sequence[ProfileColumns]) -> npt.NDArray[np.float64] | None:
    """When each node was first observed, in nanoseconds after the first of all; None where no batch has times.

    Infinite of nodes that were not observed themselves, but by what they called.
    """
    timed = [
        (batch.time_unix_ns, nodes)
        for batch, nodes in zip(batches, observed_nodes(tree, batches), strict=True)
        if batch.time_unix_ns is not None and len(batch)
    ]
    if not timed:
        return None
    begin = min(int(times.min()) for times, _ in timed)
    first = np.full(len(tree), np.inf)
    for times, nodes in timed:
        np.minimum.at(first, nodes, (times - np.uint64(begin)).astype(np.float64))
    return first
