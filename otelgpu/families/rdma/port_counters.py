"""What the counters of RDMA drivers mean: the one table from their names to metrics.

Sources: Documentation/ABI/stable/sysfs-class-infiniband and InfiniBand Architecture Specification 1.4, volume 1,
section 16.1.3.5 (``counters``); NVIDIA, Understanding mlx5 ethtool and RDMA counters (mlx5 ``hw_counters``);
drivers/infiniband of Linux: sw/rxe/rxe_hw_counters.c, hw/efa/efa_verbs.c, hw/bnxt_re/hw_counters.c,
hw/irdma/verbs.c. Which end counts is in each row's words: *requester* is who sent the request, so that its loss is
that of the port's own queue pairs; *responder* is who received it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct, field

from otelgpu.engine.hardware_names import DIRECTION, ERRORS, RECEIVE, TRANSMIT
from otelgpu.engine.metric import Instrument, Metric
from otelgpu.engine.names import ERROR_TYPE

KIND: Final = "rdma.kind"
"""What exactly a port counted, within one metric."""
COUNTER: Final = "rdma.counter"
"""A driver's own name of a counter."""

Labels = Mapping[str, str | int]


def _metric(name: str, unit: str, description: str, instrument: Instrument = Instrument.COUNTER) -> Metric:
    return Metric(name=name, unit=unit, instrument=instrument, description=description)


IO: Final = _metric("hw.network.io", "By", "Received and transmitted network traffic in bytes.")
PACKETS: Final = _metric(
    "hw.network.packets", "{packet}", "Received and transmitted network traffic in packets (or frames)."
)
UP: Final = _metric("hw.network.up", "1", "Link status: `1` (up) or `0` (down).", Instrument.UP_DOWN_COUNTER)
BANDWIDTH: Final = _metric("hw.network.bandwidth.limit", "By/s", "Link speed.", Instrument.UP_DOWN_COUNTER)
NAKS: Final = _metric(
    "rdma.port.naks",
    "{nak}",
    "Negative acknowledgements: of a packet that was missing, or a request refused.",
)
OUT_OF_SEQUENCE: Final = _metric(
    "rdma.port.out_of_sequence",
    "{packet}",
    "Packets that came out of order at the responder: one before was lost.",
)
RETRIES: Final = _metric(
    "rdma.port.retries", "{retry}", "What the requester sent again, by what made it do so."
)
DUPLICATES: Final = _metric(
    "rdma.port.duplicate_requests",
    "{request}",
    "Requests that the responder had already: its answer was lost or late.",
)
NOT_READY: Final = _metric(
    "rdma.port.receiver_not_ready", "{nak}", "RNR NAKs: the responder had no receive request posted."
)
CNPS: Final = _metric(
    "rdma.port.cnps", "{packet}", "Congestion notification packets, by what was done with them."
)
ECN: Final = _metric(
    "rdma.port.ecn_marked", "{packet}", "Packets that a switch had marked as congested on their way here."
)
SLOW_RESTARTS: Final = _metric(
    "rdma.port.slow_restarts", "{event}", "Times that RoCE slow restart held a queue pair back after a loss."
)
DROPS: Final = _metric("rdma.port.drops", "{packet}", "Packets that the port dropped, by why.")
REQUESTS: Final = _metric(
    "rdma.port.requests", "{request}", "Requests that the port sent or received, by operation."
)
REQUEST_BYTES: Final = _metric(
    "rdma.port.request.io", "By", "Payload of the requests that the port sent or received, by operation."
)
WAITS: Final = _metric(
    "rdma.port.transmit_waits",
    "{tick}",
    "Ticks in which there was something to send and no credit to send it; how long a tick is depends on the device.",
)
OTHER: Final = _metric(
    "rdma.port.counter", "1", "What a driver counts under a name that has no meaning here, as it has it."
)
QUEUE_PAIR_COUNTER: Final = _metric(
    "rdma.qp.counter", "1", "What a driver counts of one queue pair, under its own name."
)
RESOURCES: Final = _metric(
    "rdma.port.resources", "{resource}", "Objects that are open on the device.", Instrument.UP_DOWN_COUNTER
)


class Row(Struct, frozen=True):
    """One counter as one series: value × ``scale`` in the metric's unit.

    ``bits``: its width, where it wraps round (``saturates`` False) or stays at its largest value (True); 64 never
    does either in practice.
    """

    metric: Metric
    labels: Labels = field(default_factory=dict)
    scale: int = 1
    bits: int = 64
    saturates: bool = False

    def is_series_of(self, other: Row) -> bool:
        """Whether both feed one series."""
        return self.metric is other.metric and self.labels == other.labels


