"""What a GPU is asked: the one table from quantities to NVML's fields and functions.

A question takes the binding (module ``pynvml``) and a device handle, and answers whole numbers or raises
``pynvml.NVMLError``. Reference: nvml.h; docs.nvidia.com/deploy/nvml-api.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct

from otelgpu.model.devices import Quantity

ALL_LINKS: Final = 0xFFFFFFFF  # scopeId of the NVLink fields

# Quantity → field of nvmlDeviceGetFieldValues: all of them are one call.
FIELDS: Final[Mapping[Quantity, str]] = {
    Quantity.ECC_CORRECTED: "NVML_FI_DEV_ECC_SBE_VOL_TOTAL",
    Quantity.ECC_UNCORRECTED: "NVML_FI_DEV_ECC_DBE_VOL_TOTAL",
    Quantity.NVLINK_CRC_FLIT_ERRORS: "NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
    Quantity.NVLINK_CRC_DATA_ERRORS: "NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL",
    Quantity.NVLINK_REPLAYS: "NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
    Quantity.NVLINK_RECOVERIES: "NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
    Quantity.THROTTLED_POWER_NS: "NVML_FI_DEV_PERF_POLICY_POWER",
    Quantity.THROTTLED_THERMAL_NS: "NVML_FI_DEV_PERF_POLICY_THERMAL",
    Quantity.THROTTLED_SYNC_BOOST_NS: "NVML_FI_DEV_PERF_POLICY_SYNC_BOOST",
    Quantity.THROTTLED_BOARD_LIMIT_NS: "NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT",
    Quantity.THROTTLED_RELIABILITY_NS: "NVML_FI_DEV_PERF_POLICY_RELIABILITY",
    Quantity.MEMORY_TEMPERATURE_CELSIUS: "NVML_FI_DEV_MEMORY_TEMP",
    Quantity.ENERGY_MILLIJOULES: "NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
    Quantity.PCIE_REPLAYS: "NVML_FI_DEV_PCIE_REPLAY_COUNTER",
    Quantity.NVLINK_TRANSMITTED_KIB: "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX",
    Quantity.NVLINK_RECEIVED_KIB: "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX",
    Quantity.POWER_MILLIWATTS: "NVML_FI_DEV_POWER_INSTANT",
    Quantity.PCIE_TRANSMITTED_BYTES: "NVML_FI_DEV_PCIE_COUNT_TX_BYTES",
    Quantity.PCIE_RECEIVED_BYTES: "NVML_FI_DEV_PCIE_COUNT_RX_BYTES",
}
OF_LINKS: Final = (Quantity.NVLINK_TRANSMITTED_KIB, Quantity.NVLINK_RECEIVED_KIB)
# A counter of 32 bits wraps in a tenth of a second of PCIe traffic: such a one says nothing.
WIDE: Final = (Quantity.PCIE_TRANSMITTED_BYTES, Quantity.PCIE_RECEIVED_BYTES)
MEMBERS: Final = {  # NVML_VALUE_TYPE_* → member of nvmlValue_t
    0: "dVal",
    1: "uiVal",
    2: "ulVal",
    3: "ullVal",
    4: "sllVal",
    5: "siVal",
    6: "usVal",
}
WIDE_TYPES: Final = (2, 3, 4)

Handle = Any
Answers = tuple[int, ...]


class Call(Struct, frozen=True):
    """A function of its own: what it answers, in the order of ``quantities``.

    It is made only where none of ``instead_of`` is to be had as a field.
    """

    quantities: tuple[Quantity, ...]
    ask: Callable[[Any, Handle], Answers]
    instead_of: Quantity | None = None


def _clock(quantity: Quantity, name: str) -> Call:
    return Call((quantity,), lambda nvml, h: (nvml.nvmlDeviceGetClockInfo(h, getattr(nvml, name)),))


def _limit(quantity: Quantity, name: str) -> Call:
    return Call(
        (quantity,), lambda nvml, h: (nvml.nvmlDeviceGetTemperatureThreshold(h, getattr(nvml, name)),)
    )


def _pcie_rate(quantity: Quantity, counter: Quantity, name: str) -> Call:
    # It blocks for 20 ms.
    return Call(
        (quantity,), lambda nvml, h: (nvml.nvmlDeviceGetPcieThroughput(h, getattr(nvml, name)),), counter
    )


def _memory(nvml: Any, handle: Handle) -> Answers:
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    except (nvml.NVMLError_FunctionNotFound, nvml.NVMLError_NotSupported):  # driver 510 and older
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return memory.total, memory.used


def _utilization(nvml: Any, handle: Handle) -> Answers:
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    return rates.gpu, rates.memory


def _throttle_reasons(nvml: Any, handle: Handle) -> Answers:
    try:
        return (nvml.nvmlDeviceGetCurrentClocksEventReasons(handle),)
    except nvml.NVMLError_FunctionNotFound:  # driver 530 and older
        return (nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),)


POWER: Final = Call(
    (Quantity.POWER_MILLIWATTS,),
    lambda nvml, h: (nvml.nvmlDeviceGetPowerUsage(h),),
    Quantity.POWER_MILLIWATTS,
)
CALLS: Final = (
    Call((Quantity.UTILIZATION_PERCENT, Quantity.MEMORY_CONTROLLER_PERCENT), _utilization),
    Call(
        (Quantity.ENCODER_UTILIZATION_PERCENT,),
        lambda nvml, h: tuple(nvml.nvmlDeviceGetEncoderUtilization(h)[:1]),
    ),
    Call(
        (Quantity.DECODER_UTILIZATION_PERCENT,),
        lambda nvml, h: tuple(nvml.nvmlDeviceGetDecoderUtilization(h)[:1]),
    ),
    Call((Quantity.MEMORY_TOTAL_BYTES, Quantity.MEMORY_USED_BYTES), _memory),
    POWER,
    Call((Quantity.POWER_LIMIT_MILLIWATTS,), lambda nvml, h: (nvml.nvmlDeviceGetEnforcedPowerLimit(h),)),
    Call(
        (Quantity.TEMPERATURE_CELSIUS,),
        lambda nvml, h: (nvml.nvmlDeviceGetTemperature(h, nvml.NVML_TEMPERATURE_GPU),),
    ),
    _limit(Quantity.SLOWDOWN_TEMPERATURE_CELSIUS, "NVML_TEMPERATURE_THRESHOLD_SLOWDOWN"),
    _limit(Quantity.SHUTDOWN_TEMPERATURE_CELSIUS, "NVML_TEMPERATURE_THRESHOLD_SHUTDOWN"),
    _clock(Quantity.GRAPHICS_CLOCK_MHZ, "NVML_CLOCK_GRAPHICS"),
    _clock(Quantity.SM_CLOCK_MHZ, "NVML_CLOCK_SM"),
    _clock(Quantity.MEMORY_CLOCK_MHZ, "NVML_CLOCK_MEM"),
    _clock(Quantity.VIDEO_CLOCK_MHZ, "NVML_CLOCK_VIDEO"),
    Call((Quantity.THROTTLE_REASONS,), _throttle_reasons),
    _pcie_rate(Quantity.PCIE_RECEIVED_KB_PER_S, Quantity.PCIE_RECEIVED_BYTES, "NVML_PCIE_UTIL_RX_BYTES"),
    _pcie_rate(
        Quantity.PCIE_TRANSMITTED_KB_PER_S, Quantity.PCIE_TRANSMITTED_BYTES, "NVML_PCIE_UTIL_TX_BYTES"
    ),
)
# Quantity → metric of nvmlGpmMetricsGet, and what one of its units is: percent, MiB/s.
GPM: Final[Mapping[Quantity, tuple[str, int]]] = {
    Quantity.SM_UTILIZATION_PPM: ("NVML_GPM_METRIC_SM_UTIL", 10_000),
    Quantity.SM_OCCUPANCY_PPM: ("NVML_GPM_METRIC_SM_OCCUPANCY", 10_000),
    Quantity.TENSOR_UTILIZATION_PPM: ("NVML_GPM_METRIC_ANY_TENSOR_UTIL", 10_000),
    Quantity.DRAM_UTILIZATION_PPM: ("NVML_GPM_METRIC_DRAM_BW_UTIL", 10_000),
    Quantity.NVLINK_RECEIVED_BYTES_PER_S: ("NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC", 1 << 20),
    Quantity.NVLINK_TRANSMITTED_BYTES_PER_S: ("NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC", 1 << 20),
    Quantity.PCIE_RECEIVED_BYTES_PER_S: ("NVML_GPM_METRIC_PCIE_RX_PER_SEC", 1 << 20),
    Quantity.PCIE_TRANSMITTED_BYTES_PER_S: ("NVML_GPM_METRIC_PCIE_TX_PER_SEC", 1 << 20),
}
OF_MIG: Final = tuple(call for call in CALLS if Quantity.MEMORY_USED_BYTES in call.quantities)
