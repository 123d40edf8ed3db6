"""The live side of family ``verbs``: where RDMA providers' functions are, and when they are probed."""

from __future__ import annotations

from math import inf
from typing import Final

from otelgpu.kernel.loader import LoadedFamily
from otelgpu.model.profiling import ProfileKind
from otelgpu.model.settings import Settings
from otelgpu.processes.coverage import Inspection
from otelgpu.processes.discovery import FEW_RECORDS, Discovery, Profiles
from otelgpu.processes.probes import ProbePlacer
from otelgpu.processes.reader.forker import session_forker

_EVERYTHING: Final = 100.0  # percent of a core: whoever allows that wants all posts and polls counted


def _prepare() -> None:
    session_forker().prepare("otelgpu.families.rdma.discover.contexts")  # that is asked of a worker


def _watch(loaded: LoadedFamily, placer: ProbePlacer, settings: Settings) -> tuple[object, ...]:
    from otelgpu.families.rdma.discover.providers import (
        VerbsProviders,  # loaded only where libibverbs is used
    )

    budget = settings.get("rdma_budget", 1.0)
    return (
        VerbsProviders(
            loaded,
            placer,
            budget=budget if budget < _EVERYTHING else inf,
            transfers=settings.get("rdma_transfers", False),
        ),
    )


def _examine() -> Inspection:
    from otelgpu.families.rdma.discover.coverage import EXAMINATION

    return EXAMINATION


DISCOVERY: Final = Discovery(
    prepare=_prepare,
    choose=lambda settings: FEW_RECORDS,
    watch={"verbs": _watch},
    profiles=Profiles(kinds=frozenset((ProfileKind.VERBS,)), suggested={"libibverbs": (ProfileKind.VERBS,)}),
    inspect=_examine,
)
