"""How a job is laid out over ranks, and how long each of them works on what, in every step.

Ranks are numbered as Megatron-LM does: tensor parallel ranks are neighbours, then replicas, then pipeline stages.
Arrays have the axes (step, stage, replica, tensor[, unit]); a unit is a microbatch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]

TOKEN_BYTES: Final = 4_096
"""Of a unit of normal length."""
FIRST_STEP: Final = 3.0
"""The first step takes so much longer: kernels are compiled and chosen."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """``replicas`` × ``tensor`` × ``stages`` ranks; ``experts`` replicas exchange tokens in all-to-alls (1: none)."""

    steps: int = 100
    stages: int = 1
    replicas: int = 8
    tensor: int = 1
    experts: int = 1
    units: int = 2
    ranks_per_host: int = 8
    unit_s: float = 0.02
    jitter: float = 0.01  # of every operation, of its length
    spread: float = 0.003  # between healthy ranks
    lengths: float = 0.003  # between the units of a step
    growth: float = 0.0  # of all units' lengths over the run: a curriculum
    skew_s: float = 0.04  # clocks are up to so far off
    drift: float = 20e-6
    tells_bytes: bool = True

    @property
    def ranks(self) -> int:
        return self.stages * self.replicas * self.tensor

    @property
    def grid(self) -> tuple[int, int, int]:
        return self.stages, self.replicas, self.tensor

    @property
    def hosts(self) -> int:
        return -(-self.ranks // self.ranks_per_host)


@dataclass(frozen=True, kw_only=True)
class Work:
    """Seconds. Of ranks: ``input``, ``host``, ``copy``, ``file`` and ``evaluation`` (forward passes beside training) a
    step, ``forward`` and ``backward`` a unit.

    Of groups, what a transfer takes once all members are there: ``tensor`` (step, stage, replica), ``data``
    (step, stage, tensor), ``expert`` (step, stage, replica, tensor; equal within a group), ``pipe`` (step, stage that
    sends, replica, tensor), ``world`` (step).
    """

    input: F64
    host: F64
    copy: F64
    file: F64
    forward: F64
    backward: F64
    evaluation: F64
    tensor: F64
    data: F64
    expert: F64
    pipe: F64
    world: F64
    length: F64  # (step, replica, unit), in normal units

    def changed(self, **arrays: F64) -> Work:
        return replace(self, **arrays)


def draw(shape: Shape, rng: np.random.Generator) -> Work:
    """A healthy job's: everything varies a little, nothing differs."""
    ranks, units = (shape.steps, *shape.grid), (shape.steps, *shape.grid, shape.units)

    def about(seconds: float, axes: tuple[int, ...], jitter: float = shape.jitter) -> F64:
        return seconds * np.exp(jitter * rng.standard_normal(axes))

    length = about(1.0, (shape.steps, shape.replicas, shape.units), shape.lengths)
    length *= np.linspace(1.0, 1.0 + shape.growth, shape.steps)[:, None, None]
    own = np.exp(shape.spread * rng.standard_normal(shape.grid))
    first = np.ones(shape.steps)
    first[0] = FIRST_STEP
    compute = shape.unit_s * length[:, None, :, None, :] * own[..., None] * first[:, None, None, None, None]
    step_s = shape.unit_s * shape.units
    feeds = np.zeros(shape.stages)
    feeds[0] = 1.0  # only the first stage reads the batch
    return Work(
        input=about(0.02 * step_s, ranks, 5 * shape.jitter) * feeds[:, None, None],
        host=about(0.05 * step_s, ranks, 3 * shape.jitter),
        copy=about(0.01 * step_s, ranks, 3 * shape.jitter),
        file=about(0.005 * step_s, ranks, 5 * shape.jitter),
        forward=compute / 3 * np.exp(shape.jitter * rng.standard_normal(units)),
        backward=compute * 2 / 3 * np.exp(shape.jitter * rng.standard_normal(units)),
        evaluation=np.zeros(ranks),
        tensor=about(0.03 * shape.unit_s, ranks[:3], 0.05),
        data=about(0.06 * step_s, (shape.steps, shape.stages, shape.tensor), 0.05),
        expert=_of_groups(about(0.04 * shape.unit_s, ranks, 0.05), shape),
        pipe=about(0.02 * shape.unit_s, ranks, 0.05),
        world=about(0.002 * step_s, (shape.steps,), 0.05),
        length=length,
    )


def _of_groups(times: F64, shape: Shape) -> F64:
    """Equal within each group of experts."""
    first = np.arange(shape.replicas) // shape.experts * shape.experts
    return times[:, :, first, :]
