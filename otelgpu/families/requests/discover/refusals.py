"""Who was refused in the kernel, because he had his share of the ring, or of the tables of connections.

That is said, once a minute at most.

In: the kernel's counts, and its tables of who was refused how often (bpf/lib/ring_share.h, bpf/http/holders.h). Out:
lines of the log.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np

from otelgpu.kernel.loader import LoadedFamily
from otelgpu.kernel.tables import CountedTable
from otelgpu.model.inputs import Input
from otelgpu.model.losses import Reasons
from otelgpu.model.shares import Owner, Refusals, described

REASONS: Final = Reasons(
    "http",
    {
        "ring_share_spent": "a chunk beyond the share of its process or container in the ring; it counts as lost too, "
        "with the next that is seen of its connection",
        "connection_share_spent": "a connection, or TLS session, beyond the share of its process or container in the "
        "tables of connections: not followed",
    },
)
"""What one count of (``http``, reason) means."""

LOOK_EVERY_NS: Final = 1_000_000_000
_OF_PROCESS: Final = 1 << 63

_log: Final = logging.getLogger("otelgpu.requests")


class SharesSpent:
    """A watcher: see :mod:`otelgpu.processes.discovery`. It looks at a table only after somebody was refused."""

    def __init__(
        self, loaded: LoadedFamily, counter: str, table: str, key: str, value: str, what: str
    ) -> None:
        btf = loaded.image.btf
        self._loaded, self._what = loaded, what
        self._spent = btf.enumerators("http_counter")[f"COUNTER_{counter.upper()}"]
        self._table = CountedTable(loaded.map(table), np.dtype([("owner", key)]), btf.dtype(value))
        self._before: Counter[Owner] = Counter()
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
            _log.warning("http: %s has its share of %s; others have theirs", described(found), self._what)
        return ()

    def _look(self) -> None:
        now, rows = Counter[Owner](), self._table.read()
        cgroups = (
            rows["value"]["cgroup"] if "cgroup" in (rows["value"].dtype.names or ()) else np.zeros(len(rows))
        )
        for owner, cgroup, refused in zip(
            rows["key"]["owner"], cgroups, rows["value"]["refused"], strict=True
        ):
            if refused:
                now[Owner(int(owner) & ~_OF_PROCESS, int(cgroup))] = int(refused)
        for one, count in (now - self._before).items():
            self._refused.add(*one, count)
        self._before = now


def watch_refusals(loaded: LoadedFamily) -> tuple[SharesSpent, ...]:
    """One for the ring, one for the tables of connections."""
    return (
        SharesSpent(loaded, "ring_share_spent", "ring_shares", "<u8", "ring_share", "the ring"),
        SharesSpent(
            loaded, "connection_share_spent", "holders", "<u4", "holder", "the tables of connections"
        ),
    )
