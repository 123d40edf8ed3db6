"""The live sides of families: what their ``discover`` modules offer, which are imported when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, cast

from otelgpu.engine import registry
from otelgpu.engine.contract import Beside, Family, Load
from otelgpu.kernel.libbpf import BpfError
from otelgpu.model.settings import Settings
from otelgpu.processes.discovery import Choice, Discovery

_NONE: Final = Discovery()
_Asked = Callable[[Settings], Family | None]


def discovery_of(family: str) -> Discovery:
    """That of a family; one that does nothing where it has none."""
    found = registry.part_of(family, "discover", "DISCOVERY")
    if found is None:
        return _NONE
    assert isinstance(found, Discovery), f"DISCOVERY of family {family} is no Discovery"
    return found


def choice_of(family: str, settings: Settings) -> Choice:
    """What to load of it. Raises :class:`BpfError` where nothing can be."""
    choose = discovery_of(family).choose
    return choose(settings) if choose is not None else Choice()


def choices(
    discoveries: Mapping[str, Discovery], settings: Settings, go_without: Callable[[str, BpfError], None]
) -> dict[str, Choice]:
    """What to load of each family; those that the session goes without are missing. Raises :class:`BpfError`."""
    chosen: dict[str, Choice] = {}
    for name, discovery in discoveries.items():
        try:
            chosen[name] = choice_of(name, settings)
        except BpfError as error:
            if discovery.required:
                raise
            go_without(name, error)
    return chosen


def beside(families: Mapping[str, Family], chosen: Iterable[str]) -> dict[str, list[str]]:
    """Of those ``chosen`` the ones that are loaded beside each family."""
    besides = {name: load for name in chosen if isinstance(load := families[name].load, Beside)}
    return {
        name: [other for other, load in besides.items() if load.is_of(family)]
        for name, family in families.items()
    }


def observed(selected: tuple[str, ...], settings: Settings) -> dict[str, Family]:
    """The families of a session: those selected (see :func:`registry.select`), and those that settings ask for.

    Of a family that is observed only where it is asked for, ``discover.asked`` gives the family as the settings ask for
    it, None where they do not. Raises :class:`OtelgpuError`.
    """
    found = registry.select(selected)
    for name, family in registry.families().items():
        asked = registry.part_of(name, "discover", "asked") if family.load is Load.ASKED else None
        wanted = cast(_Asked, asked)(settings) if asked is not None else None
        if wanted is not None:
            found[name] = wanted
    return dict(sorted(found.items()))