def _way(metric: Metric, direction: str, scale: int = 1) -> Row:
    return Row(metric, {DIRECTION: direction}, scale)


def _kind(metric: Metric, kind: str, direction: str = "", bits: int = 64) -> Row:
    return Row(metric, {KIND: kind} | ({DIRECTION: direction} if direction else {}), bits=bits)


def _plain(metric: Metric, bits: int = 64) -> Row:
    return Row(metric, bits=bits)


def _error(name: str, bits: int = 64, *, saturates: bool = False) -> Row:
    return Row(ERRORS, {ERROR_TYPE: name}, bits=bits, saturates=saturates)


def _standard(name: str, bits: int) -> Row:
    """Of the PortCounters attribute, which stay at their largest value."""
    return _error(name, bits, saturates=True)


# Folder ``counters``, the same for every driver. Data is counted in units of four bytes, whatever the lanes.
_COUNTERS: Final[Mapping[str, Row]] = {
    "port_rcv_data": _way(IO, RECEIVE, 4),
    "port_xmit_data": _way(IO, TRANSMIT, 4),
    "port_rcv_packets": _way(PACKETS, RECEIVE),
    "port_xmit_packets": _way(PACKETS, TRANSMIT),
    "port_xmit_wait": _plain(WAITS),
    "port_xmit_discards": Row(DROPS, {KIND: "transmit_discarded"}, bits=16, saturates=True),
    "port_rcv_errors": _standard("port_receive", 16),
    "port_rcv_remote_physical_errors": _standard("port_receive_remote_physical", 16),
    "port_rcv_switch_relay_errors": _standard("port_receive_switch_relay", 16),
    "port_rcv_constraint_errors": _standard("port_receive_constraint", 8),
    "port_xmit_constraint_errors": _standard("port_transmit_constraint", 8),
    "symbol_error": _standard("symbol", 16),
    "link_error_recovery": _standard("link_recovery", 8),
    "link_downed": _standard("link_downed", 8),
    "local_link_integrity_errors": _standard("local_link_integrity", 4),
    "excessive_buffer_overrun_errors": _standard("excessive_buffer_overrun", 4),
    "VL15_dropped": Row(DROPS, {KIND: "management"}, bits=16, saturates=True),
}

_MLX5: Final[Mapping[str, Row]] = {
    "packet_seq_err": _kind(NAKS, "sequence", RECEIVE, 32),  # requester
    "implied_nak_seq_err": _kind(
        NAKS, "implied_sequence", RECEIVE, 32
    ),  # requester: an ACK beyond what it waits for
    "out_of_sequence": _plain(OUT_OF_SEQUENCE, 32),  # responder
    "local_ack_timeout_err": _kind(RETRIES, "ack_timeout", bits=32),  # requester
    "rnr_nak_retry_err": _way(NOT_READY, RECEIVE),  # requester
    "roce_adp_retrans": _kind(RETRIES, "adaptive"),
    "roce_adp_retrans_to": _kind(RETRIES, "adaptive_timeout"),
    "roce_slow_restart": _kind(SLOW_RESTARTS, "used"),
    "roce_slow_restart_cnps": _kind(SLOW_RESTARTS, "cnp"),
    "roce_slow_restart_trans": _kind(SLOW_RESTARTS, "transition"),
    "duplicate_request": _plain(DUPLICATES, 32),  # responder
    "out_of_buffer": Row(DROPS, {KIND: "out_of_buffer"}, bits=32),  # responder
    "rx_icrc_encapsulated": _error("icrc"),
    "rx_dct_connect": Row(REQUESTS, {KIND: "dct_connect", DIRECTION: RECEIVE}),
    "rx_read_requests": Row(REQUESTS, {KIND: "read", DIRECTION: RECEIVE}),
    "rx_write_requests": Row(REQUESTS, {KIND: "write", DIRECTION: RECEIVE}),
    "rx_atomic_requests": Row(REQUESTS, {KIND: "atomic", DIRECTION: RECEIVE}),
    "req_transport_retries_exceeded": _error("requester_transport_retries_exceeded", 32),
    "req_rnr_retries_exceeded": _error("requester_rnr_retries_exceeded", 32),
    "req_cqe_error": _error("requester_completion", 32),
    "req_cqe_flush_error": _error("requester_completion_flushed", 32),
    "req_remote_access_errors": _error("requester_remote_access", 32),
    "req_remote_invalid_request": _error("requester_remote_invalid_request", 32),
    "resp_cqe_error": _error("responder_completion", 32),
    "resp_cqe_flush_error": _error("responder_completion_flushed", 32),
    "resp_local_length_error": _error("responder_local_length", 32),
    "resp_remote_access_errors": _error("responder_remote_access", 32),
    "np_cnp_sent": _kind(CNPS, "sent", TRANSMIT),
    "rp_cnp_handled": _kind(CNPS, "handled", RECEIVE),
    "rp_cnp_ignored": _kind(CNPS, "ignored", RECEIVE),
    "np_ecn_marked_roce_packets": _plain(ECN),
}

