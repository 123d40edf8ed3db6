"""What a library that is loaded into a running process is asked for: ``struct live_request`` of ``inject/memory.h``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import numpy as np

from otelgpu.elf.btf import Btf
from otelgpu.errors import OtelgpuError

LIVE_FUNCTION: Final = "otelgpu_live_begin"
"""Of the library; it is given the request, and answers with ``enum live_answer``."""


def live_request(layout: Btf, socket: Path) -> bytes:
    """Connect at ``socket``, measure with the defaults. Raises OtelgpuError: the path is too long."""
    numbers, request = layout.enumerators("inject_number"), np.zeros(1, layout.dtype("live_request"))
    path = os.fsencode(socket)
    if len(path) >= request["socket"].shape[1]:
        raise OtelgpuError(f"the socket's path is too long: {socket}", hint="set TMPDIR to a shorter one")
    request["magic"], request["version"] = numbers["INJECT_MAGIC"], numbers["INJECT_VERSION"]
    request["socket"][0, : len(path)] = np.frombuffer(path, dtype=np.uint8)
    return request.tobytes()
