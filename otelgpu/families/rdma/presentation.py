"""How RDMA is shown: queue pairs and ports in ``otelgpu top``, tracks of queue pairs, the viewer's list."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final

from otelgpu.engine.hardware_names import DIRECTION, RECEIVE, TRANSMIT
from otelgpu.engine.presentation import (
    OF_PROCESS,
    Column,
    How,
    Presentation,
    ProcessColumns,
    Reported,
    TopTable,
    TopView,
    TrackGroup,
    TrackRule,
    Unit,
    rate,
)
from otelgpu.engine.viewer import SpanKind, SpanList, SpanRule, ViewerPart, builtin, number, text
from otelgpu.families.rdma import hardware_errors
from otelgpu.families.rdma import names as qp

_SUCCESS: Final = {qp.STATUS: "success"}

_QUEUE_PAIRS: Final = TopTable(
    name="queue_pairs",
    title="RDMA queue pairs",
    keys={
        **OF_PROCESS,
        qp.DEVICE: ("device", "device"),
        qp.PORT: ("port", "port"),
        qp.NUMBER: ("queue_pair", "qp"),
        qp.TYPE: ("type", "type"),
    },
    columns=(
        Column(
            key="state",
            title="state",
            how=How.LABEL,
            metrics=(qp.QUEUE_PAIR_STATUS.name,),
            label=qp.STATE,
            unit=Unit.TEXT,
        ),
        Column(
            key="communicator",
            title="communicator",
            how=How.LABEL,
            metrics=(qp.QUEUE_PAIR_STATUS.name,),
            label=qp.COMMUNICATOR,
            unit=Unit.TEXT,
        ),
        rate("work_requests_per_s", "WR/s", qp.REQUESTS_ESTIMATED.name, qp.REQUESTS.name),
        rate("bytes_per_s", "bytes/s", qp.IO_ESTIMATED.name, qp.IO.name, unit=Unit.BYTES),
        rate("completions_per_s", "compl/s", qp.COMPLETED.name),
        Column(key="outstanding", title="outst.", how=How.TOTAL, metrics=(qp.OUTSTANDING.name,)),
        Column(key="latency_p50_s", title="p50", how=How.P50, metrics=(qp.LATENCY.name,), unit=Unit.SECONDS),
        Column(key="latency_p99_s", title="p99", how=How.P99, metrics=(qp.LATENCY.name,), unit=Unit.SECONDS),
        Column(
            key="failures",
            title="failed",
            how=How.TOTAL,
            metrics=(qp.COMPLETED.name,),
            without=_SUCCESS,
            alarming=True,
        ),
        rate("losses_per_s", "lost/s", qp.LOSSES.name, alarming=True),
        Column(
            key="observed_share",
            title="seen",
            how=How.MEAN,
            metrics=(qp.OBSERVED.name,),
            where={qp.PATH: "post"},
            unit=Unit.SHARE,
        ),
    ),
    sort="bytes_per_s",
)


def _way(direction: str) -> dict[str, Any]:
    return {"where": {DIRECTION: direction, "hw.type": "network"}}


_PORTS: Final = TopTable(
    name="ports",
    title="RDMA ports",
    keys={qp.DEVICE: ("device", "device"), qp.PORT: ("port", "port")},
    columns=(
        Column(key="up", title="up", how=How.TOTAL, metrics=("hw.network.up",)),
        Column(
            key="limit_bytes_per_s",
            title="speed",
            how=How.TOTAL,
            metrics=("hw.network.bandwidth.limit",),
            unit=Unit.BYTES,
        ),
        rate("sent_bytes_per_s", "sent/s", "hw.network.io", unit=Unit.BYTES, **_way(TRANSMIT)),
        rate("received_bytes_per_s", "received/s", "hw.network.io", unit=Unit.BYTES, **_way(RECEIVE)),
        rate("sent_packets_per_s", "pkt sent/s", "hw.network.packets", **_way(TRANSMIT)),
        rate("received_packets_per_s", "pkt rcvd/s", "hw.network.packets", **_way(RECEIVE)),
        rate("naks_per_s", "NAK/s", "rdma.port.naks"),
        rate("retries_per_s", "retry/s", "rdma.port.retries"),
        rate("out_of_sequence_per_s", "ooseq/s", "rdma.port.out_of_sequence"),
        rate("cnps_per_s", "CNP/s", "rdma.port.cnps"),
        rate("errors_per_s", "err/s", "hw.errors", where={"hw.type": "network"}, alarming=True),
    ),
    sort="sent_bytes_per_s",
)


def _track(reported: Reported) -> tuple[Hashable, str]:
    device, number = reported.get(qp.DEVICE, ""), reported[qp.NUMBER]
    return (device, number), f"queue pair {number} {device}".strip()


_VIEWER: Final = ViewerPart(
    kinds=(
        SpanKind(id="rdma", words="RDMA"),
        SpanKind(id="hardware", words="hardware error"),
    ),
    rules=(
        SpanRule(kind="rdma", scope=qp.SCOPE),
        SpanRule(kind="hardware", scope=hardware_errors.SCOPE),
    ),
    lists=(
        SpanList(
            id="rdma",
            title="RDMA",
            one="span",
            kinds=("rdma",),
            columns=(
                builtin("time"),
                builtin("name", "Span"),
                builtin("service"),
                text("device", "Device", "rdma.device", width="84px"),
                number("qp", "Queue pair", "id", "rdma.qp.number", width="82px"),
                number("peer", "Peer's", "id", "rdma.peer.qp.number", width="66px"),
                text("gid", "Peer", "rdma.peer.gid", width="minmax(90px, 1fr)"),
                text(
                    "state", "State", "rdma.qp.state", "rdma.status", "rdma.event", width="minmax(80px, 1fr)"
                ),
                number("requests", "Work requests", "count", "rdma.total.work_requests", width="100px"),
                number("bytes", "Bytes", "By", "rdma.total.bytes", "rdma.transfer.size", width="80px"),
                number("failures", "Failures", "count", "rdma.total.failures", width="72px"),
                builtin("duration"),
            ),
            cards=(),
            rank=5,
        ),
    ),
    reasons=(hardware_errors.ERROR_NAME,),
)

PRESENTATION: Final = Presentation(
    views=(
        TopView(
            name="rdma",
            title="RDMA",
            top_tables=(_QUEUE_PAIRS, _PORTS),
            families=("verbs", "nccl"),
            rank=4,
        ),
    ),
    process_columns=ProcessColumns(
        columns=(
            rate("rdma_bytes_per_s", "RDMA/s", qp.IO_ESTIMATED.name, qp.IO.name, unit=Unit.BYTES),
            rate("rdma_losses_per_s", "RDMA lost/s", qp.LOSSES.name, alarming=True),
        ),
        families=("verbs",),
        rank=4,
    ),
    viewer=_VIEWER,
    tracks=(TrackRule(group=TrackGroup.QUEUE_PAIR, attribute=qp.NUMBER, track=_track, rank=4),),
)
