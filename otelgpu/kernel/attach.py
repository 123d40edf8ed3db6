"""Where a program belongs, read from its ``SEC()`` name, and putting it there.

``uprobe/<library>:<symbol>,<symbol>,…;<library>:…`` goes to every file that is that library (``libcudart`` for
any ``libcudart*.so*``), as do ``uretprobe/…`` (to the returns) and ``usession/…`` (to both); which of the symbols
it runs for, the program is reported by its cookie: the number of ``API_<symbol>`` in ``enum <family>_api``, and above
it what is to be said of the file.
``uprobe/go:<function>,…`` goes to the entries of functions of Go programs, and ``uprobe/go_returns:<function>,…`` to
each of their returns: see :mod:`otelgpu.processes.go_functions`.
``tracepoint/<category>/<prefix><a>,<b>,…`` goes to each tracepoint of the list; ``tp_btf/<name>`` to the
kernel's typed tracepoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from otelgpu.kernel.libbpf import BpfError, Link, Program, detach_all
from otelgpu.kernel.loader import Image, LoadedFamily

PROBES: Final = ("uretprobe", "usession", "uprobe")  # in the order of attaching: none returns unentered
GO: Final = "go"
"""The library of functions of Go programs, which are probed at their entries; and of those probed at their returns."""
GO_ENTRIES: Final = "libgo"
"""The same at entries that are found as any library's functions are, each for itself."""
GO_RETURNS: Final = "go_returns"
_COOKIE_ENTRY_ONLY: Final = 1 << 32  # the probe's return is not to be probed
_COOKIE_MARK_SHIFT: Final = 33


class Hook(Struct, frozen=True):
    """A user-space probe: ``program`` goes to ``symbol`` of ``library``, and reads ``cookie`` there."""

    program: Program
    library: str
    symbol: str
    cookie: int = 0

    @property
    def is_return(self) -> bool:
        """Whether it fires at returns only."""
        return self.program.probes == "uretprobe"


def hooks(programs: Iterable[Program], numbers: Mapping[str, int] | None = None) -> list[Hook]:
    """The user-space probes among ``programs``, in the order of attaching.

    ``numbers``: the functions' numbers by symbol.
    """
    found = [
        Hook(program, library, symbol, (numbers or {}).get(symbol, 0))
        for program in programs
        if program.probes in PROBES
        for library, symbol in places(program.section)
    ]
    return sorted(found, key=lambda hook: PROBES.index(hook.program.probes))


def hooks_of(family: LoadedFamily, programs: Iterable[Program] | None = None) -> list[Hook]:
    """The same for ``programs`` of a family (None: all that were loaded)."""
    name, btf = f"{family.family}_api", family.image.btf
    numbers = btf.enumerators(name) if btf.has_enum(name) else {}
    chosen = family.programs if programs is None else programs
    return hooks(chosen, {key.removeprefix("API_"): number for key, number in numbers.items()})


def functions_of(image: Image) -> dict[str, str]:
    """The functions that the programs of a family are for: symbol → the name of its library. Nothing is loaded."""
    return {
        symbol: library
        for section in image.sections
        if section.partition("/")[0].lstrip("?") in PROBES
        for library, symbol in places(section)
    }


def places(section: str) -> list[tuple[str, str]]:
    """``uprobe/liba:x,y;libb:z`` → ``[("liba", "x"), ("liba", "y"), ("libb", "z")]``."""
    return [
        (library, symbol)
        for part in section.partition("/")[2].split(";")
        for library, colon, listed in [part.partition(":")]
        for symbol in listed.split(",")
        if colon and symbol
    ]


def is_for(program: Program, libraries: Set[str]) -> bool:
    """Whether a program is for functions, and those of ``libraries`` alone."""
    found = {library for library, _ in places(program.section)} if program.probes in PROBES else set()
    return bool(found) and found <= libraries


