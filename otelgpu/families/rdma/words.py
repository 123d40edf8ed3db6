"""Numbers of ``infiniband/verbs.h`` and ``rdma/rdma_cma.h`` (rdma-core 28 to 64) in words.

A number that a table does not have is ``unknown(N)`` as far as :data:`LARGEST`, and ``unknown`` beyond: a program
may pass anything, and labels stay few.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from otelgpu.families.rdma.facts import QueuePairState

LARGEST: Final = 63
"""The last number that is reported as it is."""

STATES: Final = (  # enum ibv_qp_state
    QueuePairState.RESET,
    QueuePairState.INIT,
    QueuePairState.READY_TO_RECEIVE,
    QueuePairState.READY_TO_SEND,
    QueuePairState.SEND_QUEUE_DRAINED,
    QueuePairState.SEND_QUEUE_ERROR,
    QueuePairState.ERROR,
)

TYPES: Final[Mapping[int, str]] = {  # enum ibv_qp_type
    2: "rc",
    3: "uc",
    4: "ud",
    8: "raw_packet",
    9: "xrc_send",
    10: "xrc_recv",
    0xFF: "driver",
}

MTU_BYTES: Final[Mapping[int, int]] = {1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096}  # enum ibv_mtu

STATUSES: Final = (  # enum ibv_wc_status
    "success",
    "local_length_error",
    "local_qp_operation_error",
    "local_eec_operation_error",
    "local_protection_error",
    "flushed",
    "memory_window_bind_error",
    "bad_response",
    "local_access_error",
    "remote_invalid_request",
    "remote_access_error",
    "remote_operation_error",
    "retries_exceeded",
    "rnr_retries_exceeded",
    "local_rdd_violation",
    "remote_invalid_rd_request",
    "remote_aborted",
    "invalid_eec_number",
    "invalid_eec_state",
    "fatal_error",
    "response_timeout",
    "general_error",
    "tag_matching_error",
    "tag_matching_incomplete",
)

DEVICE_EVENTS: Final = (  # enum ibv_event_type
    "cq_error",
    "qp_fatal",
    "qp_request_error",
    "qp_access_error",
    "communication_established",
    "send_queue_drained",
    "path_migrated",
    "path_migration_error",
    "device_fatal",
    "port_active",
    "port_error",
    "lid_change",
    "pkey_change",
    "sm_change",
    "srq_error",
    "srq_limit_reached",
    "qp_last_wqe_reached",
    "client_reregister",
    "gid_change",
    "wq_fatal",
)
PORT_EVENTS: Final = frozenset((9, 10, 11, 12, 13, 17, 18))
FAILURES: Final = frozenset((0, 1, 2, 3, 7, 8, 10, 14, 19))

CONNECTION_EVENTS: Final = (  # enum rdma_cm_event_type
    "address_resolved",
    "address_error",
    "route_resolved",
    "route_error",
    "connect_request",
    "connect_response",
    "connect_error",
    "unreachable",
    "rejected",
    "established",
    "disconnected",
    "device_removal",
    "multicast_join",
    "multicast_error",
    "address_change",
    "timewait_exit",
)
CONNECTION_FAILURES: Final = frozenset((1, 3, 6, 7, 8, 11, 13))


def word(table: Sequence[str] | Mapping[int, str], number: int) -> str:
    """The word for a number, whatever number it is."""
    known = table.get(number) if isinstance(table, Mapping) else None
    if not isinstance(table, Mapping) and 0 <= number < len(table):
        known = table[number]
    if known is not None:
        return known
    return f"unknown({number})" if 0 <= number <= LARGEST else "unknown"
