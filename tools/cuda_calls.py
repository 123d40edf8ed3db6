"""What the CUDA programs observe, read from the compiled object: the table of bpf/cuda/calls.h as it was built.

In: otelgpu/_bpf/cuda.bpf.o. Out: a :class:`Call` for each function, and the rows of docs/reference/cuda-calls.md.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from elftools.elf.elffile import ELFFile

from otelgpu.kernel.attach import places
from otelgpu.kernel.loader import Image, read_image

SLOTS: Final = ("object", "other", "bytes", "stream", "extra", "detail")
# A slot's source in one byte: the SOURCE_ macros of bpf/cuda/calls.h, which BTF does not have.
_CONSTANT: Final = 0x30
_SOURCES: Final = (
    (0x80, "what argument {} points at"),
    (0x40, "what argument {} points at on return"),
    (0x20, "stack argument {}"),
    (0x10, "argument {}"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One observed function. ``kind``, ``memory`` and ``shape`` are enumerators without their prefix."""

    symbol: str
    library: str
    kind: str
    memory: str
    shape: str
    slots: Mapping[str, str]  # where each slot of the record that is filled comes from
    entry_only: bool


@cache
def calls() -> tuple[Call, ...]:
    """Every observed function, in the order of the table."""
    image = read_image("cuda")
    kinds, shapes = _names(image, "cuda_kind", "CUDA_"), _names(image, "cuda_shape", "SHAPE_")
    memories = _names(image, "cuda_memory", "CUDA_MEMORY_")
    elf = ELFFile(io.BytesIO(image.data))
    sections = [section.name for section in elf.iter_sections()]
    library_names = {symbol: library_name for name in sections for library_name, symbol in places(name)}
    pairs = {symbol for name in sections if name.startswith("usession/") for _, symbol in places(name)}
    specs = image.constants("specs", "spec")
    return tuple(
        Call(
            symbol=symbol,
            library=library_names[symbol],
            kind=kinds[int(specs[number]["kind"])],
            memory=memories[int(specs[number]["memory"])],
            shape=shapes[int(specs[number]["shape"])],
            slots={slot: _source(int(specs[number][slot])) for slot in SLOTS if specs[number][slot]},
            entry_only=symbol not in pairs,
        )
        for number, symbol in _names(image, "cuda_api", "API_").items()
        if symbol in library_names
    )


def _names(image: Image, enum: str, prefix: str) -> dict[int, str]:
    return {number: name.removeprefix(prefix) for name, number in image.btf.enumerators(enum).items()}


def _source(source: int) -> str:
    if source & 0xF0 == _CONSTANT:
        return f"always {source & 7}"
    text = next(text for bit, text in _SOURCES if source & bit)
    return text.format(source & 7)


def rows() -> Iterable[tuple[str, ...]]:
    """Function, library, kind, fields read, and where the probes are."""
    for call in calls():
        fields = [f"{slot}: {source}" for slot, source in call.slots.items()]
        if call.shape != "PLAIN":
            fields.append(call.shape.lower().replace("_", " "))
        if call.memory != "NONE":
            fields.append(f"{call.memory.lower()} memory")
        yield (
            f"`{call.symbol}`",
            call.library,
            call.kind.lower().replace("_", " "),
            "; ".join(fields),
            "entry" if call.entry_only else "entry and return",
        )
