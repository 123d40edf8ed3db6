"""Keys of attributes that are told of NCCL's calls here, and of whole collectives in ``otelgpu.signals``."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

SCOPE: Final = "otelgpu.nccl"
HASH: Final = "nccl.communicator.hash"
"""The communicator's ``commHash`` in hexadecimal: the same on all ranks, and in NCCL's own logs."""

RANK: Final = "nccl.rank"
RANKS: Final = "nccl.communicator.ranks"
OPERATION: Final = "nccl.operation"
"""The function without its vendor's prefix and its variants: ``AllReduce``."""

BYTES: Final = "nccl.message.size"
"""Bytes of a rank's message, as its call gives them: elements times their size."""

_PLAIN: Final = re.compile(r"p?nccl(\w+?)(?:Config)?")
_SAME: Final = {"Bcast": "Broadcast"}


@lru_cache(maxsize=256)
def operation_of(call: str) -> str:
    """``nccl.operation`` of an exported name: ``ncclAllReduceConfig`` is AllReduce's, ``ncclBcast`` Broadcast's.

    >>> operation_of("ncclCommInitRankConfig")
    'CommInitRankConfig'
    """
    if call.startswith("ncclComm"):
        return call.removeprefix("nccl")
    found = _PLAIN.fullmatch(call)
    name = found[1] if found else call
    return _SAME.get(name, name)


def hash_text(code: int) -> str:
    """``nccl.communicator.hash``; 0 is that of a communicator that could not be read."""
    return f"{code:016x}" if code else "unknown"
