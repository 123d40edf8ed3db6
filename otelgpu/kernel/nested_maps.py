"""Maps of maps: arrays that are made when they are needed, filled at once, and freed when nothing names them."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable, Mapping
from typing import Final

from otelgpu.kernel.libbpf import Map, load_libbpf, update_many

_ARRAY: Final = 2  # BPF_MAP_TYPE_ARRAY
_INNER_MAP: Final = 1 << 12  # BPF_F_INNER_MAP: arrays of one outer map may differ in size (Linux 5.10)
_KEY: Final = struct.Struct("<I")


class _CreateOptions(ctypes.Structure):
    """struct bpf_map_create_opts of libbpf 1.1; later versions accept the shorter ``sz``."""

    _fields_ = [
        ("sz", ctypes.c_size_t),
        *((name, ctypes.c_uint32) for name in ("btf_fd", "key_type", "value_type", "vmlinux_type")),
        *((name, ctypes.c_uint32) for name in ("inner_map_fd", "map_flags")),
        ("map_extra", ctypes.c_uint64),
        *((name, ctypes.c_uint32) for name in ("numa_node", "map_ifindex")),
    ]


def make_array(name: str, value_bytes: int, entries: int, parts: Iterable[bytes]) -> int:
    """The descriptor of a new array that holds ``entries`` values, which come in ``parts`` of whole values.

    Raises :class:`BpfError`, and what ``parts`` raises.
    """
    library = load_libbpf()
    options = _CreateOptions(sz=ctypes.sizeof(_CreateOptions), map_flags=_INNER_MAP)
    made = int(library.bpf_map_create(_ARRAY, name.encode(), 4, value_bytes, entries, ctypes.byref(options)))
    if made < 0:
        raise library.error(f"cannot create array {name} of {entries} values", made)
    try:
        filled = 0
        for part in parts:
            count, rest = divmod(len(part), value_bytes)
            if rest or not count:
                raise ValueError(f"{len(part)} bytes are no values of {value_bytes}")
            update_many(made, name, b"".join(map(_KEY.pack, range(filled, filled + count))), part, count)
            filled += count
    except BaseException:
        os.close(made)
        raise
    return made


class MapOfArrays:
    """An outer map by number; its arrays live as long as their entry."""

    def __init__(self, outer: Map, value_bytes: int) -> None:
        self._outer, self._value_bytes = outer, value_bytes

    def make(self, entries: int, parts: Iterable[bytes]) -> int:
        """The descriptor of an array that is in the map yet to be: see :func:`make_array`. The caller closes it."""
        return make_array(self._outer.name[:15], self._value_bytes, entries, parts)

    def put(self, key: int, content: bytes) -> None:
        """Insert or replace. Waits for programs that run on the one before. Raises :class:`BpfError`."""
        made = self.make(len(content) // self._value_bytes, (content,))
        try:
            self.put_all({key: made})
        finally:
            os.close(made)

    def put_all(self, made: Mapping[int, int]) -> None:
        """Insert arrays that were made, with one wait for all (Linux 6.8; before, one for each: tens of milliseconds).

        Raises :class:`BpfError`. The descriptors stay open.
        """
        keys, values = (b"".join(map(_KEY.pack, column)) for column in (made.keys(), made.values()))
        self._outer.put_many(keys, values, len(made))

    def delete(self, key: int) -> bool:
        """Whether it was there; the array is freed."""
        return self._outer.delete(_KEY.pack(key))
