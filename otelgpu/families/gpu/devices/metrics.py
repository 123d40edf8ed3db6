"""Device facts → metrics, by the one table of their names; and what an operation's device is called.

In: :mod:`otelgpu.model.devices`. Out: calls of :class:`~otelgpu.engine.metrics.Metrics`. Pure.

``hw.*`` is OpenTelemetry's (semantic conventions 1.44, docs/hardware); ``cuda.device.*`` as OpenTelemetry eBPF
Instrumentation has made usual; ``otelgpu.gpu.*`` is ours, where neither has a name. What a device counts since
its driver was loaded is distinguished from the session's first reading on: a reading below the one before means that
it began at zero again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from otelgpu.engine.hardware_names import (
    DIRECTION,
    ERRORS,
    FIRMWARE,
    ID,
    LOCATION,
    NAME,
    PARENT,
    RECEIVE,
    SCOPE,
    TRANSMIT,
    TYPE,
    location_labels,
)
from otelgpu.engine.metric import Instrument, Metric
from otelgpu.engine.metrics import Metrics
from otelgpu.engine.names import ERROR_TYPE
from otelgpu.model.devices import (
    NO_INDEX,
    DeviceGone,
    DeviceInput,
    DeviceReadings,
    DeviceSeen,
    ProcessDevices,
    ProcessReading,
    Quantity,
)
from otelgpu.model.losses import Reasons
from otelgpu.model.resource import Resource

REASONS: Final = Reasons(
    "devices",
    {
        "device_not_seen": "readings of a GPU that nobody described; in a capture that was cut",
    },
)
"""What one count of (``devices``, reason) means."""

CUDA_INDEX: Final = "cuda.device.index"
"""The ordinal by which the process itself calls the device."""
CUDA_UUID: Final = "cuda.device.uuid"
"""Bare: without the ``GPU-`` that ``hw.id`` has."""
CUDA_MODEL: Final = "cuda.device.model"

MODEL: Final = "hw.model"
VENDOR: Final = "hw.vendor"
DRIVER: Final = "hw.driver_version"
SERIAL: Final = "hw.serial_number"
TASK: Final = "hw.gpu.task"
STATE: Final = "hw.state"
LIMIT_TYPE: Final = "hw.limit_type"
SENSOR: Final = "hw.sensor_location"
LINK: Final = "otelgpu.gpu.link"
CLOCK: Final = "otelgpu.gpu.clock"
REASON: Final = "otelgpu.gpu.throttle.reason"
PEER: Final = "otelgpu.gpu.peer"
"""What is at the other end of NVLinks: a GPU's uuid or PCI address, or ``switch``."""

_GAUGE: Final = Instrument.GAUGE
_LEVEL: Final = Instrument.UP_DOWN_COUNTER
_COUNTER: Final = Instrument.COUNTER


def _metric(name: str, unit: str, instrument: Instrument, description: str, per_unit: int = 1) -> Metric:
    return Metric(name=name, unit=unit, instrument=instrument, description=description, per_unit=per_unit)


