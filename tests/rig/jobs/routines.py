"""What healthy jobs do beside training: no rank is slow for it. Each function draws how often and how long.

A routine that the program marks (a checkpoint, an evaluation) has the marks in its steps' names, as readers find them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tests.rig.jobs.shape import F64, Shape, Work


@dataclass(frozen=True, kw_only=True)
class Routine:
    """``marks``: (step, rank), the names of steps; "": like any other."""

    work: Work
    marks: npt.NDArray[Any]


Drawer = Callable[[Shape, Work, np.random.Generator], Routine]
EVALUATION_INPUT: Final = 0.05
"""Of what an evaluation computes: waiting for its batches."""


def _every_few_steps(shape: Shape, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
    """Shape (steps,)."""
    period = int(rng.integers(5, 20))
    steps: npt.NDArray[np.bool_] = np.arange(shape.steps) % period == period - 1
    return steps


def _added(shape: Shape, work: Work, kind: str, seconds: F64) -> Work:
    return work.changed(**{kind: getattr(work, kind) + seconds.reshape(shape.steps, *shape.grid)})


def _cells(shape: Shape, steps: npt.NDArray[np.bool_], ranks: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """(step, rank): in these steps these ranks."""
    found = np.zeros((shape.steps, shape.ranks), dtype=np.bool_)
    found[:, ranks] = steps[:, None]
    return found


def _marks(cells: npt.NDArray[np.bool_], name: str) -> npt.NDArray[Any]:
    return np.where(cells, name, "").astype(object)


def _written(shape: Shape, work: Work, rng: np.random.Generator, cells: npt.NDArray[np.bool_]) -> Routine:
    """A checkpoint: copies to the host and pickling, then files, one to five steps long; each write is another."""
    seconds: F64 = cells.astype(np.float64) * rng.uniform(1, 5) * shape.unit_s * shape.units
    seconds = seconds * np.exp(0.2 * rng.standard_normal(cells.shape))
    work = _added(shape, _added(shape, work, "file", seconds), "host", 0.4 * seconds)
    return Routine(work=work, marks=_marks(cells, "checkpoint"))


def checkpoint_of_first(shape: Shape, work: Work, rng: np.random.Generator) -> Routine:
    """Rank 0 writes the model for all, who wait."""
    return _written(shape, work, rng, _cells(shape, _every_few_steps(shape, rng), np.array([0])))


def checkpoint_of_stages(shape: Shape, work: Work, rng: np.random.Generator) -> Routine:
    """The first replica's ranks of each stage write their part."""
    ranks = np.arange(shape.ranks).reshape(shape.grid)[:, 0].ravel()
    return _written(shape, work, rng, _cells(shape, _every_few_steps(shape, rng), ranks))


def checkpoint_of_all(shape: Shape, work: Work, rng: np.random.Generator) -> Routine:
    """Every rank writes its shard."""
    return _written(shape, work, rng, _cells(shape, _every_few_steps(shape, rng), np.arange(shape.ranks)))


def evaluation_of_first(shape: Shape, work: Work, rng: np.random.Generator) -> Routine:
    """Rank 0 evaluates in a step, and the others wait: more forward passes, and more batches."""
    cells = _cells(shape, _every_few_steps(shape, rng), np.array([0]))
    more = (1 + cells * rng.uniform(1, 6)).reshape(shape.steps, *shape.grid)
    changed = work.changed(forward=work.forward * more[..., None], input=work.input * more)
    return Routine(work=changed, marks=_marks(cells, "evaluation"))


def evaluation_of_all(shape: Shape, work: Work, rng: np.random.Generator) -> Routine:
    """All ranks evaluate, each its part, and nothing says so: it takes alike on all of them."""
    return _evaluated(shape, work, evaluation_s(shape, rng, np.ones(shape.replicas)))


def evaluation_of_parts(shape: Shape, work: Work, rng: np.random.Generator) -> Routine:
    """All ranks evaluate, and some replicas have more batches to do than others."""
    of_replicas = rng.uniform(0.7, 1.3, shape.replicas)
    return _evaluated(shape, work, evaluation_s(shape, rng, of_replicas))


