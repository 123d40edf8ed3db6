"""Valid facts of queue pairs in one line each: a process that makes, connects, uses and destroys them."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from otelgpu.families.rdma.facts import Counted, QueuePairChanged, QueuePairCounts, QueuePairState
from otelgpu.model.fabric import PortSeen

MS = 1_000_000
SECOND = 1_000 * MS
S = QueuePairState
COUNTERS = (
    *(Counted("work_requests", each) for each in ("send", "write", "read", "receive")),
    *(Counted("bytes", each) for each in ("send", "write", "read", "receive")),
    *(Counted(each, "") for each in ("posts", "posts_failed", "signalled", "inlined", "uncounted")),
    *(Counted(each, "") for each in ("completions", "completed_bytes")),
    *(Counted("statuses", each) for each in ("success", "flushed", "retries_exceeded")),
    *(Counted("latencies", each) for each in range(32)),
    *(Counted(each, "") for each in ("latency_sum_ns", "observed_post_ns", "observed_poll_ns")),
)
PLACE = {each: place for place, each in enumerate(COUNTERS)}


def gid(text: str) -> bytes:
    return ipaddress.IPv6Address(text).packed if text else b""


def port(device: str = "rxe0", *, address: str = "fe80::1", index: int = 1, **fields: Any) -> PortSeen:
    given: dict[str, Any] = {"gids": {index: address}, "state": "ACTIVE", "link_layer": "Ethernet"}
    return PortSeen(**given | {"time_ns": 1, "device": device, "port": 1} | fields)


def counts(
    time_ns: int,
    tgid: int,
    address: int,
    number: int,
    *,
    counted_ns: int | None = None,
    vendor_error: int = 0,
    **values: Any,
) -> QueuePairCounts:
    """One queue pair's; a counter is ``posts=3``, one of several ``work_requests={"write": 3}``.

    ``counted_ns`` None: since time 0.
    """
    counted_ns = time_ns if counted_ns is None else counted_ns
    row = np.zeros((1, len(COUNTERS)), dtype=np.uint64)
    for what, value in values.items():
        for of, one in value.items() if isinstance(value, dict) else (("", value),):
            row[0, PLACE[Counted(what, of)]] = one
    given = (time_ns, tgid, address, number, counted_ns, vendor_error, 0)
    column = [np.array([each], dtype=np.uint64) for each in given]
    return QueuePairCounts(
        time_ns=column[0],
        tgid=column[1],
        queue_pair=column[2],
        number=column[3],
        counted_ns=column[4],
        vendor_error=column[5],
        last_error_ns=column[6],
        counters=COUNTERS,
        values=row,
    )


def together(*parts: QueuePairCounts) -> QueuePairCounts:
    """Several in one reading, as the map is read."""
    names = (
        "time_ns",
        "tgid",
        "queue_pair",
        "number",
        "counted_ns",
        "vendor_error",
        "last_error_ns",
        "values",
    )
    joined = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    return QueuePairCounts(counters=COUNTERS, **joined)


@dataclass
class Caller:
    """Queue pair ``number`` of a process; each call returns its fact and moves the clock on by a millisecond."""

    tgid: int = 100
    number: int = 17
    address: int = 0x1000
    device: str = "rxe0"
    now_ns: int = 10 * MS
    fields: dict[str, Any] = field(default_factory=lambda: {"type": "rc"})

    def _fact(self, state: QueuePairState, **fields: Any) -> QueuePairChanged:
        self.now_ns += MS
        known: dict[str, Any] = {
            "time_ns": self.now_ns,
            "duration_ns": MS // 2,
            "tgid": self.tgid,
            "tid": self.tgid,
            "queue_pair": self.address,
            "number": self.number,
            "device": self.device,
            "call": "ibv_modify_qp",
            "state": state,
        }
        return QueuePairChanged(**known | self.fields | fields)

    def make(self, **fields: Any) -> QueuePairChanged:
        return self._fact(S.RESET, **{"made": True, "call": "ibv_create_qp"} | fields)

    def init(self, **fields: Any) -> QueuePairChanged:
        return self._fact(S.INIT, **{"port": 1} | fields)

    def receive(self, peer: int = 23, peer_gid: str = "fe80::2", **fields: Any) -> QueuePairChanged:
        to = {"peer_number": peer, "peer_gid": gid(peer_gid), "local_gid_index": 1, "path_mtu_bytes": 1024}
        return self._fact(S.READY_TO_RECEIVE, **{"port": 1} | to | fields)

    def ready(self, **fields: Any) -> QueuePairChanged:
        return self._fact(S.READY_TO_SEND, **{"port": 1, "timeout": 14, "retries": 7} | fields)

    def error(self, **fields: Any) -> QueuePairChanged:
        return self._fact(S.ERROR, **fields)

    def reset(self, **fields: Any) -> QueuePairChanged:
        return self._fact(S.RESET, **fields)

    def destroy(self, **fields: Any) -> QueuePairChanged:
        return self._fact(S.READY_TO_SEND, **{"destroyed": True, "call": "ibv_destroy_qp"} | fields)

    def connect(self, peer: int = 23, peer_gid: str = "fe80::2") -> list[QueuePairChanged]:
        """Made, and taken to ready to send."""
        return [self.make(), self.init(), self.receive(peer, peer_gid), self.ready()]

    def counted(self, **values: Any) -> QueuePairCounts:
        return counts(self.now_ns, self.tgid, self.address, self.number, **values)
