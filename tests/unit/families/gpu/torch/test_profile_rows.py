"""Allocations and frees of tensors' memory → rows by stack."""

from __future__ import annotations

from collections import Counter

import numpy as np

from otelgpu.engine.call_stacks import WAIT_NS
from otelgpu.engine.profile_rows import ProfileRows
from otelgpu.families.gpu.torch.profile_rows import (
    ALLOCATED,
    ALLOCATIONS,
    DEVICES,
    HOLD_NS,
    IN_USE,
    IN_USE_ALLOCATIONS,
    TensorProfiles,
)
from otelgpu.model.operations import Memory, OperationKind, Operations, concatenate, operations
from otelgpu.model.samples import SampleKind, Samples, samples

CUDA_0, CUDA_1 = 0x0001, 0x0101
TGID, TID = 7, 9
LATER = 10 * HOLD_NS


def call(start_ns: int, address: int, size: int, *, device: int = CUDA_0, free: bool = False) -> Operations:
    row = operations(1)
    row["kind"] = OperationKind.FREE if free else OperationKind.ALLOCATION
    row["start_ns"], row["returned"], row["memory"] = start_ns, 1, Memory.DEVICE
    row["tgid"], row["tid"], row["handle"], row["size_bytes"], row["device"] = (
        TGID,
        TID,
        address,
        size,
        device,
    )
    return row


def stack(start_ns: int, number: int) -> Samples:
    row = samples(1)
    row["kind"], row["time_ns"], row["tid"], row["stack"] = SampleKind.CALL, start_ns, TID, number
    return row


def sums(reported: list[ProfileRows]) -> dict[str, Counter[tuple[int, str]]]:
    """Sample type → (stack, device) → sum."""
    found: dict[str, Counter[tuple[int, str]]] = {}
    for rows in reported:
        into = found.setdefault(rows.sample_type.type, Counter())
        for row in rows.rows:
            label = dict(rows.labels[row["label"] - 1]) if row["label"] else {}
            into[int(row["stack"]), str(label.get("torch.device", ""))] += int(row["value"])
    return found


def test_what_was_given_and_what_is_held_are_reported_by_the_stack_that_asked() -> None:
    profiles = TensorProfiles()
    profiles.see_calls(
        concatenate(
            [
                call(10, 0xA000, 512),
                call(20, 0xB000, 1024, device=CUDA_1),
                call(30, 0xA000, 0, free=True),
                call(40, 0xC000, 2048),
            ]
        )
    )
    profiles.see_samples(np.concatenate([stack(10, 77), stack(20, 88), stack(40, 77)]), 50)
    reported = sums(profiles.take(LATER))
    assert reported == {
        ALLOCATED.type: {(77, "cuda:0"): 2560, (88, "cuda:1"): 1024},
        ALLOCATIONS.type: {(77, "cuda:0"): 2, (88, "cuda:1"): 1},
    }
    assert sums(profiles.held(LATER)) == {
        IN_USE.type: {(77, "cuda:0"): 2048, (88, "cuda:1"): 1024},
        IN_USE_ALLOCATIONS.type: {(77, "cuda:0"): 1, (88, "cuda:1"): 1},
    }
    assert not any(profiles.counters.values())
    assert profiles.take(LATER + 1) == []


def test_a_stack_that_comes_a_little_later_is_waited_for() -> None:
    profiles = TensorProfiles()
    profiles.see_calls(call(LATER - 5, 0xA000, 512))
    assert profiles.take(LATER) == []
    assert profiles.held(LATER) == []
    profiles.see_samples(stack(LATER - 5, 77), LATER + 1)
    assert sums(profiles.take(LATER + HOLD_NS))[ALLOCATED.type] == {(77, "cuda:0"): 512}
    assert sums(profiles.held(LATER))[IN_USE.type] == {(77, "cuda:0"): 512}


def test_an_allocation_whose_stack_does_not_come_is_reported_without_it_and_counted() -> None:
    profiles = TensorProfiles()
    profiles.see_calls(call(10, 0xA000, 512))
    profiles.take(LATER)
    reported = sums(profiles.take(LATER + WAIT_NS))
    assert reported[ALLOCATED.type] == {(0, "cuda:0"): 512}
    assert profiles.counters["calls_without_stack"] == 1


def test_a_free_of_what_was_allocated_before_is_counted_and_holds_nothing() -> None:
    profiles = TensorProfiles()
    profiles.see_calls(call(10, 0xA000, 0, free=True))
    assert profiles.take(LATER) == []
    assert profiles.held(LATER) == []
    assert profiles.counters["free_unknown"] == 1


def test_what_a_process_held_is_free_when_it_ends() -> None:
    profiles = TensorProfiles()
    profiles.see_calls(call(10, 0xA000, 512))
    profiles.see_samples(stack(10, 77), 20)
    profiles.end_process(TGID, 30)
    assert sums(profiles.take(LATER))[ALLOCATED.type] == {(77, "cuda:0"): 512}
    assert profiles.held(LATER) == []


def test_at_the_end_nothing_waits_any_more() -> None:
    profiles = TensorProfiles()
    profiles.see_calls(call(LATER - 1, 0xA000, 512))
    assert sums(profiles.take(LATER, final=True))[ALLOCATED.type] == {(0, "cuda:0"): 512}
    assert sums(profiles.held(LATER))[IN_USE.type] == {(0, "cuda:0"): 512}


def test_more_devices_than_there_can_be_have_no_name() -> None:
    profiles = TensorProfiles()
    many = DEVICES + 2
    profiles.see_calls(
        concatenate([call(10 + n, 0x1000 + 0x1000 * n, 512, device=n << 8 | 1) for n in range(100)])
    )
    profiles.see_calls(
        concatenate([call(1000 + n, 0x1000000 + 0x1000 * n, 512, device=n - 200) for n in range(many - 100)])
    )
    reported = sums(profiles.take(LATER, final=True))[ALLOCATED.type]
    assert len(reported) == DEVICES + 1
    assert reported[0, ""] == 2 * 512
    assert sum(sums(profiles.held(LATER))[IN_USE.type].values()) == many * 512
