"""The live side of family ``sched``: which profiles it is for."""

from __future__ import annotations

from typing import Final

from otelgpu.model.profiling import CALL_KINDS
from otelgpu.processes.discovery import Discovery, Profiles

DISCOVERY: Final = Discovery(profiles=Profiles(kinds=CALL_KINDS))  # of workers' calls
