"""PyTorch's process groups and element types, as its traces and dumps write them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

_NUMBER: Final = re.compile(r"\d{1,9}")
_MOST: Final = 1 << 16  # characters of a list of ranks

_PIPELINES: Final = ("pp", "mesh_pp", "PIPELINE_MODEL_PARALLEL_GROUP")
"""Descriptions of pipelines' groups: of a DeviceMesh with a dimension ``pp``, and Megatron-LM's."""

ELEMENT_BYTES: Final = {
    **dict.fromkeys(("Byte", "Char", "Bool", "Float8_e4m3fn", "Float8_e5m2"), 1),
    **dict.fromkeys(("Half", "BFloat16", "Short"), 2),
    **dict.fromkeys(("Float", "Int"), 4),
    **dict.fromkeys(("Double", "Long"), 8),
}
"""By the name that c10 has for a type."""


def members(ranks: str | list[int]) -> list[int]:
    """The global ranks of a group, from a list or its text; of a long list Kineto writes the beginning."""
    return [int(each) for each in _NUMBER.findall(ranks[:_MOST])] if isinstance(ranks, str) else ranks


def group_of(name: str, ranks: list[int]) -> str:
    """One name for a group on all its ranks; groups that were split from one share theirs, and no rank.

    >>> group_of("3", [4, 5, 6, 7])
    '3 of rank 4'
    """
    return f"{name} of rank {min(ranks)}" if ranks else name


class ProcessGroup(Struct):
    """As ``pg_config`` of a trace has it: a group that the rank is in."""

    pg_desc: str = ""
    ranks: str | list[int] = ""


def stage_of(groups: Iterable[ProcessGroup], rank: int) -> tuple[str, str]:
    """Role and lane of a rank that has a stage of a pipeline; nothing of others.

    >>> stage_of([ProcessGroup("default_pg", "[0, 1, 2, 3]"), ProcessGroup("mesh_pp", "[1, 3]")], 3)
    ('stage 1', 'pipeline of rank 1')
    """
    for group in groups:
        ranks = members(group.ranks)
        if group.pg_desc in _PIPELINES and len(ranks) > 1 and rank in ranks:
            return f"stage {ranks.index(rank)}", f"pipeline of rank {ranks[0]}"
    return "", ""
