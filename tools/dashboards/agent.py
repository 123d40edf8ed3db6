"""The agent itself: what it loses, what it costs, whether it delivers."""

from __future__ import annotations

from typing import Final

from tools.dashboards.grafana import Dashboard, Panel, Query, Row
from tools.dashboards.queries import level, quantiles, select, total

_EXPORTER: Final = ("instance", "otel_component_name")

AGENT: Final = Dashboard(
    uid="otelgpu-agent",
    title="otelgpu / Agent",
    description="Whether otelgpu itself works: what it loses, what it costs, whether it delivers.",
    jobs="otelgpu_losses_total",
    rows=(
        Row(
            title="Losses",
            panels=(
                Panel(
                    title="Lost or skipped",
                    description="Events a second, by family and reason: bounds at work too; see the manual.",
                    queries=[total("otelgpu_losses_total", "otelgpu_family", "otelgpu_reason")],
                ),
                Panel(
                    title="Records read",
                    description="Records a second that were read from the rings.",
                    queries=[total("otelgpu_records_total", "otelgpu_family")],
                ),
                Panel(
                    title="Rings at most",
                    description="How full a ring was at most. Near 1: raise ring_bytes, or lower detail.",
                    queries=[
                        Query(
                            f"{select('otelgpu_ring_high_water_bytes')} / {select('otelgpu_ring_limit_bytes')}",
                            "{{otelgpu_family}} {{instance}}",
                        )
                    ],
                    unit="percentunit",
                ),
            ),
        ),
        Row(
            title="Delivery",
            panels=(
                Panel(
                    title="Spans",
                    description="Accepted; with an error_type: lost on their way out.",
                    queries=[total("otel_sdk_exporter_span_exported_total", *_EXPORTER, "error_type")],
                ),
                Panel(
                    title="Nothing accepted for",
                    description="Though something was to be sent.",
                    queries=[level("otelgpu_exporter_failing_seconds", _EXPORTER)],
                    unit="s",
                ),
                Panel(
                    title="Queue",
                    description="How full it is; what does not fit is dropped, and counted.",
                    queries=[
                        Query(
                            f"{select('otelgpu_exporter_queue_usage_bytes')} / "
                            f"{select('otelgpu_exporter_queue_limit_bytes')}",
                            "{{otel_component_name}} {{instance}}",
                        )
                    ],
                    unit="percentunit",
                ),
            ),
        ),
        Row(
            title="Cost",
            panels=(
                Panel(
                    title="CPU",
                    description="Cores in use.",
                    queries=[total("process_cpu_time_seconds_total", "instance")],
                ),
                Panel(
                    title="Memory",
                    description="Resident, and the limit near which it gives things up.",
                    queries=[
                        level("process_memory_usage_bytes", ("instance",)),
                        Query(select("otelgpu_memory_limit_bytes"), "limit {{instance}}"),
                    ],
                    unit="bytes",
                ),
                Panel(
                    title="Between two drains of the rings",
                    description="Seconds rather than fractions of one: the agent lacks CPU.",
                    queries=quantiles("otelgpu_drain_interval_seconds", "instance"),
                    unit="s",
                ),
                Panel(
                    title="Followed",
                    description="Processes, connections and requests that are remembered while they last.",
                    queries=[level("otelgpu_tracked", ("instance", "otelgpu_tracked_type"))],
                ),
                Panel(
                    title="Libraries with probes",
                    description="Of observed processes; failed: the kernel refused.",
                    queries=[level("otelgpu_process_libraries", ("instance", "otelgpu_attach_state"))],
                ),
            ),
        ),
    ),
)
