"""``step_sums`` from ``ops``: what is asked of all operations, by one pass over them. Pure.

It has a row for each kind of operation of a rank in a step, thousands of times fewer than ``ops`` where kernels are
rows. What needs more than it, collectives do, reads those rows of ``ops`` alone.
"""

from __future__ import annotations

from typing import Final

from otelgpu.store.tables import STEP_SUMS

KEYS: Final = ("job", "step", "rank", "host", "role", "lane", "kind")
_SUMS: Final = {
    "operations": "count(*)",
    "seconds": "sum(t1 - t0)",
    "begin_s": "min(t0)",
    "end_s": "max(t1)",
    "moved": "sum(CAST(bytes AS DOUBLE))",
    "last_unit": "max(unit)",
}


def summed(rows: str, *more: str) -> str:
    """A query for the columns of ``step_sums`` from rows of ``ops``; ``more``: keys besides, which come first."""
    keys = ", ".join((*more, *KEYS))
    sums = ", ".join(
        f"CAST({_SUMS[column.name]} AS {column.type}) AS {column.name}"
        for column in STEP_SUMS
        if column.name in _SUMS
    )
    return f"SELECT {keys}, {sums} FROM {rows} GROUP BY {keys}"