# sent_bytes and rcvd_bytes from Linux 7 on; names that rxe shares with mlx5 mean the same.
_RXE: Final[Mapping[str, Row]] = {
    "sent_pkts": _way(PACKETS, TRANSMIT),
    "rcvd_pkts": _way(PACKETS, RECEIVE),
    "sent_bytes": _way(IO, TRANSMIT),
    "rcvd_bytes": _way(IO, RECEIVE),
    "rcvd_seq_err": _kind(NAKS, "sequence", RECEIVE),  # requester
    "out_of_seq_request": _plain(OUT_OF_SEQUENCE),  # responder
    "completer_retry_err": _kind(RETRIES, "completer"),  # requester: a NAK or a timeout had it go back
    "rcvd_rnr_err": _way(NOT_READY, RECEIVE),  # requester
    "send_rnr_err": _way(NOT_READY, TRANSMIT),  # responder
    "retry_exceeded_err": _error("requester_transport_retries_exceeded"),
    "retry_rnr_exceeded_err": _error("requester_rnr_retries_exceeded"),
    "send_err": _error("transmit"),
    "rdma_sends": Row(REQUESTS, {KIND: "send", DIRECTION: TRANSMIT}),
    "rdma_recvs": Row(REQUESTS, {KIND: "send", DIRECTION: RECEIVE}),
}

_EFA: Final[Mapping[str, Row]] = {
    "tx_bytes": _way(IO, TRANSMIT),
    "rx_bytes": _way(IO, RECEIVE),
    "tx_pkts": _way(PACKETS, TRANSMIT),
    "rx_pkts": _way(PACKETS, RECEIVE),
    "rx_drops": Row(DROPS, {KIND: "receive_dropped"}),
    "send_wrs": Row(REQUESTS, {KIND: "send", DIRECTION: TRANSMIT}),
    "recv_wrs": Row(REQUESTS, {KIND: "send", DIRECTION: RECEIVE}),
    "rdma_read_wrs": Row(REQUESTS, {KIND: "read", DIRECTION: TRANSMIT}),
    "rdma_write_wrs": Row(REQUESTS, {KIND: "write", DIRECTION: TRANSMIT}),
    "send_bytes": Row(REQUEST_BYTES, {KIND: "send", DIRECTION: TRANSMIT}),
    "recv_bytes": Row(REQUEST_BYTES, {KIND: "send", DIRECTION: RECEIVE}),
    "rdma_read_bytes": Row(REQUEST_BYTES, {KIND: "read", DIRECTION: RECEIVE}),
    "rdma_read_resp_bytes": Row(REQUEST_BYTES, {KIND: "read", DIRECTION: TRANSMIT}),
    "rdma_write_bytes": Row(REQUEST_BYTES, {KIND: "write", DIRECTION: TRANSMIT}),
    "rdma_write_recv_bytes": Row(REQUEST_BYTES, {KIND: "write", DIRECTION: RECEIVE}),
    "rdma_read_wr_err": _error("requester_read"),
    "rdma_write_wr_err": _error("requester_write"),
    "retrans_bytes": Row(REQUEST_BYTES, {KIND: "retransmitted", DIRECTION: TRANSMIT}),
    "retrans_pkts": _kind(RETRIES, "packet"),
    "retrans_timeout_events": _kind(RETRIES, "ack_timeout"),
    "impaired_remote_conn_events": _error("impaired_remote_connection"),
    "unresponsive_remote_events": _error("unresponsive_remote"),
}

