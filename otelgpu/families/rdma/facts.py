"""RDMA as facts, decoded and not yet joined: queue pairs, memory, events, and what was counted of the data path.

States are those of the InfiniBand Architecture Specification, volume 1, section 10.3.1; other names are words in
the family's own tables. Whatever is not known is 0, empty or absent; times are CLOCK_MONOTONIC.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

U64 = npt.NDArray[np.uint64]


class QueuePairState(StrEnum):
    """Of a queue pair; ``UNKNOWN``: the record has none that exists."""

    RESET = "reset"
    INIT = "init"
    READY_TO_RECEIVE = "ready_to_receive"
    READY_TO_SEND = "ready_to_send"
    SEND_QUEUE_DRAINED = "send_queue_drained"
    SEND_QUEUE_ERROR = "send_queue_error"
    ERROR = "error"
    UNKNOWN = "unknown"


NO_GID: Final = b""


class QueuePairChanged(Struct, frozen=True, kw_only=True):
    """A call made, modified or destroyed a queue pair of process ``tgid``; what it does not report is 0 or empty.

    ``queue_pair`` is the address of ``struct ibv_qp``, ``number`` its number on the device. ``peer_gid``: 16 bytes,
    or none, as on InfiniBand within a subnet, where ``peer_lid`` reports. ``error``: errno of a call that failed.
    """

    time_ns: int
    duration_ns: int
    tgid: int
    tid: int
    queue_pair: int
    number: int
    state: QueuePairState
    call: str = ""
    context: int = 0
    send_queue: int = 0
    receive_queue: int = 0
    device: str = ""
    type: str = ""
    port: int = 0
    local_gid_index: int = 0
    peer_number: int = 0
    peer_gid: bytes = NO_GID
    peer_lid: int = 0
    path_mtu_bytes: int = 0
    timeout: int = 0  # of an acknowledgement: 4.096 us * 2^n
    retries: int = 0
    rnr_retries: int = 0
    made: bool = False
    destroyed: bool = False
    error: int = 0


class Counted(NamedTuple):
    """A counter of queue pairs: ``("work_requests", "write")``, ``("latencies", 10)``, ``("posts", "")``."""

    what: str
    of: str | int


class QueuePairCounts(Struct, frozen=True, kw_only=True, eq=False):
    """What was counted of n queue pairs since each was first seen, in columns.

    ``tgid``, ``queue_pair``, ``number``, ``time_ns`` (when it was read), ``counted_ns`` (for how long it was counted,
    whatever of that time posts and polls were observed), ``vendor_error``, ``last_error_ns``: (n,).
    ``values``: (n, k) uint64, a column for each of ``counters``; they count up.
    """

    time_ns: U64
    tgid: U64
    queue_pair: U64
    number: U64
    counted_ns: U64
    vendor_error: U64
    last_error_ns: U64
    counters: tuple[Counted, ...]
    values: U64

    def rows(self, places: Sequence[int]) -> QueuePairCounts:
        """Those alone."""
        return replace(self, **{name: getattr(self, name)[list(places)] for name in _COLUMNS})

    @classmethod
    def joined(cls, parts: Sequence[QueuePairCounts]) -> QueuePairCounts:
        """All rows of readings with the same counters."""
        columns: dict[str, Any] = {
            name: np.concatenate([getattr(each, name) for each in parts]) for name in _COLUMNS
        }
        return replace(parts[0], **columns)


_COLUMNS: Final = tuple(name for name in QueuePairCounts.__struct_fields__ if name != "counters")


class RegionChanged(Struct, frozen=True, kw_only=True):
    """Memory was registered for RDMA, or no more is. ``dmabuf``: it is a device's. ``error``: errno, 0 for none."""

    time_ns: int
    tgid: int
    region: int
    device: str
    bytes: int
    removed: bool
    dmabuf: bool = False
    error: int = 0


class ObjectChanged(Struct, frozen=True, kw_only=True):
    """A context, completion queue, address handle or connection identifier was made, or is no more.

    ``call``: the function's exported name. ``detail``: entries of a completion queue.
    """

    time_ns: int
    tgid: int
    call: str
    object: int
    removed: bool
    device: str = ""
    context: int = 0
    detail: int = 0
    error: int = 0


class EventSource(StrEnum):
    """Who reports of an event."""

    DEVICE = "device"  # ibv_get_async_event
    COMPLETION = "completion"  # ibv_get_cq_event
    CONNECTION = "connection"  # rdma_get_cm_event


class FabricEvent(Struct, frozen=True, kw_only=True):
    """A process was reported of an event. ``number``: of the queue pair or port that it is about; 0: neither."""

    time_ns: int
    tgid: int
    source: EventSource
    event: str
    device: str = ""
    object: int = 0
    number: int = 0
    of_port: bool = False  # ``number`` is a port's
    failed: bool = False  # it reports of something that is broken
    status: int = 0


class TransferSeen(Struct, frozen=True, kw_only=True):
    """One work request, posted at ``time_ns`` and seen to be complete ``duration_ns`` later."""

    time_ns: int
    duration_ns: int
    tgid: int
    tid: int
    queue_pair: int
    number: int
    id: int
    bytes: int
    operation: str
    status: str  # "success", or what failed
    vendor_error: int = 0


VerbsFact = QueuePairChanged | QueuePairCounts | RegionChanged | ObjectChanged | FabricEvent | TransferSeen


class VerbsFacts(Struct, frozen=True):
    """Facts of queue pairs and of the memory and events that belong to them, in order."""

    facts: Sequence[VerbsFact]
