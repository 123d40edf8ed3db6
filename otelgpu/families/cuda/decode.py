"""``struct cuda_*`` records → operations. Pure; one function per kind of record."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from otelgpu.families.base import fill_from_head
from otelgpu.layout.btf import Btf
from otelgpu.model.inputs import Batch, Records
from otelgpu.model.operations import CopyDirection, OperationKind, Operations, operations

_PREFIX = "API_"


class CudaDecoder:
    """Decodes batches of family ``cuda``. ``btf`` tells the API functions' numbers."""

    def __init__(self, btf: Btf) -> None:
        self.apis: Mapping[int, str] = {
            number: name.removeprefix(_PREFIX) for name, number in btf.enumerators("cuda_api").items()
        }

    def decode(self, batch: Batch) -> Operations:
        """Shape (n,) for n records, in order; (0,) for records that are no calls of their own.

        Raises KeyError on a kind that the header does not have.
        """
        if batch.kind == "cuda_kernel":
            return operations(0)
        rows = operations(len(batch.records))
        kind, fill = _KINDS[batch.kind]
        fill_from_head(rows, batch.records, kind)
        rows["api"] = batch.records["api"]
        rows["status"] = batch.records["status"]
        fill(rows, batch.records)
        return rows


def _launch(rows: Operations, records: Records) -> None:
    for column in ("function", "stream", "shared_bytes", "grid", "block"):
        rows[column] = records[column]


def _graph_launch(rows: Operations, records: Records) -> None:
    rows["handle"] = records["graph"]
    rows["stream"] = records["stream"]


def _copy(rows: Operations, records: Records) -> None:
    rows["size_bytes"] = records["bytes"]
    rows["stream"] = records["stream"]
    direction = records["direction"]
    # enum cudaMemcpyKind has CopyDirection's values; a caller may pass anything.
    rows["direction"] = direction.clip(max=CopyDirection.UNKNOWN)
    rows["direction"][direction > CopyDirection.DEFAULT] = CopyDirection.UNKNOWN


def _allocation(rows: Operations, records: Records) -> None:
    rows["handle"] = records["pointer"]
    rows["size_bytes"] = records["bytes"]


def _free(rows: Operations, records: Records) -> None:
    rows["handle"] = records["pointer"]


def _synchronization(rows: Operations, records: Records) -> None:
    rows["handle"] = records["object"]


_KINDS: dict[str, tuple[OperationKind, Callable[[Operations, Records], None]]] = {
    "cuda_launch": (OperationKind.LAUNCH, _launch),
    "cuda_graph_launch": (OperationKind.GRAPH_LAUNCH, _graph_launch),
    "cuda_copy": (OperationKind.COPY, _copy),
    "cuda_allocation": (OperationKind.ALLOCATION, _allocation),
    "cuda_free": (OperationKind.FREE, _free),
    "cuda_synchronization": (OperationKind.SYNCHRONIZATION, _synchronization),
}
