"""``hipError_t`` by number: ``hip_runtime_api.h`` of ROCm 6, those that its calls for memory and work give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

RESULTS: Final[Mapping[int, str]] = {
    0: "hipSuccess",
    1: "hipErrorInvalidValue",
    2: "hipErrorOutOfMemory",
    3: "hipErrorNotInitialized",
    98: "hipErrorInvalidDeviceFunction",
    100: "hipErrorNoDevice",
    101: "hipErrorInvalidDevice",
    400: "hipErrorInvalidHandle",
    600: "hipErrorNotReady",
    700: "hipErrorIllegalAddress",
    719: "hipErrorLaunchFailure",
    999: "hipErrorUnknown",
}


def result_name(api: str, code: int) -> str:
    """The enumerator that ``code`` is; one that is not known is ``hipError_t(<code>)``."""
    return RESULTS.get(code, f"hipError_t({code})")
