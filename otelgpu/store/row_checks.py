"""Which rows of ``ops`` cannot be: one SQL expression for what stays in its file and for what readers decode. Pure."""

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

_CASES: Final = " ".join(f"WHEN {check} THEN '{reason}'" for reason, check in CHECKS.items())
REASON: Final = f"CASE {_CASES} END"
"""Why a row is rejected; NULL: it is not."""
