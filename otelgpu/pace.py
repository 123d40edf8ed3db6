"""How often the loop turns where something comes: less often, once that goes on and takes little of the time.

In: what each collection brought, and the time that this thread has computed. Out: seconds. A turn costs some
milliseconds whatever it brings, so that longer turns make less of them.

Example, of turns of 200 ms: after five seconds of a steady load that takes 6 % of a processor they are of a second, and
at the first that brings nothing of 200 ms again. A ring that fills ends any turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

from otelgpu.model.inputs import Batch, Input

STEADY_S: Final = 5.0
"""So long each turn has brought something before: until then somebody may wait for what he has just begun."""
LONGEST_S: Final = 1.0
"""What a turn is made longer to: more would be seen by who waits for a request's spans."""
LONGER: Final = 5
"""So many times as long as was asked for at most: who asks for turns of 20 ms wants to see soon what happens."""
BUSY: Final = 0.15
"""Of this thread's time: who computes for more of it has work, not turns, and the shares of who is observed
(``families/requests/turns.py``) are of a turn."""


class Pace:
    """Of one loop, which says of each :meth:`turned`. ``computed``: seconds that the loop's thread has."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        computed: Callable[[], float] = time.thread_time,
    ) -> None:
        self._clock, self._computed = clock, computed
        self._steady_since = self._turned = clock()
        self._before_s = computed()
        self._busy = False

    def turned(self, inputs: Iterable[Input]) -> None:
        """A collection is over, and with it a turn: these came of the source."""
        now, computed_s = self._clock(), self._computed()
        self._busy = computed_s - self._before_s > BUSY * (now - self._turned)
        self._turned, self._before_s = now, computed_s
        if not any(isinstance(item, Batch) for item in inputs):
            self._steady_since = now

    def interval_s(self, usual_s: float) -> float:
        """How long the next turn may be, where each is of ``usual_s`` otherwise."""
        if self._busy or self._turned - self._steady_since < STEADY_S:
            return usual_s
        return min(LONGER * usual_s, max(usual_s, LONGEST_S))
