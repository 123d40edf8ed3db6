"""What queue pairs are called: attributes and metrics of RDMA work. Documented in docs/reference/rdma.md.

OpenTelemetry has no names for RDMA (semantic conventions 1.44): ``rdma.*`` is ours.
"""

from __future__ import annotations

from typing import Final

from otelgpu.engine.metric import Instrument, Metric
from otelgpu.engine.names import COMMUNICATOR_HASH

SCOPE: Final = "otelgpu.rdma"

CONNECT: Final = "RDMA connect"
"""Span: from INIT to ready to send. Both ends have one, in one trace."""
QUEUE_PAIR: Final = "RDMA queue pair"
"""Span: from ready to send to the end, with what was counted. Child of the connect span."""
EVENT: Final = "RDMA event"
"""Span without a duration: the process was notified of it. Its name ends with the event's."""
TRANSFER: Final = "RDMA"
"""Span of one work request, on demand: ``RDMA write``. From post to the completion that was seen."""

DEVICE: Final = "rdma.device"
PORT: Final = "rdma.port"
NUMBER: Final = "rdma.qp.number"
TYPE: Final = "rdma.qp.type"
STATE: Final = "rdma.qp.state"
GID: Final = "rdma.gid"
PEER_NUMBER: Final = "rdma.peer.qp.number"
PEER_GID: Final = "rdma.peer.gid"
PEER_SERVICE: Final = "rdma.peer.service.name"
PEER_POD: Final = "rdma.peer.k8s.pod.name"
PEER_NAMESPACE: Final = "rdma.peer.k8s.namespace.name"
PEER_PID: Final = "rdma.peer.process.pid"
IDENTITY: Final = "rdma.connection.identity"
"""What the ids are made of: ``ends`` (both, so that the other end's agent has the same trace) or ``local``."""
BEGIN: Final = "rdma.connect.begin"
"""The first step that was seen: ``init``, or a later one where the agent came late."""
ROLE: Final = "rdma.role"
"""``client`` or ``server``, of connections that rdma_cm made; others have none."""
LATE: Final = "rdma.qp.late"
"""True: the queue pair was made before the agent looked."""
OPEN: Final = "rdma.qp.open"
"""True: the queue pair had not ended when the session did."""
MTU: Final = "rdma.path_mtu"
TIMEOUT: Final = "rdma.ack_timeout"
RETRIES: Final = "rdma.retries"
RNR_RETRIES: Final = "rdma.rnr_retries"
VENDOR_ERROR: Final = "rdma.vendor_error"
OPERATION: Final = "rdma.operation"
STATUS: Final = "rdma.status"
PATH: Final = "rdma.path"
"""``post`` or ``poll``: which of the calls."""
MEMORY: Final = "rdma.memory.kind"
"""``host`` or ``dmabuf`` (memory of another device, as a GPU's)."""
EVENT_NAME: Final = "rdma.event"
EVENT_SOURCE: Final = "rdma.event.source"
LOSS_KIND: Final = "rdma.loss.kind"
LOSS_COUNTER: Final = "rdma.loss.counter"
ATTRIBUTION: Final = "rdma.loss.attribution"
COMMUNICATOR: Final = COMMUNICATOR_HASH
COMMUNICATOR_SOURCE: Final = "rdma.communicator.source"
WORK_REQUEST: Final = "rdma.work_request.id"
SIZE: Final = "rdma.transfer.size"
BYTES_SENT: Final = "rdma.total.bytes"
BYTES_RECEIVED: Final = "rdma.total.received_bytes"
WORK_REQUESTS: Final = "rdma.total.work_requests"
COMPLETIONS: Final = "rdma.total.completions"
FAILURES: Final = "rdma.total.failures"
POST_SHARE: Final = "rdma.observed.post_ratio"
POLL_SHARE: Final = "rdma.observed.poll_ratio"
PID: Final = "process.pid"
OVERFLOW: Final = "otel.metric.overflow"

_COUNTER: Final = Instrument.COUNTER
_GAUGE: Final = Instrument.GAUGE
_LEVEL: Final = Instrument.UP_DOWN_COUNTER


def _metric(name: str, unit: str, instrument: Instrument, description: str) -> Metric:
    return Metric(name=name, unit=unit, instrument=instrument, description=description)


