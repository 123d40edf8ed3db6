"""Which rank is slow, since when, why, and what that costs: from tables of operations to verdicts. Pure.

``*.sql``: rows of ``ops`` to small results, on DuckDB or ClickHouse; ``facts``: these as arrays; ``peers``: each rank
against those that do the same work; ``replay``: what a step takes if something were mended; a module for each class of
verdicts: ``workers``, ``communication``, ``stages``, ``batches``, ``slowdowns``, ``hangs``, ``missing``; ``diagnosis``:
all of it, in the order in which one explains away the other.
"""
