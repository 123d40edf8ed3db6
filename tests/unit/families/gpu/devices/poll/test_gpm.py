"""GPM by the real binding against the fake library: means between two readings, and nothing where there is none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from otelgpu.families.gpu.devices.poll.gpm import LEAST_NS, Gpm
from otelgpu.families.gpu.devices.poll.nvml import LostError, Nvml
from otelgpu.model.devices import Quantity
from tests.unit.families.gpu.devices.nvml_script import UUID, Script

FIRST, SECOND = UUID.format(0), UUID.format(1)
METRICS = {"gpm.2": 91.25, "gpm.3": 40, "gpm.5": 62.5, "gpm.10": 33.3333, "gpm.60": 1.5, "gpm.61": 2} | {
    "gpm.20": 4,
    "gpm.21": 8,
}
MEANS = {
    Quantity.SM_UTILIZATION_PPM: 912_500,
    Quantity.SM_OCCUPANCY_PPM: 400_000,
    Quantity.TENSOR_UTILIZATION_PPM: 625_000,
    Quantity.DRAM_UTILIZATION_PPM: 333_333,
    Quantity.NVLINK_RECEIVED_BYTES_PER_S: 3 << 19,
    Quantity.NVLINK_TRANSMITTED_BYTES_PER_S: 2 << 20,
    Quantity.PCIE_RECEIVED_BYTES_PER_S: 8 << 20,
    Quantity.PCIE_TRANSMITTED_BYTES_PER_S: 4 << 20,
}
LATER = LEAST_NS + 1


class Opened:
    """NVML whose devices are listed, and the binding's samples that were not given back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counters: Counter[str] = Counter()
        self.nvml = Nvml(self.counters, own_pid_namespace=True)
        self.held = 0
        binding = self.nvml._nvml
        alloc, free = binding.nvmlGpmSampleAlloc, binding.nvmlGpmSampleFree

        def counted_alloc() -> Any:
            self.held += 1
            return alloc()

        def counted_free(sample: Any) -> None:
            self.held -= 1
            free(sample)

        monkeypatch.setattr(binding, "nvmlGpmSampleAlloc", counted_alloc)
        monkeypatch.setattr(binding, "nvmlGpmSampleFree", counted_free)
        self.nvml.list_devices(0)

    def read(self, now_ns: int, uuid: str = FIRST) -> dict[Quantity, int]:
        return dict(self.nvml.read(uuid, now_ns).values)


@pytest.fixture
def opened(script: Script, monkeypatch: pytest.MonkeyPatch) -> Iterator[Opened]:
    script.gpu(0, **METRICS).gpu(1, temperature=50)
    made = Opened(monkeypatch)
    yield made
    made.nvml.close()
    assert made.held == 0


def test_the_second_reading_has_the_means_since_the_first(opened: Opened) -> None:
    assert opened.read(0) == {}
    assert opened.read(LATER) == MEANS
    assert opened.held == 1
    assert +opened.counters == {}


