"""TLS that is linked into a program, under no names that probes could be placed by: which library it is.

In: the image of a program, which anybody may have made. Out: names of libraries, with their versions where the program
says them. What is looked at are constants that release builds keep, also stripped ones:

- Go keeps the names of all functions (``.gopclntab``, src/internal/abi/symtab.go) and its version
  (``.go.buildinfo``, src/debug/buildinfo/buildinfo.go);
- Rust keeps the path of each source file that can panic, in cargo's registry ``…/rustls-0.23.35/src/…`` or, of vendored
  sources, ``…/rustls/src/…``; names of modules (``rustls::``) do not occur in release builds;
- BoringSSL's errors hold the path of their source file (``OPENSSL_PUT_ERROR``, include/openssl/err.h).

That a library is linked does not mean that it is used: each Go program that speaks HTTP has crypto/tls in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from otelgpu.elf.image import ElfError, ElfImage

GO: Final = "Go's crypto/tls"
RUSTLS: Final = "rustls"
BORINGSSL: Final = "BoringSSL"

_CONSTANTS: Final = (".rodata", ".data.rel.ro")
_FUNCTION_NAMES: Final = (
    ".gopclntab",
    ".data.rel.ro.gopclntab",
)  # the latter in position-independent programs
_MOST_BYTES: Final = 1 << 29
"""Looked at in one file: half a second's work."""
_GO_TLS: Final = re.compile(rb"crypto/tls\.\(\*Conn\)\.(?:Read|Write)\0")
_GO_VERSION: Final = re.compile(rb"\bgo(1\.\d{1,3}(?:\.\d{1,3}|rc\d{1,2}|beta\d{1,2})?)")
_RUSTLS: Final = re.compile(rb"rustls(?:-(\d{1,3}\.\d{1,3}\.\d{1,3})[^/\\\0]{0,32})?[/\\]src[/\\]")
_BORINGSSL: Final = re.compile(rb"boringssl[^/\0]{0,32}(?:/src)?/ssl/")


def linked_tls(image: ElfImage) -> tuple[str, ...]:
    """The libraries by name, as ``rustls 0.23.35``; none where the file is damaged."""
    try:
        found = (_go, _rustls, _boringssl)
        return tuple(name for name in (one(image) for one in found) if name)
    except ElfError:
        return ()


def _go(image: ElfImage) -> str:
    if not image.is_go or not any(_GO_TLS.search(part) for part in _parts(image, _FUNCTION_NAMES)):
        return ""
    described = image.section(".go.buildinfo")
    version = _GO_VERSION.search(described.content[:4096]) if described is not None else None
    return _named(GO, version)


def _rustls(image: ElfImage) -> str:
    found = [match for part in _parts(image, _CONSTANTS) if (match := _RUSTLS.search(part))]
    return _named(RUSTLS, found[0]) if found else ""


def _boringssl(image: ElfImage) -> str:
    return BORINGSSL if any(_BORINGSSL.search(part) for part in _parts(image, _CONSTANTS)) else ""


def _named(name: str, version: re.Match[bytes] | None) -> str:
    return f"{name} {version[1].decode()}" if version is not None and version[1] else name


def _parts(image: ElfImage, names: tuple[str, ...]) -> Iterator[memoryview]:
    """Sections of these names; of a file without any of them, all of it."""
    found = [section.content for name in names if (section := image.section(name)) is not None]
    left = _MOST_BYTES
    for part in found or [image.buffer]:
        yield part[:left]
        left -= min(len(part), left)
