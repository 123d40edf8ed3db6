"""Keys of attributes that are reported of NCCL's calls here, and of whole collectives in ``otelgpu.signals``."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from otelgpu.engine.names import COLLECTIVE_BYTES, COMMUNICATOR_HASH

SCOPE: Final = "otelgpu.nccl"
HASH: Final = COMMUNICATOR_HASH

RANK: Final = "nccl.rank"
RANKS: Final = "nccl.communicator.ranks"
OPERATION: Final = "nccl.operation"
"""The function without its vendor's prefix and its variants: ``AllReduce``."""

BYTES: Final = COLLECTIVE_BYTES
"""Bytes of a rank's message, as its call gives them: elements times their size."""

_PLAIN: Final = re.compile(r"p?nccl(\w+?)(?:Config)?")
_SAME: Final = {"Bcast": "Broadcast"}
_OTHERS: Final = re.compile(r"(?:gloo::|MPI_)(\w+)")
_NAMES: Final = {
    **{"allreduce": "AllReduce", "broadcast": "Broadcast", "reduce": "Reduce", "barrier": "Barrier"},
    **{"allgather": "AllGather", "gather": "Gather", "scatter": "Scatter", "alltoall": "AlltoAll"},
    **{"allgatherv": "AllGather", "gatherv": "Gather", "alltoallv": "AlltoAll"},
    **{"send": "Send", "recv": "Recv", "ssend": "Send", "bcast": "Broadcast", "scatterv": "Scatter"},
    **dict.fromkeys(("reduce_scatter", "reduce_scatter_block"), "ReduceScatter"),
}


@lru_cache(maxsize=256)
def operation_of(call: str) -> str:
    """``nccl.operation`` of an exported name: ``ncclAllReduceConfig`` is AllReduce's, ``ncclBcast`` Broadcast's.

    >>> operation_of("ncclCommInitRankConfig")
    'CommInitRankConfig'
    >>> operation_of("gloo::allreduce")
    'AllReduce'
    >>> operation_of("MPI_Reduce_scatter")
    'ReduceScatter'
    """
    if found := _OTHERS.fullmatch(call):
        return _NAMES.get(found[1].lower(), found[1])
    if call.startswith("ncclComm"):
        return call.removeprefix("nccl")
    found = _PLAIN.fullmatch(call)
    name = found[1] if found else call
    return _SAME.get(name, name)
