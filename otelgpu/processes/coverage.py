"""What ``otelgpu check`` knows of a process, and how a family says what it sees of it.

In: facts that ``check`` gathers, and those that a family finds itself. Out: what is seen, what is blind, why, what to
do. A family that says something has an :class:`Inspection` in its :class:`~otelgpu.processes.discovery.Discovery`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Final, Literal

from msgspec import Struct, field

from otelgpu.elf.btf import Btf
from otelgpu.elf.image import ElfImage
from otelgpu.kernel.features import Feature
from otelgpu.model.resource import AttributeValue

TLS: Final = "libssl"
"""Library name of OpenSSL, whose functions show what it encrypts."""

_SHOWN_NAMES: Final = 6  # of a list of files in one sentence


class Machine(Struct, frozen=True, kw_only=True):
    """What the kernel, the privileges and the settings allow.

    ``wanted``: library name → symbols that some probe is for. ``syscalls``: whether their tracepoints exist.
    ``return_probes``: None when not tried.
    """

    wanted: Mapping[str, frozenset[str]]
    syscalls: bool = True
    return_probes: bool | None = True


class Library(Struct, frozen=True, kw_only=True):
    """A mapped file that probes are for. ``symbols``: those of the wanted that it has.

    ``error``: why it could not be read, or "". ``refusal``: what the kernel said to a probe on it, or "".
    """

    path: str
    name: str
    inode: int
    deleted: bool = False
    symbols: tuple[str, ...] = ()
    error: str = ""
    refusal: str = ""


class EmbeddedRuntime(Struct, frozen=True, kw_only=True):
    """A mapped file with GPU code in it that does not use a shared CUDA runtime, so it brings its own.

    ``symbols``: the wanted ones that a symbol table still names. ``stripped``: it has no ``.symtab``.
    What such a runtime does is seen as calls of the driver all the same, where that can be probed.
    """

    path: str
    is_program: bool
    symbols: tuple[str, ...] = ()
    stripped: bool = False


class TlsStack(Struct, frozen=True, kw_only=True):
    """Something mapped that can encrypt. ``probed``: its functions have probes, under OpenSSL's names or as Go's.

    ``by_return_probes``: what it has read is known by these alone.
    """

    name: str
    probed: bool
    by_return_probes: bool = True


class Shown(Struct, frozen=True):
    """A fact that a family found itself. ``path``: of the file that shows it, "" of what the process shows."""

    path: str
    fact: object


class Observed(Struct, frozen=True, kw_only=True):
    """One process at one moment.

    ``closed``: "denied" when its mappings may not be read, "empty" when it has none. ``libraries``: the CUDA
    driver among them. ``tls``: what could encrypt. ``runtimes``: what could serve its requests, as
    :mod:`otelgpu.model.runtimes` names it; ``has_libuv``: a library or program with that in it. ``io_uring``: its
    rings. ``connections``: accepted and open now; ``sockets``: all it has. ``shown``: by family, what it found itself.
    ``identity``: where it runs, and how that is known. ``claimed``: where it says that it runs, where it is not so.
    """

    pid: int
    name: str
    executable: str
    ns_pids: tuple[int, ...] = ()
    container_id: str = ""
    seccomp: int = 0
    closed: Literal["", "denied", "empty"] = ""
    libraries: tuple[Library, ...] = ()
    embedded: tuple[EmbeddedRuntime, ...] = ()
    tls: tuple[TlsStack, ...] = ()
    runtimes: tuple[str, ...] = ()
    has_libuv: bool = False
    io_uring: int = 0
    connections: int = 0
    sockets: int = 0
    shown: Mapping[str, tuple[Shown, ...]] = field(default_factory=dict)
    identity: tuple[tuple[str, AttributeValue, str], ...] = ()
    claimed: tuple[tuple[str, AttributeValue], ...] = ()


class Blind(Struct, frozen=True, kw_only=True):
    """Something that happens unseen: ``what``, ``why`` that is so, and what the user can ``do``."""

    what: str
    why: str
    do: str


class Findings(Struct, frozen=True):
    """What a rule says about one process."""

    sees: Sequence[str] = ()
    blind: Sequence[Blind] = ()


class Inspection(Struct, frozen=True, kw_only=True):
    """One family's. ``judge`` is pure; the others are there where it needs facts of its own.

    ``file``: what the image of a mapped file shows, which has those of the family's functions (None: nothing).
    ``process``: what else a process shows; the types are of the family's object. ``machine``: what the machine must
    have for it. ``libraries``: names of those of which it says itself what their functions are good for.
    """

    judge: Callable[[Observed, Machine], Findings]
    file: Callable[[ElfImage, Set[str]], object | None] | None = None
    process: Callable[[Observed, Btf], Sequence[object]] | None = None
    machine: Callable[[], Sequence[Feature]] | None = None
    libraries: frozenset[str] = frozenset()


def is_seen(library: Library) -> bool:
    """Whether its functions can be probed."""
    return bool(library.symbols) and not library.error and not library.refusal


def file_names(paths: Sequence[str]) -> str:
    """File names in a sentence, the first few of them; what is no path stays whole (``Go's crypto/tls``)."""
    shown = list(dict.fromkeys(os.path.basename(path) if path.startswith("/") else path for path in paths))
    more = len(shown) - _SHOWN_NAMES
    return ", ".join(shown[:_SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")
