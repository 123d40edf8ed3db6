"""What the name of a CUDA function reports: whose it is, which of its forms, what it does to contexts.

In: exported names. Out: facts about them. Pure; the functions themselves are listed in bpf/cuda/calls.h.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from otelgpu.engine.contract import ContextStep

_FORM: Final = re.compile(r"(?:_v\d+)?(?:_pt(?:sz|ds))?$")
_DRIVER: Final = re.compile(r"cu[A-Z]")


@lru_cache(maxsize=1024)  # four hundred functions, of which every rule of a metric asks
def canonical(name: str) -> str:
    """Without the ending of a version (``_v2``) or of per-thread default streams (``_ptsz``, ``_ptds``)."""
    return _FORM.sub("", name, count=1)


def is_driver(name: str) -> bool:
    """Whether it is the driver's (``cuMemAlloc``), not the runtime's (``cudaMalloc``, ``__cudaRegister…``)."""
    return _DRIVER.match(name) is not None


def api_level(name: str) -> str:
    """``cuda.api`` of a function."""
    return "driver" if is_driver(name) else "runtime"


class Functions:
    """A set of functions, named without the endings of their forms: holds ``cuMemFree_v2`` for ``cuMemFree``.

    >>> "cuStreamSynchronize_ptsz" in Functions("cudaStreamSynchronize", "cuStreamSynchronize")
    True
    """

    def __init__(self, *names: str) -> None:
        self.names = frozenset(names)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and canonical(name) in self.names


PEER_ACCESS: Final = Functions(
    *("cudaDeviceEnablePeerAccess", "cudaDeviceDisablePeerAccess"),
    *("cuCtxEnablePeerAccess", "cuCtxDisablePeerAccess"),
)
"""Functions that name another device or context, and make none current."""

CONTEXT_STEPS: Final[Mapping[str, ContextStep]] = {
    "cuCtxCreate": ContextStep.CREATE,
    "cuCtxDestroy": ContextStep.DESTROY,
    "cuCtxSetCurrent": ContextStep.SELECT,
    "cuCtxPushCurrent": ContextStep.PUSH,
    "cuCtxPopCurrent": ContextStep.POP,
    "cudaSetDevice": ContextStep.SELECT_DEVICE,
    "cudaDeviceReset": ContextStep.RESET_CURRENT,
    "cudaThreadExit": ContextStep.RESET_CURRENT,
    "cuDevicePrimaryCtxReset": ContextStep.RESET_DEVICE,
    "cuDevicePrimaryCtxRetain": ContextStep.RETAIN_DEVICE,
    "cuDevicePrimaryCtxRelease": ContextStep.RELEASE_DEVICE,
}
"""Canonical name → what the function does to contexts."""


def context_step(name: str) -> ContextStep | None:
    """What a function does to contexts; the runtime retains the primary one at its first use."""
    return CONTEXT_STEPS.get(canonical(name), None if is_driver(name) else ContextStep.KEEP)
