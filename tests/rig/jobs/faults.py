"""What goes wrong in a job, one function for each kind: it draws where and how much, and gives the changed work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from tests.rig.jobs.routines import EVALUATION_INPUT, evaluation_s
from tests.rig.jobs.shape import F64, Shape, Work

Steps = tuple[int, int]
"""The first one and the one behind the last."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What is to be found. ``groups``: one of them is named, each as a kind and which of the stage's (`group_name`)."""

    verdict: str
    cause: str = ""
    ranks: tuple[int, ...] = ()
    steps: Steps
    work: Work
    groups: tuple[str, ...] = ()
    stage: int = -1


Drawer = Callable[[Shape, Work, np.random.Generator], Fault]
OWN: Final = ("host", "input", "copy", "file")
LEAST_RUN: Final = 8
"""An episode has at least so many steps."""


def _rank(shape: Shape, rng: np.random.Generator) -> int:
    return int(rng.integers(shape.ranks))


def _whole(shape: Shape) -> Steps:
    return 0, shape.steps


def _during(shape: Shape, steps: Steps) -> F64:
    """1 in these steps, 0 elsewhere."""
    flags = np.zeros(shape.steps)
    flags[slice(*steps)] = 1.0
    return flags


def _slowed(shape: Shape, work: Work, ranks: list[int], factors: F64) -> Work:
    """Ranks compute so much longer: a factor for each step."""
    slow = np.ones((shape.steps, shape.ranks))
    slow[:, ranks] = factors[:, None]
    slow = slow.reshape(shape.steps, *shape.grid)[..., None]
    return work.changed(forward=work.forward * slow, backward=work.backward * slow)


def _delayed(shape: Shape, work: Work, ranks: list[int], kind: str, seconds: F64) -> Work:
    """Ranks spend so much more on a kind: seconds for each step, ± 5 %."""
    more = np.zeros((shape.steps, shape.ranks))
    more[:, ranks] = seconds[:, None]
    return work.changed(**{kind: getattr(work, kind) + more.reshape(shape.steps, *shape.grid)})


def _step_s(shape: Shape) -> float:
    return shape.unit_s * shape.units


def slow_compute(shape: Shape, work: Work, rng: np.random.Generator) -> Fault:
    """A GPU that is slower than the others all the time."""
    rank, factor = _rank(shape, rng), rng.uniform(1.05, 2.5)
    changed = _slowed(shape, work, [rank], np.full(shape.steps, factor))
    return Fault(verdict="slow_worker", cause="compute", ranks=(rank,), steps=_whole(shape), work=changed)


def _slow_kind(kind: str) -> Drawer:
    def draw(shape: Shape, work: Work, rng: np.random.Generator) -> Fault:
        rank = _rank(shape, rng)
        if kind == "input":
            rank %= shape.replicas * shape.tensor  # only the first stage has any
        seconds = rng.uniform(0.05, 0.8) * _step_s(shape) * np.exp(0.05 * rng.standard_normal(shape.steps))
        return Fault(
            verdict="slow_worker",
            cause=kind,
            ranks=(rank,),
            steps=_whole(shape),
            work=_delayed(shape, work, [rank], kind, seconds),
        )

    return draw


