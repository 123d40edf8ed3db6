"""Whose records were refused, because he had his share of the ring (bpf/lib/ring_share.h): said, once a minute at most.

In: the kernel's count of them, and its table of shares. Out: a line of the log.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np

from otelgpu.kernel.loader import LoadedFamily
from otelgpu.model.inputs import Input
from otelgpu.model.losses import Reasons
from otelgpu.model.shares import Refusals, described

REASONS: Final = Reasons(
    "http",
    {
        "ring_share_spent": "a chunk beyond the share of its process or container in the ring; it counts as lost too, "
        "with the next that is seen of its connection",
    },
)
"""What one count of (``http``, reason) means."""

LOOK_EVERY_NS: Final = 1_000_000_000
_OF_PROCESS: Final = 1 << 63

_log: Final = logging.getLogger("otelgpu.requests")


class RingShares:
    """A watcher: see :mod:`otelgpu.processes.discovery`."""

    def __init__(self, loaded: LoadedFamily) -> None:
        self._loaded = loaded
        self._spent = loaded.image.btf.enumerators("http_counter")["COUNTER_RING_SHARE_SPENT"]
        self._value = loaded.image.btf.dtype("ring_share")
        self._before: Counter[int] = Counter()
        self._spent_before = 0
        self._look_ns = 0
        self._refused = Refusals()

    def collect(self, now_ns: int) -> Sequence[Input]:
        """Look at who was refused since, if anybody was."""
        if now_ns < self._look_ns:
            return ()
        self._look_ns = now_ns + LOOK_EVERY_NS
        if (spent := self._loaded.counter(self._spent)) != self._spent_before:
            self._spent_before = spent
            self._look()
        if found := self._refused.due(now_ns):
            _log.warning("http: %s has its share of the ring; others have theirs", described(found))
        return ()

    def _look(self) -> None:
        table, now = self._loaded.map("ring_shares"), Counter[int]()
        for raw in table.list_keys():
            value = table.get(raw)
            if value is not None:
                now[int.from_bytes(raw, "little")] = int(np.frombuffer(value, self._value)[0]["refused"])
        for key, count in (now - self._before).items():
            self._refused.add(key & ~_OF_PROCESS, 0, count)
        self._before = now
