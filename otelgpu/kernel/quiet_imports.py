"""Imports two packages so that they start neither threads nor programs: before anything else of the program runs.

numpy's OpenBLAS starts a thread for each core, which nothing here has a use for and which would keep privileges that
are given up later (:mod:`otelgpu.kernel.privileges.dropping`). cxxfilt looks for libraries with ``ctypes.util``,
which runs ``ldconfig``, or a compiler where there is none; nothing is run by a program with privileges.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from types import ModuleType
from typing import Final

_BLAS_THREADS: Final = "OPENBLAS_NUM_THREADS"
_SEARCHING: Final = "ctypes.util"
_SONAMES: Final = {"c": "libc.so.6", "stdc++": "libstdc++.so.6"}


def import_quietly() -> None:
    """Import both, or what there is of them."""
    with _blas_alone():
        import_module("numpy")
    spare_masked_arrays()
    with _nothing_searched(), suppress(Exception):  # without libstdc++ names stay mangled: symbols.demangle
        import_module("cxxfilt")


def spare_masked_arrays() -> None:
    """Have numpy do without its masked arrays until somebody uses one.

    ``numpy.unique``, and what is made of it, imports them to see that it was given none: 11 ms and more than 1 MiB of
    each process, and a worker may not open their files.
    """
    if "numpy.ma" not in sys.modules:
        import_module("numpy").ma = _NoMaskedArrays("numpy.ma")  # type: ignore[attr-defined]


class _NoMaskedArrays(ModuleType):
    """Is replaced by the module itself when that is imported, which it is for anything but this question."""

    @staticmethod
    def is_masked(value: object) -> bool:
        """Whether an array has a mask: before the module is imported none has."""
        return False

    def __getattr__(self, name: str) -> object:
        return getattr(import_module("numpy.ma"), name)


@contextmanager
def _nothing_searched() -> Iterator[None]:
    """Libraries are known by name: what searches for them is not even imported, nor what it would run programs with."""
    before = sys.modules.get(_SEARCHING)
    known = ModuleType(_SEARCHING)
    known.find_library = _SONAMES.get  # type: ignore[attr-defined]
    try:
        _put(known)
        yield
    finally:
        _put(before)


def _put(searching: ModuleType | None) -> None:
    if searching is None:
        del sys.modules[_SEARCHING], ctypes.util  # type: ignore[attr-defined]
    else:
        sys.modules[_SEARCHING] = ctypes.util = searching  # type: ignore[attr-defined]


@contextmanager
def _blas_alone() -> Iterator[None]:
    """The environment is afterwards what it was, for the programs that are started with it."""
    before = os.environ.get(_BLAS_THREADS)
    os.environ[_BLAS_THREADS] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_BLAS_THREADS]
        else:
            os.environ[_BLAS_THREADS] = before
