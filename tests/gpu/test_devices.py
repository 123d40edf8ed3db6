"""What NVML says of a real GPU, beside what nvidia-smi says of it."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from otelgpu.families.gpu.devices.poll.nvml import Nvml
from otelgpu.families.gpu.devices.poll.poller import why_unavailable
from otelgpu.model.devices import Quantity

pytestmark = pytest.mark.gpu

# What every data-centre GPU since Volta reports.
EXPECTED = {
    Quantity.UTILIZATION_PERCENT,
    Quantity.MEMORY_TOTAL_BYTES,
    Quantity.MEMORY_USED_BYTES,
    Quantity.POWER_MILLIWATTS,
    Quantity.ENERGY_MILLIJOULES,
    Quantity.TEMPERATURE_CELSIUS,
    Quantity.SM_CLOCK_MHZ,
    Quantity.THROTTLE_REASONS,
    Quantity.PCIE_REPLAYS,
}


@pytest.fixture
def counters() -> Counter[str]:
    return Counter()


@pytest.fixture
def nvml(counters: Counter[str]) -> Iterator[Nvml]:
    if not Path("/dev/nvidiactl").exists():
        pytest.skip("no /dev/nvidiactl: there is no NVIDIA GPU here")
    assert why_unavailable() is None
    opened = Nvml(counters, own_pid_namespace=False)
    yield opened
    opened.close()


def smi(*columns: str) -> list[list[str]]:
    """A row per GPU, in nvidia-smi's units."""
    command = ["nvidia-smi", f"--query-gpu={','.join(columns)}", "--format=csv,noheader,nounits"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]


def test_gpus_are_those_of_nvidia_smi(nvml: Nvml) -> None:
    gpus = [device for device in nvml.list_devices(1) if not device.parent]
    reported = [[g.uuid, str(g.index), g.model, g.pci_bus_id.lower(), g.driver_version] for g in gpus]
    theirs = smi("uuid", "index", "name", "pci.bus_id", "driver_version")
    assert reported == [[uuid, index, name, bus.lower(), driver] for uuid, index, name, bus, driver in theirs]


def test_readings_are_in_the_units_that_they_say(nvml: Nvml, counters: Counter[str]) -> None:
    gpu = nvml.list_devices(1)[0]
    values = nvml.read(gpu.uuid, 2).values
    print({str(quantity): value for quantity, value in values.items()}, +counters)
    if not gpu.mig:
        assert values.keys() >= EXPECTED
    mebibytes, watts, celsius = map(float, smi("memory.total", "power.draw", "temperature.gpu")[0])
    assert values[Quantity.MEMORY_TOTAL_BYTES] >> 20 == mebibytes
    assert values[Quantity.POWER_MILLIWATTS] / 1000 == pytest.approx(watts, rel=0.5)
    assert values[Quantity.TEMPERATURE_CELSIUS] == pytest.approx(celsius, abs=5)
    assert counters["implausible"] == counters["read_failed"] == 0
