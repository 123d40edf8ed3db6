"""Which of PyTorch's operators a stack is in, reported by the names of its native frames. Pure.

In: frames, the leaf first. Out: the operator that the nearest Python code called, and the node of the backward pass
that it is part of. PyTorch makes a struct for each operator and overload (``at::_ops::add_Tensor``, with functions
``call`` and ``redispatch``) and a class for each node (``torch::autograd::generated::MulBackward0``), and exports both:
so they have names in stripped libraries too. What has no such frame has no operator.

Example: ``malloc``, ``at::detail::empty_generic(…)``, ``at::_ops::empty_memory_format::call(…)``,
``at::native::mm(…)``, ``at::_ops::mm::call(…)``, ``train.py`` → ``mm``: ``empty`` was its own affair.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import numpy as np

from otelgpu.families.profiles.tables import BatchTables
from otelgpu.model.codes import Codes
from otelgpu.model.profiles import FrameType
from otelgpu.model.spans import Attribute, Text

OPERATOR: Final = "torch.operator"
NODE: Final = "torch.autograd.node"

_OPERATOR: Final = re.compile(r"at::_ops::(\w+)::(?:call|redispatch)\b")
_NODE: Final = re.compile(r"torch::autograd::(?:generated::)?(\w+)::apply\b")


def operators(tables: BatchTables, stacks: Codes) -> Iterable[Attribute]:
    """The attributes of rows with these stacks of the tables; none where no stack has one."""
    locations, functions = tables.locations, tables.functions
    frames = [
        (location.frame_type, functions[line.function].name)
        for location in locations
        for line in location.lines[:1]
    ]
    reported = [operator_of(map(frames.__getitem__, stack)) for stack in tables.stacks]
    for key, column in ((OPERATOR, [each[0] for each in reported]), (NODE, [each[1] for each in reported])):
        if any(column):
            places = {name: place for place, name in enumerate(dict.fromkeys(column))}
            codes = np.array([places[name] for name in column], dtype=np.intp)[stacks]
            present = np.array([bool(name) for name in column])[stacks]
            yield Attribute(key=key, values=Text(codes=codes, table=tuple(places)), present=present)


def operator_of(frames: Iterable[tuple[FrameType, str]]) -> tuple[str, str]:
    """The outermost operator below the first Python frame, and the node of the backward pass; "" where not known."""
    operator = node = ""
    for kind, name in frames:
        if kind is FrameType.PYTHON:
            break
        if found := _OPERATOR.search(name):
            operator = found[1]
        elif found := _NODE.search(name):
            node = found[1]
            break
    return operator, node
