"""Steps of serving engines and of training."""

from __future__ import annotations

from typing import Final

from tools.dashboards.grafana import Dashboard, Panel, Query, Row
from tools.dashboards.queries import quantiles, rate, total

_STEP: Final = "otelgpu_step_duration_seconds"
_BATCH: Final = "otelgpu_step_batch_size"
_TRAINING: Final = "otelgpu_training_step_duration_seconds"

ENGINE: Final = Dashboard(
    uid="otelgpu-engine",
    title="otelgpu / Engine and training steps",
    description="What the steps of a serving engine and of a training job are made of.",
    jobs='{__name__=~"otelgpu_step_duration_seconds_count|otelgpu_training_step_duration_seconds_count"}',
    rows=(
        Row(
            title="Serving",
            panels=(
                Panel(
                    title="Duration of steps",
                    description="From a step's first call to the return of the wait for its results.",
                    queries=quantiles(_STEP),
                    unit="s",
                ),
                Panel(
                    title="Requests in a step",
                    description="Of steps whose requests are all known. Far below the engine's limit: there is room.",
                    queries=quantiles(_BATCH),
                ),
                Panel(
                    title="Tokens a second",
                    description="Given by steps: prefill gives a request its first token, decode the others.",
                    queries=[total("otelgpu_step_tokens_total", "job", "otelgpu_phase")],
                ),
                Panel(
                    title="Steps a second",
                    description="Of each service.",
                    queries=[total(f"{_STEP}_count", "job")],
                ),
                Panel(
                    title="Model bandwidth utilisation",
                    description="Of steps that only decode: a lower bound. Needs model_bytes and memory_bandwidth.",
                    queries=quantiles("otelgpu_step_mbu"),
                    unit="percentunit",
                ),
            ),
        ),
        Row(
            title="Training",
            panels=(
                Panel(
                    title="Duration of steps",
                    description="From one boundary of a step to the next.",
                    queries=quantiles(_TRAINING, "job"),
                    unit="s",
                ),
                Panel(
                    title="Where the steps' time goes",
                    description="Host time by what it went to, in seconds a second; the parts add up to the steps.",
                    queries=[total("otelgpu_training_step_time_seconds_total", "otelgpu_step_part")],
                ),
                Panel(
                    title="Bytes moved by steps",
                    description="Given to collectives, and copied to the device.",
                    queries=[
                        Query(f"sum by (job) ({rate(series)})", f"{what} {{{{job}}}}")
                        for what, series in (
                            ("collectives", "otelgpu_training_step_collective_bytes_total"),
                            ("copies to the device", "otelgpu_training_step_host_to_device_copy_bytes_total"),
                        )
                    ],
                    unit="Bps",
                ),
            ),
        ),
    ),
)
