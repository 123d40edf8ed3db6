"""The live side of family ``mpi``: it has few records."""

from __future__ import annotations

from typing import Final

from otelgpu.processes.discovery import FEW_RECORDS, Discovery

DISCOVERY: Final = Discovery(required=False, choose=lambda settings: FEW_RECORDS)
