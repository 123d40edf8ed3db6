"""Where a program belongs, read from its ``SEC()`` name, and putting it there.

``uprobe/<stem>:<symbol>`` and ``uretprobe/<stem>:<symbol>`` go to every file that is that library
(``libcudart`` for any ``libcudart*.so*``); ``tracepoint/<category>/<prefix><a>,<b>,…`` to each tracepoint
of the list; ``tp_btf/<name>`` to the kernel's typed tracepoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from otelgpu.kernel.libbpf import BpfError, Link, Program
from otelgpu.kernel.loader import LoadedFamily


@dataclass(frozen=True, slots=True)
class Hook:
    """A user-space probe: ``program`` goes to ``symbol`` of library ``stem``."""

    program: Program
    stem: str
    symbol: str
    is_return: bool


def hooks(programs: Iterable[Program]) -> list[Hook]:
    """The user-space probes among ``programs``; returns before entries, so that none returns unentered."""
    found = []
    for program in programs:
        kind, _, place = program.section.partition("/")
        stem, _, symbol = place.partition(":")
        if kind in ("uprobe", "uretprobe") and symbol:
            found.append(Hook(program, stem, symbol, kind == "uretprobe"))
    return sorted(found, key=lambda hook: (not hook.is_return, hook.symbol))


def attach_tracepoints(family: LoadedFamily) -> None:
    """Attach every tracepoint program of the family; the links belong to it from then on."""
    for program in family.object.programs.values():
        kind, _, place = program.section.partition("/")
        if kind == "tp_btf":
            family.links.append(program.attach())
        elif kind == "tracepoint":
            category, _, listed = place.partition("/")
            family.links += [program.attach_tracepoint(category, name) for name in expand(listed)]


def expand(listed: str) -> list[str]:
    """``sys_exit_read,write`` → ``["sys_exit_read", "sys_exit_write"]``: the prefix ends at the last ``_``."""
    first, *others = listed.split(",")
    prefix = first[: first.rindex("_") + 1] if others else ""
    return [first, *(prefix + other for other in others)]


def attach_hooks(
    wanted: Iterable[Hook], path: str, offsets: Mapping[str, int], *, with_returns: bool
) -> tuple[list[Link], list[BpfError]]:
    """Put probes on the file at ``path``, in every process that maps it.

    ``offsets``: symbol → file offset. Symbols that the file lacks are passed over. Returns the links, and an
    error for each probe that the kernel refused.
    """
    links, refused = [], []
    for hook in wanted:
        if hook.symbol not in offsets or (hook.is_return and not with_returns):
            continue
        try:
            links.append(hook.program.attach_uprobe(path, offsets[hook.symbol], is_return=hook.is_return))
        except BpfError as error:
            refused.append(error)
    return links, refused
