"""``struct cuda_call`` → operations, on the layout of the built object and on layouts that are not its."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from otelgpu.elf.btf import BtfError
from otelgpu.engine.contract import ContextStep
from otelgpu.families.gpu.cuda.decode import NAMES_PEER, CudaDecoder
from otelgpu.model.operations import DEVICE_KINDS, OPERATION, CopyDirection, Memory, OperationKind
from tests.unit.families.records import btf, record, together

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


@pytest.fixture(scope="module")
def decoder() -> CudaDecoder:
    return CudaDecoder(btf("cuda"))


def decoded(kind: str, **fields: object) -> np.void:
    (row,) = CudaDecoder(btf("cuda")).decode(record("cuda", kind, HEAD, **fields))
    return row


def api(name: str) -> int:
    return btf("cuda").enumerators("cuda_api")[f"API_{name}"]


# -- calls -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", DEVICE_KINDS)
def test_every_kind_of_call_is_an_operation(kind: OperationKind) -> None:
    assert decoded(f"cuda_{kind.name.lower()}")["kind"] == kind


def test_the_kinds_and_memories_of_the_header_are_those_of_the_model() -> None:
    kinds, memories = btf("cuda").enumerators("cuda_kind"), btf("cuda").enumerators("cuda_memory")
    assert {kind.name: kinds[f"CUDA_{kind.name}"] for kind in DEVICE_KINDS} == {
        k.name: k for k in DEVICE_KINDS
    }
    assert memories == {f"CUDA_MEMORY_{memory.name}": memory for memory in Memory}


@pytest.mark.parametrize("kind", ["cuda_kernel", "cuda_registration"])
def test_what_is_no_call_of_its_own_is_left_out(decoder: CudaDecoder, kind: str) -> None:
    calls = [record("cuda", name, HEAD, object=n) for n, name in enumerate(("cuda_free", kind, "cuda_set"))]
    rows = decoder.decode(together(*calls))
    assert rows["handle"].tolist() == [0, 2]


@pytest.mark.parametrize("kind", [0, 14, 999, 65_535])
def test_a_kind_that_there_is_not_is_left_out(decoder: CudaDecoder, kind: int) -> None:
    batch = record("cuda", "cuda_free", HEAD)
    batch.heads["kind"] = kind
    assert len(decoder.decode(batch)) == 0


def test_names_are_no_calls(decoder: CudaDecoder) -> None:
    assert len(decoder.decode(record("cuda", "cuda_name", HEAD))) == 0


def test_the_head_is_taken_over() -> None:
    row = decoded("cuda_free")
    for name in ("duration_ns", "tgid", "tid", "cgroup_id", "returned", "trace_flags", "context_source"):
        assert row[name] == HEAD[name]
    trace, span = row["trace_id"].tolist(), row["span_id"].tolist()
    assert (row["start_ns"], trace, span) == (10, list(range(16)), list(range(8)))


def test_a_launch() -> None:
    fields = {"function": 1, "stream": 2, "shared_bytes": 3, "grid": (4, 5, 6), "block": (7, 8, 9)}
    row = decoded("cuda_launch", status=98, api=2, device=-1, **fields)
    assert {name: row[name].tolist() for name in ("grid", "block")} == {"grid": [4, 5, 6], "block": [7, 8, 9]}
    assert row[["function", "stream", "shared_bytes", "status", "api", "device"]].tolist() == (
        1,
        2,
        3,
        98,
        2,
        -1,
    )


def test_an_allocation() -> None:
    fields = {"object": 5, "bytes": 2**40, "extra": 6, "caller": 7, "memory": 4, "stream": 8, "device": 3}
    row = decoded("cuda_allocation", **fields)
    columns = ["handle", "size_bytes", "extra", "caller", "memory", "stream", "device"]
    assert row[columns].tolist() == (5, 2**40, 6, 7, Memory.POOL, 8, 3)


def test_a_mapping_and_a_wait() -> None:
    row = decoded("cuda_mapping", object=1, other=2, bytes=3, extra=4)
    assert row[["handle", "other", "size_bytes", "extra"]].tolist() == (1, 2, 3, 4)
    assert decoded("cuda_synchronization", object=2**63)["handle"] == 2**63


@pytest.mark.parametrize("direction", [0, 1, 2, 3, 4])
def test_a_copys_direction_is_that_of_the_runtime(direction: int) -> None:
    row = decoded("cuda_copy", bytes=9, stream=2, detail=direction)
    assert (CopyDirection(int(row["direction"])), row["size_bytes"], row["stream"]) == (direction, 9, 2)


@pytest.mark.parametrize("direction", [5, 254, 255, 256, 257, 2**31, 2**32 - 1])
def test_a_direction_that_there_is_not_is_unknown(direction: int) -> None:
    assert decoded("cuda_copy", detail=direction)["direction"] == CopyDirection.UNKNOWN
    assert decoded("cuda_allocation", detail=direction)["detail"] == direction


def test_device_0_as_a_peer_is_not_device_0_made_current() -> None:
    chosen = decoded("cuda_device", api=api("cudaSetDevice"), object=0)
    peer = decoded("cuda_device", api=api("cudaDeviceEnablePeerAccess"), other=0)
    assert (chosen["extra"], peer["extra"]) == (0, NAMES_PEER)


def test_records_are_not_changed_by_decoding(decoder: CudaDecoder) -> None:
    batch = record("cuda", "cuda_copy", HEAD, detail=77)
    peer = record("cuda", "cuda_device", HEAD, api=api("cuCtxEnablePeerAccess"))
    decoder.decode(batch), decoder.decode(peer)
    assert (batch.records["detail"][0], peer.records["extra"][0]) == (77, 0)


def test_many_records_keep_their_order(decoder: CudaDecoder) -> None:
    rows = decoder.decode(together(*(record("cuda", "cuda_free", HEAD, object=i) for i in range(9))))
    assert rows["handle"].tolist() == list(range(9))


# -- functions ---------------------------------------------------------------------------------------


def test_functions_have_their_exported_names(decoder: CudaDecoder) -> None:
    assert decoder.apis[api("cudaLaunchKernel")] == "cudaLaunchKernel"
    assert all(name.removeprefix("__").startswith("cu") for name in decoder.apis.values())


def test_functions_are_known_for_what_they_do_to_contexts(decoder: CudaDecoder) -> None:
    steps = {decoder.apis[number]: what for number, what in decoder.context_steps.items()}
    assert steps["cudaDeviceReset"] is ContextStep.RESET_CURRENT
    assert steps["cuCtxDestroy_v2"] is ContextStep.DESTROY
    assert steps["cudaMalloc"] is ContextStep.KEEP
    assert "cuMemAlloc_v2" not in steps


# -- other layouts -----------------------------------------------------------------------------------


class Foreign:
    """Types of an object that another version built."""

    def __init__(self, call: np.dtype[Any]) -> None:
        self._call = call

    def enumerators(self, name: str) -> dict[str, int]:
        return {"API_NONE": 0, "API_cudaFree": 1, "API_COUNT": 2}

    def dtype(self, name: str) -> np.dtype[Any]:
        return self._call


def relaid(head: dict[str, Any] | None = None, **changed: Any) -> np.dtype[Any]:
    """The layout of struct cuda_call with fields moved or retyped: (type, offset), or None to drop one."""

    def edited(layout: np.dtype[Any], changes: dict[str, Any]) -> np.dtype[Any]:
        places = {name: place[:2] for name, place in (layout.fields or {}).items()} | changes
        kept = {name: place for name, place in places.items() if place is not None}
        return np.dtype(
            {
                "names": list(kept),
                "formats": [form for form, _ in kept.values()],
                "offsets": [offset for _, offset in kept.values()],
                "itemsize": max(layout.itemsize, *(o + np.dtype(f).itemsize for f, o in kept.values())),
            }
        )

    call = btf("cuda").dtype("cuda_call")
    if head is not None:
        changed["head"] = (edited(call["head"], head), 0)
    return edited(call, changed)


def test_a_layout_that_is_the_same_is_taken() -> None:
    assert CudaDecoder(Foreign(relaid())).apis == {1: "cudaFree"}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("layout", "reported"),
    [
        ({"status": ("<i4", 116)}, "status"),
        ({"status": ("<u4", 120)}, "status"),
        ({"caller": None}, "caller"),
        ({"grid": (("<u4", 2), 96)}, "grid"),
        ({"head": {"tgid": ("<u4", 20), "tid": ("<u4", 16)}}, "head.tgid, head.tid"),
        ({"head": {"returned": None}}, "head.returned"),
        ({"later": ("<u8", 128)}, "its size differs"),
    ],
)
def test_a_layout_that_is_another_is_refused(layout: dict[str, Any], reported: str) -> None:
    with pytest.raises(BtfError, match="not laid out as an operation") as refused:
        CudaDecoder(Foreign(relaid(**layout)))  # type: ignore[arg-type]
    assert reported in refused.value.message


def test_an_object_without_the_struct_is_refused() -> None:
    with pytest.raises(BtfError):
        CudaDecoder(Foreign(np.dtype([("pointer", "<u8")])))  # type: ignore[arg-type]


def test_an_operation_is_two_cache_lines() -> None:
    assert OPERATION.itemsize == btf("cuda").dtype("cuda_call").itemsize == 128
