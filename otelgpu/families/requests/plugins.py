"""Protocols that others installed: entry points of group ``otelgpu.protocols``, each a ``ProtocolSpec``.

In: the metadata of installed packages. Out: isolated specs (see ``plugin_isolation``), and why others were left out.
A plug-in that cannot be loaded is left out; it never keeps the program from starting.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Final

from msgspec import Struct

from otelgpu.engine.registry import entry_points
from otelgpu.families.requests.plugin_isolation import isolated
from otelgpu.families.requests.protocol import ProtocolSpec

GROUP: Final = "otelgpu.protocols"
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,31}")


class Plugins(Struct, frozen=True):
    """``specs`` in alphabetical order of their entry points; ``failed``: name → why it was left out."""

    specs: tuple[ProtocolSpec, ...]
    failed: Mapping[str, str]


def are_installed() -> bool:
    """Whether there is any, valid or not; nothing is loaded."""
    return bool(entry_points(GROUP))


@cache
def load_plugins(taken: frozenset[str]) -> Plugins:
    """Load every plug-in once. ``taken``: names of protocols that are there already."""
    specs: dict[str, ProtocolSpec] = {}
    failed: dict[str, str] = {}
    for point in sorted(entry_points(GROUP), key=lambda point: point.name):
        try:
            spec = point.load()
        except (Exception, SystemExit) as error:
            failed[point.name] = f"{type(error).__name__}: {error}"
            continue
        if not isinstance(spec, ProtocolSpec):
            failed[point.name] = f"{point.value} is no ProtocolSpec"
        elif not isinstance(spec.name, str) or _NAME.fullmatch(spec.name) is None:
            failed[point.name] = f"{spec.name!r} is no name of a protocol: {_NAME.pattern}"
        elif spec.name in taken or spec.name in specs:
            failed[point.name] = f"there is a protocol {spec.name!r} already"
        else:
            specs[spec.name] = isolated(spec)
    return Plugins(tuple(specs.values()), failed)
