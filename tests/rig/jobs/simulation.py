"""A job for a seed: its layout, its fault or none, when everything happened, and what mending it would save."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tests.rig.jobs.faults import FAULTS, Fault
from tests.rig.jobs.routines import ROUTINES
from tests.rig.jobs.schedule import Timeline, run
from tests.rig.jobs.shape import F64, Shape, draw

HEALTHY: Final = "healthy"
_OF_STAGES: Final = {"a stage with more layers"}
_OF_REPLICAS: Final = {"uneven batches", "growing sequences", "two that hide each other"}
_OF_HOSTS: Final = {"a host's ranks"}
_OF_GROUPS: Final = {"one link"}


@dataclass(frozen=True, kw_only=True)
class Job:
    """``saved_s``: of each step, what it would take less without the fault. ``marks``: as of a routine; None: none."""

    name: str
    seed: int
    shape: Shape
    fault: Fault | None
    timeline: Timeline
    saved_s: F64
    length: F64  # of units: (step, replica, unit), in normal ones
    marks: npt.NDArray[Any] | None = None

    @property
    def share(self) -> float:
        """Of the run's time, lost to the fault: all, where it never ends."""
        if np.isinf(self.saved_s).any():
            return 1.0
        return float(self.saved_s.sum() / self.timeline.step_s.sum())


def simulate(name: str, seed: int, shape: Shape | None = None) -> Job:
    """``name``: one of `FAULTS` or `ROUTINES`, or `HEALTHY`. Without a ``shape`` the seed draws one for it."""
    rng = np.random.default_rng([seed, *name.encode()])
    shape = shape or draw_shape(name, rng)
    work = draw(shape, rng)
    if name == HEALTHY or name in ROUTINES:
        routine = ROUTINES[name](shape, work, rng) if name in ROUTINES else None
        timeline = run(shape, work if routine is None else routine.work)
        return Job(
            name=name,
            seed=seed,
            shape=shape,
            fault=None,
            timeline=timeline,
            saved_s=np.zeros(shape.steps),
            length=work.length,
            marks=None if routine is None else routine.marks,
        )
    fault = FAULTS[name](shape, work, rng)
    without, timeline = run(shape, work), run(shape, fault.work)
    return Job(
        name=name,
        seed=seed,
        shape=shape,
        fault=fault,
        timeline=timeline,
        saved_s=timeline.step_s - without.step_s,
        length=fault.work.length,
    )


def draw_shape(name: str, rng: np.random.Generator) -> Shape:
    """Data, tensor, pipeline and expert parallel, and what they make together."""
    stages = int(rng.choice([2, 4])) if name in _OF_STAGES or rng.random() < 0.4 else 1
    tensor = int(rng.choice([2, 4])) if rng.random() < 0.4 else 1
    experts = int(rng.choice([2, 4])) if rng.random() < 0.25 else 1
    replicas = int(rng.choice([4, 8, 16]))
    ranks_per_host = 8
    if name in _OF_REPLICAS:  # told from a slow rank where a replica has several
        tensor = max(tensor, 2)
    if name in _OF_HOSTS:  # told from a slow stage or replica where they have other hosts too
        replicas, ranks_per_host = max(replicas, 8), 4 if tensor == 1 else 2 * tensor
        stages = min(stages, 2)
    if name in _OF_GROUPS and stages * tensor < 4:
        stages = 4
    return Shape(
        steps=int(rng.integers(60, 140)),
        stages=stages,
        replicas=replicas,
        tensor=tensor,
        experts=experts,
        units=int(rng.choice([4, 8])) if stages > 1 else int(rng.choice([1, 2, 4])),
        ranks_per_host=ranks_per_host,
        unit_s=float(rng.uniform(0.005, 0.1)),
        jitter=float(rng.uniform(0.003, 0.02)),
        spread=float(rng.uniform(0.001, 0.005)),
        growth=float(rng.choice([0.0, 0.0, 0.3])) if name in {HEALTHY, "slow compute", *ROUTINES} else 0.0,
        tells_bytes=bool(rng.random() < 0.5) or name in {HEALTHY, *ROUTINES},
    )
