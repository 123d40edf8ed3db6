"""Records of family torch → calls on an allocator, and levels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from otelgpu.elf.btf import Btf
from otelgpu.families.gpu.torch.decode import TorchDecoder
from otelgpu.kernel.loader import read_image
from otelgpu.model.inputs import Batch
from otelgpu.model.operations import Memory, OperationKind


@pytest.fixture(scope="module")
def btf() -> Btf:
    return read_image("torch").btf


def batch(btf: Btf, kind: str, *rows: dict[str, Any]) -> Batch:
    records = np.zeros(len(rows), btf.dtype(kind))
    for record, fields in zip(records, rows, strict=True):
        for path, value in fields.items():
            *parents, name = path.split(".")
            into = record
            for parent in parents:
                into = into[parent]
            into[name] = value
    return Batch(family="torch", kind=kind, records=records)


def test_bytes_that_are_negative_are_a_free(btf: Btf) -> None:
    head = {"head.time_ns": 100, "head.tgid": 7, "head.tid": 9, "head.span_id": 5}
    calls = TorchDecoder().tensor_calls(
        batch(
            btf,
            "torch_memory",
            {**head, "address": 0xA000, "bytes": 512, "device": 0x0201},
            {**head, "address": 0xA000, "bytes": -512, "device": 0xFF4D},
        )
    )
    assert calls["kind"].tolist() == [OperationKind.ALLOCATION, OperationKind.FREE]
    assert calls["size_bytes"].tolist() == [512, 0]
    assert calls["device"].tolist() == [0x0201, 0xFF4D - 0x10000]
    assert set(calls["handle"].tolist()) == {0xA000}
    assert set(calls["memory"].tolist()) == {Memory.DEVICE}
    assert calls["returned"].tolist() == [1, 1]
    assert (calls["start_ns"] == 100).all() and (calls["duration_ns"] == 0).all()
    assert (calls["tgid"] == 7).all() and (calls["tid"] == 9).all() and calls["span_id"].any()


def test_levels_are_those_of_the_kernel(btf: Btf) -> None:
    names = btf.dtype("torch_totals").names or ()
    numbers = {f"totals.{name}": place for place, name in enumerate(names, 1)}
    (level,) = TorchDecoder().levels(
        batch(btf, "torch_levels", {"head.time_ns": 5, "head.tgid": 7, "key.device": 0xFF01, **numbers})
    )
    assert [level["time_ns"], level["tgid"], level["device"]] == [5, 7, -255]
    assert [int(level[name]) for name in names] == list(range(1, len(names) + 1))


def test_each_takes_its_own_batches_only(btf: Btf) -> None:
    decoder = TorchDecoder()
    assert not len(decoder.tensor_calls(batch(btf, "torch_levels", {"key.device": 1})))
    assert not len(decoder.levels(batch(btf, "torch_memory", {"bytes": 1})))
