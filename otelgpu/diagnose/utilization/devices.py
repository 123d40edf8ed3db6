"""What devices read while a job was watched, as one figure for each quantity. Pure.

In: :mod:`otelgpu.model.devices` from a poller. Out: :class:`DeviceUse` values, by index.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Final

from msgspec import Struct

from otelgpu.model.devices import DeviceInput, DeviceReadings, DeviceSeen, Quantity

LEAST_READINGS: Final = 3
"""Of fewer nothing is said: the first may be of before."""

_COUNTERS: Final = {
    Quantity.PCIE_RECEIVED_BYTES: 1,
    Quantity.PCIE_TRANSMITTED_BYTES: 1,
    Quantity.NVLINK_RECEIVED_KIB: 1024,
    Quantity.NVLINK_TRANSMITTED_KIB: 1024,
}
_PCIE: Final = {Quantity.PCIE_RECEIVED_KB_PER_S: 1000, Quantity.PCIE_TRANSMITTED_KB_PER_S: 1000}
_PCIE_MEANS: Final = {Quantity.PCIE_RECEIVED_BYTES_PER_S: 1, Quantity.PCIE_TRANSMITTED_BYTES_PER_S: 1}
_NVLINK: Final = {Quantity.NVLINK_RECEIVED_BYTES_PER_S: 1, Quantity.NVLINK_TRANSMITTED_BYTES_PER_S: 1}
"""Rates, where there are no counters."""


class ProcessUse(Struct, frozen=True, kw_only=True):
    """A process on a device: the most memory, and the mean share of time it kept the device; None: not known."""

    pid: int
    memory_bytes: int | None
    utilization: float | None


class DeviceUse(Struct, frozen=True, kw_only=True):
    """Means over the time; None: not known. ``pcie_bytes_per_s``, ``nvlink_bytes_per_s``: both directions.

    ``utilization``: share of time in which any kernel ran; ``sm``, ``occupancy``, ``tensor``, ``dram``: by GPM, shares
    of what the device could have done. ``is_part``: a MIG device, of which no ``utilization`` is told.
    """

    uuid: str
    index: int
    model: str
    readings: int
    utilization: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    pcie_bytes_per_s: float | None
    nvlink_bytes_per_s: float | None
    sm: float | None = None
    occupancy: float | None = None
    tensor: float | None = None
    dram: float | None = None
    driver: str = ""
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    power_limit_watts: float | None = None
    processes: Sequence[ProcessUse] = ()
    is_part: bool = False


def device_uses(inputs: Iterable[DeviceInput]) -> list[DeviceUse]:
    """One for each GPU, and in place of one that is divided (MIG) one for each of its parts, where those are known.

    A process that the driver puts on none of the parts is on the GPU, which is then there too.
    """
    seen: dict[str, DeviceSeen] = {}
    readings: dict[str, list[DeviceReadings]] = defaultdict(list)
    for item in inputs:
        if isinstance(item, DeviceSeen):
            seen[item.uuid] = item
        elif isinstance(item, DeviceReadings):
            readings[item.uuid].append(item)
    gpu_of = {device.uuid: seen.get(device.parent) or device for device in seen.values()}
    divided = {device.parent for device in seen.values()}
    used = {process.device for each in readings.values() for reading in each for process in reading.processes}
    whole = [device for device in seen.values() if device.uuid not in divided - used]
    whole.sort(key=lambda device: (gpu_of[device.uuid].index, device.uuid))
    return [_use(device, readings[device.uuid], readings[gpu_of[device.uuid].uuid]) for device in whole]


def _use(
    device: DeviceSeen, readings: Sequence[DeviceReadings], of_gpu: Sequence[DeviceReadings]
) -> DeviceUse:
    """``of_gpu``: of the GPU that it is, or is a part of: those have the processes."""

    def mean(quantity: Quantity, per: float = 100.0) -> float | None:
        values = [each.values[quantity] for each in readings if quantity in each.values]
        return fmean(values) / per if len(values) >= LEAST_READINGS else None

    def most(quantity: Quantity) -> int | None:
        return max((each.values[quantity] for each in readings if quantity in each.values), default=None)

    return DeviceUse(
        uuid=device.uuid,
        index=device.index,
        model=device.model,
        readings=len(readings),
        utilization=mean(Quantity.UTILIZATION_PERCENT),
        memory_used_bytes=most(Quantity.MEMORY_USED_BYTES),
        memory_total_bytes=most(Quantity.MEMORY_TOTAL_BYTES),
        pcie_bytes_per_s=_traffic(readings, Quantity.PCIE_RECEIVED_BYTES, Quantity.PCIE_TRANSMITTED_BYTES)
        or _rate(mean, _PCIE_MEANS)
        or _rate(mean, _PCIE),
        nvlink_bytes_per_s=_traffic(readings, Quantity.NVLINK_RECEIVED_KIB, Quantity.NVLINK_TRANSMITTED_KIB)
        or _rate(mean, _NVLINK),
        sm=mean(Quantity.SM_UTILIZATION_PPM, 1e6),
        occupancy=mean(Quantity.SM_OCCUPANCY_PPM, 1e6),
        tensor=mean(Quantity.TENSOR_UTILIZATION_PPM, 1e6),
        dram=mean(Quantity.DRAM_UTILIZATION_PPM, 1e6),
        processes=_processes(device.uuid, of_gpu),
        is_part=bool(device.parent),
        driver=device.driver_version,
        sm_clock_mhz=mean(Quantity.SM_CLOCK_MHZ, 1.0),
        memory_clock_mhz=mean(Quantity.MEMORY_CLOCK_MHZ, 1.0),
        power_limit_watts=mean(Quantity.POWER_LIMIT_MILLIWATTS, 1000.0),
    )


def _rate(mean: Callable[[Quantity, float], float | None], scales: Mapping[Quantity, int]) -> float | None:
    parts = [mean(quantity, 1 / scale) for quantity, scale in scales.items()]
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def _traffic(readings: Sequence[DeviceReadings], *quantities: Quantity) -> float | None:
    """Of counters: bytes per second between the first and the last reading; one that began anew says nothing."""
    known = [each for each in readings if all(quantity in each.values for quantity in quantities)]
    if len(known) < 2 or known[-1].time_ns <= known[0].time_ns:
        return None
    grown = [known[-1].values[each] - known[0].values[each] for each in quantities]
    if min(grown) < 0:
        return None
    scaled = sum(count * _COUNTERS[quantity] for count, quantity in zip(grown, quantities, strict=True))
    return scaled * 1e9 / (known[-1].time_ns - known[0].time_ns)


def _processes(uuid: str, readings: Sequence[DeviceReadings]) -> list[ProcessUse]:
    memory: dict[int, int | None] = {}
    shares: dict[int, list[int]] = defaultdict(list)
    for reading in readings:
        for process in reading.processes:
            if process.device != uuid:
                continue
            if process.memory_bytes is not None:
                memory[process.tgid] = max(memory.get(process.tgid) or 0, process.memory_bytes)
            else:
                memory.setdefault(process.tgid, None)
            if process.utilization_percent is not None:
                shares[process.tgid].append(process.utilization_percent)
    return [
        ProcessUse(
            pid=pid,
            memory_bytes=size,
            utilization=fmean(shares[pid]) / 100 if len(shares[pid]) >= LEAST_READINGS else None,
        )
        for pid, size in memory.items()
    ]
