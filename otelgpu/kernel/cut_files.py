"""Keeps this program alive where a file that it has mapped is cut off under it: ``cut_files.c`` beside this module.

Without the library, which the build makes where there is a compiler, such a file ends the program (SIGBUS).
"""

from __future__ import annotations

import ctypes
import logging
import os
from functools import cache
from pathlib import Path
from typing import Final

from otelgpu.model.losses import Reasons

REASONS: Final = Reasons(
    "files",
    {"pages_cut_off": "a page of a mapped file of an observed process that was cut off before it was read"},
)
"""What one count of (``files``, reason) means."""

_LIBRARY: Final = Path(__file__).parents[1] / "_native" / "libcut_files.so"
_log = logging.getLogger("otelgpu.kernel")


def survive_cut_files() -> None:
    """From the first call on. Raises nothing."""
    _installed()


def survives_cut_files() -> bool:
    """Whether it does, from now on."""
    return _installed() is not None


def pages_cut_off() -> int:
    """How many pages were read that were no longer there."""
    library = _installed()
    return int(library.cut_files_pages()) if library is not None else 0


@cache
def _installed() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(str(_LIBRARY), use_errno=True)
    except OSError as error:
        _log.warning("a file that is cut off while it is read ends this program: %s", error)
        return None
    library.cut_files_pages.restype = ctypes.c_ulong
    if library.cut_files_survive():
        _log.warning("SIGBUS cannot be handled: %s", os.strerror(ctypes.get_errno()))
        return None
    return library