def episode(shape: Shape, work: Work, rng: np.random.Generator) -> Fault:
    """A GPU is slow for a part of the run."""
    rank, length = _rank(shape, rng), int(rng.integers(LEAST_RUN, shape.steps * 2 // 3))
    first = int(rng.integers(1, shape.steps - length))
    steps = first, first + length
    factors = 1 + rng.uniform(0.1, 1.0) * _during(shape, steps)
    return Fault(
        verdict="slow_worker",
        cause="compute",
        ranks=(rank,),
        steps=steps,
        work=_slowed(shape, work, [rank], factors),
    )


def rotating(shape: Shape, work: Work, rng: np.random.Generator) -> Fault:
    """One GPU after the other is slow for a while."""
    ranks = rng.choice(shape.ranks, min(3, shape.ranks // 4), replace=False).tolist()
    bounds = np.linspace(0, shape.steps, len(ranks) + 1).astype(int).tolist()
    more = rng.uniform(0.15, 1.0)
    for rank, first, end in zip(ranks, bounds, bounds[1:], strict=False):
        work = _slowed(shape, work, [rank], 1 + more * _during(shape, (first, end)))
    return Fault(
        verdict="slow_worker", cause="compute", ranks=tuple(sorted(ranks)), steps=_whole(shape), work=work
    )


def hidden(shape: Shape, work: Work, rng: np.random.Generator) -> Fault:
    """Two GPUs are equally slow, in replicas of their own: to mend one of them saves nothing."""
    replicas = rng.choice(shape.replicas, 2, replace=False)
    ranks = [
        int((rng.integers(shape.stages) * shape.replicas + replica) * shape.tensor) for replica in replicas
    ]
    changed = _slowed(shape, work, ranks, np.full(shape.steps, rng.uniform(1.15, 2.0)))
    return Fault(
        verdict="slow_worker", cause="compute", ranks=tuple(sorted(ranks)), steps=_whole(shape), work=changed
    )


def _slow_compute(shape: Shape, work: Work, rank: int, factors: F64) -> Fault:
    """One rank computes so many times as long; ``factors``: of each step."""
    return Fault(
        verdict="slow_worker",
        cause="compute",
        ranks=(rank,),
        steps=_whole(shape),
        work=_slowed(shape, work, [rank], factors),
    )


def thermal(shape: Shape, work: Work, rng: np.random.Generator) -> Fault:
    """A GPU becomes slower and slower."""
    rank = _rank(shape, rng)
    factors = np.linspace(1.0, rng.uniform(1.15, 1.8), shape.steps)
    return _slow_compute(shape, work, rank, factors)


def pauses(shape: Shape, work: Work, rng: np.random.Generator) -> Fault:
    """A rank's garbage collector stops it every few steps."""
    rank, period = _rank(shape, rng), int(rng.integers(4, 10))
    seconds = np.zeros(shape.steps)
    seconds[int(rng.integers(1, period)) :: period] = rng.uniform(0.5, 2.0) * _step_s(shape)
    return Fault(
        verdict="slow_worker",
        cause="host",
        ranks=(rank,),
        steps=_whole(shape),
        work=_delayed(shape, work, [rank], "host", seconds),
    )


def throttled(shape: Shape, work: Work, rng: np.random.Generator) -> Fault:
    """A GPU is slow every few steps, as regularly as an evaluation would be, and computes the same."""
    rank, period = _rank(shape, rng), int(rng.integers(5, 10))
    steps = np.arange(shape.steps) % period == period - 1
    factors = 1 + steps * rng.uniform(0.5, 2.0)
    return _slow_compute(shape, work, rank, factors)


def lone_evaluation(shape: Shape, work: Work, rng: np.random.Generator) -> Fault:
    """The first replica's ranks evaluate every few steps, nothing says so, and all others wait."""
    seconds = evaluation_s(shape, rng, np.eye(shape.replicas)[0])
    ranks = np.arange(shape.ranks).reshape(shape.grid)[:, 0].ravel()
    return Fault(
        verdict="lone_evaluation",
        cause="compute",
        ranks=tuple(ranks.tolist()),
        steps=_whole(shape),
        work=work.changed(evaluation=seconds, input=work.input + EVALUATION_INPUT * seconds),
    )


def slow_host(shape: Shape, work: Work, rng: np.random.Generator) -> Fault:
    """All ranks of one host."""
    host = int(rng.integers(shape.hosts))
    ranks = [rank for rank in range(shape.ranks) if rank // shape.ranks_per_host == host]
    cause = str(rng.choice(["compute", "host", "file"]))
    if cause == "compute":
        changed = _slowed(shape, work, ranks, np.full(shape.steps, rng.uniform(1.08, 2.0)))
    else:
        seconds = rng.uniform(0.08, 0.6) * _step_s(shape) * np.exp(0.05 * rng.standard_normal(shape.steps))
        changed = _delayed(shape, work, ranks, cause, seconds)
    return Fault(verdict="slow_host", cause=cause, ranks=tuple(ranks), steps=_whole(shape), work=changed)


def slow_link(shape: Shape, work: Work, rng: np.random.Generator) -> Fault:
    """One group's transfers are slow; it has like groups that are not."""
    stage, replica = int(rng.integers(shape.stages)), int(rng.integers(shape.replicas))
    part, factor = int(rng.integers(shape.tensor)), rng.uniform(3.0, 15.0)
    kinds = [
        *(["data"] if shape.replicas > 1 and shape.tensor * shape.stages > 2 else []),
        *(["tensor"] if shape.tensor > 1 and shape.stages * shape.replicas > 2 else []),
        *(["expert"] if 1 < shape.experts < shape.replicas / 2 else []),
        *(["pipe"] if shape.stages > 1 else []),
    ]
    kind = str(rng.choice(kinds))
    grid = np.arange(shape.ranks).reshape(shape.grid)
    times = getattr(work, kind).copy()
    if kind == "data":
        times[:, stage, part] *= factor
        ranks, group = grid[stage, :, part], f"data {stage} {part}"
    elif kind == "tensor":
        times[:, stage, replica] *= factor
        ranks, group = grid[stage, replica], f"tensor {stage} {replica}"
    elif kind == "expert":
        first = replica // shape.experts * shape.experts
        times[:, stage, first : first + shape.experts, part] *= factor
        ranks, group = grid[stage, first : first + shape.experts, part], f"expert {stage} {first} {part}"
    else:
        stage = int(rng.integers(shape.stages - 1))
        times[:, stage, replica, part] *= factor
        ranks, group = grid[stage : stage + 2, replica, part], f"pipe {stage} {replica} {part}"
    return Fault(
        verdict="slow_communication",
        ranks=tuple(sorted(ranks.tolist())),
        steps=_whole(shape),
        work=work.changed(**{kind: times}),
        groups=(group,),
    )


def stage_imbalance(shape: Shape, work: Work, rng: np.random.Generator) -> Fault:
    """One stage has more layers than the others."""
    stage = int(rng.integers(shape.stages))
    factors = np.ones(shape.stages)
    factors[stage] = rng.uniform(1.1, 1.8)
    more = factors[:, None, None, None]
    ranks = np.arange(shape.ranks).reshape(shape.grid)[stage].ravel()
    return Fault(
        verdict="stage_imbalance",
        cause="compute",
        ranks=tuple(ranks.tolist()),
        steps=_whole(shape),
        work=work.changed(forward=work.forward * more, backward=work.backward * more),
        stage=stage,
    )


def uneven_batches(shape: Shape, work: Work, rng: np.random.Generator) -> Fault:
    """Sequences differ in length, so replicas wait for the one with the longest."""
    spread = rng.uniform(0.08, 0.3)
    factors = np.exp(spread * rng.standard_normal((shape.steps, shape.replicas, shape.units)))
    return _of_lengths(shape, work, factors)


def growing_batches(shape: Shape, work: Work, rng: np.random.Generator) -> Fault:
    """The sequences of one replica grow over the run."""
    replica = int(rng.integers(shape.replicas))
    factors = np.ones((shape.steps, shape.replicas, shape.units))
    factors[:, replica] = np.linspace(1.0, rng.uniform(1.2, 2.0), shape.steps)[:, None]
    return _of_lengths(shape, work, factors)


def _of_lengths(shape: Shape, work: Work, factors: F64) -> Fault:
    more = factors[:, None, :, None, :]
    return Fault(
        verdict="data_imbalance",
        cause="compute",
        steps=_whole(shape),
        work=work.changed(
            forward=work.forward * more, backward=work.backward * more, length=work.length * factors
        ),
    )


def global_slowdown(shape: Shape, work: Work, rng: np.random.Generator) -> Fault:
    """From some step on all ranks are slower: their clocks are capped, or the storage is."""
    first = int(rng.integers(shape.steps // 5, shape.steps * 4 // 5))
    steps = first, shape.steps
    everyone = list(range(shape.ranks))
    cause = str(rng.choice(["compute", "file"]))
    if cause == "compute":
        changed = _slowed(shape, work, everyone, 1 + rng.uniform(0.08, 0.6) * _during(shape, steps))
    else:
        seconds = rng.uniform(0.1, 0.6) * _step_s(shape) * _during(shape, steps)
        changed = _delayed(shape, work, everyone, "file", seconds)
    return Fault(verdict="global_slowdown", cause=cause, ranks=tuple(everyone), steps=steps, work=changed)


def hang(shape: Shape, work: Work, rng: np.random.Generator) -> Fault:
    """A rank never comes back from a forward, so that all others wait for ever."""
    rank, step = _rank(shape, rng), int(rng.integers(shape.steps // 2, shape.steps))
    forward = work.forward.copy()
    forward.reshape(shape.steps, shape.ranks, shape.units)[step, rank, int(rng.integers(shape.units))] = (
        np.inf
    )
    return Fault(
        verdict="hang",
        cause="absent",
        ranks=(rank,),
        steps=(step, shape.steps),
        work=work.changed(forward=forward),
        groups=tuple(_groups_of(shape, rank)),
    )


def _groups_of(shape: Shape, rank: int) -> Iterator[str]:
    """Whose collectives it takes part in; of those that it never came to, clocks do not say which was the first."""
    stage, replica, part = (int(place[0]) for place in np.unravel_index([rank], shape.grid))
    yield "world 0"
    yield f"data {stage} {part}"
    if shape.tensor > 1:
        yield f"tensor {stage} {replica}"
    if shape.experts > 1:
        yield f"expert {stage} {replica // shape.experts * shape.experts} {part}"


FAULTS: Final[dict[str, Drawer]] = {
    "slow compute": slow_compute,
    "slow host code": _slow_kind("host"),
    "slow input": _slow_kind("input"),
    "slow copies": _slow_kind("copy"),
    "slow files": _slow_kind("file"),
    "an episode": episode,
    "rotating": rotating,
    "two that hide each other": hidden,
    "thermal decay": thermal,
    "garbage collection": pauses,
    "throttled every few steps": throttled,
    "an evaluation of one replica": lone_evaluation,
    "a host's ranks": slow_host,
    "one link": slow_link,
    "a stage with more layers": stage_imbalance,
    "uneven batches": uneven_batches,
    "growing sequences": growing_batches,
    "all ranks at once": global_slowdown,
    "a hang": hang,
}
