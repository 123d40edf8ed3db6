"""What calls, device work and memory become in profiles: values by stack, and names that say what was measured."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from otelgpu.engine.call_stacks import WAIT_NS, CallStacks
from otelgpu.engine.operation_spans import Vocabulary
from otelgpu.engine.profile_rows import ProfileRows
from otelgpu.families.gpu.cuda.signals import SIGNALS as CUDA
from otelgpu.families.gpu.memory.ledger import MemoryLedger
from otelgpu.families.gpu.memory.profile_rows import IN_USE, IN_USE_ALLOCATIONS, LEVELS, MemoryProfiles
from otelgpu.families.nccl.signals import SIGNALS as NCCL
from otelgpu.families.profiles.operations import OperationProfiles, size_classes
from otelgpu.model.device_work import DEVICE_WORK, DeviceWork, Work
from otelgpu.model.operations import Memory, OperationKind, Operations, concatenate, operations
from otelgpu.model.profiles import FrameType
from otelgpu.model.profiling import CALL_KINDS, POSTS, TENSORS, ProfileKind, stack_kinds
from otelgpu.model.samples import SampleKind, Samples, samples
from tests.unit.families.gpu.memory.memory_calls import Decoder, allocation, free

TID, OTHER_TID = 9, 8
CUDA_FAMILY, NCCL_FAMILY = 0, 1
LAUNCH, COPY, ALL_REDUCE = 11, 12, 13


class Functions(Decoder):
    """Names of the functions that are called here."""

    apis: Mapping[int, str] = {
        **Decoder.apis,
        LAUNCH: "cudaLaunchKernel",
        COPY: "cudaMemcpyAsync",
        ALL_REDUCE: "ncclAllReduce",
    }


VOCABULARY = Vocabulary(
    families=[(Functions(), CUDA), (Functions(), NCCL)],
    kernels=["unknown", "void flash_fwd<64>(Params)", "gemm(int)"],
    short_kernels=["unknown", "flash_fwd", "gemm"],
)


def profiles(*kinds: ProfileKind) -> OperationProfiles:
    return OperationProfiles(kinds, CallStacks(), VOCABULARY)


def taken(start_ns: int, stack: int, tid: int = TID, **columns: Any) -> Samples:
    row = samples(1)
    row["kind"], row["time_ns"], row["tid"], row["stack"], row["tgid"] = (
        SampleKind.CALL,
        start_ns,
        tid,
        stack,
        1,
    )
    row["other"] = columns.pop("family", 1) << 32
    for name, value in columns.items():
        row[name] = value
    return row


def call(kind: OperationKind, start_ns: int, duration_ns: int = 0, **columns: Any) -> Operations:
    row = operations(1)
    row["kind"], row["start_ns"], row["duration_ns"] = kind, start_ns, duration_ns
    row["tgid"], row["tid"], row["returned"] = 1, TID, int(duration_ns > 0)
    for name, value in columns.items():
        row[name] = value
    return row


def launch(start_ns: int, duration_ns: int = 0, **columns: Any) -> Operations:
    return call(OperationKind.LAUNCH, start_ns, duration_ns, api=LAUNCH, **columns)


def work(call_ns: int, duration_ns: int, **columns: Any) -> DeviceWork:
    row: DeviceWork = np.zeros(1, dtype=DEVICE_WORK)
    row["start_ns"], row["tid"], row["tgid"], row["duration_ns"] = call_ns, TID, 1, duration_ns
    row["work"], row["device_start_ns"] = Work.KERNEL, call_ns + 50
    for name, value in columns.items():
        row[name] = value
    return row


def values(rows: Collection[ProfileRows]) -> dict[str, Counter[tuple[Any, ...]]]:
    """Sample type → (stack, its leaf's name or attributes) → sum."""
    found: dict[str, Counter[tuple[Any, ...]]] = {}
    for part in rows:
        sums = found.setdefault(part.sample_type.type, Counter())
        for row in part.rows:
            more: list[str | int] = []
            if row["leaf"]:
                more += [frame.name for frame in part.leaves[int(row["leaf"]) - 1]]
            if row["label"]:
                more += [value for _, value in part.labels[int(row["label"]) - 1]]
            sums[int(row["stack"]), *more] += int(row["value"])
    return found


def test_calls_are_counted_and_timed_by_stack_with_what_they_were_called_with() -> None:
    made = profiles(ProfileKind.CUDA)
    made.see_samples(np.concatenate([taken(100, 7), taken(200, 7), taken(300, 8), taken(400, 8)]), 500)
    made.see_calls(launch(100, 5, name=1))
    made.see_calls(launch(200, 6, name=1))
    made.see_calls(call(OperationKind.COPY, 300, 70, api=COPY, size_bytes=4096))
    made.see_calls(call(OperationKind.COPY, 400, 0, api=COPY, size_bytes=4097))
    assert values(made.take(500)) == {
        "cuda_calls": {
            (7, "cudaLaunchKernel", "flash_fwd"): 2,
            (8, "cudaMemcpyAsync", "<=4KiB"): 1,
            (8, "cudaMemcpyAsync", "<=64KiB"): 1,
        },
        "cuda_time": {(7, "cudaLaunchKernel", "flash_fwd"): 11, (8, "cudaMemcpyAsync", "<=4KiB"): 70},
    }


def test_launches_are_called_launches_and_never_time_on_the_device() -> None:
    made = profiles(ProfileKind.KERNEL)
    made.see_samples(np.concatenate([taken(100, 7), taken(200, 7)]), 500)
    made.see_calls(launch(100, 5, name=1))
    made.see_calls(call(OperationKind.GRAPH_LAUNCH, 200, 9, handle=5))
    rows = made.take(500)
    assert values(rows) == {
        "kernel_launches": {(7, "launch: flash_fwd"): 1, (7, "launch: graph"): 1},
        "kernel_launch_time": {(7, "launch: flash_fwd"): 5, (7, "launch: graph"): 9},
    }
    assert {frame.type for part in rows for leaf in part.leaves for frame in leaf} == {FrameType.NATIVE}


def test_time_on_the_device_goes_under_the_stack_that_launched_it_also_seconds_later() -> None:
    made = profiles(ProfileKind.KERNEL)
    made.see_samples(taken(100, 7), 500)
    made.see_calls(launch(100, 5, name=1))
    made.take(500)
    made.see_work(work(100, 900_000, name=1))
    made.see_work(work(100, 100_000, name=1))
    made.see_work(work(100, 50, name=0, work=Work.COPY))
    rows = made.take(9_000_000_000)
    assert values(rows) == {"gpu_kernel_time": {(7, "GPU: flash_fwd"): 1_000_000}}
    assert {frame.type for part in rows for leaf in part.leaves for frame in leaf} == {FrameType.GPU}
    assert rows[0].rows["time_ns"].tolist() == [150, 150], "when it ran on the device"


def test_allocated_bytes_are_those_that_were_given() -> None:
    made = profiles(ProfileKind.MEM)
    made.see_samples(np.concatenate([taken(at, 7) for at in (10, 20, 30, 40)]), 500)
    device = {"memory": Memory.DEVICE, "device": 0, "tid": TID}
    for row in (
        call(OperationKind.ALLOCATION, 10, 1, size_bytes=100, **device),
        call(OperationKind.ALLOCATION, 20, 1, size_bytes=7, status=2, **device),
        call(OperationKind.ALLOCATION, 30, 1, size_bytes=1 << 60, **device),
        call(OperationKind.ALLOCATION, 40, 1, size_bytes=9, memory=Memory.ADDRESS),
        call(OperationKind.FREE, 50, 1),
    ):
        made.see_calls(row)
    assert values(made.take(500)) == {
        "device_memory_allocated": {(7, "device", 0): 100},
        "device_memory_allocations": {(7, "device", 0): 1},
    }


def test_memory_in_use_is_what_the_ledger_holds_under_each_stack() -> None:
    stacks = CallStacks()
    ledger = MemoryLedger([Decoder()], stacks=stacks.stacks_of)
    for start, stack in ((1, 7), (3, 8), (5, 7), (7, 8)):
        stacks.add(taken(start, stack, tid=1), 0)
    ledger.add(
        concatenate(
            [
                allocation(1, at=1, size=100),
                allocation(3, at=2, size=20),
                allocation(5, at=3, size=3, memory=Memory.MANAGED),
                allocation(7, at=4, size=1),
                free(9, at=2),
            ]
        )
    )
    ledger.settle(50)
    assert values(MemoryProfiles(ledger, [CUDA.memory]).held(50)) == {
        "device_memory_in_use": {(7, "device", 0): 100, (7, "managed", 0): 3, (8, "device", 0): 1},
        "device_memory_in_use_allocations": {(7, "device", 0): 1, (7, "managed", 0): 1, (8, "device", 0): 1},
    }
    assert {IN_USE, IN_USE_ALLOCATIONS} == LEVELS


def test_collectives_have_calls_time_and_bytes() -> None:
    made = profiles(ProfileKind.NCCL)
    made.see_samples(np.concatenate([taken(100, 7, family=2), taken(200, 7, family=2)]), 500)
    collective = {"family": NCCL_FAMILY, "api": ALL_REDUCE, "size_bytes": 4096}
    made.see_calls(call(OperationKind.COLLECTIVE, 100, 30, **collective))
    made.see_calls(call(OperationKind.COLLECTIVE, 200, 40, status=5, **collective))
    made.see_calls(launch(300, 5))
    assert values(made.take(500)) == {
        "nccl_calls": {(7, "ncclAllReduce"): 2},
        "nccl_time": {(7, "ncclAllReduce"): 70},
        "nccl_bytes": {(7, "ncclAllReduce"): 4096},
    }


def test_a_call_whose_stack_does_not_come_is_reported_without_it() -> None:
    made = profiles(ProfileKind.CUDA)
    made.see_calls(launch(100, 5, name=1))
    assert made.take(500) == []
    assert values(made.take(500 + WAIT_NS))["cuda_calls"] == {(0, "cudaLaunchKernel", "flash_fwd"): 1}


def test_kinds_that_were_not_asked_for_are_passed_over() -> None:
    made = profiles(ProfileKind.NCCL)
    made.see_samples(taken(100, 7), 500)
    made.see_calls(launch(100, 5, name=1))
    made.see_work(work(100, 9))
    assert made.take(500 + WAIT_NS) == []


def test_rows_may_be_changed_after_they_were_seen() -> None:
    made = profiles(ProfileKind.CUDA)
    made.see_samples(taken(100, 7), 500)
    rows = launch(100, 5, name=1)
    made.see_calls(rows)
    rows["duration_ns"] = 99
    assert values(made.take(500))["cuda_time"] == {(7, "cudaLaunchKernel", "flash_fwd"): 5}


def test_absurd_numbers_stay_numbers() -> None:
    made = profiles(ProfileKind.CUDA, ProfileKind.KERNEL)
    most = 2**64 - 1
    made.see_samples(taken(100, 7), 0)
    made.see_calls(call(OperationKind.COPY, 100, most, api=9999, size_bytes=most))
    made.see_work(work(100, most, name=0))
    rows = made.take(500, final=True)
    assert all((part.rows["value"] > 0).all() for part in rows)
    assert values(rows)["cuda_calls"] == {(7, "api 9999", ">64GiB"): 1}


@pytest.mark.parametrize(
    ("size", "expected"),
    [(0, 0), (1, 1), (16, 1), (17, 2), (4096, 3), (4097, 4), (1 << 36, 9), (2**64 - 1, 10)],
)
def test_a_size_is_in_the_class_of_the_least_power_of_16_that_holds_it(size: int, expected: int) -> None:
    assert size_classes(np.array([size], dtype=np.uint64)).tolist() == [expected]


def test_the_stacks_that_a_kind_needs_are_those_of_its_calls() -> None:
    assert stack_kinds(()) == stack_kinds((ProfileKind.CPU,)) == 0
    assert stack_kinds((ProfileKind.MEM,)) == 1 << OperationKind.ALLOCATION | 1 << TENSORS
    assert stack_kinds((ProfileKind.VERBS,)) == 1 << POSTS
    launches = 1 << OperationKind.LAUNCH | 1 << OperationKind.GRAPH_LAUNCH
    assert stack_kinds(CALL_KINDS, launches=False) == stack_kinds(CALL_KINDS) & ~launches
    assert stack_kinds((ProfileKind.KERNEL,), launches=False) == 0


def test_without_launches_other_calls_are_reported_as_before() -> None:
    made = OperationProfiles((ProfileKind.CUDA, ProfileKind.KERNEL), CallStacks(), VOCABULARY, launches=False)
    made.see_samples(taken(300, 8), 500)
    made.see_calls(launch(100, 5, name=1))
    made.see_calls(call(OperationKind.COPY, 300, 70, api=COPY, size_bytes=4096))
    assert values(made.take(500)) == {
        "cuda_calls": {(8, "cudaMemcpyAsync", "<=4KiB"): 1},
        "cuda_time": {(8, "cudaMemcpyAsync", "<=4KiB"): 70},
    }
    assert stack_kinds(CALL_KINDS) >> OperationKind.FILE & 1 == 0
    assert 0 < stack_kinds(CALL_KINDS) < 1 << 32


def test_the_numbers_are_those_of_the_programs() -> None:
    header = (Path(__file__).resolve().parents[4] / "bpf" / "lib" / "call_stacks.h").read_text()
    assert re.search(rf"#define STACK_POSTS +{POSTS}\b", header)
    assert re.search(rf"#define STACK_TENSORS +{TENSORS}\b", header)
