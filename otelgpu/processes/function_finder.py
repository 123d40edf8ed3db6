"""Which wanted functions a tenant's ELF file has, and where: asked of a worker, on the account of whose file it is.

Whoever maps a file chooses how many symbols it has, what they are called, what its code and its device code look like,
and when the file shrinks. In: open files. Out: :class:`FoundFunctions`, and the kernels that a stripped file registers.
What is refused, or ended the worker, is to be asked again later; but registrations, which are asked for once.
"""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import Collection, Set
from functools import cache
from typing import Annotated, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from otelgpu.elf.image import ElfError, ElfImage
from otelgpu.model.runtimes import RUNTIMES
from otelgpu.processes.go_functions import MOST_RETURNS, GoFunctions, go_entries, go_functions
from otelgpu.processes.linked_tls import linked_tls
from otelgpu.processes.reader.accounts import Accounts, Owner
from otelgpu.processes.reader.client import Limits, Reader
from otelgpu.processes.reader.forker import Forker, session_forker
from otelgpu.processes.reader.messages import Descriptor, question
from otelgpu.processes.reader.server import Confinement
from otelgpu.processes.runtimes import linked_runtimes
from otelgpu.symbols import fatbin, registrations
from otelgpu.symbols.fatbin import DECOMPRESSOR_MODULES
from otelgpu.symbols.registrations import Registrations, read_registrations

_LIMITS: Final = Limits(busy_s=0.5, wall_s=1.0, advance_s=5.0, failure_s=10.0)
"""libLLVM's 50,000 functions take 5 ms, two million named like wanted ones 0.5 s; who waits meanwhile is the agent."""

_REASONS: Final = frozenset((*registrations.REASONS, *fatbin.REASONS))
_REGISTRATION_LIMITS: Final = Limits(busy_s=2.0, wall_s=4.0, failure_s=10.0)
"""A millisecond for each MB of code, and half a second of Zstandard."""

_CONSTANTS_LIMITS: Final = Limits(busy_s=1.0, wall_s=2.0, failure_s=10.0)
"""Node's 80 MB of constants take 0.1 s."""


class FoundFunctions(Struct, frozen=True):
    """``offsets``: in the file, by name. ``is_go``: of a Go program, whose stacks move; ``go``: its own."""

    offsets: dict[str, int]
    is_go: bool
    go: GoFunctions


@question(ElfError)
def functions_in(file: Descriptor, names: tuple[str, ...], of_go: tuple[str, ...]) -> FoundFunctions:
    """Those of ``names`` that are defined, and of Go functions ``of_go``.

    A file that shrinks meanwhile is the worker's end, on purpose.
    """
    image = image_of(file)
    offsets = image.function_offsets(names)
    if image.is_go and image.is_stripped:
        offsets |= go_entries(image, [name for name in names if "." in name])
    return FoundFunctions(offsets, image.is_go, go_functions(image, of_go))


@question(ElfError)
def runtimes_in(file: Descriptor) -> tuple[str, ...]:
    """What :func:`otelgpu.processes.runtimes.linked_runtimes` finds in a program."""
    return linked_runtimes(image_of(file))


Natural = Annotated[int, msgspec.Meta(ge=0)]
"""Of 64 bits, as msgpack has them."""


class FoundRegistrations(Struct, frozen=True):
    """What :mod:`otelgpu.symbols.registrations` finds, in plain data: a worker may answer anything of the kind."""

    stubs: dict[Natural, Natural]
    counters: dict[str, Natural]


@question(ElfError)
def registrations_in(file: Descriptor) -> FoundRegistrations:
    """The kernels that a stripped file's code registers, as :mod:`otelgpu.symbols.registrations` reads them."""
    found = read_registrations(image_of(file))
    return FoundRegistrations(found.stubs, dict(found.counters))


@question(ElfError)
def linked_tls_in(file: Descriptor) -> tuple[str, ...]:
    """The TLS libraries that a program has linked into it, as :mod:`otelgpu.processes.linked_tls` names them."""
    return linked_tls(image_of(file))


def image_of(file: Descriptor) -> ElfImage:
    """Of an open file, for a worker: one that shrinks is its end. Raises :class:`ElfError`."""
    try:
        return ElfImage(memoryview(mmap.mmap(file, 0, access=mmap.ACCESS_READ)))
    except ValueError as error:  # an empty file
        raise ElfError("not an ELF file: it is empty") from error


class FunctionFinder:
    """Asks a reader of its own."""

    def __init__(self, limits: Limits = _LIMITS, *, forker: Forker | None = None) -> None:
        self._reader = Reader(limits, Confinement(modules=DECOMPRESSOR_MODULES), forker=forker)
        self._names: tuple[Set[str], tuple[str, ...]] = frozenset(), ()

    @property
    def counters(self) -> Counter[str]:
        """The reader's: files that were not read, by reason."""
        return self._reader.counters

    @property
    def accounts(self) -> Accounts:
        """Who may have how much read, here or by this program itself."""
        return self._reader.accounts

    def find(
        self, owner: Owner, descriptor: int, names: frozenset[str], of_go: Collection[str] = ()
    ) -> FoundFunctions:
        """Of an open file; ``of_go``: functions of Go programs.

        Raises :class:`~.reader.client.ReaderError`, OSError, :class:`ElfError`.
        """
        if self._names[0] is not names:
            self._names = names, tuple(sorted(names))
        found = self._reader.ask(owner, functions_in, Descriptor(descriptor), self._names[1], tuple(of_go))
        if any(name not in of_go or len(one.returns) > MOST_RETURNS for name, one in found.go.found.items()):
            return replace(found, go=GoFunctions(unknown=True))  # a worker may answer anything of the kind
        return found

    def runtimes(self, owner: Owner, descriptor: int) -> tuple[str, ...]:
        """Those that are linked into an open program. Raises :class:`~.reader.client.ReaderError`."""
        try:
            found = self._reader.ask(owner, runtimes_in, Descriptor(descriptor))
        except ElfError:
            return ()
        return tuple(name for name in found if name in RUNTIMES)

    def registrations(self, owner: Owner, descriptor: int) -> Registrations:
        """Of an open file. Raises as :meth:`find` does."""
        found = self._reader.ask_within(_REGISTRATION_LIMITS, owner, registrations_in, Descriptor(descriptor))
        known = {reason: count for reason, count in found.counters.items() if reason in _REASONS}
        return Registrations(found.stubs, Counter(known))

    def linked_tls(self, owner: Owner, descriptor: int) -> tuple[str, ...]:
        """Of an open program. Raises as :meth:`find` does."""
        return self._reader.ask_within(_CONSTANTS_LIMITS, owner, linked_tls_in, Descriptor(descriptor))

    def close(self) -> None:
        """End the worker."""
        self._reader.close()


@cache
def session_function_finder() -> FunctionFinder:
    """The one of this program. To be asked for before there are threads: the first time, it forks."""
    return FunctionFinder(forker=session_forker())
