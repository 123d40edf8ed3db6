"""Numbers of NCCL in words. Source: nccl.h of 2.18 to 2.32."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

RESULTS: Final[Mapping[int, str]] = {
    0: "ncclSuccess",
    1: "ncclUnhandledCudaError",
    2: "ncclSystemError",
    3: "ncclInternalError",
    4: "ncclInvalidArgument",
    5: "ncclInvalidUsage",
    6: "ncclRemoteError",
    7: "ncclInProgress",
    8: "ncclTimeout",
}
IN_PROGRESS: Final = 7
"""A non-blocking communicator goes on by itself: no error."""

DATATYPES: Final[Mapping[int, tuple[str, int]]] = {
    0: ("int8", 1),
    1: ("uint8", 1),
    2: ("int32", 4),
    3: ("uint32", 4),
    4: ("int64", 8),
    5: ("uint64", 8),
    6: ("float16", 2),
    7: ("float32", 4),
    8: ("float64", 8),
    9: ("bfloat16", 2),
    10: ("float8e4m3", 1),
    11: ("float8e5m2", 1),
}
"""ncclDataType_t → name, bytes of an element."""

REDUCTIONS: Final[Mapping[int, str]] = {0: "sum", 1: "prod", 2: "max", 3: "min", 4: "avg", 5: "custom"}
"""ncclRedOp_t → name; ``custom`` stands for those that a program has made (NCCL_REDUCTION_OF_OWN)."""

NONE: Final = 255
"""NCCL_NO_TYPE and NCCL_NO_REDUCTION of bpf/nccl/nccl.h."""


def result_name(_api: str, code: int) -> str:
    """The enumerator that ``code`` is; one that is not known is ``ncclResult_t(<code>)``."""
    return RESULTS.get(code, f"ncclResult_t({code})")


def datatype_name(code: int) -> str:
    """``nccl.datatype``: the elements' type; ``""`` of calls that move none."""
    if code == NONE:
        return ""
    return DATATYPES[code][0] if code in DATATYPES else f"ncclDataType_t({code})"


def reduction_name(code: int) -> str:
    """``nccl.reduction``; ``""`` of calls that reduce nothing."""
    return REDUCTIONS.get(code, "")
