"""What the kernel holds of BPF, by bpf(2) itself: programs, maps, links and BTF, and which process has each open.

Out: numbers, which the kernel does not give twice. Needs CAP_SYS_ADMIN, as the enumeration does.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final, Literal

_NR_BPF: Final = 321  # arch/x86/entry/syscalls/syscall_64.tbl
_MAP_LOOKUP_ELEM: Final = 1  # enum bpf_cmd, include/uapi/linux/bpf.h
_MAP_GET_NEXT_KEY: Final = 4
_OBJ_GET: Final = 7
_OBJ_GET_INFO_BY_FD: Final = 15
_MAP_INFO_BYTES: Final = 88
_FIXED: Final = frozenset(
    {2, 6, 9, 10}
)  # arrays, per CPU and not, and LRU hashes: all their memory is there at once
_HASHES: Final = frozenset({1, 5, 11})  # hash, per-CPU hash, LPM trie

Kind = Literal["program", "map", "link", "btf"]
_NEXT_ID: Final[dict[Kind, int]] = {"program": 11, "map": 12, "link": 31, "btf": 23}
_MAP_BY_ID: Final = 14
_HELD_AS: Final = {"prog_id": "program", "map_id": "map", "link_id": "link", "btf_id": "btf"}
"""Lines of ``/proc/PID/fdinfo/FD``."""

_syscall: Final = ctypes.CDLL(None, use_errno=True).syscall


def _bpf(command: int, attributes: ctypes.Array[ctypes.c_char]) -> int:
    return int(_syscall(_NR_BPF, command, attributes, len(attributes)))


def list_ids(kind: Kind) -> set[int]:
    """Every object of a kind that the kernel has now, whoever made it."""
    found: set[int] = set()
    attributes = ctypes.create_string_buffer(12)
    while _bpf(_NEXT_ID[kind], attributes) == 0:
        (number,) = struct.unpack_from("<I", attributes, 4)
        found.add(number)
        struct.pack_into("<III", attributes, 0, number, 0, 0)
    return found


def list_objects() -> set[tuple[Kind, int]]:
    """The same of every kind."""
    return {(kind, number) for kind in _NEXT_ID for number in list_ids(kind)}


def held_by(pid: int | str) -> set[tuple[Kind, int]]:
    """What a process has open; nothing of one that has ended."""
    found: set[tuple[Kind, int]] = set()
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fdinfo"):
            with contextlib.suppress(OSError):
                for line in Path(entry.path).read_text().splitlines():
                    name, _, value = line.partition(":")
                    if name in _HELD_AS:
                        found.add((_HELD_AS[name], int(value)))  # type: ignore[arg-type]
    return found


def orphans(before: set[tuple[Kind, int]]) -> set[tuple[Kind, int]]:
    """What has come since ``before`` and is open in no process: it is pinned, or on its way out."""
    new = list_objects() - before
    if not new:
        return new
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            new -= held_by(entry.name)
    return new & list_objects()


@dataclass(frozen=True, slots=True, kw_only=True)
class MapInfo:
    """One map; ``entries``: those it has taken memory for, None for a kind whose keys cannot be listed."""

    number: int
    name: str
    max_entries: int
    entries: int | None


@contextlib.contextmanager
def _opened(number: int) -> Iterator[int | None]:
    attributes = ctypes.create_string_buffer(struct.pack("<III", number, 0, 0), 12)
    descriptor = _bpf(_MAP_BY_ID, attributes)
    try:
        yield descriptor if descriptor >= 0 else None
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def maps_of(pid: int) -> list[MapInfo]:
    """The maps that a process has open, and how full each is."""
    found = []
    for kind, number in sorted(held_by(pid)):
        if kind != "map":
            continue
        with _opened(number) as descriptor:
            if descriptor is not None:
                found.append(_info(descriptor, number))
    return found


def _info(descriptor: int, number: int) -> MapInfo:
    info = ctypes.create_string_buffer(_MAP_INFO_BYTES)
    request = struct.pack("<IIQ", descriptor, len(info), ctypes.addressof(info))
    _bpf(_OBJ_GET_INFO_BY_FD, ctypes.create_string_buffer(request, len(request)))
    kind, _, key_bytes, _, max_entries, _ = struct.unpack_from("<6I", info)
    name = info.raw[24:40].partition(b"\0")[0].decode()
    entries = None
    if kind in _HASHES:
        entries = _count_keys(descriptor, key_bytes, max_entries)
    elif kind in _FIXED:
        entries = max_entries
    return MapInfo(number=number, name=name, max_entries=max_entries, entries=entries)


def _keys(descriptor: int, key_bytes: int) -> Iterator[bytes]:
    """Those of a map; one that changes meanwhile may begin anew."""
    keys = ctypes.create_string_buffer(key_bytes), ctypes.create_string_buffer(key_bytes)
    last, at = 0, 0
    while True:
        request = struct.pack("<IxxxxQQ", descriptor, last, ctypes.addressof(keys[at]))
        if _bpf(_MAP_GET_NEXT_KEY, ctypes.create_string_buffer(request, len(request))):
            return
        yield keys[at].raw
        last, at = ctypes.addressof(keys[at]), 1 - at


def _count_keys(descriptor: int, key_bytes: int, limit: int) -> int:
    return sum(1 for _ in islice(_keys(descriptor, key_bytes), limit + 1))


def read_pinned(path: Path, key_bytes: int, value_bytes: int) -> dict[bytes, bytes]:
    """What the map has that is pinned at a path."""
    name, value = ctypes.create_string_buffer(os.fsencode(path)), ctypes.create_string_buffer(value_bytes)
    request = struct.pack("<QII", ctypes.addressof(name), 0, 0)
    descriptor = _bpf(_OBJ_GET, ctypes.create_string_buffer(request, len(request)))
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
    found = {}
    try:
        for key in _keys(descriptor, key_bytes):
            asked = ctypes.create_string_buffer(key, key_bytes)
            request = struct.pack(
                "<IxxxxQQQ", descriptor, ctypes.addressof(asked), ctypes.addressof(value), 0
            )
            if _bpf(_MAP_LOOKUP_ELEM, ctypes.create_string_buffer(request, len(request))) == 0:
                found[key] = value.raw
    finally:
        os.close(descriptor)
    return found
