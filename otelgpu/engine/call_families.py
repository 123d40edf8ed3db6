"""Which family the call of a sample is of: each family's programs carry a number of their own. Pure.

In: the families' types. Out: their numbers, as ``enum call_family`` of each has it (bpf/lib/call_stacks.h). A sample
of kind CALL says the number above 32 bits of its ``other``, and below them which of the family's functions it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from otelgpu.elf.btf import Btf, BtfError
from otelgpu.model.samples import Samples

NO_FAMILY: Final = 0
"""The number of no family: its calls have no stacks, or its programs are older than the number."""

_SHIFT: Final = np.uint64(32)
_ENUM: Final = "call_family"


def call_family(btf: Btf) -> int:
    """The number of the family whose types these are; :data:`NO_FAMILY` without one."""
    return btf.enumerators(_ENUM)["CALL_FAMILY"] if btf.has_enum(_ENUM) else NO_FAMILY


def call_families(types: Mapping[str, Btf]) -> dict[str, int]:
    """Family → number, of those whose calls have stacks. Raises :class:`BtfError` where two have the same."""
    found: dict[int, str] = {}
    for family, btf in types.items():
        number = call_family(btf)
        if number != NO_FAMILY and (other := found.setdefault(number, family)) != family:
            raise BtfError(
                f"families {other} and {family} both have CALL_FAMILY = {number}",
                "give one of them another number in its header, and rebuild",
            )
    return {family: number for number, family in found.items()}


def family_of(samples: Samples) -> npt.NDArray[np.uint64]:
    """Of samples of kind CALL the number of the family: shape (n,)."""
    numbers: npt.NDArray[np.uint64] = samples["other"] >> _SHIFT
    return numbers