UTILIZATION: Final = _metric("hw.gpu.utilization", "1", _GAUGE, "Fraction of time spent in a specific task.")
MEMORY_LIMIT: Final = _metric("hw.gpu.memory.limit", "By", _LEVEL, "Size of the GPU memory.")
MEMORY_USAGE: Final = _metric("hw.gpu.memory.usage", "By", _LEVEL, "GPU memory used.")
MEMORY_SHARE: Final = _metric("hw.gpu.memory.utilization", "1", _GAUGE, "Fraction of GPU memory used.")
IO: Final = _metric("hw.gpu.io", "By", _COUNTER, "Received and transmitted bytes by the GPU.")
ENERGY: Final = _metric("hw.energy", "J", _COUNTER, "Energy consumed by the component.")
POWER: Final = _metric("hw.power", "W", _GAUGE, "Instantaneous power consumed by the component.")
STATUS: Final = _metric(
    "hw.status",
    "1",
    _LEVEL,
    "Operational status: `1` (true) or `0` (false) for each of the possible states.",
)
TEMPERATURE: Final = _metric("hw.temperature", "Cel", _GAUGE, "Temperature in degrees Celsius.")
TEMPERATURE_LIMIT: Final = _metric(
    "hw.temperature.limit", "Cel", _GAUGE, "Temperature limit in degrees Celsius."
)
MEMORY_CONTROLLER: Final = _metric(
    "otelgpu.gpu.memory_controller.utilization",
    "1",
    _GAUGE,
    "Fraction of time in which device memory was read or written.",
)
PCIE_RATE: Final = _metric(
    "otelgpu.gpu.pcie.throughput",
    "By/s",
    _GAUGE,
    "PCIe traffic over 20 ms, of GPUs that have no counter for hw.gpu.io.",
)
SM_UTILIZATION: Final = _metric(
    "otelgpu.gpu.sm.utilization",
    "1",
    _GAUGE,
    "Mean share of the streaming multiprocessors that had work, since the reading before (NVML GPM).",
)
SM_OCCUPANCY: Final = _metric(
    "otelgpu.gpu.sm.occupancy",
    "1",
    _GAUGE,
    "Warps that were resident, of those that the multiprocessors can hold, since the reading before (NVML GPM).",
)
TENSOR_UTILIZATION: Final = _metric(
    "otelgpu.gpu.tensor.utilization",
    "1",
    _GAUGE,
    "Fraction of time in which tensor cores computed, since the reading before (NVML GPM).",
)
DRAM_UTILIZATION: Final = _metric(
    "otelgpu.gpu.dram.utilization",
    "1",
    _GAUGE,
    "Bandwidth of device memory that was used, of the most there is, since the reading before (NVML GPM).",
)
NVLINK_RATE: Final = _metric(
    "otelgpu.gpu.nvlink.throughput",
    "By/s",
    _GAUGE,
    "NVLink traffic of all links, since the reading before (NVML GPM).",
)
PCIE_MEAN_RATE: Final = _metric(
    "otelgpu.gpu.pcie.mean_throughput",
    "By/s",
    _GAUGE,
    "PCIe traffic, since the reading before (NVML GPM); of a MIG device its own.",
)
POWER_LIMIT: Final = _metric("otelgpu.gpu.power.limit", "W", _GAUGE, "Power that the GPU is held to.")
SPEED: Final = _metric("otelgpu.gpu.clock.speed", "Hz", _GAUGE, "Current frequency of a clock.")
THROTTLE: Final = _metric(
    "otelgpu.gpu.throttle.active", "1", _LEVEL, "1 while the reason holds the clocks down, else 0."
)
THROTTLED: Final = _metric(
    "otelgpu.gpu.throttle.time",
    "s",
    _COUNTER,
    "Time for which the clocks were held down.",
    per_unit=1_000_000_000,
)
PROCESS_MEMORY: Final = _metric(
    "otelgpu.gpu.process.memory.usage", "By", _LEVEL, "Device memory that the driver charges to the process."
)
PROCESS_UTILIZATION: Final = _metric(
    "otelgpu.gpu.process.utilization", "1", _GAUGE, "Fraction of time the process kept the device at a task."
)
PROCESS_DEVICE: Final = _metric(
    "otelgpu.gpu.process.device",
    "1",
    _LEVEL,
    "1 for each GPU that the process can call by an ordinal: what joins cuda.device.index to hw.id.",
)
NVLINKS: Final = _metric(
    "otelgpu.gpu.nvlink.links", "{link}", _LEVEL, "Active NVLinks of a GPU, by what is at their other end."
)

Labels = Mapping[str, str | int]


class Row(Struct, frozen=True):
    """One quantity as one series: value × ``scale`` ÷ ``divisor`` is what the metric is fed."""

    metric: Metric
    labels: Labels = field(default_factory=dict)
    scale: int = 1
    divisor: int = 1


def _io(link: str, direction: str, scale: int = 1) -> Row:
    return Row(IO, {LINK: link, DIRECTION: direction}, scale)


def _clock(name: str) -> Row:
    return Row(SPEED, {CLOCK: name}, 1_000_000)


