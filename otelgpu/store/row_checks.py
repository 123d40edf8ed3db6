"""Which rows of ``ops`` cannot be: one SQL expression for what stays in its file and for what readers decode. Pure."""

from __future__ import annotations

from typing import Final

from otelgpu.store.tables import KINDS, OPS, SEQUENCE_UNKNOWN, STEP_UNKNOWN

NOT_IN_SECONDS: Final = "times_not_in_seconds"
"""Of rows: beyond the year 5000, or more than a day of one operation."""
_LATEST_S: Final = 1e11
_LONGEST_OPERATION_S: Final = 86_400.0

_NULLS: Final = " OR ".join(f"{column.name} IS NULL" for column in OPS)
_KINDS: Final = ", ".join(f"'{kind}'" for kind in KINDS)
CHECKS: Final = {
    "rows_incomplete": _NULLS,
    "ranks_invalid": "rank < 0",
    "steps_invalid": f"step < {STEP_UNKNOWN}",
    "kinds_unknown": f"kind NOT IN ({_KINDS})",
    "times_invalid": "NOT isfinite(t0) OR NOT isfinite(t1)",
    "times_reversed": "t1 < t0",
    NOT_IN_SECONDS: f"abs(t0) > {_LATEST_S} OR abs(t1) > {_LATEST_S} OR t1 - t0 > {_LONGEST_OPERATION_S}",
    "sizes_invalid": f"unit < 0 OR n < 0 OR bytes < 0 OR seq < {SEQUENCE_UNKNOWN}",
}
"""Reason → what is true of such a row; the first that applies. NULL: a value is missing, or not of its type."""

_CASES: Final = " ".join(f"WHEN {check} THEN '{reason}'" for reason, check in CHECKS.items())
REASON: Final = f"CASE {_CASES} END"
"""Why a row is rejected; NULL: it is not."""