def evaluation_steps(shape: Shape, work: Work, rng: np.random.Generator) -> Routine:
    """Some steps are evaluations of all ranks: they have no backward pass."""
    trains = ~_every_few_steps(shape, rng)[:, None, None, None, None]
    changed = work.changed(backward=work.backward * trains)
    return Routine(work=changed, marks=_unmarked(shape))


def evaluation_in_turn(shape: Shape, work: Work, rng: np.random.Generator) -> Routine:
    """Replicas evaluate one after the other, and all others wait: each as often as the others."""
    first = int(rng.integers(shape.replicas))
    period = int(rng.integers(5, 20))
    of_steps = np.zeros((shape.steps, shape.replicas))
    for step in range(period - 1, shape.steps, period):
        of_steps[step, (first + step // period) % shape.replicas] = 1.0
    return _evaluated(shape, work, _forward_s(shape, rng, _some_steps_s(shape, rng), of_steps))


def evaluation_seen_twice(shape: Shape, work: Work, rng: np.random.Generator) -> Routine:
    """One replica evaluates so rarely that it is seen twice, which is too little to say anything from."""
    period = int(rng.integers(shape.steps // 3 + 1, shape.steps // 2))
    of_steps = np.zeros((shape.steps, shape.replicas))
    of_steps[period - 1 :: period, int(rng.integers(shape.replicas))] = 1.0
    return _evaluated(shape, work, _forward_s(shape, rng, _some_steps_s(shape, rng), of_steps))


def _evaluated(shape: Shape, work: Work, seconds: F64) -> Routine:
    changed = work.changed(evaluation=seconds, input=work.input + EVALUATION_INPUT * seconds)
    return Routine(work=changed, marks=_unmarked(shape))


def evaluation_s(shape: Shape, rng: np.random.Generator, of_replicas: F64) -> F64:
    """(step, stage, replica, tensor), seconds of forward passes: one to six steps' for a replica of weight 1."""
    usual = _some_steps_s(shape, rng)
    return _forward_s(shape, rng, usual, _every_few_steps(shape, rng)[:, None] * of_replicas)


def _some_steps_s(shape: Shape, rng: np.random.Generator) -> float:
    return float(rng.uniform(1, 6) * shape.unit_s * shape.units)


def _forward_s(shape: Shape, rng: np.random.Generator, usual: float, of_steps: F64) -> F64:
    """``of_steps``: (step, replica), the weight of each."""
    times = usual * np.exp(shape.jitter * rng.standard_normal((shape.steps, *shape.grid)))
    return np.asarray(times * of_steps[:, None, :, None])


def _unmarked(shape: Shape) -> npt.NDArray[Any]:
    return np.full((shape.steps, shape.ranks), "", dtype=object)


def collections(shape: Shape, work: Work, rng: np.random.Generator) -> Routine:
    """Every rank's garbage collector stops it now and then, each in steps of its own."""
    cells = rng.random((shape.steps, shape.ranks)) < rng.uniform(0.01, 0.08)
    seconds: F64 = cells.astype(np.float64) * rng.uniform(0.2, 1.0) * shape.unit_s * shape.units
    return Routine(work=_added(shape, work, "host", seconds), marks=_marks(cells, ""))


ROUTINES: Final[dict[str, Drawer]] = {
    "rank 0's checkpoints": checkpoint_of_first,
    "checkpoints of a replica": checkpoint_of_stages,
    "sharded checkpoints": checkpoint_of_all,
    "rank 0's evaluations": evaluation_of_first,
    "evaluations": evaluation_of_all,
    "evaluations of uneven parts": evaluation_of_parts,
    "steps that evaluate": evaluation_steps,
    "evaluations in turn": evaluation_in_turn,
    "an evaluation seen twice": evaluation_seen_twice,
    "every rank's garbage collections": collections,
}
