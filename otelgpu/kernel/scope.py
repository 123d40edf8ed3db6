"""Which processes the programs record, as the maps of the process family have it."""

from __future__ import annotations

import os
import struct
from pathlib import Path

from otelgpu.errors import OtelgpuError
from otelgpu.kernel.libbpf import BpfError
from otelgpu.kernel.loader import LoadedFamily


def put_cgroup(process: LoadedFamily, slot: int, directory: Path) -> None:
    """Bring what is in a cgroup v2 ``directory`` into scope. Raises :class:`OtelgpuError` where it is none."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise OtelgpuError(f"cannot open cgroup {directory}: {error.strerror}") from error
    try:
        process.map("scope_cgroups").put(struct.pack("<I", slot), struct.pack("<i", descriptor))
    except BpfError as error:
        raise OtelgpuError(
            f"{directory} is not a cgroup v2 directory: {error.message}",
            "give a directory of the unified hierarchy",
        ) from error
    finally:
        os.close(descriptor)
