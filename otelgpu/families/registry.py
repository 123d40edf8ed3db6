"""Finds the families: every subpackage of ``otelgpu.families`` with a ``FAMILY``."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module

import otelgpu.families
from otelgpu.errors import OtelgpuError
from otelgpu.families.base import Family, Load


@cache
def families() -> dict[str, Family]:
    """All families by name, in alphabetical order."""
    found = {}
    for module in pkgutil.iter_modules(otelgpu.families.__path__):
        if module.ispkg:
            family: Family = import_module(f"otelgpu.families.{module.name}").FAMILY
            found[family.name] = family
    return dict(sorted(found.items()))


def select(names: tuple[str, ...]) -> dict[str, Family]:
    """The named families; when ``names`` is empty, all but those that have to be asked for.

    Raises on one that does not exist.
    """
    known = families()
    for name in names:
        if name not in known:
            raise OtelgpuError(f"there is no family {name!r}", f"families are: {', '.join(known)}")
    return {
        name: family
        for name, family in known.items()
        if (name in names if names else family.load is not Load.ASKED)
    }