def attach_tracepoints(family: LoadedFamily) -> None:
    """Attach every tracepoint program of the family; the links belong to it from then on."""
    for program in family.programs:
        kind, _, place = program.section.partition("/")
        if kind == "tp_btf":
            family.links.append(program.attach())
        elif kind == "tracepoint":
            category, _, listed = place.partition("/")
            family.links += [program.attach_tracepoint(category, name) for name in expand(listed)]


def has_tracepoints(image: Image) -> bool:
    """Whether :func:`attach_tracepoints` opens perf events for the family."""
    return any(section.startswith("tracepoint/") for section in image.sections)


def expand(listed: str) -> list[str]:
    """``sys_exit_read,write`` → ``["sys_exit_read", "sys_exit_write"]``: the prefix ends at the last ``_``."""
    first, *others = listed.split(",")
    prefix = first[: first.rindex("_") + 1] if others else ""
    return [first, *(prefix + other for other in others)]


def attach_hooks(
    wanted: Iterable[Hook],
    path: str,
    offsets: Mapping[str, int],
    *,
    with_returns: bool,
    file_cookies: Mapping[str, int] | None = None,
    tgid: int = -1,
) -> tuple[list[Link], list[BpfError]]:
    """Put probes on the file at ``path``, in process ``tgid`` (-1: in every one that maps it).

    ``offsets``: symbol → file offset. Symbols that the file lacks are passed over, and of several at one place
    the first is probed. ``file_cookies``: library's name → a number of 31 bits that its programs read in their
    cookies.
    Returns the links, and an error for each probe that the kernel refused.
    """
    by_program: dict[int, list[Hook]] = {}
    taken: set[tuple[bool, int]] = set()
    for hook in wanted:
        if hook.symbol not in offsets or (hook.is_return and not with_returns):
            continue
        place = (hook.is_return, offsets[hook.symbol])
        if place not in taken:
            taken.add(place)
            if file_cookie := (file_cookies or {}).get(hook.library, 0):
                hook = replace(hook, cookie=hook.cookie | file_cookie << _COOKIE_MARK_SHIFT)
            by_program.setdefault(id(hook.program), []).append(hook)
    links: list[Link] = []
    refused: list[BpfError] = []
    for listed in by_program.values():
        _attach(listed, path, offsets, 0 if with_returns else _COOKIE_ENTRY_ONLY, tgid, links, refused)
    return links, refused


def attach_go_hooks(
    wanted: Iterable[Hook], path: str, places: Mapping[tuple[str, str], Sequence[int]]
) -> tuple[list[Link], list[BpfError]]:
    """Put probes into the functions of the Go program at ``path``: all, or none.

    ``places``: by library (:data:`GO`, :data:`GO_RETURNS`) and symbol, file offsets. Returns as :func:`attach_hooks`
    does.
    """
    by_program: dict[int, list[Hook]] = {}
    for hook in wanted:
        if (hook.library, hook.symbol) in places:
            by_program.setdefault(id(hook.program), []).append(hook)
    links: list[Link] = []
    try:
        # Returns first: none is entered whose return is not seen.
        for listed in sorted(by_program.values(), key=lambda hooks: hooks[0].library != GO_RETURNS):
            offsets = [at for hook in listed for at in places[hook.library, hook.symbol]]
            links += listed[0].program.attach_uprobes(path, offsets, [0] * len(offsets))
    except BpfError as error:
        detach_all(links)
        return [], [error]
    return links, []


def _attach(
    listed: Sequence[Hook],
    path: str,
    offsets: Mapping[str, int],
    file_cookie: int,
    tgid: int,
    links: list[Link],
    refused: list[BpfError],
) -> None:
    """All in one link; where the kernel refuses that, one half after the other, down to those at fault."""
    try:
        links += listed[0].program.attach_uprobes(
            path,
            [offsets[hook.symbol] for hook in listed],
            [hook.cookie | file_cookie for hook in listed],
            tgid=tgid,
        )
    except BpfError as error:
        if len(listed) == 1:
            refused.append(error)
            return
        half = len(listed) // 2
        for part in (listed[:half], listed[half:]):
            _attach(part, path, offsets, file_cookie, tgid, links, refused)
