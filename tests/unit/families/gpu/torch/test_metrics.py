"""Levels of allocators → metrics: what stands is set, what grows is added."""

from __future__ import annotations

import numpy as np
import pytest

from otelgpu.engine.metrics import Metrics
from otelgpu.families.gpu.torch.metrics import METRICS, TensorMetrics
from otelgpu.model.allocators import LEVEL, Levels, device_name
from otelgpu.model.resource import resource

OWNER = resource({"service.name": "training"})
CUDA_0, CUDA_1 = 0x0001, 0x0101


def level(device: int = CUDA_0, tgid: int = 7, **numbers: int) -> Levels:
    row = np.zeros(1, dtype=LEVEL)
    row["tgid"], row["device"] = tgid, device
    for name, number in numbers.items():
        row[name] = number
    return row


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(0)


@pytest.fixture
def reported(metrics: Metrics) -> TensorMetrics:
    return TensorMetrics(metrics, lambda tgid: OWNER)


def test_levels_replace_and_sums_add(metrics: Metrics, reported: TensorMetrics) -> None:
    reported.take(level(allocated=300, reserved=1000, allocated_peak=400, reserved_peak=1000, allocations=3))
    reported.take(level(allocated=100, reserved=900, allocated_peak=500, reserved_peak=1000, allocations=5))
    at = {"torch.device": "cuda:0"}
    assert metrics.value("torch.memory.allocated", OWNER, **at) == 100
    assert metrics.value("torch.memory.reserved", OWNER, **at) == 900
    assert metrics.value("torch.memory.cached", OWNER, **at) == 800
    assert metrics.value("torch.memory.allocated.peak", OWNER, **at) == 500
    assert metrics.value("torch.memory.reserved.peak", OWNER, **at) == 1000
    assert metrics.value("torch.memory.allocation.calls", OWNER, **at) == 5


def test_devices_are_reported_apart(metrics: Metrics, reported: TensorMetrics) -> None:
    reported.take(np.concatenate([level(refusals=2), level(CUDA_1, refusals=3)]))
    assert metrics.value("torch.memory.allocation.failures", OWNER) == 5
    assert metrics.value("torch.memory.allocation.failures", OWNER, **{"torch.device": "cuda:1"}) == 3


def test_an_allocator_that_keeps_no_totals_has_sums_and_no_levels(
    metrics: Metrics, reported: TensorMetrics
) -> None:
    reported.take(level(allocations=3, allocated_bytes=512, frees=1))
    assert metrics.value("torch.memory.allocations", OWNER) == 512
    names = {table.metric.name for table in metrics._tables.values()}
    assert names == {
        "torch.memory.allocations",
        "torch.memory.allocation.calls",
        "torch.memory.free.calls",
    }


def test_what_is_allocated_beyond_what_is_reserved_leaves_nothing_cached(
    metrics: Metrics, reported: TensorMetrics
) -> None:
    reported.take(level(allocated=5, reserved=3, allocated_peak=5, reserved_peak=3))
    assert metrics.value("torch.memory.cached", OWNER) == 0


def test_a_number_that_comes_again_counts_from_nothing(metrics: Metrics, reported: TensorMetrics) -> None:
    reported.take(level(frees=9))
    reported.forget(7)
    reported.take(level(frees=4))
    reported.take(level(frees=2))  # the kernel's entry is a new one, which nobody said
    reported.take(level(frees=3))
    assert metrics.value("torch.memory.free.calls", OWNER) == 14


def test_names_are_of_one_kind() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS) == 10
    assert all(metric.name.startswith("torch.memory.") for metric in METRICS)


@pytest.mark.parametrize(
    ("device", "name"),
    [(0x0000, "cpu:0"), (0x0001, "cuda:0"), (0x0701, "cuda:7"), (-256 + 12, "xpu:-1"), (0x014D, "type77:1")],
)
def test_devices_are_called_as_pytorch_does(device: int, name: str) -> None:
    assert device_name(device) == name
