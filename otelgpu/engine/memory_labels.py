"""Kinds of memory on profiles, whoever reports them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from otelgpu.engine.memory_names import MemoryNames
from otelgpu.engine.profile_rows import Label
from otelgpu.model.operations import DEVICE_MEMORY, DEVICE_UNKNOWN, HOST_MEMORY, memory_name

KEPT: Final = DEVICE_MEMORY | HOST_MEMORY
"""Kinds of memory that profiles count."""


def memory_label(memory: int, device: int, names: MemoryNames | None) -> Label:
    """Attributes of memory of a kind on a device, by the names of the family that made it; none without."""
    if names is None:
        return ()
    place: Mapping[str, int] = {} if device == DEVICE_UNKNOWN else {names.device: device}
    return ((names.kind, memory_name(memory)), *place.items())
