"""Which rows of ``ops`` cannot be, and which were asked for: SQL expressions, whatever holds the rows. Pure."""

from __future__ import annotations

from typing import Final

from otelgpu.store import reasons
from otelgpu.store.tables import KINDS, OPS, SEQUENCE_UNKNOWN, STEP_UNKNOWN

_LATEST_S: Final = 1e11  # in the year 5138
_LONGEST_OPERATION_S: Final = 86_400.0

_NULLS: Final = " OR ".join(f"{column.name} IS NULL" for column in OPS)
_KINDS: Final = ", ".join(f"'{kind}'" for kind in KINDS)
IS_PENDING: Final = "kind IN ('coll', 'p2p') AND isFinite(t0) AND (t1 IS NULL OR NOT isFinite(t1))"
"""A call that had not ended when its rank was looked at."""

CHECKS: Final = {
    reasons.CALLS_PENDING: IS_PENDING,
    reasons.ROWS_INCOMPLETE: _NULLS,
    reasons.RANKS_INVALID: "rank < 0",
    reasons.STEPS_INVALID: f"step < {STEP_UNKNOWN}",
    reasons.KINDS_UNKNOWN: f"kind NOT IN ({_KINDS})",
    reasons.TIMES_INVALID: "NOT isFinite(t0) OR NOT isFinite(t1)",
    reasons.TIMES_REVERSED: "t1 < t0",
    reasons.TIMES_NOT_IN_SECONDS: f"abs(t0) > {_LATEST_S} OR abs(t1) > {_LATEST_S} OR t1 - t0 > {_LONGEST_OPERATION_S}",
    reasons.SIZES_INVALID: f"unit < 0 OR n < 0 OR bytes < 0 OR seq < {SEQUENCE_UNKNOWN}",
}
"""Reason → what is true of such a row; the first that applies. NULL: a value is missing, or not of its type."""

REASONS: Final = ("", *CHECKS)
"""By the numbers of `REASON`. Numbers, for a text in every row costs as much as all the checks."""
_CASES: Final = " ".join(f"WHEN {check} THEN {REASONS.index(reason)}" for reason, check in CHECKS.items())
REASON: Final = f"CASE {_CASES} ELSE 0 END"
"""Why a row is rejected; 0: it is not."""


def chosen(job: str | None, begin_s: float | None, end_s: float | None) -> str:
    """What is true of the operations that were asked for; "": of all."""
    bounds = ((">=", begin_s), ("<", end_s))
    conditions = [f"t0 {sign} '{float(bound)!r}'::DOUBLE" for sign, bound in bounds if bound is not None]
    if job is not None:
        conditions.append(f"job = {text_literal(job)}")
    return " AND ".join(conditions)


_BACKSLASH: Final = "substring('\\\\', 1, 1)"


def text_literal(text: str) -> str:
    """A text in SQL. In ClickHouse's a backslash begins an escape, in DuckDB's it does not."""
    if "\\" not in text:
        return "'" + text.replace("'", "''") + "'"
    return f"concat({f', {_BACKSLASH}, '.join(map(text_literal, text.split(chr(92))))})"
