"""What a host's hardware is called, by whichever family describes it: GPUs, RDMA ports and their errors.

``hw.*`` is OpenTelemetry's: semantic conventions 1.44, docs/hardware.
"""

from __future__ import annotations

from typing import Final

from otelgpu.engine.metric import Instrument, Metric

SCOPE: Final = "otelgpu.devices"

ID: Final = "hw.id"
NAME: Final = "hw.name"
TYPE: Final = "hw.type"
PARENT: Final = "hw.parent"
FIRMWARE: Final = "hw.firmware_version"
DIRECTION: Final = "network.io.direction"
RECEIVE: Final = "receive"
TRANSMIT: Final = "transmit"

ERRORS: Final = Metric(
    name="hw.errors",
    unit="{error}",
    instrument=Instrument.COUNTER,
    description="Number of errors encountered by the component.",
)
