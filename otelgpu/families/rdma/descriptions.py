"""What names of RDMA mean: ports, queue pairs, errors of hardware."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from otelgpu.engine.description_tables import EXAMPLE, TEXT, Described, Descriptions, MetricTable, Page, Table
from otelgpu.engine.hardware_names import ERRORS
from otelgpu.engine.metric import Metric
from otelgpu.families.rdma import names as qp
from otelgpu.families.rdma import ports
from otelgpu.families.rdma.loss import LOSSES
from otelgpu.families.rdma.port_counters import COUNTER, METRICS, OTHER, QUEUE_PAIR_COUNTER, ROWS
from otelgpu.families.rdma.xids import ACTIONS, UNKNOWN, XIDS


def _port_metrics() -> Mapping[Metric, Sequence[str]]:
    """Each metric of ports, and the attributes that part its series, without those of every port."""
    found: dict[Metric, list[str]] = {metric: [] for metric in METRICS}
    for row in ROWS.values():
        if row.metric is not ERRORS:
            found[row.metric] += [key for key in row.labels if key not in found[row.metric]]
    found[OTHER] = [COUNTER]
    found[QUEUE_PAIR_COUNTER] = [qp.DEVICE, qp.PORT, qp.NUMBER, COUNTER]
    return found


def _counters() -> Sequence[Sequence[str]]:
    return [
        (
            f"`{name}`",
            f"`{row.metric.name}`",
            ", ".join(f"`{key}={value}`" for key, value in row.labels.items()) or "–",
            f"{row.scale}",
        )
        for name, row in ROWS.items()
    ]


def _xids() -> Sequence[Sequence[str]]:
    return [
        (f"{code}", f"`{known.name}`", known.kind, "–" if known.action == UNKNOWN else f"`{known.action}`")
        for code, known in sorted(XIDS.items())
    ]


DESCRIPTIONS: Final = Descriptions(
    attributes={
        "rdma.device": Described("the RDMA device", "`mlx5_0`"),
        "rdma.port": Described("its port", "`1`"),
        "rdma.qp.number": Described("the queue pair's number on the device", "`4711`"),
        "rdma.qp.type": Described(
            "`rc`, `uc`, `ud`, `raw_packet`, `xrc_send`, `xrc_recv`, `driver`; in metrics also `srq` (all "
            "shared receive queues of the process) and `unknown` (completions of queue pairs that are not known)",
            "`rc`",
        ),
        "rdma.qp.state": Described("the queue pair's state, of a span the last one", "`ready_to_send`"),
        "rdma.gid": Described("the GID, or LID, of its own end", "`fe80::1`, `lid 17`"),
        "rdma.peer.qp.number": Described("the number of the queue pair at the other end", "`4712`"),
        "rdma.peer.gid": Described("the GID of the other end", "`::ffff:10.0.0.2`"),
        "rdma.peer.service.name": Described(
            "`service.name` of the process at the other end; only where this agent sees both", "`rank1`"
        ),
        "rdma.peer.k8s.pod.name": Described("`k8s.pod.name` of it", "`worker-1`"),
        "rdma.peer.k8s.namespace.name": Described("`k8s.namespace.name` of it", "`training`"),
        "rdma.peer.process.pid": Described("its process id", "`4321`"),
        "rdma.role": Described("`client` or `server`; only of connections that rdma_cm made", "`client`"),
        "rdma.connection.identity": Described(
            "what the ids are made of: `ends`, as the other end's agent derives them too, or `local`, where "
            "an end is not known",
            "`ends`",
        ),
        "rdma.connect.begin": Described("the step with which the connect span begins", "`init`"),
        "rdma.qp.late": Described("the queue pair was made before the agent looked", "`true`"),
        "rdma.qp.open": Described("it had not ended when the session did", "`true`"),
        "rdma.path_mtu": Described("bytes of a packet's payload", "`4096`"),
        "rdma.ack_timeout": Described(
            "seconds until a request that is not acknowledged is sent again", "`0.067`"
        ),
        "rdma.retries": Described("how often it is sent again before the queue pair gives up", "`7`"),
        "rdma.rnr_retries": Described(
            "how often where the other end had no receive posted; 7: for ever", "`7`"
        ),
        "rdma.vendor_error": Described("the vendor's code of the last completion that failed", "`129`"),
        "rdma.operation": Described("`send`, `write`, `read`, `atomic`, `receive` or `other`", "`write`"),
        "rdma.status": Described("a completion's status, `success` or what failed", "`retries_exceeded`"),
        "rdma.path": Described("`post` or `poll`: which calls were observed", "`poll`"),
        "rdma.memory.kind": Described(
            "`host`, or `dmabuf`: the memory of another device, as a GPU's", "`dmabuf`"
        ),
        "rdma.event": Described("what the process was reported", "`port_error`"),
        "rdma.event.source": Described(
            "by whom: `device` (ibv_get_async_event), `completion` (ibv_get_cq_event), `connection` "
            "(rdma_get_cm_event)",
            "`device`",
        ),
        "rdma.loss.kind": Described("what was lost, in words that drivers share", "`sequence_nak`"),
        "rdma.loss.counter": Described("the driver's own name of the counter that grew", "`packet_seq_err`"),
        "rdma.loss.attribution": Described(
            "how the queue pair is known: `driver`, `only_queue_pair`, `latency`; `unknown`: it is not",
            "`latency`",
        ),
        "rdma.communicator.source": Described(
            "how that is known: `only_communicator` of the process, or `creation`: it was being made when "
            "the queue pair was",
            "`only_communicator`",
        ),
        "rdma.work_request.id": Described("`wr_id` as the program gave it", "`0x2a`"),
        "rdma.transfer.size": Described("bytes of the work request", "`65536`"),
        "rdma.total.work_requests": Described("work requests sent, as far as posts were observed", "`500`"),
        "rdma.total.bytes": Described("their bytes", "`2048000`"),
        "rdma.total.received_bytes": Described("bytes of the receives that were seen to complete", "`0`"),
        "rdma.total.completions": Described("completions that were seen", "`500`"),
        "rdma.total.failures": Described("those of them that failed, flushed ones too", "`0`"),
        "rdma.observed.post_ratio": Described(
            "share of the last second in which posts were observed; absent where that is all", "`0.1`"
        ),
        "rdma.observed.poll_ratio": Described("the same of polls", "`0.1`"),
        "rdma.driver": Described("the device's kernel driver"),
        "rdma.link_layer": Described("`Ethernet` (RoCE), `InfiniBand` or `Unspecified` (EFA)"),
        "rdma.kind": Described("what exactly was counted, within one metric"),
        "rdma.counter": Described("the driver's own name of the counter"),
        "otelgpu.hw.error.code": Described("the Xid's or SXid's number"),
        "otelgpu.hw.error.name": Described("the mnemonic of NVIDIA's catalogue, or `unknown`"),
        "otelgpu.hw.error.class": Described(
            "`application`, `memory`, `nvlink`, `bus`, `firmware`, `engine`, `driver`, `notice`; of an SXid "
            "`fatal` or `non-fatal`; or `unknown`"
        ),
        "otelgpu.hw.error.action": Described("NVIDIA's resolution bucket, or `unknown`"),
        "otelgpu.hw.error.hint": Described("what to do, in words"),
        "otelgpu.hw.error.message": Described("the line of the kernel log, without its beginning"),
        "otelgpu.hw.pci_bus_id": Described("the PCI address as the line has it"),
        "rdma.port.state": Described("what the port is now: `ACTIVE`, `DOWN`, `INIT`, …"),
        "rdma.port.state.before": Described("what it was before"),
        "rdma.port.rate": Described("bits per second now"),
        "rdma.port.rate.before": Described("bits per second before"),
    },
    metrics=(
        MetricTable(scope=ports.SCOPE, metrics=_port_metrics(), page="fabric metrics"),
        MetricTable(scope=qp.SCOPE, metrics=qp.METRICS, page="queue pair metrics"),
    ),
    pages={
        "queue pair attributes": Page(
            header=(
                "Attribute",
                "Meaning",
                "Example",
            ),
            rows={
                "rdma.device": (
                    TEXT,
                    EXAMPLE,
                ),
                "rdma.port": (
                    TEXT,
                    EXAMPLE,
                ),
                "rdma.qp.number": (
                    TEXT,
                    EXAMPLE,
                ),
                "rdma.qp.type": (
                    TEXT,
                    EXAMPLE,
                ),
                "rdma.qp.state": (
                    TEXT,
                    EXAMPLE,
                ),
                "rdma.gid": (
                    TEXT,
                    EXAMPLE,
                ),
                "rdma.peer.qp.number": (
                    TEXT,
                    EXAMPLE,
                ),
                "rdma.peer.gid": (
                    TEXT,
                    EXAMPLE,
                ),
                "rdma.peer.service.name": (
                    TEXT,
                    EXAMPLE,
                ),
                "rdma.peer.k8s.pod.name": (
                    TEXT,
                    EXAMPLE,
                ),
                "rdma.peer.k8s.namespace.name": (
                    TEXT,
                    EXAMPLE,
                ),
                "rdma.peer.process.pid": (
                    TEXT,
                    EXAMPLE,
                ),
                "rdma.role": (
                    TEXT,
                    EXAMPLE,
                ),
                "rdma.connection.identity": (
                    TEXT,
                    EXAMPLE,
                ),
                "rdma.connect.begin": (
                    TEXT,
                    EXAMPLE,
                ),
                "rdma.qp.late": (
                    TEXT,
                    EXAMPLE,
                ),
                "rdma.qp.open": (
                    TEXT,
                    EXAMPLE,
                ),
                "rdma.path_mtu": (
                    TEXT,
                    EXAMPLE,
                ),
                "rdma.ack_timeout": (
                    TEXT,
                    EXAMPLE,
                ),
                "rdma.retries": (
                    TEXT,
                    EXAMPLE,
                ),
                "rdma.rnr_retries": (
                    TEXT,
                    EXAMPLE,
                ),
                "rdma.vendor_error": (
                    TEXT,
                    EXAMPLE,
                ),
                "rdma.operation": (
                    TEXT,
                    EXAMPLE,
                ),
                "rdma.status": (
                    TEXT,
                    EXAMPLE,
                ),
                "rdma.path": (
                    TEXT,
                    EXAMPLE,
                ),
                "rdma.memory.kind": (
                    TEXT,
                    EXAMPLE,
                ),
                "rdma.event": (
                    TEXT,
                    EXAMPLE,
                ),
                "rdma.event.source": (
                    TEXT,
                    EXAMPLE,
                ),
                "rdma.loss.kind": (
                    TEXT,
                    EXAMPLE,
                ),
                "rdma.loss.counter": (
                    TEXT,
                    EXAMPLE,
                ),
                "rdma.loss.attribution": (
                    TEXT,
                    EXAMPLE,
                ),
                "nccl.communicator.hash": (
                    "the NCCL communicator that the queue pair was made for",
                    "`d5e9a4c3b2a1f007`",
                ),
                "rdma.communicator.source": (
                    TEXT,
                    EXAMPLE,
                ),
                "rdma.work_request.id": (
                    TEXT,
                    EXAMPLE,
                ),
                "rdma.transfer.size": (
                    TEXT,
                    EXAMPLE,
                ),
                "rdma.total.work_requests": (
                    TEXT,
                    EXAMPLE,
                ),
                "rdma.total.bytes": (
                    TEXT,
                    EXAMPLE,
                ),
                "rdma.total.received_bytes": (
                    TEXT,
                    EXAMPLE,
                ),
                "rdma.total.completions": (
                    TEXT,
                    EXAMPLE,
                ),
                "rdma.total.failures": (
                    TEXT,
                    EXAMPLE,
                ),
                "rdma.observed.post_ratio": (
                    TEXT,
                    EXAMPLE,
                ),
                "rdma.observed.poll_ratio": (
                    TEXT,
                    EXAMPLE,
                ),
                "process.pid": (
                    "the process; only of losses of one that has ended",
                    "`1234`",
                ),
                "otel.metric.overflow": (
                    "the series is of all queue pairs beyond the limit",
                    "`true`",
                ),
            },
        ),
        "fabric attributes": Page(
            header=(
                "Attribute",
                "Meaning",
            ),
            rows={
                "hw.id": (
                    "the port, `mlx5_0/1`; of an Xid the GPU's uuid, or its PCI address where NVML is not read",
                ),
                "hw.name": ("the RDMA device; of a GPU `gpu` and its index",),
                "hw.type": ("`network`; of an Xid `gpu`",),
                "hw.parent": ("the device's PCI address",),
                "hw.firmware_version": ("the device's firmware",),
                "error.type": (
                    "which error: `xid-79`, `sxid-20034`, `port_down`, `port_rate_downgrade`, or what a counter counts",
                ),
                "network.io.direction": ("`receive` or `transmit`, seen from the port",),
                "network.interface.name": ("the network interface of the port",),
                "rdma.device": (TEXT,),
                "rdma.port": (TEXT,),
                "rdma.qp.number": (TEXT,),
                "rdma.driver": (TEXT,),
                "rdma.link_layer": (TEXT,),
                "rdma.kind": (TEXT,),
                "rdma.counter": (TEXT,),
                "otelgpu.hw.error.code": (TEXT,),
                "otelgpu.hw.error.name": (TEXT,),
                "otelgpu.hw.error.class": (TEXT,),
                "otelgpu.hw.error.action": (TEXT,),
                "otelgpu.hw.error.hint": (TEXT,),
                "otelgpu.hw.error.message": (TEXT,),
                "otelgpu.hw.pci_bus_id": (TEXT,),
                "process.pid": ("the process that the driver blames, as the host numbers it",),
                "process.executable.name": ("its name, as the driver has it",),
                "rdma.port.state": (TEXT,),
                "rdma.port.state.before": (TEXT,),
                "rdma.port.rate": (TEXT,),
                "rdma.port.rate.before": (TEXT,),
            },
        ),
    },
    tables={
        "queue pair losses": Table(
            header=("Counter", f"`{qp.LOSS_KIND}`"),
            rows=lambda: [(f"`{name}`", f"`{kind}`") for name, kind in LOSSES.items()],
        ),
        "fabric counters": Table(header=("Counter", "Metric", "Attributes", "Factor"), rows=_counters),
        "xids": Table(header=("Xid", "Name", "Class", "Action"), rows=_xids),
        "xid actions": Table(
            header=("Action", "What to do"),
            rows=lambda: [(f"`{action}`", text) for action, text in ACTIONS.items()],
        ),
    },
)
