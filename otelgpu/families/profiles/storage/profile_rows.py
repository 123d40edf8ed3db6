"""Samples of slow calls on files, and of requests to block devices, into rows: time and bytes. Pure.

The leaf says what was done to what: ``[write checkpoint.bin]``, ``[block vda write]``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from otelgpu.engine.profile_rows import Label, ProfileRows, Rows
from otelgpu.families.profiles import names
from otelgpu.families.profiles.storage.names import last_part
from otelgpu.model.files import FileCall
from otelgpu.model.profiles import FrameType, ValueType
from otelgpu.model.profiling import ProfileKind
from otelgpu.model.samples import GROUP_SHIFT, OPERATION_SHIFT, Frame, SampleKind, Samples

DIFFERENT: Final = 4096
"""Files and calls of a batch that have a leaf of their own; the rest is one."""

_CALL: Final = 0xFF
_OPERATION: Final = 0xFF
_MINOR_BITS: Final = 20
_DEVICE: Final = (1 << OPERATION_SHIFT) - 1
_CALLS: Final = {each.value: each.name.lower() for each in FileCall}
_OPERATIONS: Final = {
    **{0: "read", 1: "write", 2: "flush", 3: "discard", 5: "secure_erase", 9: "write_zeroes"},
    **{10: "zone_open", 11: "zone_close", 12: "zone_finish", 7: "zone_append", 13: "zone_reset"},
}
"""enum req_op, include/linux/blk_types.h."""

NameOf = Callable[[int, int], str]
"""(kind of the sample, its ``other``) → path of the file, or device; "" where it is not known."""


def block_operation(number: int) -> str:
    """What a request's ``other`` asks for: ``write``."""
    operation = number >> OPERATION_SHIFT & _OPERATION
    return _OPERATIONS.get(operation, f"operation {operation}")


def block_device(number: int, name: str) -> str:
    """The device of a request's ``other``: its name, or ``254:0`` where that is not known."""
    device = number & _DEVICE
    return name or f"{device >> _MINOR_BITS}:{device & (1 << _MINOR_BITS) - 1}"


def block_label(number: int, name_of: NameOf) -> tuple[tuple[str, str], ...]:
    """Attributes of a request by its ``other``: device, operation, and for whom a thread of the kernel made it."""
    group = number >> GROUP_SHIFT
    return (
        (names.BLOCK_DEVICE, block_device(number, name_of(SampleKind.BLOCK, number))),
        (names.BLOCK_OPERATION, block_operation(number)),
        *(
            ((names.BLOCK_GROUP, name_of(SampleKind.BLOCK, group << GROUP_SHIFT) or f"group {group}"),)
            if group
            else ()
        ),
    )


def storage_rows(samples: Samples, rows: Rows, name_of: NameOf) -> list[ProfileRows]:
    """``samples`` are (n,) of kind FILE, or of BLOCK; ``rows`` the same as rows, whose leaf and label are set."""
    kind = SampleKind(int(samples["kind"][0]))
    numbers, codes = np.unique(samples["other"], return_inverse=True)
    rows["leaf"] = rows["label"] = np.minimum(codes.reshape(-1), DIFFERENT) + 1
    parts = [_parts(kind, number, name_of) for number in numbers[:DIFFERENT].tolist()]
    if len(numbers) > DIFFERENT:
        parts.append(("[other files]" if kind is SampleKind.FILE else "[other devices]", ()))
    sizes = rows.copy()
    sizes["value"] = np.minimum(samples["size_bytes"], np.uint64(2**62)).astype(np.int64)
    asked, types = _TYPES[kind]
    return [
        ProfileRows(
            kind=asked,
            sample_type=sample_type,
            rows=each,
            leaves=tuple((Frame(type=FrameType.KERNEL, name=leaf),) for leaf, _ in parts),
            labels=tuple(label for _, label in parts),
            period_type=sample_type,
            period=1,
        )
        for sample_type, each in zip(types, (rows, sizes), strict=True)
    ]


_TYPES: Final[dict[SampleKind, tuple[ProfileKind, tuple[ValueType, ValueType]]]] = {
    SampleKind.FILE: (ProfileKind.FILE, (names.FILE_TIME, names.FILE_BYTES)),
    SampleKind.BLOCK: (ProfileKind.BLOCK, (names.BLOCK_TIME, names.BLOCK_BYTES)),
}


def _parts(kind: SampleKind, number: int, name_of: NameOf) -> tuple[str, Label]:
    """The leaf, and the attributes."""
    name = name_of(kind, number)
    if kind is SampleKind.FILE:
        call = _CALLS.get(number & _CALL, f"call {number & _CALL}")
        file = last_part(name)
        return f"[{call} {file or 'a file'}]", (
            (names.FILE_CALL, call),
            *(((names.FILE_NAME, file), (names.FILE_PATH, name)) if file else ()),
        )
    label = block_label(number, name_of)
    device, operation, *groups = (text for _, text in label)
    whose = f" back for {groups[0]}" if groups else ""
    return f"[block {device} {operation}{whose}]", label
