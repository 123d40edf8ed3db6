"""A member of a struct, as :mod:`otelgpu.elf.dwarf` finds it: for who has the answer and not the reader of it."""

from __future__ import annotations

from msgspec import Struct


class Member(Struct, frozen=True):
    """``offset`` in bytes; ``elements`` of an array, 1 of anything else."""

    offset: int
    elements: int