ROWS: Final[Mapping[Quantity, Row]] = {
    Quantity.UTILIZATION_PERCENT: Row(UTILIZATION, {TASK: "general"}, divisor=100),
    Quantity.ENCODER_UTILIZATION_PERCENT: Row(UTILIZATION, {TASK: "encoder"}, divisor=100),
    Quantity.DECODER_UTILIZATION_PERCENT: Row(UTILIZATION, {TASK: "decoder"}, divisor=100),
    Quantity.MEMORY_CONTROLLER_PERCENT: Row(MEMORY_CONTROLLER, divisor=100),
    Quantity.MEMORY_TOTAL_BYTES: Row(MEMORY_LIMIT),
    Quantity.MEMORY_USED_BYTES: Row(MEMORY_USAGE),
    Quantity.PCIE_RECEIVED_KB_PER_S: Row(PCIE_RATE, {DIRECTION: RECEIVE}, 1000),
    Quantity.PCIE_TRANSMITTED_KB_PER_S: Row(PCIE_RATE, {DIRECTION: TRANSMIT}, 1000),
    Quantity.SM_UTILIZATION_PPM: Row(SM_UTILIZATION, divisor=1_000_000),
    Quantity.SM_OCCUPANCY_PPM: Row(SM_OCCUPANCY, divisor=1_000_000),
    Quantity.TENSOR_UTILIZATION_PPM: Row(TENSOR_UTILIZATION, divisor=1_000_000),
    Quantity.DRAM_UTILIZATION_PPM: Row(DRAM_UTILIZATION, divisor=1_000_000),
    Quantity.NVLINK_RECEIVED_BYTES_PER_S: Row(NVLINK_RATE, {DIRECTION: RECEIVE}),
    Quantity.NVLINK_TRANSMITTED_BYTES_PER_S: Row(NVLINK_RATE, {DIRECTION: TRANSMIT}),
    Quantity.PCIE_RECEIVED_BYTES_PER_S: Row(PCIE_MEAN_RATE, {DIRECTION: RECEIVE}),
    Quantity.PCIE_TRANSMITTED_BYTES_PER_S: Row(PCIE_MEAN_RATE, {DIRECTION: TRANSMIT}),
    Quantity.POWER_MILLIWATTS: Row(POWER, divisor=1000),
    Quantity.POWER_LIMIT_MILLIWATTS: Row(POWER_LIMIT, divisor=1000),
    Quantity.TEMPERATURE_CELSIUS: Row(TEMPERATURE, {SENSOR: "gpu"}),
    Quantity.MEMORY_TEMPERATURE_CELSIUS: Row(TEMPERATURE, {SENSOR: "memory"}),
    Quantity.SLOWDOWN_TEMPERATURE_CELSIUS: Row(
        TEMPERATURE_LIMIT, {SENSOR: "gpu", LIMIT_TYPE: "high.degraded"}
    ),
    Quantity.SHUTDOWN_TEMPERATURE_CELSIUS: Row(
        TEMPERATURE_LIMIT, {SENSOR: "gpu", LIMIT_TYPE: "high.critical"}
    ),
    Quantity.GRAPHICS_CLOCK_MHZ: _clock("graphics"),
    Quantity.SM_CLOCK_MHZ: _clock("sm"),
    Quantity.MEMORY_CLOCK_MHZ: _clock("memory"),
    Quantity.VIDEO_CLOCK_MHZ: _clock("video"),
    Quantity.PCIE_RECEIVED_BYTES: _io("pcie", RECEIVE),
    Quantity.PCIE_TRANSMITTED_BYTES: _io("pcie", TRANSMIT),
    Quantity.NVLINK_RECEIVED_KIB: _io("nvlink", RECEIVE, 1024),
    Quantity.NVLINK_TRANSMITTED_KIB: _io("nvlink", TRANSMIT, 1024),
    Quantity.ECC_CORRECTED: Row(ERRORS, {ERROR_TYPE: "corrected"}),
    Quantity.ECC_UNCORRECTED: Row(ERRORS, {ERROR_TYPE: "uncorrected"}),
    Quantity.PCIE_REPLAYS: Row(ERRORS, {ERROR_TYPE: "pcie_replay"}),
    Quantity.NVLINK_CRC_FLIT_ERRORS: Row(ERRORS, {ERROR_TYPE: "nvlink_crc_flit"}),
    Quantity.NVLINK_CRC_DATA_ERRORS: Row(ERRORS, {ERROR_TYPE: "nvlink_crc_data"}),
    Quantity.NVLINK_REPLAYS: Row(ERRORS, {ERROR_TYPE: "nvlink_replay"}),
    Quantity.NVLINK_RECOVERIES: Row(ERRORS, {ERROR_TYPE: "nvlink_recovery"}),
    Quantity.ENERGY_MILLIJOULES: Row(ENERGY, divisor=1000),
    Quantity.THROTTLED_POWER_NS: Row(THROTTLED, {REASON: "power"}),
    Quantity.THROTTLED_THERMAL_NS: Row(THROTTLED, {REASON: "thermal"}),
    Quantity.THROTTLED_SYNC_BOOST_NS: Row(THROTTLED, {REASON: "sync_boost"}),
    Quantity.THROTTLED_BOARD_LIMIT_NS: Row(THROTTLED, {REASON: "board_limit"}),
    Quantity.THROTTLED_RELIABILITY_NS: Row(THROTTLED, {REASON: "reliability"}),
}
"""Every quantity but THROTTLE_REASONS, which is a series for each bit."""

THROTTLE_BITS: Final[Mapping[int, str]] = {
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x200: "board_limit",
    0x400: "reliability",
}
"""nvmlClocksEventReasons of nvml.h, without those that hold nothing back: idle, and clocks set by the user."""

