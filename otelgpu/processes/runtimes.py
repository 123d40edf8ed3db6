"""What a process serves requests with, by its own files: names of :mod:`otelgpu.model.runtimes`.

In: what a process has mapped, its program, and its libpython. Out: names. What holds for stripped release builds
counts: names of extension modules, what programs export to their add-ons, and texts that only a runtime's code has.
Whoever writes a file may put any of this into it, or leave it out: the links that are then made, or are not, are those
of its own process.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from otelgpu.elf.image import ElfImage
from otelgpu.model.resource import GO
from otelgpu.model.runtimes import CPYTHON, UNKNOWN
from otelgpu.processes.elf_files import open_regular, paths_of
from otelgpu.processes.listing import PYTHON
from otelgpu.processes.maps import Mapping, distinct_files, read_maps

LinkedIn = Callable[[int], Iterable[str]]
"""Of an open file, :func:`linked_runtimes`. Raises OSError where nothing was read."""

_FILES: Final = (
    (CPYTHON, re.compile(r"libpython3[^/]*\.so[^/]*")),
    ("asyncio", re.compile(r"_asyncio\.(?:[^/]*\.)?so")),
    ("gevent", re.compile(r"(?:_gevent_c\w*|_greenlet)\.(?:[^/]*\.)?so")),
    ("grpcio", re.compile(r"cygrpc\.(?:[^/]*\.)?so")),
    ("node", re.compile(r"lib(?:node|uv)\.so[.0-9]*")),
    ("jvm", re.compile(r"libjvm\.so")),
    ("dotnet", re.compile(r"libcoreclr\.so")),
)
"""Runtime → the names of the files that are mapped with it."""

_EXPORTS: Final = {"node_module_register": "node", "uv_run": "node", "Py_BytesMain": CPYTHON}
"""Function → the runtime that has it: Node.js and statically linked interpreters export theirs to extensions."""

_TEXTS: Final = {b"Tokio 1.x": "tokio", b"/tokio-1.": "tokio", b"_asyncio.Task\0": "asyncio"}
"""Constant → the runtime that has it: tokio/src/runtime/context.rs and paths of panics; Modules/_asynciomodule.c."""

_MOST_TEXT_BYTES: Final = 128 << 20
"""Of constants that are looked through: Node.js has 45 MiB, and is known before."""


def linked_runtimes(image: ElfImage) -> tuple[str, ...]:
    """Those that are linked into a program or library. Raises :class:`~otelgpu.elf.image.ElfError`."""
    if image.is_go:
        return (GO,)
    found = {_EXPORTS[name] for name in image.function_offsets(_EXPORTS)}
    if "node" not in found and (constants := image.section(".rodata")) is not None:
        text = bytes(constants.content[:_MOST_TEXT_BYTES])
        found |= {runtime for mark, runtime in _TEXTS.items() if mark in text}
    return tuple(sorted(found))


def mapped_runtimes(mappings: Iterable[Mapping]) -> set[str]:
    """Those that what is mapped is called after."""
    names = {mapping.path.rpartition("/")[2] for mapping in mappings}
    return {runtime for runtime, called in _FILES if any(map(called.fullmatch, names))}


def recognise(tgid: int, linked_in: LinkedIn, *, proc: Path = Path("/proc")) -> tuple[str, ...]:
    """All that a process has; :data:`~otelgpu.model.runtimes.UNKNOWN` of one that cannot be looked at."""
    try:
        mappings = distinct_files(read_maps(tgid, proc=proc, executable_only=True))
        program = os.readlink(proc / str(tgid) / "exe")
    except OSError:
        return (UNKNOWN,)
    found = mapped_runtimes(mappings)
    if PYTHON.fullmatch(program.rpartition("/")[2]):
        found.add(CPYTHON)
    paths = [[proc / str(tgid) / "exe"]]
    if CPYTHON in found and "asyncio" not in found:
        called = dict(_FILES)[CPYTHON]
        paths += [paths_of(tgid, each, proc=proc) for each in mappings if called.fullmatch(_base(each.path))]
    if not found & {"node", "jvm", "dotnet"}:
        found.update(*(_linked_at(each, linked_in) for each in paths))
    return tuple(sorted(found))


def _base(path: str) -> str:
    return path.rpartition("/")[2]


def _linked_at(paths: Iterable[Path], linked_in: LinkedIn) -> tuple[str, ...]:
    """In the first of these that can be opened; UNKNOWN where none can be read."""
    for path in paths:
        try:
            descriptor = open_regular(path)
        except OSError:
            continue
        try:
            return tuple(linked_in(descriptor))
        except OSError:
            return (UNKNOWN,)
        finally:
            os.close(descriptor)
    return (UNKNOWN,)
