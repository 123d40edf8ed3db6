"""The live side of family ``probe``: a user's probes in observed processes and in the kernel.

Those that are samples of a profile are hits of a program of family ``profile``, the others of its own.
"""

from __future__ import annotations

from typing import Final

from otelgpu.engine.contract import Family
from otelgpu.kernel.loader import LoadedFamily
from otelgpu.model.settings import Settings
from otelgpu.processes.discovery import Discovery
from otelgpu.processes.probes import ProbePlacer


def asked(settings: Settings) -> Family | None:
    """Where there are probes: with a name for each."""
    if not (settings.get("probe_file", "") or settings.get("probe_program", "")):
        return None
    from otelgpu.families.user_probes import family_of  # few sessions have any
    from otelgpu.families.user_probes.discover.files import own_program, user_probes

    own_program(settings)  # a program without probes is a mistake
    probes = user_probes(settings)
    return family_of(probes) if probes else None


def _watch(loaded: LoadedFamily, placer: ProbePlacer, settings: Settings) -> tuple[object, ...]:
    from otelgpu.families.user_probes.discover.files import own_program, user_probes
    from otelgpu.families.user_probes.discover.watcher import UserProbes

    probes, program = user_probes(settings), own_program(settings)
    return (UserProbes(loaded, probes, with_returns=placer.with_returns, program=program),)


def _watch_samples(loaded: LoadedFamily, placer: ProbePlacer, settings: Settings) -> tuple[object, ...]:
    from otelgpu.families.user_probes.discover.files import user_probes
    from otelgpu.families.user_probes.discover.watcher import UserProbes

    probes = user_probes(settings)
    if not any(probe.profile for probe in probes):
        return ()
    return (UserProbes(loaded, probes, with_returns=placer.with_returns),)


DISCOVERY: Final = Discovery(watch={"probe": _watch, "profile": _watch_samples})