_DEGRADING: Final = 0x008 | 0x020 | 0x040 | 0x080  # heat, or a failing supply; a power cap is normal work
_STATES: Final = ("ok", "degraded", "failed")

_LARGEST: Final = 1 << 63  # what OTLP can hold
_MOST: Final = 1 << 50  # a petabyte, or two weeks in nanoseconds, since the last reading: not so

METRICS: Final = (
    *dict.fromkeys(row.metric for row in ROWS.values()),
    *(MEMORY_SHARE, STATUS, THROTTLE, PROCESS_MEMORY, PROCESS_UTILIZATION, PROCESS_DEVICE, NVLINKS, LOCATION),
)
"""All of them, for the documentation."""


def bare(uuid: str) -> str:
    """``GPU-5fd4…`` → ``5fd4…``; a MIG device's keeps its prefix, for it is no GPU's."""
    return uuid.removeprefix("GPU-")


class DeviceMetrics:
    """Feeds ``metrics``: GPUs under ``own``, the agent's resource, and processes under their own.

    ``resource_of`` answers a tgid, None for a process that is not observed; of such a one nothing is reported.
    ``counters``: readings that were dropped, by reason.
    """

    def __init__(
        self, metrics: Metrics, own: Resource, resource_of: Callable[[int], Resource | None]
    ) -> None:
        self.counters: Counter[str] = Counter()
        self._metrics = metrics
        self._own = own
        self._resource_of = resource_of
        self._devices: dict[str, DeviceSeen] = {}
        self._ordinals: dict[int, tuple[str, ...]] = {}
        self._counted: dict[tuple[str, Quantity], int] = {}
        self._standing: dict[str, set[_Series]] = {}  # by device: the series that are reported as they stand

    def take(self, item: DeviceInput) -> None:
        """Take one input of :mod:`otelgpu.model.devices`."""
        match item:
            case DeviceSeen():
                self._see(item)
            case DeviceReadings():
                self._read(item)
            case DeviceGone():
                self._lose(item)
            case ProcessDevices():
                self._ordinals[item.tgid] = item.uuids

    def forget_process(self, tgid: int) -> None:
        """The process has ended: its ordinals mean nothing any more."""
        self._ordinals.pop(tgid, None)

    def _see(self, seen: DeviceSeen) -> None:
        before = self._devices.get(seen.uuid)
        if before is not None and _identity(before) != _identity(seen):
            self._stand(seen.uuid, set())
        self._devices[seen.uuid] = seen

    def _read(self, readings: DeviceReadings) -> None:
        device = self._devices.get(readings.uuid)
        if device is None:
            self.counters["device_not_seen"] += 1
            return
        reported: set[_Series] = set()
        for series, value in self._levels(device, readings.values):
            self._set(reported, series, value)
        for process in readings.processes:
            owner = self._resource_of(process.tgid)
            if owner is not None:
                for series, value in self._of_process(owner, process):
                    self._set(reported, series, value)
        for series in self._callers(readings.uuid):
            self._set(reported, series, 1)
        self._stand(readings.uuid, reported)
        for quantity, value in readings.values.items():
            self._count(device, quantity, value)

    def _levels(self, device: DeviceSeen, values: Mapping[Quantity, int]) -> Iterator[tuple[_Series, float]]:
        identity = _identity(device)
        for quantity, value in values.items():
            row = ROWS.get(quantity)
            if row is not None and row.metric.instrument is not _COUNTER:
                yield self._series(row.metric, {**identity, **row.labels}), _scaled(row, value)
        total, used = values.get(Quantity.MEMORY_TOTAL_BYTES), values.get(Quantity.MEMORY_USED_BYTES)
        if total and used is not None:
            yield self._series(MEMORY_SHARE, identity), used / total
        reasons = values.get(Quantity.THROTTLE_REASONS)
        if reasons is not None:
            for bit, name in THROTTLE_BITS.items():
                yield self._series(THROTTLE, identity | {REASON: name}), int(bool(reasons & bit))
        if values:
            yield from self._status(device, "degraded" if (reasons or 0) & _DEGRADING else "ok")
        if device.pci_path:
            labels = identity | location_labels(device.pci_path, device.numa_node)
            yield self._series(LOCATION, labels), 1
        for peer, links in device.nvlinks.items():
            yield self._series(NVLINKS, identity | {PEER: peer}), links

    def _status(self, device: DeviceSeen, state: str) -> Iterator[tuple[_Series, float]]:
        for name in _STATES:
            yield self._series(STATUS, _identity(device) | {STATE: name}), int(name == state)

    def _of_process(self, owner: Resource, process: ProcessReading) -> Iterator[tuple[_Series, float]]:
        device = self._devices.get(process.device)
        identity = _identity(device) if device is not None else {ID: process.device}
        if process.memory_bytes is not None:
            yield _Series(PROCESS_MEMORY, owner, _key(identity)), process.memory_bytes
        for task, percent in (
            ("general", process.utilization_percent),
            ("encoder", process.encoder_percent),
            ("decoder", process.decoder_percent),
        ):
            if percent is not None:
                yield _Series(PROCESS_UTILIZATION, owner, _key(identity | {TASK: task})), percent / 100

    def _attributes(self, tgid: int, ordinal: int) -> dict[str, str | int]:
        """``cuda.device.*`` of a device that a process calls ``ordinal``."""
        uuid = self._ordinals[tgid][ordinal]
        found: dict[str, str | int] = {CUDA_INDEX: ordinal, CUDA_UUID: bare(uuid)}
        if self._devices[uuid].model:
            found[CUDA_MODEL] = self._devices[uuid].model
        return found

    def _callers(self, uuid: str) -> Iterator[_Series]:
        """The processes that can call a device, each by its ordinal."""
        for tgid, uuids in self._ordinals.items():
            owner = self._resource_of(tgid)
            for ordinal, called in enumerate(uuids):
                if called == uuid and owner is not None:
                    yield _Series(PROCESS_DEVICE, owner, _key({ID: uuid, **self._attributes(tgid, ordinal)}))

    def _count(self, device: DeviceSeen, quantity: Quantity, value: int) -> None:
        row = ROWS.get(quantity)
        if row is None or row.metric.instrument is not _COUNTER:
            return
        before = self._counted.get((device.uuid, quantity), value)
        self._counted[device.uuid, quantity] = value
        # Differences of whole units, so that their sum is exact however small the steps are.
        grown = int(_whole(row, value) - (_whole(row, before) if before <= value else 0))
        if grown >= _MOST:
            self.counters["implausible"] += 1
            return
        labels = _labels(row.metric, {**_identity(device), **row.labels})
        self._metrics.add(row.metric, SCOPE, self._own, labels, grown)

    def _lose(self, gone: DeviceGone) -> None:
        device = self._devices.get(gone.uuid)
        reported: set[_Series] = set()
        if device is not None and gone.failed:
            for series, value in self._status(device, "failed"):
                self._set(reported, series, value)
        self._stand(gone.uuid, reported)

    def _series(self, metric: Metric, labels: Labels) -> _Series:
        return _Series(metric, self._own, _key(_labels(metric, labels)))

    def _set(self, reported: set[_Series], series: _Series, value: float) -> None:
        if value >= _LARGEST:
            self.counters["implausible"] += 1
            return
        reported.add(series)
        self._metrics.set(series.metric, SCOPE, series.owner, dict(series.labels), value)

    def _stand(self, uuid: str, reported: set[_Series]) -> None:
        """From here on ``reported`` is what stands of a device: nobody is to read an old value as a new one."""
        for series in self._standing.get(uuid, set()) - reported:
            if replace(series, owner=self._metrics.owner(series.owner)) in reported:
                continue  # its process is called otherwise now
            self._metrics.unset(series.metric, series.owner, dict(series.labels))
        self._standing[uuid] = reported


