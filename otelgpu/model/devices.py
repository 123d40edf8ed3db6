"""GPUs as facts: which there are, what they read, who sees which. Pipeline inputs, low in rate.

Whatever is not known is absent: a quantity that a GPU does not have is no key of ``values``, never zero.
Units are those of NVML (nvml.h), whole numbers throughout, so that a capture holds them exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct, field

NO_INDEX: Final = -1
"""Of a MIG device, which has neither an index on the host nor a device file."""


class Quantity(StrEnum):
    """What a GPU may be asked for. Those in the second part count up since the driver was loaded."""

    UTILIZATION_PERCENT = "utilization_percent"
    ENCODER_UTILIZATION_PERCENT = "encoder_utilization_percent"
    DECODER_UTILIZATION_PERCENT = "decoder_utilization_percent"
    MEMORY_CONTROLLER_PERCENT = (
        "memory_controller_percent"  # share of time in which memory was read or written
    )
    MEMORY_TOTAL_BYTES = "memory_total_bytes"
    MEMORY_USED_BYTES = "memory_used_bytes"  # without what the driver reserves, where it distinguishes them
    PCIE_RECEIVED_KB_PER_S = "pcie_received_kb_per_s"  # over 20 ms; where there is no counter
    PCIE_TRANSMITTED_KB_PER_S = "pcie_transmitted_kb_per_s"
    POWER_MILLIWATTS = "power_milliwatts"
    POWER_LIMIT_MILLIWATTS = "power_limit_milliwatts"
    TEMPERATURE_CELSIUS = "temperature_celsius"
    MEMORY_TEMPERATURE_CELSIUS = "memory_temperature_celsius"
    SLOWDOWN_TEMPERATURE_CELSIUS = "slowdown_temperature_celsius"
    SHUTDOWN_TEMPERATURE_CELSIUS = "shutdown_temperature_celsius"
    GRAPHICS_CLOCK_MHZ = "graphics_clock_mhz"
    SM_CLOCK_MHZ = "sm_clock_mhz"
    MEMORY_CLOCK_MHZ = "memory_clock_mhz"
    VIDEO_CLOCK_MHZ = "video_clock_mhz"
    THROTTLE_REASONS = "throttle_reasons"  # bits: nvmlClocksEventReasons
    # Means since the reading before, by GPM; shares in parts per million.
    SM_UTILIZATION_PPM = "sm_utilization_ppm"
    SM_OCCUPANCY_PPM = "sm_occupancy_ppm"  # warps, of those that the multiprocessors can hold
    TENSOR_UTILIZATION_PPM = "tensor_utilization_ppm"
    DRAM_UTILIZATION_PPM = "dram_utilization_ppm"
    NVLINK_RECEIVED_BYTES_PER_S = "nvlink_received_bytes_per_s"  # all links
    NVLINK_TRANSMITTED_BYTES_PER_S = "nvlink_transmitted_bytes_per_s"
    PCIE_RECEIVED_BYTES_PER_S = "pcie_received_bytes_per_s"
    PCIE_TRANSMITTED_BYTES_PER_S = "pcie_transmitted_bytes_per_s"

    PCIE_RECEIVED_BYTES = "pcie_received_bytes"
    PCIE_TRANSMITTED_BYTES = "pcie_transmitted_bytes"
    NVLINK_RECEIVED_KIB = "nvlink_received_kib"  # all links, without protocol overhead
    NVLINK_TRANSMITTED_KIB = "nvlink_transmitted_kib"
    ECC_CORRECTED = "ecc_corrected"
    ECC_UNCORRECTED = "ecc_uncorrected"
    PCIE_REPLAYS = "pcie_replays"
    NVLINK_CRC_FLIT_ERRORS = "nvlink_crc_flit_errors"
    NVLINK_CRC_DATA_ERRORS = "nvlink_crc_data_errors"
    NVLINK_REPLAYS = "nvlink_replays"
    NVLINK_RECOVERIES = "nvlink_recoveries"
    ENERGY_MILLIJOULES = "energy_millijoules"
    THROTTLED_POWER_NS = "throttled_power_ns"
    THROTTLED_THERMAL_NS = "throttled_thermal_ns"
    THROTTLED_SYNC_BOOST_NS = "throttled_sync_boost_ns"
    THROTTLED_BOARD_LIMIT_NS = "throttled_board_limit_ns"
    THROTTLED_RELIABILITY_NS = "throttled_reliability_ns"


class DeviceSeen(Struct, frozen=True, kw_only=True):
    """A GPU, or a MIG device of one, is there; it replaces what was reported of the same ``uuid``.

    ``uuid`` is the driver's and DCGM's form (``GPU-…``, ``MIG-…``). ``index`` and ``minor`` (of
    ``/dev/nvidia<minor>``) are NO_INDEX where there is none. ``parent``: of a MIG device, its GPU's uuid.
    ``pci_path``: the bridges above it, as :mod:`otelgpu.kernel.pci_devices` has them; ``numa_node`` −1: not known.
    ``nvlinks``: what is at the other end of NVLinks, a GPU's uuid, a PCI address or ``switch`` → how many are active.
    Texts that are not known are empty.
    """

    time_ns: int
    uuid: str
    index: int
    minor: int
    model: str
    pci_bus_id: str = ""
    parent: str = ""
    mig: bool = False  # a GPU that is divided into MIG devices: CUDA sees those only
    driver_version: str = ""
    firmware_version: str = ""
    serial_number: str = ""
    pci_path: str = ""
    numa_node: int = -1
    nvlinks: Mapping[str, int] = field(default_factory=dict)


class ProcessReading(Struct, frozen=True, kw_only=True):
    """One process on one device. ``device`` is the uuid of the MIG device where that is known."""

    tgid: int
    device: str
    memory_bytes: int | None = None
    utilization_percent: int | None = None  # of the streaming multiprocessors
    encoder_percent: int | None = None
    decoder_percent: int | None = None


class DeviceReadings(Struct, frozen=True, kw_only=True):
    """What device ``uuid`` read at ``time_ns``; ``processes``: all that were on it then, as far as is reported."""

    time_ns: int
    uuid: str
    values: Mapping[Quantity, int]
    processes: tuple[ProcessReading, ...] = ()


class EnergyRead(Struct, frozen=True, kw_only=True):
    """What GPU ``uuid`` had used by ``time_ns``: its counter, or, of one that has none, the power it drew then."""

    time_ns: int
    uuid: str
    millijoules: int | None = None  # since the driver was loaded
    milliwatts: int | None = None


class DeviceGone(Struct, frozen=True, kw_only=True):
    """Nothing more is known of device ``uuid``: it fell off the bus (``failed``), or nobody can report any more."""

    time_ns: int
    uuid: str
    failed: bool = False


class ProcessDevices(Struct, frozen=True, kw_only=True):
    """Which devices a process' CUDA ordinals 0, 1, … are: uuids, "" where that cannot be known."""

    tgid: int
    time_ns: int
    uuids: tuple[str, ...]


DeviceInput = DeviceSeen | DeviceReadings | EnergyRead | DeviceGone | ProcessDevices
