"""``struct cuda_*`` → operations, on the layouts of the built object."""

from __future__ import annotations

import numpy as np
import pytest

from otelgpu.families.cuda.decode import CudaDecoder
from otelgpu.model.inputs import Batch
from otelgpu.model.operations import CopyDirection, OperationKind
from tests.unit.families.records import btf, record

HEAD = {
    "time_ns": 10,
    "duration_ns": 5,
    "tgid": 100,
    "tid": 101,
    "cgroup_id": 7,
    "returned": 1,
    "trace_flags": 1,
    "context_source": 1,
    "trace_id": np.arange(16),
    "span_id": np.arange(8),
}
DECODER = CudaDecoder(btf("cuda"))


def decoded(kind: str, **fields: object) -> np.void:
    (row,) = DECODER.decode(record("cuda", kind, HEAD, **fields))
    return row


def test_every_kind_of_the_header_is_decoded() -> None:
    kinds = btf("cuda").enumerators("cuda_kind")
    found = {kind: DECODER.decode(record("cuda", kind.lower(), HEAD)) for kind in kinds}
    expected = {f"CUDA_{kind.name}": [kind] for kind in OperationKind} | {"CUDA_KERNEL": []}
    assert {kind: rows["kind"].tolist() for kind, rows in found.items()} == expected


def test_the_head_is_taken_over() -> None:
    row = decoded("cuda_free")
    for name in ("duration_ns", "tgid", "tid", "cgroup_id", "returned", "trace_flags", "context_source"):
        assert row[name] == HEAD[name]
    assert (row["start_ns"], row["trace_id"].tolist(), row["span_id"].tolist()) == (
        10,
        list(range(16)),
        list(range(8)),
    )


def test_a_launch() -> None:
    fields = {"function": 1, "stream": 2, "shared_bytes": 3, "grid": (4, 5, 6), "block": (7, 8, 9)}
    row = decoded("cuda_launch", status=98, api=2, **fields)
    assert {name: row[name].tolist() for name in ("grid", "block")} == {"grid": [4, 5, 6], "block": [7, 8, 9]}
    assert (row["function"], row["stream"], row["shared_bytes"], row["status"], row["api"]) == (
        1,
        2,
        3,
        98,
        2,
    )


def test_a_graph_launch() -> None:
    row = decoded("cuda_graph_launch", graph=5, stream=6)
    assert (row["handle"], row["stream"]) == (5, 6)


def test_an_allocation_a_free_and_a_wait() -> None:
    assert decoded("cuda_allocation", pointer=5, bytes=2**40)[["handle", "size_bytes"]].tolist() == (5, 2**40)
    assert decoded("cuda_free", pointer=5)["handle"] == 5
    assert decoded("cuda_synchronization", object=2**63)["handle"] == 2**63


@pytest.mark.parametrize("direction", [0, 1, 2, 3, 4])
def test_a_copys_direction_is_that_of_the_runtime(direction: int) -> None:
    row = decoded("cuda_copy", bytes=9, stream=2, direction=direction)
    assert (CopyDirection(int(row["direction"])), row["size_bytes"], row["stream"]) == (direction, 9, 2)


@pytest.mark.parametrize("direction", [5, 254, 255, 256, 257, 2**31, 2**32 - 1])
def test_a_direction_that_there_is_not_is_unknown(direction: int) -> None:
    assert decoded("cuda_copy", direction=direction)["direction"] == CopyDirection.UNKNOWN


def test_many_records_keep_their_order() -> None:
    records = np.concatenate([record("cuda", "cuda_free", HEAD, pointer=i).records for i in range(9)])
    rows = DECODER.decode(Batch(family="cuda", kind="cuda_free", records=records))
    assert rows["handle"].tolist() == list(range(9))


def test_functions_have_their_exported_names() -> None:
    assert DECODER.apis[1] == "cudaLaunchKernel"
    assert all(name.removeprefix("__").startswith("cuda") for name in DECODER.apis.values())


def test_a_kind_that_the_header_does_not_have_is_an_error() -> None:
    launch = record("cuda", "cuda_launch", HEAD)
    with pytest.raises(KeyError):
        DECODER.decode(Batch(family="cuda", kind="cuda_new", records=launch.records))