REQUESTS: Final = _metric(
    "rdma.qp.work_requests", "{work_request}", _COUNTER, "Work requests that were seen to be posted."
)
IO: Final = _metric("rdma.qp.io", "By", _COUNTER, "Bytes of the work requests that were seen to be posted.")
REQUESTS_ESTIMATED: Final = _metric(
    "rdma.qp.work_requests.estimated",
    "{work_request}",
    _COUNTER,
    "Work requests, estimated from the share of time in which posts were observed; only where that is not all.",
)
IO_ESTIMATED: Final = _metric(
    "rdma.qp.io.estimated", "By", _COUNTER, "Bytes of the work requests, estimated likewise."
)
POSTS: Final = _metric("rdma.qp.posts", "{call}", _COUNTER, "Calls that post work requests, or doorbells.")
POSTS_FAILED: Final = _metric("rdma.qp.post.errors", "{call}", _COUNTER, "Calls to post that failed.")
SIGNALLED: Final = _metric(
    "rdma.qp.signalled", "{work_request}", _COUNTER, "Send work requests that ask for a completion."
)
INLINED: Final = _metric(
    "rdma.qp.inlined", "{work_request}", _COUNTER, "Send work requests whose data is in them."
)
UNCOUNTED: Final = _metric(
    "rdma.qp.uncounted", "{work_request}", _COUNTER, "Work requests in chains too long to be followed."
)
COMPLETED: Final = _metric(
    "rdma.qp.completions", "{completion}", _COUNTER, "Completions that were seen, by status."
)
RECEIVED: Final = _metric("rdma.qp.received", "By", _COUNTER, "Bytes of receives that were seen to complete.")
LATENCY: Final = Metric(
    name="rdma.qp.completion.latency",
    unit="s",
    instrument=Instrument.HISTOGRAM,
    description="From the post of a signalled send work request until its completion was polled.",
    buckets=tuple(2**power / 1e9 for power in range(8, 32)),
)
FIRST_BUCKET: Final = 8
"""Power of two of nanoseconds that is the histogram's first bound."""
OUTSTANDING: Final = _metric(
    "rdma.qp.outstanding",
    "{work_request}",
    _LEVEL,
    "Signalled sends and receives without a completion yet; only where all posts and polls were observed.",
)
OBSERVED: Final = _metric(
    "rdma.observed.ratio", "1", _GAUGE, "Share of the time in which posts, or polls, were observed."
)
LAST_VENDOR_ERROR: Final = _metric(
    "rdma.qp.vendor_error", "1", _GAUGE, "The vendor's error code of the last completion that failed."
)
QUEUE_PAIR_STATUS: Final = _metric(
    "rdma.qp.status", "1", _LEVEL, "1 for what a queue pair is: its state, peer and communicator."
)
QUEUE_PAIRS: Final = _metric("rdma.queue_pairs", "{queue_pair}", _LEVEL, "Queue pairs by state.")
PINNED: Final = _metric("rdma.memory.pinned", "By", _LEVEL, "Memory that is registered for RDMA.")
REGIONS: Final = _metric("rdma.memory.regions", "{region}", _LEVEL, "Memory regions that are registered.")
EVENTS: Final = _metric("rdma.events", "{event}", _COUNTER, "Events that the process was notified of.")
LOSSES: Final = _metric(
    "rdma.qp.losses",
    "{event}",
    _COUNTER,
    "Growth of the port's counters of lost or refused packets, by the queue pair that sent them.",
)
CONNECTING: Final = Metric(
    name="rdma.connect.duration",
    unit="s",
    instrument=Instrument.HISTOGRAM,
    description="From the call that made a queue pair INIT until it was ready to send.",
    buckets=(0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0),
)

_QP: Final = (DEVICE, PORT, NUMBER, TYPE)
METRICS: Final[dict[Metric, tuple[str, ...]]] = {
    REQUESTS: (*_QP, OPERATION),
    IO: (*_QP, OPERATION),
    REQUESTS_ESTIMATED: (*_QP, OPERATION),
    IO_ESTIMATED: (*_QP, OPERATION),
    POSTS: _QP,
    POSTS_FAILED: _QP,
    SIGNALLED: _QP,
    INLINED: _QP,
    UNCOUNTED: _QP,
    COMPLETED: (*_QP, STATUS),
    RECEIVED: _QP,
    LATENCY: _QP,
    OUTSTANDING: _QP,
    OBSERVED: (*_QP, PATH),
    LAST_VENDOR_ERROR: _QP,
    QUEUE_PAIR_STATUS: (*_QP, STATE, PEER_NUMBER, PEER_GID, COMMUNICATOR),
    QUEUE_PAIRS: (DEVICE, STATE),
    PINNED: (DEVICE, MEMORY),
    REGIONS: (DEVICE, MEMORY),
    EVENTS: (DEVICE, EVENT_NAME, EVENT_SOURCE),
    LOSSES: (*_QP, LOSS_KIND, LOSS_COUNTER, ATTRIBUTION, COMMUNICATOR, PID),
    CONNECTING: (DEVICE, TYPE),
}
"""Each metric, and the attributes that it may have."""
