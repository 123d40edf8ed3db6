"""GPUs: what the driver says of them, and the calls that programs make."""

from __future__ import annotations

from typing import Final

from tools.dashboards.grafana import Dashboard, Panel, Query, Row
from tools.dashboards.queries import level, quantiles, rate, total

_GPU_OF: Final = ("instance", "hw_name", "hw_id")

GPU: Final = Dashboard(
    uid="otelgpu-gpu",
    title="otelgpu / GPU",
    description="What the driver says of the devices, and what programs ask of them.",
    jobs='{__name__=~"hw_gpu_utilization_ratio|gpu_cuda_kernel_launch_calls_total"}',
    rows=(
        Row(
            title="Devices (NVML)",
            panels=(
                Panel(
                    title="Utilisation",
                    description="Share of time in which the GPU had work.",
                    queries=[level("hw_gpu_utilization_ratio", _GPU_OF, 'hw_gpu_task="general"')],
                    unit="percentunit",
                ),
                Panel(
                    title="Memory used",
                    description="Share of the device's memory.",
                    queries=[level("hw_gpu_memory_utilization_ratio", _GPU_OF)],
                    unit="percentunit",
                ),
                Panel(
                    title="Power",
                    description="At the moment.",
                    queries=[level("hw_power_watts", _GPU_OF, 'hw_type="gpu"')],
                    unit="watt",
                ),
                Panel(
                    title="Temperature",
                    description="Of each sensor.",
                    queries=[level("hw_temperature_celsius", (*_GPU_OF, "hw_sensor_location"))],
                    unit="celsius",
                ),
                Panel(
                    title="Clocks held down",
                    description="Share of time, by reason: sw_power_cap is the power limit, *_thermal_slowdown heat.",
                    queries=[
                        total(
                            "otelgpu_gpu_throttle_time_seconds_total",
                            *_GPU_OF,
                            "otelgpu_gpu_throttle_reason",
                        )
                    ],
                    unit="percentunit",
                ),
                Panel(
                    title="Errors of the hardware",
                    description="Since the agent began: Xid and SXid of the kernel's log, ECC errors, ports gone down.",
                    queries=[level("hw_errors_total", ("instance", "hw_id", "error_type"))],
                ),
            ),
        ),
        Row(
            title="CUDA calls",
            panels=(
                Panel(
                    title="Launches a second",
                    description="Kernels and graphs.",
                    queries=[
                        Query(
                            f"sum by (job) ({rate(f'gpu_cuda_{kind}_launch_calls_total')})",
                            f"{kind} {{{{job}}}}",
                        )
                        for kind in ("kernel", "graph")
                    ],
                ),
                Panel(
                    title="Bytes copied",
                    description="By direction.",
                    queries=[total("gpu_cuda_memory_copies_bytes_sum", "job", "cuda_memcpy_kind")],
                    unit="Bps",
                ),
                Panel(
                    title="Calls that failed",
                    description="By the error that they returned.",
                    queries=[total("gpu_cuda_errors_total", "job", "error_type")],
                ),
                Panel(
                    title="Memory allocated",
                    description="By the calls that gave and took it.",
                    queries=[
                        level("gpu_cuda_memory_usage_bytes", ("job", "cuda_device_index", "cuda_memory_kind"))
                    ],
                    unit="bytes",
                ),
                Panel(
                    title="Leaks suspected",
                    description="Functions that allocated in each of the last five minutes and freed nothing of it.",
                    queries=[level("gpu_cuda_memory_leak_suspected_bytes", ("job", "code_function_name"))],
                    unit="bytes",
                ),
                Panel(
                    title="Duration of kernels",
                    description="On the device, where device time is measured.",
                    queries=quantiles("gpu_cuda_kernel_duration_seconds", "job"),
                    unit="s",
                ),
            ),
        ),
    ),
)
