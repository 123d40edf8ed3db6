"""Imports two packages so that they start neither threads nor programs: before anything else of the program runs.

numpy's OpenBLAS starts a thread for each core, which nothing here has a use for and which would keep privileges that
are given up later (:mod:`otelgpu.kernel.privileges.dropping`). cxxfilt looks for libraries with ``ctypes.util``,
which runs ``ldconfig``, or a compiler where there is none; nothing is run by a program with privileges.
"""

from __future__ import annotations

import ctypes.util
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Final

_BLAS_THREADS: Final = "OPENBLAS_NUM_THREADS"
_SONAMES: Final = {"c": "libc.so.6", "stdc++": "libstdc++.so.6"}


def import_quietly() -> None:
    """Import both, or what there is of them."""
    with _blas_alone():
        import_module("numpy")
    searching = ctypes.util.find_library
    ctypes.util.find_library = _soname
    try:
        with suppress(Exception):  # without libstdc++ names stay mangled: symbols.demangle
            import_module("cxxfilt")
    finally:
        ctypes.util.find_library = searching


def _soname(name: str) -> str | None:
    return _SONAMES.get(name)


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
