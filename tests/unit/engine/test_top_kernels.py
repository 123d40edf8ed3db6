"""Which kernels have series of their own."""

from __future__ import annotations

import doctest

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.engine import registry, top_kernels
from otelgpu.engine.metrics import Metrics
from otelgpu.engine.operation_metrics import OperationMeter, parts_of
from otelgpu.engine.top_kernels import OTHER, TopKernels
from otelgpu.model.operations import OperationKind, Operations
from otelgpu.model.settings import SignalSettings
from tests.unit.families.records import btf
from tests.unit.model.builders import LLM, calls

NAMES = ["unknown", *(f"k{i}" for i in range(1, 9))]


def reported(top: TopKernels, *indices: int) -> list[str]:
    return [top.label(code) for code in top.codes(np.array(indices, dtype=np.uint32)).tolist()]


def test_the_worked_example_is_true() -> None:
    assert doctest.testmod(top_kernels, extraglobs={"np": np}).failed == 0


@given(st.integers(1, 5), st.lists(st.lists(st.integers(0, 8), max_size=30), max_size=12))
def test_a_name_that_was_reported_stays_and_there_are_never_more_than_seats(
    seats: int, batches: list[list[int]]
) -> None:
    top, own = TopKernels(seats, NAMES), set()
    for batch in batches:
        labels = reported(top, *batch)
        assert [label for label in labels if label != OTHER] == [
            NAMES[i] for i, label in zip(batch, labels, strict=True) if label != OTHER
        ]
        assert own <= {NAMES[i] for i in range(9) if reported(top, i) != [OTHER]}
        own |= set(labels) - {OTHER}
        assert len(own) <= seats


def test_what_ran_once_keeps_nobody_out() -> None:
    top = TopKernels(2, NAMES)
    reported(top, *[1] * 96, *range(2, 6))
    assert reported(top, *[7] * 60) == ["k7"] * 60
    assert reported(top, 2) == [OTHER]


def test_names_may_come_while_the_session_runs() -> None:
    names = ["unknown", "k1"]
    top = TopKernels(3, names)
    assert reported(top, 1) == ["k1"]
    names.append("k2")
    assert reported(top, 2, 2, 1) == ["k2", "k2", "k1"]


# -- in metrics --------------------------------------------------------------------------------------


def measured(rows: Operations, top: TopKernels | None = None) -> Metrics:
    family = registry.families()["cuda"]
    assert family.operations is not None
    decoder = family.operations.decoder(btf("cuda"), SignalSettings())
    metrics = Metrics(0)
    meter = OperationMeter(metrics, [(decoder, family.operations.signals)], lambda tgid: LLM, top)
    _, parts, _ = parts_of(rows, 0)
    meter.measure(parts)
    return metrics


def launches(metrics: Metrics, **labels: str) -> float:
    return metrics.value("gpu.cuda.kernel.launch.calls", **{f"cuda.kernel.{k}": v for k, v in labels.items()})


def test_launches_are_reported_by_kernel_only_when_asked_and_add_up() -> None:
    rows = calls(10, name=[1, 1, 1, 1, 1, 1, 2, 2, 2, 3])
    plain, split = measured(rows), measured(rows, TopKernels(2, NAMES))
    assert (launches(plain), launches(plain, name="k1")) == (10, 0)
    reported = [launches(split, name=name) for name in ("k1", "k2", OTHER)]
    assert (reported, launches(split)) == ([6, 3, 1], 10)
    assert split.value("gpu.cuda.kernel.grid.size", **{"cuda.kernel.name": "k1"}) == 0


def test_a_duration_is_reported_of_calls_whose_return_was_seen() -> None:
    rows = calls(3, returned=[1, 0, 1], duration_ns=[10**9, 0, 2 * 10**9], kind=OperationKind.LAUNCH)
    metrics = measured(rows)
    data, _ = metrics.read(1)
    points = {
        m.name: m.histogram.data_points[0].count
        for m in data.resource_metrics[0].scope_metrics[0].metrics
        if m.HasField("histogram")
    }
    assert points["gpu.cuda.kernel.launch.host.duration"] == 2
    assert metrics.value("gpu.cuda.kernel.launch.host.duration") == 3.0
    assert launches(metrics) == 3


def test_an_error_is_named_by_the_api_that_returned_it() -> None:
    numbers = btf("cuda").enumerators("cuda_api")
    apis = [numbers[f"API_{name}"] for name in ("cudaMalloc", "cuMemAlloc_v2", "cuMemAlloc_v2")]
    metrics = measured(calls(3, kind=OperationKind.ALLOCATION, api=apis, status=2))
    names = ("cudaErrorMemoryAllocation", "CUDA_ERROR_OUT_OF_MEMORY")
    assert [metrics.value("gpu.cuda.errors", **{"error.type": name}) for name in names] == [1, 2]
