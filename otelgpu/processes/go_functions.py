"""Where a Go program's functions can be probed: their entries, and each of their returns, because Go moves its stacks.

In: an image, which anybody may have made. Out: file offsets. A function is probed only if its code is understood as a
whole and begins as Go's compiler begins functions: by comparing the stack with the limit that register r14's goroutine
has (stacksplit in src/cmd/internal/obj/x86/obj6.go), which is the register ABI of Go 1.17 and later
(src/cmd/compile/abi-internal.md). A program of which one wanted function is not like that has none that can be probed.

A return probe writes another return address onto the stack, where Go does not find its way when it moves it: so the
instructions that return are probed in its place.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from msgspec import Struct, field

from otelgpu.elf.amd64 import UnknownInstruction, returns
from otelgpu.elf.go import go_table
from otelgpu.elf.image import ElfError, ElfImage
from otelgpu.kernel.attach import GO, GO_RETURNS

MOST_RETURNS: Final = 64
_MACHINE: Final = "x86-64"
_PROLOGUE: Final = re.compile(
    rb"\x49\x3b\x66\x10"  # cmp rsp, [r14+0x10]
    rb"|\x4c\x8d(?:\x64\x24.|\xa4\x24....)\x4d\x3b\x66\x10",  # lea r12, [rsp-…]; cmp r12, [r14+0x10]
    re.DOTALL,
)
_PROLOGUE_BYTES: Final = 12


class GoFunction(Struct, frozen=True):
    """File offsets."""

    entry: int
    returns: tuple[int, ...]


class GoFunctions(Struct, frozen=True):
    """Those wanted that a program has. ``unknown``: it has some, and they cannot be probed."""

    found: Mapping[str, GoFunction] = field(default_factory=dict)
    unknown: bool = False

    @property
    def places(self) -> dict[tuple[str, str], Sequence[int]]:
        """As :func:`otelgpu.kernel.attach.attach_go_hooks` wants them."""
        entries = {(GO, name): (function.entry,) for name, function in self.found.items()}
        return entries | {(GO_RETURNS, name): function.returns for name, function in self.found.items()}


def go_entries(image: ElfImage, names: Collection[str]) -> dict[str, int]:
    """File offsets of those of ``names`` that begin as Go's functions do: all that it has, or none."""
    try:
        table = go_table(image, names)
    except ElfError:
        table = None
    if image.machine != _MACHINE or table is None:
        return {}
    for base in table.bases:
        places = {name: base + entry for name, (entry, _) in table.functions.items()}
        if all(_PROLOGUE.match(image.content_at(place)[:_PROLOGUE_BYTES]) for place in places.values()):
            offsets = {name: image.offset_of(place) for name, place in places.items()}
            return {name: offset for name, offset in offsets.items() if offset is not None}
    return {}


def go_functions(image: ElfImage, names: Collection[str]) -> GoFunctions:
    """Those of ``names`` that are linked into it, all or none."""
    if not image.is_go or not names:
        return GoFunctions()
    try:
        table = go_table(image, names)
    except ElfError:
        table = None
    if image.machine != _MACHINE or table is None:
        return GoFunctions(unknown=True)
    for base in table.bases:
        found = {
            name: function
            for name, (entry, size) in table.functions.items()
            if (function := _function(image, base + entry, size)) is not None
        }
        if found.keys() == table.functions.keys():
            return GoFunctions(found)
    return GoFunctions(unknown=bool(table.functions))


def _function(image: ElfImage, address: int, size: int) -> GoFunction | None:
    """None: it is not what Go's compiler makes, or has an instruction that is not known."""
    entry = image.offset_of(address)
    if entry is None:
        return None
    code = bytes(image.content_at(address)[:size])
    if len(code) != size or not _PROLOGUE.match(code):
        return None
    try:
        places = returns(code)
    except UnknownInstruction:
        return None
    return GoFunction(entry, tuple(entry + at for at in places)) if 0 < len(places) <= MOST_RETURNS else None