def test_a_gpu_without_it_is_asked_once(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    assert opened.read(0, SECOND) == {Quantity.TEMPERATURE_CELSIUS: 50}
    monkeypatch.setattr(opened.nvml._nvml, "nvmlGpmQueryDeviceSupport", None)  # to call it would fail
    assert opened.read(LATER, SECOND) == {Quantity.TEMPERATURE_CELSIUS: 50}
    assert opened.held == 0


def test_readings_that_follow_at_once_have_no_means_and_lose_none(opened: Opened) -> None:
    opened.read(0)
    assert opened.read(LEAST_NS - 1) == {}
    assert opened.read(LATER) == MEANS


def test_samples_outlive_a_new_list_of_devices_but_not_their_device(opened: Opened, script: Script) -> None:
    opened.read(0)
    opened.nvml.list_devices(1)
    assert opened.read(LATER) == MEANS
    script.restart()
    opened.nvml.list_devices(2)
    assert opened.held == 0


def test_a_metric_that_a_gpu_lacks_is_absent(opened: Opened, script: Script) -> None:
    script.restart().gpu(0, **{"gpm.2": 50})
    opened.read(0)
    assert opened.read(LATER) == {Quantity.SM_UTILIZATION_PPM: 500_000}


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-1", "100.01", "1e300"])
def test_what_cannot_be_true_is_left_out_and_counted(opened: Opened, script: Script, value: str) -> None:
    script.restart().gpu(0, **{"gpm.2": value, "gpm.3": 40})
    opened.read(0)
    assert opened.read(LATER) == {Quantity.SM_OCCUPANCY_PPM: 400_000}
    assert +opened.counters == {"implausible": 1}


@pytest.mark.parametrize("function", ["nvmlGpmSampleGet", "nvmlGpmMetricsGet"])
def test_a_failed_sample_is_counted_and_given_back(opened: Opened, script: Script, function: str) -> None:
    opened.read(0)
    script.line(f"fail {function} 999")
    assert opened.read(LATER) == {}
    assert +opened.counters == {"read_failed": 1}
    script.restart().gpu(0, **METRICS)
    assert opened.read(2 * LATER) == MEANS


def test_a_gpu_that_is_lost_meanwhile_is_lost(opened: Opened, script: Script) -> None:
    script.line("fail nvmlGpmSampleGet 15")
    with pytest.raises(LostError):
        opened.read(0)


def test_of_a_gpu_that_is_divided_nothing_is_sampled(opened: Opened, script: Script) -> None:
    script.restart().gpu(0, mig=1, **METRICS)
    opened.nvml.list_devices(0)
    assert opened.read(0) == opened.read(LATER) == {}
    assert opened.held == 0


PARTS = [f"MIG-0000000{slot}-86f3-4b5c-ab5c-cf9e1a2b3c4d" for slot in range(3)]


def test_each_part_of_a_divided_gpu_has_its_own_means(opened: Opened, script: Script) -> None:
    script.restart().gpu(0, mig=1, mig_slots=2, **METRICS)
    script.mig(0, 0, **{"gpm.2": 25, "gpm.10": 50}).mig(0, 1, **{"gpm.2": 75})
    opened.nvml.list_devices(0)
    assert opened.read(0) == opened.read(0, PARTS[0]) == opened.read(0, PARTS[1]) == {}
    assert opened.read(LATER) == {}
    assert opened.read(LATER, PARTS[0]) == {
        Quantity.SM_UTILIZATION_PPM: 250_000,
        Quantity.DRAM_UTILIZATION_PPM: 500_000,
    }
    assert opened.read(LATER, PARTS[1]) == {Quantity.SM_UTILIZATION_PPM: 750_000}
    assert +opened.counters == {}


def test_parts_that_share_a_gpu_instance_have_none_of_their_own(opened: Opened, script: Script) -> None:
    script.restart().gpu(0, mig=1, mig_slots=3, **METRICS)
    script.mig(0, 0, **{"gpm.2": 25}).mig(0, 1, gpu_instance=7, compute_instance=1).mig(0, 2, **{"gpm.2": 75})
    opened.nvml.list_devices(0)
    for part in PARTS:
        assert opened.read(0, part) == {}
    assert [opened.read(LATER, part) for part in PARTS] == [{}, {}, {Quantity.SM_UTILIZATION_PPM: 750_000}]


def test_a_driver_that_knows_no_parts_is_asked_once(opened: Opened, script: Script) -> None:
    script.restart().gpu(0, mig=1, mig_slots=1, **METRICS).mig(0, 0, **{"gpm.2": 25})
    script.line("fail nvmlGpmMigSampleGet 3")
    opened.nvml.list_devices(0)
    assert opened.read(0, PARTS[0]) == {}
    script.restart().gpu(0, mig=1, mig_slots=1, **METRICS).mig(0, 0, **{"gpm.2": 25})
    assert opened.read(LATER, PARTS[0]) == opened.read(2 * LATER, PARTS[0]) == {}
    assert opened.held == 0


def test_samples_are_forgotten_though_the_driver_is_gone() -> None:
    class Gone(Exception):
        pass

    def free(_: object) -> None:
        raise Gone

    binding = SimpleNamespace(
        NVMLError=Gone,
        nvmlGpmQueryDeviceSupport=lambda _: SimpleNamespace(isSupportedDevice=1),
        nvmlGpmSampleAlloc=object,
        nvmlGpmSampleGet=lambda *_: None,
        nvmlGpmSampleFree=free,
    )
    gpm = Gpm(binding)
    assert gpm.read("GPU-1", None, 0) == {}
    gpm.close()
    assert gpm.read("GPU-1", None, 1) == {}  # the first again
