"""What changed between two profiles: per kind, the places that gained and lost most.

In: the totals of both. Out: :class:`KindChanges`. Normalised, the second is scaled to the first's sum, so that a longer
session, or a busier rank, does not look slower everywhere; a place's change is then one of its share.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from otelgpu.render.profile_totals import KindTotals


class Change(Struct, frozen=True, kw_only=True):
    """A place in both. ``after`` is scaled where the comparison is normalised."""

    leaf: str
    line: str
    before: float
    after: float

    @property
    def difference(self) -> float:
        """Positive: more than before."""
        return self.after - self.before


class KindChanges(Struct, frozen=True, kw_only=True):
    """One sample type; ``changes`` with the largest difference first, whatever its sign. Sums as they were measured."""

    type: str
    unit: str
    before: int
    after: int
    changes: tuple[Change, ...]


def changes(
    before: Sequence[KindTotals], after: Sequence[KindTotals], *, normalise: bool
) -> list[KindChanges]:
    """Of each kind that one of them has."""
    firsts = {(kind.type, kind.unit): kind for kind in before}
    seconds = {(kind.type, kind.unit): kind for kind in after}
    found = []
    for key in [*firsts, *(key for key in seconds if key not in firsts)]:
        first = firsts.get(key) or KindTotals(type=key[0], unit=key[1])
        second = seconds.get(key) or KindTotals(type=key[0], unit=key[1])
        scale = first.value / second.value if normalise and first.value and second.value else 1.0
        values: dict[tuple[str, str], list[float]] = {}
        for position, (kind, factor) in enumerate(((first, 1.0), (second, scale))):
            for place in kind.places:
                values.setdefault((place.leaf, place.line), [0.0, 0.0])[position] = place.value * factor
        rows = (
            Change(leaf=leaf, line=line, before=old, after=new) for (leaf, line), (old, new) in values.items()
        )
        found.append(
            KindChanges(
                type=key[0],
                unit=key[1],
                before=first.value,
                after=second.value,
                changes=tuple(
                    sorted(rows, key=lambda change: (-abs(change.difference), change.leaf, change.line))
                ),
            )
        )
    return found
