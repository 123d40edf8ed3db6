"""Finds the families: every package below ``otelgpu.families``, down to two levels, with a ``FAMILY``."""

from __future__ import annotations

import os
import pkgutil
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final

import otelgpu.families
from otelgpu.engine.contract import Family, Load
from otelgpu.errors import OtelgpuError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_LEVELS: Final = 2
"""A family is a folder of ``families/``, or one in a folder for its subject (``families/gpu/cuda``)."""

LIVE: Final = ("discover", "poll")
"""Modules or packages of a family that look at what runs: imported by :func:`part_of` and :func:`parts` alone."""


@cache
def families() -> dict[str, Family]:
    """All families by name, in alphabetical order."""
    return {name: family for name, (_, family) in sorted(_found().items())}


@cache
def _found() -> dict[str, tuple[str, Family]]:
    """By name: the package that the family is, and the family."""
    found: dict[str, tuple[str, Family]] = {}
    for package in _all_packages():
        family: Family | None = getattr(import_module(package), "FAMILY", None)
        if family is not None:
            found[family.name] = (package, family)
    return found


def part_of(family: str, module: str, name: str) -> object | None:
    """What a family has under ``name`` in a module of its own (``discover``), which is imported only now.

    None: it has no such module, or nothing under that name in it; or there is no such family.
    """
    package, _ = _found().get(family, ("", None))
    return _part(package, module, name) if package else None


def parts(module: str, name: str) -> dict[str, object]:
    """The same of every package of families, those that have no ``FAMILY`` too, by package."""
    found = {package: _part(package, module, name) for package in _all_packages()}
    return {package: part for package, part in found.items() if part is not None}


def import_handlers(observed: Iterable[str]) -> None:
    """Modules ``handler`` of a session's families, which they import when they are opened; there may be time before."""
    for name in (*observed, *without_records()):
        package, _ = _found()[name]
        _import(f"{package}.handler")


def _part(package: str, module: str, name: str) -> object | None:
    return getattr(_import(f"{package}.{module}"), name, None)


def _import(module: str) -> ModuleType | None:
    """None: there is none of that name."""
    return import_module(module) if find_spec(module) is not None else None


def _all_packages() -> Iterator[str]:
    return _packages(otelgpu.families.__name__, otelgpu.families.__path__, _LEVELS)


def packages() -> dict[str, Family]:
    """All families by their package."""
    return dict(_found().values())


def _packages(parent: str, path: Iterable[str], levels: int) -> Iterator[str]:
    for module in pkgutil.iter_modules(path):
        if module.ispkg and module.name not in LIVE:
            name = f"{parent}.{module.name}"
            yield name
            if levels > 1:
                yield from _packages(name, import_module(name).__path__, levels - 1)


def without_records() -> dict[str, Family]:
    """Those that are part of every session, whatever is observed."""
    return {name: family for name, family in families().items() if family.load is None}


def with_records() -> dict[str, Family]:
    """Those that a session may observe, by name."""
    return {name: family for name, family in families().items() if family.load is not None}


def select(names: tuple[str, ...]) -> dict[str, Family]:
    """The named families; when ``names`` is empty, all but those that have to be asked for.

    Raises on one that does not exist.
    """
    known = with_records()
    for name in names:
        if name not in known:
            raise OtelgpuError(f"there is no family {name!r}", f"families are: {', '.join(known)}")
    return {
        name: family
        for name, family in known.items()
        if (name in names if names else family.load is not Load.ASKED)
    }


def entry_points(group: str) -> tuple[EntryPoint, ...]:
    """Those of a group that installed packages have, in no order.

    Whether there is one is seen here, in the folders of packages that were unpacked, as pip does it: to import what
    knows all other ways, and e-mail's headers, and to have it read each package's metadata is a tenth of a start.
    """
    if not any(_may_have(group, Path(entry or ".")) for entry in dict.fromkeys(sys.path)):
        return ()
    from importlib import metadata

    return tuple(metadata.entry_points(group=group))


def _may_have(group: str, place: Path) -> bool:
    """False only where it has none for sure."""
    if not place.is_dir():
        return place.exists()  # an archive
    try:
        found = _declared(place, place.stat().st_mtime_ns)
    except OSError:  # nothing can be imported from there either
        return False
    return found is None or f"[{group}]" in found


@cache
def _declared(place: Path, changed_ns: int) -> str | None:
    """What packages in a folder declare, which several groups are looked for in; None: there may be more."""
    names = os.listdir(place)
    if any(name.endswith(".egg") for name in names):
        return None
    packages = [name for name in names if name.endswith((".dist-info", ".egg-info"))]
    return "".join(_text_of(place / name / "entry_points.txt") for name in packages)


def _text_of(file: Path) -> str:
    try:
        return file.read_text("utf-8", "replace")
    except OSError:
        return ""
