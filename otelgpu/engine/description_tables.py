"""What exported names mean: a family's module ``descriptions.py``, in the folder of its names, found by walking.

In: ``DESCRIPTIONS`` of each such module below ``otelgpu.families`` and ``otelgpu.engine``. Out: the same, with who
has them. The manual's tables and the test of clashes are made of all of them, and of no list of modules; the agent
never loads them.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Final, NamedTuple

from msgspec import Struct, field

from otelgpu.engine.metric import Metric

ROOTS: Final = ("otelgpu.engine", "otelgpu.families")
MODULE: Final = "descriptions"

TEXT: Final = "{text}"
EXAMPLE: Final = "{example}"
"""In a cell of a page: what the attribute's description says."""


class Described(NamedTuple):
    """An attribute in words. ``example``: a value as text."""

    text: str
    example: str = ""


class MetricTable(Struct, frozen=True, kw_only=True):
    """Metrics of one scope, each with the keys of its attributes. ``page``: region of the manual with these alone."""

    scope: str
    metrics: Mapping[Metric, Sequence[str]]
    page: str = ""


class Page(Struct, frozen=True, kw_only=True):
    """A table of attributes in the manual: key → its further cells, in which ``TEXT`` and ``EXAMPLE`` may stand."""

    header: tuple[str, ...]
    rows: Mapping[str, tuple[str, ...]]


class Table(Struct, frozen=True, kw_only=True):
    """Any other table in the manual. ``rows`` are Markdown."""

    header: tuple[str, ...]
    rows: Callable[[], Sequence[Sequence[str]]]


class Descriptions(Struct, frozen=True, kw_only=True):
    """Of one folder. An attribute is described where its name is declared, and there only.

    ``pages``, ``tables``: by the name of the region of the manual that they are.
    """

    attributes: Mapping[str, Described] = field(default_factory=dict)
    metrics: Sequence[MetricTable] = ()
    pages: Mapping[str, Page] = field(default_factory=dict)
    tables: Mapping[str, Table] = field(default_factory=dict)


class Owned(NamedTuple):
    """``owner``: the folder below otelgpu, ``families.gpu.cuda``."""

    owner: str
    descriptions: Descriptions


@cache
def described() -> Sequence[Owned]:
    """All that there are, in alphabetical order of their folders."""
    return tuple(found for root in ROOTS for found in _in(root))


def _in(package: str) -> Iterator[Owned]:
    modules = sorted(pkgutil.iter_modules(import_module(package).__path__), key=lambda module: module.name)
    for module in modules:
        if module.name == MODULE:
            found = import_module(f"{package}.{MODULE}").DESCRIPTIONS
            yield Owned(package.removeprefix("otelgpu."), found)
    for module in modules:
        if module.ispkg:
            yield from _in(f"{package}.{module.name}")
