"""RDMA: ports as the kernel counts them, queue pairs as programs use them."""

from __future__ import annotations

from typing import Final

from tools.dashboards.grafana import Dashboard, Panel, Row
from tools.dashboards.queries import level, quantiles, total

_PORT: Final = ("instance", "rdma_device", "rdma_port")
_PAIR: Final = ("job", "rdma_device", "rdma_qp_number")

RDMA: Final = Dashboard(
    uid="otelgpu-rdma",
    title="otelgpu / RDMA",
    description="Ports as the kernel counts them, queue pairs as programs use them.",
    jobs='{__name__=~"hw_network_io_bytes_total|rdma_qp_posts_total"}',
    rows=(
        Row(
            title="Ports",
            panels=(
                Panel(
                    title="Traffic",
                    description="All that the port sent and received, also what no CPU saw.",
                    queries=[total("hw_network_io_bytes_total", *_PORT, "network_io_direction")],
                    unit="Bps",
                ),
                Panel(
                    title="Losses in the fabric",
                    description="Packets out of sequence and retries: the network dropped something.",
                    queries=[
                        total("rdma_port_out_of_sequence_total", *_PORT),
                        total("rdma_port_retries_total", *_PORT, "rdma_kind"),
                    ],
                ),
                Panel(
                    title="Congestion",
                    description="Notification packets and packets that a switch marked.",
                    queries=[
                        total("rdma_port_cnps_total", *_PORT, "rdma_kind"),
                        total("rdma_port_ecn_marked_total", *_PORT),
                    ],
                ),
            ),
        ),
        Row(
            title="Queue pairs",
            panels=(
                Panel(
                    title="Bytes posted",
                    description="By operation.",
                    queries=[total("rdma_qp_io_bytes_total", *_PAIR, "rdma_operation")],
                    unit="Bps",
                ),
                Panel(
                    title="From post to completion",
                    description="Of signalled sends, until the completion was polled.",
                    queries=quantiles("rdma_qp_completion_latency_seconds", "job", "rdma_device"),
                    unit="s",
                ),
                Panel(
                    title="Completions by status",
                    description="All that is not success is an error of the connection or of its peer.",
                    queries=[total("rdma_qp_completions_total", "job", "rdma_device", "rdma_status")],
                ),
                Panel(
                    title="Time to connect",
                    description="Until a queue pair could send.",
                    queries=quantiles("rdma_connect_duration_seconds", "job", "rdma_device"),
                    unit="s",
                ),
                Panel(
                    title="Events",
                    description="Asynchronous events of devices and queue pairs.",
                    queries=[total("rdma_events_total", "job", "rdma_device", "rdma_event")],
                ),
                Panel(
                    title="Memory registered",
                    description="Pinned for RDMA.",
                    queries=[level("rdma_memory_pinned_bytes", ("job", "rdma_device", "rdma_memory_kind"))],
                    unit="bytes",
                ),
            ),
        ),
    ),
)
