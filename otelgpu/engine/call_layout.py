"""Whether a family's call records are laid out as operations, so that decoding is looking at them differently. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from otelgpu.elf.btf import BtfError
from otelgpu.model.operations import OPERATION

# Field of struct record_head, which begins a record → column that must lie at the same place.
_HEAD: Final[Mapping[str, str]] = {
    "time_ns": "start_ns",
    "duration_ns": "duration_ns",
    "tgid": "tgid",
    "tid": "tid",
    "cgroup_id": "cgroup_id",
    "trace_id": "trace_id",
    "span_id": "span_id",
    "kind": "kind",
    "cpu": "cpu",
    "trace_flags": "trace_flags",
    "context_source": "context_source",
    "returned": "returned",
}


def check_layout(struct: str, call: np.dtype[Any], same_place: Mapping[str, str]) -> None:
    """Raise BtfError unless ``struct`` is laid out as an operation.

    ``same_place``: its field → the column that must lie at the same place and be of the same type.
    """
    head = call["head"] if "head" in (call.names or ()) else np.dtype([])
    wrong = [
        field for field, column in same_place.items() if _place(call, field) != _place(OPERATION, column)
    ]
    wrong += [
        f"head.{field}" for field, column in _HEAD.items() if _place(head, field) != _place(OPERATION, column)
    ]
    if wrong or call.itemsize != OPERATION.itemsize:
        raise BtfError(
            f"struct {struct} ({call.itemsize} bytes) is not laid out as an operation "
            f"({OPERATION.itemsize} bytes): {', '.join(wrong) or 'its size differs'}",
            "was the capture made by another version?",
        )


def _place(layout: np.dtype[Any], field: str) -> tuple[Any, ...] | None:
    """Type and offset of a field."""
    return layout.fields[field][:2] if layout.fields and field in layout.fields else None
