"""Whether a shared library is there, before what binds it is imported."""

from __future__ import annotations

import ctypes


def can_be_loaded(soname: str) -> bool:
    """As the dynamic linker finds it; it stays loaded."""
    try:
        ctypes.CDLL(soname)
    except OSError:
        return False
    return True
