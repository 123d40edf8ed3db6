"""The live side of family ``hip``: which profiles it is for."""

from __future__ import annotations

from typing import Final

from otelgpu.model.profiling import DEVICE_PROFILES
from otelgpu.processes.discovery import Discovery, Profiles

RUNTIME: Final = "libamdhip64"
"""Library name of the HIP runtime."""

DISCOVERY: Final = Discovery(
    profiles=Profiles(kinds=frozenset(DEVICE_PROFILES), suggested={RUNTIME: DEVICE_PROFILES})
)
