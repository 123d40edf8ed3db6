"""The live side of family ``profile``: which of its programs run, interpreters, unwind tables, names of stacks."""

from __future__ import annotations

from typing import Final

from otelgpu.engine.contract import Family
from otelgpu.families.profiles import FAMILY
from otelgpu.kernel.loader import LoadedFamily
from otelgpu.model.profiling import ProfileKind, ProfileSettings, stack_kinds
from otelgpu.model.settings import Settings
from otelgpu.processes.discovery import Choice, Discovery, Profiles
from otelgpu.processes.probes import ProbePlacer

_WHOLE_RING_HZ: Final = 99  # of the clock of CPU samples: at this, a ring of the usual size is wanted
_LEAST_RING_BYTES: Final = 65_536


def settings_of(settings: Settings) -> ProfileSettings:
    """What a session is asked to profile."""
    return settings.get("profiling", ProfileSettings())


def asked(settings: Settings) -> Family | None:
    """Where there is a kind of profile to take."""
    return FAMILY if settings_of(settings).kinds else None


def _choose(settings: Settings) -> Choice:
    from otelgpu.families.profiles.discover import programs  # it is asked for by few

    asked = settings_of(settings)

    def ring_bytes(usual: int) -> int:
        """Where fewer records come than a whole ring is for: every page of a ring is resident memory."""
        if asked.kinds != {ProfileKind.CPU}:  # other kinds have records whenever something happens
            return usual
        share = usual * asked.frequency_hz // _WHOLE_RING_HZ
        return min(max(1 << share.bit_length(), _LEAST_RING_BYTES), usual)

    return Choice(
        constants=programs.constants(asked),
        shared_constants={"stack_kinds": stack_kinds(asked.kinds, launches=asked.launches)},
        programs=programs.wanted(asked.kinds),
        ring_bytes=ring_bytes,
    )


def _watch(loaded: LoadedFamily, placer: ProbePlacer, settings: Settings) -> tuple[object, ...]:
    from otelgpu.families.profiles.discover.programs import Clocks
    from otelgpu.families.profiles.discover.unsent import UnsentSamples
    from otelgpu.families.profiles.discover.watcher import open_profile_watcher

    asked = settings_of(settings)
    return open_profile_watcher(loaded), UnsentSamples(loaded, asked.interval_s), Clocks(loaded, asked)


DISCOVERY: Final = Discovery(
    required=False,
    choose=_choose,
    watch={"profile": _watch},
    profiles=Profiles(kinds=frozenset(ProfileKind)),
    in_any_order=True,  # stacks lie between samples, which wait for the tick
)
