"""What names of devices mean, and which attributes their metrics have."""

from __future__ import annotations

from typing import Final

from otelgpu.engine.description_tables import Described, Descriptions, MetricTable
from otelgpu.engine.hardware_names import SCOPE
from otelgpu.families.gpu.devices.metrics import METRICS

DESCRIPTIONS: Final = Descriptions(
    attributes={
        "cuda.device.uuid": Described(
            "The device's UUID, without `GPU-`; absent where the ordinal does not report the device.",
            "5fd4f087-86f3-4b5c-ab5c-cf9e1a2b3c4d",
        ),
        "cuda.device.model": Described("What the driver calls the device.", "NVIDIA H200"),
        "hw.model": Described("What the driver calls the GPU.", "NVIDIA H200"),
        "hw.vendor": Described("Always `NVIDIA`.", "NVIDIA"),
        "hw.driver_version": Described("The driver's version.", "570.86.10"),
        "hw.serial_number": Described("Of the board, where it has one.", "1653124001234"),
        "hw.gpu.task": Described("`general`, `encoder` or `decoder`.", "general"),
        "hw.state": Described(
            "`ok`, `degraded` (slowed down by heat or its power supply) or `failed` (lost).", "ok"
        ),
        "hw.limit_type": Described(
            "`high.degraded` (it slows down) or `high.critical` (it shuts down).", "high.degraded"
        ),
        "hw.sensor_location": Described("`gpu` or `memory`.", "gpu"),
        "otelgpu.gpu.link": Described("`pcie` or `nvlink` (all links together).", "nvlink"),
        "otelgpu.gpu.clock": Described("`graphics`, `sm`, `memory` or `video`.", "sm"),
        "otelgpu.gpu.peer": Described(
            "What is at the other end of NVLinks: a GPU's uuid, a PCI address, `switch` or `unknown`.",
            "switch",
        ),
        "otelgpu.gpu.throttle.reason": Described(
            "What holds the clocks down: a reason of NVML's.", "sw_thermal_slowdown"
        ),
    },
    metrics=(MetricTable(scope=SCOPE, metrics=dict.fromkeys(METRICS, ())),),
)