class _Series(Struct, frozen=True):
    metric: Metric
    owner: Resource
    labels: tuple[tuple[str, str | int], ...]


def _key(labels: Labels) -> tuple[tuple[str, str | int], ...]:
    return tuple(sorted(labels.items()))


def _identity(device: DeviceSeen) -> dict[str, str | int]:
    """The attributes that every metric of the device has; what is not known is left out."""
    name = f"gpu{device.index}" if device.index != NO_INDEX else ""
    found = {
        ID: device.uuid,
        NAME: name,
        TYPE: "gpu",
        MODEL: device.model,
        VENDOR: "NVIDIA",
        PARENT: device.parent,
        DRIVER: device.driver_version,
        FIRMWARE: device.firmware_version,
        SERIAL: device.serial_number,
    }
    return {key: value for key, value in found.items() if value}


def _labels(metric: Metric, labels: Labels) -> dict[str, str | int]:
    """``hw.type`` distinguishes the components of a shared metric; temperatures have one to themselves."""
    alone = metric in (TEMPERATURE, TEMPERATURE_LIMIT)
    return {key: value for key, value in labels.items() if not (alone and key == TYPE)}


def _scaled(row: Row, value: int) -> float:
    return value * row.scale if row.divisor == 1 else value * row.scale / row.divisor


def _whole(row: Row, value: int) -> int:
    return value * row.scale // row.divisor
