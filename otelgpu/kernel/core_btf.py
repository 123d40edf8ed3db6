"""The kernel's types that BPF objects read fields of, for libbpf to look through in place of all: ``core_btf.c``.

In: the objects' ``.BTF`` and ``.BTF.ext``. Out: a file in memory that ``btf_custom_path`` names. Without the library,
which the build makes where there is a compiler, or where it does not know what it finds, libbpf looks through all.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Final

import numpy as np

from otelgpu.kernel.kernel_btf import content
from otelgpu.kernel.libbpf import parses_btf

_LIBRARY: Final = Path(__file__).parents[1] / "_native" / "libcore_btf.so"
_log = logging.getLogger("otelgpu.kernel")


class _Section(ctypes.Structure):
    _fields_ = [("data", ctypes.c_char_p), ("bytes", ctypes.c_uint64)]


class _Object(ctypes.Structure):
    _fields_ = [("types", _Section), ("relocations", _Section), ("is_served", ctypes.c_uint64)]


class CoreBtf:
    """What was written, and for which families' objects it is; it lives until :meth:`close`."""

    def __init__(self, descriptor: int = -1, families: Set[str] = frozenset()) -> None:
        self._descriptor, self._families = descriptor, families

    @property
    def file(self) -> bytes:
        """For this process to open."""
        return b"/proc/self/fd/%d" % self._descriptor

    def for_family(self, family: str) -> bytes | None:
        """The same; None: the family's object is to have all of the kernel's types."""
        return self.file if self._descriptor >= 0 and family in self._families else None

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def core_btf(sections: Mapping[str, tuple[bytes, bytes]]) -> CoreBtf:
    """For objects by family, of each its ``.BTF`` and ``.BTF.ext``. Raises nothing: at worst it serves none of them."""
    try:
        library = ctypes.CDLL(str(_LIBRARY))
        kernel = np.frombuffer(content(), dtype=np.uint8)
        descriptor = os.memfd_create("otelgpu-core-btf", os.MFD_CLOEXEC)
    except OSError as error:
        _log.debug("libbpf goes through all of the kernel's types: %s", error)
        return CoreBtf()
    described = [_Object(_section(types), _section(further)) for types, further in sections.values()]
    objects = (_Object * len(described))(*described)
    data = kernel.ctypes.data_as(ctypes.c_void_p)
    code = library.core_btf_write(data, ctypes.c_uint64(len(kernel)), objects, len(objects), descriptor)
    written = CoreBtf(
        descriptor, {name for name, each in zip(sections, objects, strict=True) if each.is_served}
    )
    if code or not parses_btf(written.file):
        _log.warning(
            "the kernel's types are not as expected (%s): libbpf goes through all of them", os.strerror(-code)
        )
        written.close()
        return CoreBtf()
    return written


def _section(data: bytes) -> _Section:
    return _Section(data, len(data))
