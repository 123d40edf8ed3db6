"""Observations in order of time, for the flame chart of a page: when each thread was seen where. Pure.

In: a tree, and the batches that it was made of. Out: columns for the page, which draws them from left to right, a
thread below the other. Only time that a thread spent is here: what devices did, and requests to disks, goes on beside
each other.

A sample stands for the period before it, of which its value is the length: one of 10 ms, taken at 30 ms, is drawn from
20 to 30 ms. What is measured from its begin to its end (waits, calls on files) is drawn as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from otelgpu.model.profiles import ProfileColumns, ValueType
from otelgpu.render.observed import MOST_THREADS, observed_nodes, thread_numbers, threads_of
from otelgpu.render.page_columns import column
from otelgpu.render.stack_tree import StackTree
from otelgpu.render.stacks import NANOSECONDS, Codes

MOST_OBSERVATIONS: Final = 50_000
"""What a page holds, 20 bytes each; of more, the last."""
MOST_US: Final = 3_600_000_000
"""An hour; of more, the last."""

_SAMPLED: Final = ("cpu", "python_cpu")
_MEASURED: Final = ("off_cpu", "python_wall", "file_time")


def has_chart(type_: ValueType) -> bool:
    """Whether observations of a type are time that their thread spent."""
    return type_.unit == NANOSECONDS and type_.type in (*_SAMPLED, *_MEASURED)


def chart(tree: StackTree, batches: Sequence[ProfileColumns]) -> dict[str, Any] | None:
    """The observations that have a time and a thread, the earliest first; None: there are none, or of no such type.

    ``at`` and ``length`` are in microseconds, ``at`` after ``begin_unix_us``; ``thread`` is a position in the page's
    list of threads.
    """
    if not has_chart(tree.type):
        return None
    is_sampled = tree.type.type in _SAMPLED
    of_thread, _ = threads_of(batches)
    ends = np.cumsum([len(batch) for batch in batches])
    parts = [
        _known(batch, nodes, threads)
        for batch, nodes, threads in zip(
            batches, observed_nodes(tree, batches), np.split(of_thread, ends[:-1]), strict=True
        )
    ]
    times, length, nodes, threads = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    if not len(times):
        return None
    begin = times - length if is_sampled else times
    order = np.argsort(begin, kind="stable")[-MOST_OBSERVATIONS:]
    begin_us, length_us = begin[order] // 1000, np.minimum(length[order] // 1000, MOST_US)
    kept = begin_us >= begin_us[-1] - MOST_US
    order, begin_us, length_us = order[kept], begin_us[kept], length_us[kept]
    return {
        "begin_unix_us": int(begin_us[0]),
        "sampled": is_sampled,
        "at": column(begin_us - begin_us[0], "I"),
        "length": column(length_us, "I"),
        "node": column(nodes[order], "I"),
        "thread": column(threads[order], "I"),
        "left_out": sum(map(len, batches)) - len(order),
    }


def _known(batch: ProfileColumns, nodes: Codes, threads: Codes) -> tuple[Codes, Codes, Codes, Codes]:
    """Time, value, node and thread of what is drawn: without time or thread, nobody knows where it belongs."""
    kept = (thread_numbers(batch) > 0) & (threads < MOST_THREADS)
    if batch.time_unix_ns is None:
        kept[:] = False
    times = np.zeros(len(batch), dtype=np.intp) if batch.time_unix_ns is None else batch.time_unix_ns
    value = np.maximum(batch.value.astype(np.intp), 0)
    return times.astype(np.intp)[kept], value[kept], nodes[kept], threads[kept]
