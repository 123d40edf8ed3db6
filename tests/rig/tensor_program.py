"""The program of tests/fakes/torch/tensors.c: gives memory to tensors, and knows how much."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tests.rig.fakes import build_fakes
from tests.rig.programs import SteppedProgram

OPERATORS: Final = {
    "plain": ("", ""),
    "operator": ("empty_memory_format", ""),
    "nested": ("mm", ""),
    "backward": ("mm", "MmBackward0"),
}
"""Who asks for memory, as the program calls it → operator and node of the backward pass."""


@dataclass(frozen=True, slots=True)
class Sum:
    """Of allocations."""

    bytes: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorCheckpoint:
    """How things stand: by device as the allocator counts; by who asked, since the program waited first."""

    devices: Mapping[str, Mapping[str, int]]
    in_use: Mapping[tuple[str, str], Sum]
    given: Mapping[tuple[str, str], Sum]


def tensor_command(**options: int) -> list[str]:
    """The command line, whose options these are."""
    return [
        str(build_fakes() / "torch" / "program_tensors"),
        *(f"--{name}={number}" for name, number in options.items()),
    ]


def read_checkpoint(line: str) -> TensorCheckpoint:
    """One line of what it says."""
    reported = json.loads(line)
    sums = {
        name: {OPERATORS[who]: Sum(**each) for who, each in reported[name].items()}
        for name in ("in_use", "given")
    }
    return TensorCheckpoint(devices=reported["devices"], **sums)


class TensorProgram(SteppedProgram):
    """The program as it waits."""

    def __init__(self, **options: int) -> None:
        super().__init__(tensor_command(**options))

    def checkpoints(self) -> Iterator[TensorCheckpoint]:
        """One after the other, until it ends."""
        while line := self.next_line():
            yield read_checkpoint(line)
