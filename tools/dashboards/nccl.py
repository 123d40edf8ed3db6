"""Collectives: which rank comes late, and how long they take."""

from __future__ import annotations

from typing import Final

from tools.dashboards.grafana import Dashboard, Panel, Row
from tools.dashboards.queries import mean, quantiles, total

_OPERATION: Final = ("nccl_operation", "nccl_communicator_hash")

NCCL: Final = Dashboard(
    uid="otelgpu-nccl",
    title="otelgpu / NCCL",
    description="Which rank comes late, and what collectives take.",
    jobs="nccl_calls_total",
    rows=(
        Row(
            title="Ranks",
            panels=(
                Panel(
                    title="How late each rank comes",
                    description="Average time from a collective's first call to this rank's. One line above the rest: "
                    "all wait for that rank.",
                    queries=[mean("nccl_arrival_lateness_seconds", "nccl_communicator_hash", "nccl_rank")],
                    unit="s",
                ),
                Panel(
                    title="From the first to the last rank",
                    description="Of a collective, among the ranks that one agent sees.",
                    queries=quantiles("nccl_arrival_skew_seconds", *_OPERATION),
                    unit="s",
                ),
                Panel(
                    title="Waits for collectives",
                    description="Host time in the synchronisation that followed them.",
                    queries=quantiles("nccl_wait_duration_seconds", *_OPERATION),
                    unit="s",
                ),
            ),
        ),
        Row(
            title="Collectives",
            panels=(
                Panel(
                    title="Duration",
                    description="By where it was measured: a host's time is an upper bound of the device's.",
                    queries=quantiles("nccl_collective_duration_seconds", *_OPERATION, "nccl_time_source"),
                    unit="s",
                ),
                Panel(
                    title="Bus bandwidth",
                    description="As nccl-tests define it; compare it with what the links can do.",
                    queries=[mean("nccl_bus_bandwidth_bytes_per_second", *_OPERATION, "nccl_time_source")],
                    unit="Bps",
                ),
                Panel(
                    title="Bytes a second",
                    description="Of the callers' own messages.",
                    queries=[total("nccl_bytes_total", "job", "nccl_operation")],
                    unit="Bps",
                ),
                Panel(
                    title="Calls a second",
                    description="That move data between ranks.",
                    queries=[total("nccl_calls_total", "job", "nccl_operation")],
                ),
                Panel(
                    title="Calls that failed",
                    description="By the error that they returned.",
                    queries=[total("nccl_errors_total", "job", "error_type")],
                ),
            ),
        ),
    ),
)
