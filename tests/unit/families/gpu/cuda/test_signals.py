"""The family's table: what the calls of each API count as, and that no number of a record breaks it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from otelgpu.families.gpu.cuda.decode import NAMES_PEER, CudaDecoder
from otelgpu.families.gpu.cuda.signals import SIGNALS, copy_name
from otelgpu.model.operations import LARGEST_SIZE, Memory, OperationKind, memory_name
from tests.unit.families.records import btf
from tests.unit.model.builders import calls


def metric(name: str) -> Any:
    return next(spec for spec in SIGNALS.metrics if spec.metric.name == name)


def functions_of(name: str) -> set[str]:
    """The observed functions that a metric counts."""
    return {api for api in CudaDecoder(btf("cuda")).apis.values() if api in metric(name).apis}


@pytest.mark.parametrize(
    ("name", "functions"),
    [
        ("stream.synchronize.calls", {"cudaStreamSynchronize", "cuStreamSynchronize_ptsz"}),
        ("device.synchronize.calls", {"cudaDeviceSynchronize", "cuCtxSynchronize"}),
        ("event.synchronize.calls", {"cudaEventSynchronize", "cuEventSynchronize"}),
        (
            "stream.create.calls",
            {"cudaStreamCreateWithFlags", "cuStreamCreate", "cuStreamCreateWithPriority"},
        ),
        ("stream.destroy.calls", {"cudaStreamDestroy", "cuStreamDestroy_v2"}),
        ("event.record.calls", {"cudaEventRecord", "cuEventRecord_ptsz", "cudaEventRecordWithFlags"}),
        ("host.register.bytes", {"cudaHostRegister", "cuMemHostRegister_v2"}),
    ],
)
def test_both_apis_and_all_forms_are_counted(name: str, functions: set[str]) -> None:
    counted = functions_of(f"gpu.cuda.{name}")
    assert functions <= counted
    for other in SIGNALS.metrics:
        if other.apis and other.metric.name != f"gpu.cuda.{name}":
            assert counted.isdisjoint(functions_of(other.metric.name))


@pytest.mark.parametrize(
    "word", ["Synchronize", "StreamCreate", "StreamDestroy", "HostRegister", "EventRecord"]
)
def test_every_observed_function_of_its_kind_is_counted_once(word: str) -> None:
    named = [spec.apis for spec in SIGNALS.metrics if spec.apis]
    apis = CudaDecoder(btf("cuda")).apis.values()
    observed = {api for api in apis if word in api and "Graph" not in api}
    assert len(observed) > 1
    assert {api: sum(api in apis for apis in named) for api in observed} == dict.fromkeys(observed, 1)


def test_only_device_memory_is_allocated() -> None:
    rows = calls(len(Memory), kind=OperationKind.ALLOCATION, size_bytes=5)
    rows["memory"] = list(Memory)
    values = dict(zip(Memory, metric("gpu.cuda.memory.allocations").value(rows).tolist(), strict=True))
    reported = {memory.name for memory, value in values.items() if value}
    assert reported == {"DEVICE", "MANAGED", "POOL", "PHYSICAL"}


@pytest.mark.parametrize("name", ["memory.allocations", "memset.bytes", "host.register.bytes"])
def test_absurd_sizes_do_not_run_over(name: str) -> None:
    rows = calls(3, size_bytes=2**64 - 1)
    rows["memory"] = Memory.DEVICE
    assert metric(f"gpu.cuda.{name}").value(rows).tolist() == [LARGEST_SIZE] * 3


def test_durations_are_of_calls_whose_return_was_seen() -> None:
    timed = {spec.metric.name for spec in SIGNALS.metrics if spec.metric.unit == "s"}
    assert timed == {"gpu.cuda.kernel.launch.host.duration", "gpu.cuda.synchronize.duration"}
    assert all(metric(name).returned for name in timed)


def test_launches_alone_may_be_reported_by_kernel() -> None:
    assert [spec.metric.name for spec in SIGNALS.metrics if spec.by_kernel] == [
        "gpu.cuda.kernel.launch.calls"
    ]


@pytest.mark.parametrize("code", [*range(7), 255, 256, 2**32 - 1])
def test_any_number_has_a_label(code: int) -> None:
    assert copy_name(code).startswith("Memcpy") == (code < 5)
    assert (memory_name(code) == "unknown") == (code not in set(Memory))


def test_what_a_record_does_not_say_is_absent() -> None:
    rows = calls(2, kind=OperationKind.DEVICE)
    rows["device"], rows["extra"] = [-1, 3], [0, NAMES_PEER]
    reported = {
        spec.key: (spec.column(rows) != spec.absent).tolist()
        for spec in SIGNALS.attributes[OperationKind.DEVICE]
        if spec.absent is not None
    }
    assert reported == {
        "cuda.device.requested": [True, False],
        "cuda.device.peer": [False, True],
        "cuda.device.index": [False, True],
    }


def test_spans_have_few_attributes() -> None:
    assert max(len(specs) for kind, specs in SIGNALS.attributes.items() if kind != OperationKind.LAUNCH) <= 4
    assert np.isin([kind.value for kind in SIGNALS.attributes], list(OperationKind)).all()
