"""The live side of family ``sched``: which profiles it is for, and in how large a ring."""

from __future__ import annotations

from typing import Final

from otelgpu.model.profiling import CALL_KINDS
from otelgpu.processes.discovery import FEW_RECORDS, Discovery, Profiles

DISCOVERY: Final = Discovery(
    choose=lambda settings: FEW_RECORDS,
    profiles=Profiles(kinds=CALL_KINDS),  # of workers' calls
)
