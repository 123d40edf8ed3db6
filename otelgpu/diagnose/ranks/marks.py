"""Steps in which a rank did something beside training: a checkpoint, an evaluation. They are compared with no others.

In: the result of ``step_marks``. Only one rank may do it (rank 0 writes for all), so that its own time in these steps
says nothing of how slow it is; what they cost is told by itself. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from otelgpu.diagnose.ranks.verdicts import MarkedSteps

MOST_MARKED: Final = 0.25
"""Share of a rank's steps: what it does in more of them is what its steps are, and is compared like all else."""

Flags = npt.NDArray[np.bool_]
F64 = npt.NDArray[np.float64]


class Marks:
    """``kinds``: kind → (step, rank), whether the rank did that in the step."""

    def __init__(
        self,
        found: Mapping[str, npt.NDArray[Any]],
        seen: Flags,
        steps: npt.NDArray[np.int64],
        ranks: npt.NDArray[np.int64],
    ) -> None:
        """``seen``: (step, rank), whether anything is known of the rank in the step."""
        self._ranks = ranks
        self.kinds: dict[str, Flags] = {}
        known = np.isin(found["step"], steps) & np.isin(found["rank"], ranks)
        found = {column: values[known] for column, values in found.items()}
        names = found["name"].astype(str)
        for name in np.unique(names).tolist():
            mine = names == name
            flags = np.zeros(seen.shape, dtype=np.bool_)
            flags[
                np.searchsorted(steps, found["step"][mine]), np.searchsorted(ranks, found["rank"][mine])
            ] = True
            self.kinds[name] = flags
        marked = self.cells(seen)
        self._always = marked.sum(axis=0) > MOST_MARKED * np.maximum(seen.sum(axis=0), 1)
        for flags in self.kinds.values():
            flags[:, self._always] = False

    def cells(self, seen: Flags) -> Flags:
        """(step, rank), whether the rank did any of it."""
        return np.asarray(np.any([np.zeros_like(seen), *self.kinds.values()], axis=0))

    def costs(self, duration_s: F64) -> list[MarkedSteps]:
        """``duration_s``: of each step; NaN: not known."""
        return costs_of(self.kinds, self._ranks, duration_s)

    def limits(self) -> list[str]:
        """Of ranks whose marks are passed over."""
        always = self._ranks[self._always].tolist()
        if not always:
            return []
        names = ", ".join(str(rank) for rank in always[:8])
        return [
            f"a checkpoint or an evaluation in more than {MOST_MARKED:.0%} of the steps of ranks {names}: these are "
            "compared like all others"
        ]


def costs_of(kinds: Mapping[str, Flags], ranks: npt.NDArray[np.int64], duration_s: F64) -> list[MarkedSteps]:
    """Of each kind that is there. ``kinds`` as of `Marks`; ``duration_s``: of each step; NaN: not known."""
    of_kind = {kind: flags.any(axis=1) for kind, flags in kinds.items() if flags.any()}
    plain = np.isfinite(duration_s) & ~np.any(
        [np.zeros(len(duration_s), np.bool_), *of_kind.values()], axis=0
    )
    usual = float(np.median(duration_s[plain])) if plain.any() else 0.0
    total = max(float(np.nansum(duration_s)), 1e-12)
    found = []
    for kind, steps in of_kind.items():
        more = float(np.nansum(np.maximum(duration_s[steps] - usual, 0.0)))
        who = ranks[kinds[kind].any(axis=0)].tolist()
        found.append(
            MarkedSteps(kind=kind, ranks=who, steps=int(steps.sum()), seconds=more, share=more / total)
        )
    return found
