"""Tables of docs/fabric.md, from the tables that the code works with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from otelgpu.families.base import Metric
from otelgpu.signals import fabric_counters, fabric_ports, hardware_errors, queue_pair_names
from otelgpu.signals.devices import ERRORS
from otelgpu.signals.fabric_counters import METRICS, ROWS
from otelgpu.signals.xids import ACTIONS, UNKNOWN, XIDS

_OF_QUEUE_PAIR: Final = (
    queue_pair_names.DEVICE,
    queue_pair_names.PORT,
    queue_pair_names.NUMBER,
    fabric_counters.COUNTER,
)

ATTRIBUTES: Final[Mapping[str, str]] = {
    "hw.id": "the port, `mlx5_0/1`; of an Xid the GPU's uuid, or its PCI address where NVML is not read",
    "hw.name": "the RDMA device; of a GPU `gpu` and its index",
    "hw.type": "`network`; of an Xid `gpu`",
    "hw.parent": "the device's PCI address",
    "hw.firmware_version": "the device's firmware",
    "error.type": "which error: `xid-79`, `sxid-20034`, `port_down`, `port_rate_downgrade`, or what a counter counts",
    "network.io.direction": "`receive` or `transmit`, seen from the port",
    fabric_ports.INTERFACE: "the network interface of the port",
    queue_pair_names.DEVICE: "the RDMA device",
    queue_pair_names.PORT: "the port's number",
    queue_pair_names.NUMBER: "the queue pair's number",
    fabric_ports.DEVICE_DRIVER: "the device's kernel driver",
    fabric_ports.LINK_LAYER: "`Ethernet` (RoCE), `InfiniBand` or `Unspecified` (EFA)",
    fabric_counters.KIND: "what exactly was counted, within one metric",
    fabric_counters.COUNTER: "the driver's own name of the counter",
    hardware_errors.CODE: "the Xid's or SXid's number",
    hardware_errors.ERROR_NAME: "the mnemonic of NVIDIA's catalogue, or `unknown`",
    hardware_errors.CLASS: "`application`, `memory`, `nvlink`, `bus`, `firmware`, `engine`, `driver`, `notice`; of an "
    "SXid `fatal` or `non-fatal`; or `unknown`",
    hardware_errors.ACTION: "NVIDIA's resolution bucket, or `unknown`",
    hardware_errors.HINT: "what to do, in words",
    hardware_errors.MESSAGE: "the line of the kernel log, without its beginning",
    hardware_errors.PCI: "the PCI address as the line has it",
    hardware_errors.PROCESS_ID: "the process that the driver blames, as the host numbers it",
    hardware_errors.PROCESS_NAME: "its name, as the driver has it",
    hardware_errors.PORT_STATE: "what the port is now: `ACTIVE`, `DOWN`, `INIT`, …",
    hardware_errors.PORT_STATE_BEFORE: "what it was before",
    hardware_errors.RATE: "bits per second now",
    hardware_errors.RATE_BEFORE: "bits per second before",
}
"""Attribute → what it tells."""


def metric_labels() -> dict[Metric, list[str]]:
    """Each metric, and the attributes that tell its series apart, without those of every port."""
    found: dict[Metric, list[str]] = {metric: [] for metric in METRICS}
    for row in ROWS.values():
        if row.metric is not ERRORS:
            found[row.metric] += [key for key in row.labels if key not in found[row.metric]]
    found[fabric_counters.OTHER] = [fabric_counters.COUNTER]
    found[fabric_counters.QUEUE_PAIR_COUNTER] = list(_OF_QUEUE_PAIR)
    return found


def counters() -> Iterator[Sequence[str]]:
    """(driver's counter, metric, attributes, factor)."""
    for name, row in ROWS.items():
        labels = ", ".join(f"`{key}={value}`" for key, value in row.labels.items())
        yield f"`{name}`", f"`{row.metric.name}`", labels or "–", f"{row.scale}"


def xids() -> Iterator[Sequence[str]]:
    """(code, mnemonic, class, action)."""
    for code, known in sorted(XIDS.items()):
        action = "–" if known.action == UNKNOWN else f"`{known.action}`"
        yield f"{code}", f"`{known.name}`", known.kind, action


def actions() -> Iterator[Sequence[str]]:
    """(action, what to do)."""
    for action, text in ACTIONS.items():
        yield f"`{action}`", text


def reasons() -> dict[tuple[str, str], str]:
    """(room, reason) → what one count means."""
    from otelgpu.sensors import fabric_poller

    found = {**fabric_poller.REASONS, **fabric_ports.REASONS, **hardware_errors.REASONS}
    return {("fabric", name): text for name, text in found.items()}
