"""The live side of family ``nccl``: how communicators lie in the memory of observed processes."""

from __future__ import annotations

from typing import Final

from otelgpu.kernel.loader import LoadedFamily
from otelgpu.model.profiling import ProfileKind
from otelgpu.model.settings import Settings
from otelgpu.processes.coverage import Inspection
from otelgpu.processes.discovery import FEW_RECORDS, Discovery, Profiles
from otelgpu.processes.probes import ProbePlacer


def _prepare() -> None:
    from otelgpu.processes.struct_finder import session_struct_finder

    session_struct_finder()


def _watch(loaded: LoadedFamily, placer: ProbePlacer, settings: Settings) -> tuple[object, ...]:
    from otelgpu.families.nccl.discover.communicators import NcclLayouts  # as its family, seldom wanted

    return (NcclLayouts(loaded, placer),)


def _examine() -> Inspection:
    from otelgpu.families.nccl.discover.coverage import EXAMINATION

    return EXAMINATION


DISCOVERY: Final = Discovery(
    prepare=_prepare,
    choose=lambda settings: FEW_RECORDS,
    watch={"nccl": _watch},
    profiles=Profiles(kinds=frozenset((ProfileKind.NCCL,)), suggested={"libnccl": (ProfileKind.NCCL,)}),
    inspect=_examine,
)
