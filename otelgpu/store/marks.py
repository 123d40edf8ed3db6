"""What a rank did beside training, by the names that programs give to it. Pure.

>>> mark_of("Save_Checkpoint"), mark_of("validation epoch"), mark_of("forward")
('checkpoint', 'evaluation', '')
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from otelgpu.store.tables import CHECKPOINT, EVALUATION

WORDS: Final[Mapping[str, Sequence[str]]] = {CHECKPOINT: ("checkpoint",), EVALUATION: ("evaluat", "validat")}
"""Name of a step → what a name has in it, in whatever case, of something that was done in it; the first counts."""


def mark_of(name: str) -> str:
    """Of a name; empty: it says nothing."""
    lower = name.lower()
    return next((mark for mark, words in WORDS.items() if any(word in lower for word in words)), "")


def mark_in_sql(column: str) -> str:
    """The same as an expression of SQL."""
    cases = []
    for mark, words in WORDS.items():
        said = " OR ".join(f"lower({column}) LIKE '%{word}%'" for word in words)
        cases.append(f"WHEN {said} THEN '{mark}'")
    return f"CASE {' '.join(cases)} ELSE '' END"
