"""What did not arrive of a job that is judged, and what may still be said of the rest. Pure.

In: counts by (family, reason), as who recorded it has them. Out: :class:`Lost`. Between two calls that arrived others
may have been made: of who lost many, when the device was idle is not known, while what each launch was like still is.

Example: 2,000 calls arrived, 500 found no room in the ring and 1,500 were counted in the kernel: half are lost, and
the device may have been busy in every gap.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

MOST_LOST: Final = 0.05
"""Share of the calls that may be lost where gaps between calls are judged: as little as a cause is worth a word."""
MOST_UNSEEN: Final = 0.5
"""Share of what was seen of threads that may be lost where nothing is found: beyond, the cause may be in it."""

_CALLS: Final = ("ring_full", "detail_shed")
_OBSERVATIONS: Final = ("ring_full", "profile_times_summed")


class Lost(Struct, frozen=True, kw_only=True):
    """``calls``: of CUDA, that have no row; ``observations``: of threads, that have none or no time."""

    calls: int = 0
    observations: int = 0

    def shares(self, calls: int, observations: int) -> tuple[float, float]:
        """Of all, by what arrived."""
        return (
            self.calls / max(self.calls + calls, 1),
            self.observations / max(self.observations + observations, 1),
        )


def lost_of(losses: Mapping[tuple[str, str], int], *, beyond: int = 0) -> Lost:
    """``beyond``: calls that arrived and were not kept, or kept as a sum."""
    return Lost(
        calls=beyond + sum(losses.get(("cuda", reason), 0) for reason in _CALLS),
        observations=sum(losses.get(("profile", reason), 0) for reason in _OBSERVATIONS),
    )
