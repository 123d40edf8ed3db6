"""Tables of docs/rdma.md, from the tables that the code works with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from otelgpu.correlate.queue_pair_loss import LOSSES
from otelgpu.families.base import Metric
from otelgpu.signals import queue_pair_names as qp
from otelgpu.signals.fabric_session import REASONS

ATTRIBUTES: Final[Mapping[str, tuple[str, str]]] = {
    qp.DEVICE: ("the RDMA device", "`mlx5_0`"),
    qp.PORT: ("its port", "`1`"),
    qp.NUMBER: ("the queue pair's number on the device", "`4711`"),
    qp.TYPE: (
        "`rc`, `uc`, `ud`, `raw_packet`, `xrc_send`, `xrc_recv`, `driver`; in metrics also `srq` (all shared receive "
        "queues of the process) and `unknown` (completions of queue pairs that are not known)",
        "`rc`",
    ),
    qp.STATE: ("the queue pair's state, of a span the last one", "`ready_to_send`"),
    qp.GID: ("the GID, or LID, of its own end", "`fe80::1`, `lid 17`"),
    qp.PEER_NUMBER: ("the number of the queue pair at the other end", "`4712`"),
    qp.PEER_GID: ("the GID of the other end", "`::ffff:10.0.0.2`"),
    qp.PEER_SERVICE: (
        "`service.name` of the process at the other end; only where this agent sees both",
        "`rank1`",
    ),
    qp.PEER_POD: ("`k8s.pod.name` of it", "`worker-1`"),
    qp.PEER_NAMESPACE: ("`k8s.namespace.name` of it", "`training`"),
    qp.PEER_PID: ("its process id", "`4321`"),
    qp.ROLE: ("`client` or `server`; only of connections that rdma_cm made", "`client`"),
    qp.IDENTITY: (
        "what the ids are made of: `ends`, as the other end's agent derives them too, or `local`, where an end is "
        "not known",
        "`ends`",
    ),
    qp.BEGIN: ("the step with which the connect span begins", "`init`"),
    qp.LATE: ("the queue pair was made before the agent looked", "`true`"),
    qp.OPEN: ("it had not ended when the session did", "`true`"),
    qp.MTU: ("bytes of a packet's payload", "`4096`"),
    qp.TIMEOUT: ("seconds until a request that is not acknowledged is sent again", "`0.067`"),
    qp.RETRIES: ("how often it is sent again before the queue pair gives up", "`7`"),
    qp.RNR_RETRIES: ("how often where the other end had no receive posted; 7: for ever", "`7`"),
    qp.VENDOR_ERROR: ("the vendor's code of the last completion that failed", "`129`"),
    qp.OPERATION: ("`send`, `write`, `read`, `atomic`, `receive` or `other`", "`write`"),
    qp.STATUS: ("a completion's status, `success` or what failed", "`retries_exceeded`"),
    qp.PATH: ("`post` or `poll`: which calls were observed", "`poll`"),
    qp.MEMORY: ("`host`, or `dmabuf`: the memory of another device, as a GPU's", "`dmabuf`"),
    qp.EVENT_NAME: ("what the process was told", "`port_error`"),
    qp.EVENT_SOURCE: (
        "by whom: `device` (ibv_get_async_event), `completion` (ibv_get_cq_event), `connection` (rdma_get_cm_event)",
        "`device`",
    ),
    qp.LOSS_KIND: ("what was lost, in words that drivers share", "`sequence_nak`"),
    qp.LOSS_COUNTER: ("the driver's own name of the counter that grew", "`packet_seq_err`"),
    qp.ATTRIBUTION: (
        "how the queue pair is known: `driver`, `only_queue_pair`, `latency`; `unknown`: it is not",
        "`latency`",
    ),
    qp.COMMUNICATOR: ("the NCCL communicator that the queue pair was made for", "`d5e9a4c3b2a1f007`"),
    qp.COMMUNICATOR_SOURCE: (
        "how that is known: `only_communicator` of the process, or `creation`: it was being made when the "
        "queue pair was",
        "`only_communicator`",
    ),
    qp.WORK_REQUEST: ("`wr_id` as the program gave it", "`0x2a`"),
    qp.SIZE: ("bytes of the work request", "`65536`"),
    qp.WORK_REQUESTS: ("work requests sent, as far as posts were observed", "`500`"),
    qp.BYTES_SENT: ("their bytes", "`2048000`"),
    qp.BYTES_RECEIVED: ("bytes of the receives that were seen to complete", "`0`"),
    qp.COMPLETIONS: ("completions that were seen", "`500`"),
    qp.FAILURES: ("those of them that failed, flushed ones too", "`0`"),
    qp.POST_SHARE: (
        "share of the last second in which posts were observed; absent where that is all",
        "`0.1`",
    ),
    qp.POLL_SHARE: ("the same of polls", "`0.1`"),
    qp.PID: ("the process; only of losses of one that has ended", "`1234`"),
    qp.OVERFLOW: ("the series is of all queue pairs beyond the limit", "`true`"),
}
"""Attribute → what it tells, and an example."""


def metric_labels() -> dict[Metric, list[str]]:
    """Each metric, and the attributes that tell its series apart."""
    return {metric: list(keys) for metric, keys in qp.METRICS.items()}


def losses() -> list[tuple[str, str]]:
    """Counters that are divided among queue pairs: the driver's name, and the kind."""
    return [(f"`{name}`", f"`{kind}`") for name, kind in LOSSES.items()]


def reasons() -> dict[tuple[str, str], str]:
    """What one count of each reason means."""
    return {("fabric", name): text for name, text in REASONS.items()}