# tx_bytes and the like as efa's.
_BNXT: Final[Mapping[str, Row]] = {
    "seq_err_naks_rcvd": _kind(NAKS, "sequence", RECEIVE),  # requester
    "rnr_naks_rcvd": _way(NOT_READY, RECEIVE),  # requester
    "to_retransmits": _kind(RETRIES, "ack_timeout"),  # requester
    "max_retry_exceeded": _error("requester_transport_retries_exceeded"),
    "missing_resp": _error("requester_response_missing"),
    "bad_resp_err": _error("requester_bad_response"),
    "remote_access_err": _error("requester_remote_access"),
    "remote_invalid_req_err": _error("requester_remote_invalid_request"),
    "remote_op_err": _error("requester_remote_operation"),
    "local_protection_err": _error("requester_local_protection"),
    "local_qp_op_err": _error("requester_local_operation"),
    "unrecoverable_err": _error("unrecoverable"),
    "dup_req": _plain(DUPLICATES),  # responder
    "oos_drop_count": _plain(OUT_OF_SEQUENCE),  # responder
    "rx_out_of_buffer": Row(DROPS, {KIND: "out_of_buffer"}),
    "rx_roce_errors": _error("port_receive"),
    "rx_roce_discards": Row(DROPS, {KIND: "receive_discarded"}),
    "tx_roce_errors": _error("port_transmit"),
    "tx_roce_discards": Row(DROPS, {KIND: "transmit_discarded"}),
    "tx_cnp_pkts": _kind(CNPS, "sent", TRANSMIT),
    "rx_cnp_pkts": _kind(CNPS, "handled", RECEIVE),
    "rx_ecn_marked_pkts": _plain(ECN),
    **{
        f"{way}_{operation}_req": Row(REQUESTS, {KIND: operation, DIRECTION: direction})
        for way, direction in (("tx", TRANSMIT), ("rx", RECEIVE))
        for operation in ("atomic", "read", "write", "send")
    },
    **{
        f"active_{short}s": Row(RESOURCES, {KIND: name})
        for short, name in (
            *(("pd", "protection_domain"), ("ah", "address_handle"), ("qp", "queue_pair")),
            *(("rc_qp", "queue_pair_rc"), ("ud_qp", "queue_pair_ud"), ("srq", "shared_receive_queue")),
            *(("cq", "completion_queue"), ("mr", "memory_region"), ("mw", "memory_window")),
        )
    },
}

_IRDMA: Final[Mapping[str, Row]] = {
    "cnpSent": _kind(CNPS, "sent", TRANSMIT),
    "cnpHandled": _kind(CNPS, "handled", RECEIVE),
    "cnpIgnored": _kind(CNPS, "ignored", RECEIVE),
    "RxECNMrkd": _plain(ECN),
    "RNR sent": _way(NOT_READY, TRANSMIT),
    "RNR received": _way(NOT_READY, RECEIVE),
    "Nak Sequence Error": _kind(NAKS, "sequence", RECEIVE),
    "Nak Sequence Error Implied": _kind(NAKS, "implied_sequence", RECEIVE),
    "RetransSegs": _kind(RETRIES, "segment"),
    "tcpRetransSegs": _kind(RETRIES, "segment"),
    "RxUDP": _way(PACKETS, RECEIVE),
    "TxUDP": _way(PACKETS, TRANSMIT),
    "InRdmaReads": Row(REQUESTS, {KIND: "read", DIRECTION: RECEIVE}),
    "InRdmaSends": Row(REQUESTS, {KIND: "send", DIRECTION: RECEIVE}),
    "InRdmaWrites": Row(REQUESTS, {KIND: "write", DIRECTION: RECEIVE}),
    "OutRdmaReads": Row(REQUESTS, {KIND: "read", DIRECTION: TRANSMIT}),
    "OutRdmaSends": Row(REQUESTS, {KIND: "send", DIRECTION: TRANSMIT}),
    "OutRdmaWrites": Row(REQUESTS, {KIND: "write", DIRECTION: TRANSMIT}),
    **{
        f"iw{way}Rdma{operation}s": Row(REQUESTS, {KIND: operation.lower(), DIRECTION: direction})
        for way, direction in (("Out", TRANSMIT), ("In", RECEIVE))
        for operation in ("Read", "Send", "Write")
    },
    "rxVlanErrors": _error("vlan"),
}

ROWS: Final[Mapping[str, Row]] = {**_COUNTERS, **_MLX5, **_RXE, **_EFA, **_BNXT, **_IRDMA}
"""Counter → what it means; a name that several drivers have means the same with each."""

ALSO: Final[Mapping[str, frozenset[str]]] = {
    name: same
    for name, row in _COUNTERS.items()
    if (same := frozenset(n for n, r in ROWS.items() if n not in _COUNTERS and r.is_series_of(row)))
}
"""Standard counter → drivers' own of the same thing: where a port has both (rxe of Linux 7), one is reported."""

METRICS: Final = (
    *dict.fromkeys(row.metric for row in ROWS.values() if row.metric is not ERRORS),
    *(UP, BANDWIDTH, OTHER, QUEUE_PAIR_COUNTER),
)
"""All of them but hw.errors, for the documentation."""
