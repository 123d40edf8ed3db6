"""Where ld.so would find a library, without running it.

In: an object and the name it needs. Out: the path of the file that would be loaded. Sources: ld.so(8),
dlopen(3), glibc's ``sysdeps/generic/dl-cache.h`` and ``elf/dl-load.c``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

from msgspec import Struct

_MULTIARCH: Final = {"x86-64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}
_PLATFORM: Final = {"x86-64": "x86_64", "aarch64": "aarch64"}
# FLAG_ELF_LIBC6 with FLAG_X8664_LIB64 or FLAG_AARCH64_LIB64 (sysdeps/generic/ldconfig.h).
_CACHE_FLAGS: Final = {"x86-64": 0x0303, "aarch64": 0x0A03}
_CACHE_OLD: Final = b"ld.so-1.7.0\0"
_CACHE_NEW: Final = b"glibc-ld.so.cache1.1"
_CACHE_HEADER: Final = struct.Struct(
    "<20sII"
)  # magic and version, entries, bytes of strings; 48 bytes in all
_CACHE_ENTRY: Final = struct.Struct("<iIIIQ")  # flags, key, value, OS version, hardware capabilities
_MAX_CACHE_BYTES: Final = 16 << 20


def parse_cache(data: bytes, machine: str) -> dict[str, str]:
    """soname → path from an ``/etc/ld.so.cache``; empty when it is not one, as far as it goes when damaged.

    ``struct cache_file_new``, also behind the format before glibc 2.2. Of several entries for one name the
    first without hardware capabilities wins: libraries of vendors have no variants.
    """
    base = 0
    if data.startswith(_CACHE_OLD) and len(data) >= 16:
        base = -(-(16 + 12 * int.from_bytes(data[12:16], "little")) // 8) * 8
    if data[base : base + 20] != _CACHE_NEW or len(data) < base + 48:
        return {}
    _, count, _ = _CACHE_HEADER.unpack_from(data, base)
    found: dict[str, str] = {}
    variants: dict[str, str] = {}
    for place in range(base + 48, min(base + 48 + 24 * count, len(data) - 23), 24):
        flags, key, value, _, capabilities = _CACHE_ENTRY.unpack_from(data, place)
        if flags == _CACHE_FLAGS.get(machine):
            name, path = (_string(data, base + at) for at in (key, value))
            (variants if capabilities else found).setdefault(name, path)
    return variants | found


def _string(data: bytes, place: int) -> str:
    end = data.find(b"\0", place, place + 4096)
    return data[place : max(end, place)].decode("utf-8", "surrogateescape")


class LoadedObject(Struct, frozen=True, kw_only=True):
    """A program or library on its way into memory. ``parent`` is what needed it, None for the program."""

    path: Path
    needed: tuple[str, ...]
    rpath: tuple[str, ...]
    runpath: tuple[str, ...]
    parent: LoadedObject | None


@dataclass
class SearchPath:
    """ld.so's rules for one program: its machine, environment and folder.

    ``root`` is where /etc, /lib and /usr are looked for; for tests.
    """

    machine: str
    environ: Mapping[str, str]
    cwd: Path
    interpreter: str = ""
    root: Path = field(default=Path("/"))

    @cached_property
    def cache(self) -> dict[str, str]:
        """The ld.so.cache of the system; empty under musl, which has none."""
        if self._is_musl:
            return {}
        try:
            with open(self.root / "etc/ld.so.cache", "rb") as file:
                return parse_cache(file.read(_MAX_CACHE_BYTES), self.machine)
        except OSError:
            return {}

    @property
    def _is_musl(self) -> bool:
        return "ld-musl" in self.interpreter

    @cached_property
    def default_folders(self) -> tuple[Path, ...]:
        """What is searched last."""
        multiarch = _MULTIARCH[self.machine]
        names = [f"lib/{multiarch}", f"usr/lib/{multiarch}", "lib64", "usr/lib64", "lib", "usr/lib"]
        if self._is_musl:
            names = ["lib", "usr/local/lib", "usr/lib"]
        return tuple(self.root / name for name in names)

    @cached_property
    def environment_folders(self) -> tuple[Path, ...]:
        """LD_LIBRARY_PATH. An empty entry is the current folder."""
        text = self.environ.get("LD_LIBRARY_PATH", "")
        entries = text.replace(";", ":").split(":") if text else []
        return tuple(self.expand(entries, self.cwd))

    @property
    def preloaded(self) -> Iterator[str]:
        """LD_PRELOAD and /etc/ld.so.preload: names or paths."""
        yield from self.environ.get("LD_PRELOAD", "").replace(":", " ").split()
        try:
            yield from (self.root / "etc/ld.so.preload").read_text(errors="replace").split()
        except OSError:
            return

    def expand(self, entries: Iterable[str], origin: Path) -> Iterator[Path]:
        """Folders of a search path with $ORIGIN, $LIB and $PLATFORM filled in; relative to ``cwd``."""
        multiarch = _MULTIARCH[self.machine]
        for entry in entries:
            forms = [entry]
            if "$LIB" in entry or "${LIB}" in entry:  # Debian's value, then everybody else's
                forms = [
                    entry.replace("${LIB}", lib).replace("$LIB", lib) for lib in (f"lib/{multiarch}", "lib64")
                ]
            for form in forms:
                for name, value in (("ORIGIN", str(origin)), ("PLATFORM", _PLATFORM[self.machine])):
                    form = form.replace(f"${{{name}}}", value).replace(f"${name}", value)
                yield self.cwd / form

    def own_folders(self, loaded: LoadedObject) -> Iterator[Path]:
        """The RUNPATH of an object, or its RPATH and those of what loaded it: where its dlopen looks, too."""
        if loaded.runpath:
            yield from self.expand(loaded.runpath, loaded.path.parent)
            return
        ancestor: LoadedObject | None = loaded
        while ancestor is not None:
            if not ancestor.runpath:
                yield from self.expand(ancestor.rpath, ancestor.path.parent)
            ancestor = ancestor.parent

    def candidates(self, name: str, loaded: LoadedObject) -> Iterator[Path]:
        """Where ``name`` may be when ``loaded`` needs it, in ld.so's order; they need not exist."""
        if "/" in name:
            yield from self.expand([name], loaded.path.parent)
            return
        own = [folder / name for folder in self.own_folders(loaded)]
        environment = [folder / name for folder in self.environment_folders]
        yield from [*environment, *own] if loaded.runpath else [*own, *environment]
        if name in self.cache:
            yield self.root / self.cache[name].lstrip("/")
        yield from (folder / name for folder in self.default_folders)
