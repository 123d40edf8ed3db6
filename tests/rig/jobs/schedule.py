"""When everything happens: an operation begins when its rank is free and all that it waits for has ended (max-plus).

A collective ends on all ranks when the last of them has come and the data has been transferred; a pipeline runs one
forward, one backward. Every step ends with a collective of all ranks, so the steps are independent of each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from tests.rig.jobs.shape import F64, Shape, Work

EVALUATED: Final = 6
"""Batches of an evaluation."""


@dataclass(frozen=True, kw_only=True)
class Operation:
    """The same one of all ranks of a stage. Times are seconds since the step's begin: (step, replica, tensor)."""

    stage: int
    kind: str
    name: str
    unit: int
    start: F64
    end: F64
    group: str = ""  # which of the stage's groups: tensor, data, expert, world; of pipe: the stage that sends
    number: int = 0  # of the group's operations in a step


@dataclass(frozen=True, kw_only=True)
class Timeline:
    operations: list[Operation]
    step_s: F64  # how long each step takes


class _Stage:
    """One stage's ranks: when each is free, and which operations it did."""

    def __init__(self, shape: Shape, work: Work, stage: int, done: list[Operation]) -> None:
        self.shape, self.work, self.stage, self.done = shape, work, stage, done
        self.free: F64 = np.zeros((shape.steps, shape.replicas, shape.tensor))
        self.numbers: dict[str, int] = {}

    def own(self, kind: str, name: str, seconds: F64, unit: int = 0) -> None:
        begin, self.free = self.free, self.free + seconds
        if seconds.any():
            self._add(kind, name, unit, begin, self.free)

    def collective(self, group: str, name: str, arrived: F64, transfer: F64, unit: int = 0) -> None:
        """``arrived``: when the last member of each rank's group has come."""
        begin, self.free = self.free, np.broadcast_to(arrived + transfer, self.free.shape)
        self._add("coll", name, unit, begin, self.free, group)

    def compute(self, name: str, seconds: F64, unit: int) -> None:
        """A forward or backward, and what its ranks exchange then."""
        self.own("compute", name, seconds, unit)
        shape, work, stage = self.shape, self.work, self.stage
        if shape.tensor > 1:
            arrived = self.free.max(axis=2, keepdims=True)
            self.collective("tensor", "all_reduce", arrived, work.tensor[:, stage, :, None], unit)
        if shape.experts > 1:
            groups = self.free.reshape(shape.steps, -1, shape.experts, shape.tensor).max(axis=2)
            arrived = np.repeat(groups, shape.experts, axis=1)
            self.collective("expert", "all_to_all", arrived, work.expert[:, stage], unit)

    def receive(self, sender: _Stage, sent: F64, name: str, transfer: F64, unit: int) -> None:
        """The sender goes on meanwhile; the transfer begins when both are there."""
        group = f"pipe {min(sender.stage, self.stage)}"
        begin, self.free = self.free, np.maximum(self.free, sent) + transfer
        number = sender._add("p2p", f"send {name}", unit, sent, self.free, group)
        self._add("p2p", f"receive {name}", unit, begin, self.free, group, number)

    def _add(
        self,
        kind: str,
        name: str,
        unit: int,
        start: F64,
        end: F64,
        group: str = "",
        number: int | None = None,
    ) -> int:
        if number is None:
            key = group if kind == "coll" else f"{group} {name}"
            number = self.numbers.get(key, 0)
            self.numbers[key] = number + 1
            if kind == "p2p":  # forward and backward of a pair are numbered together
                number = 2 * number + name.endswith("gradients")
        self.done.append(
            Operation(
                stage=self.stage,
                kind=kind,
                name=name,
                unit=unit,
                start=start,
                end=end,
                group=group,
                number=number,
            )
        )
        return number


def run(shape: Shape, work: Work) -> Timeline:
    """One step of all ranks, for all steps at once."""
    done: list[Operation] = []
    stages = [_Stage(shape, work, stage, done) for stage in range(shape.stages)]
    for each in stages:
        for _ in range(EVALUATED):
            each.own("compute", "forward", work.evaluation[:, each.stage] / EVALUATED)
        each.own("input", "next batch", work.input[:, each.stage])
        each.own("host", "optimizer.zero_grad", work.host[:, each.stage])
        each.own("copy", "batch to device", work.copy[:, each.stage])
    _pipeline(shape, work, stages)
    for each in stages:
        each.own("file", "write log", work.file[:, each.stage])
        if shape.replicas > 1:
            arrived = each.free.max(axis=1, keepdims=True)
            each.collective("data", "reduce_scatter", arrived, work.data[:, each.stage, None, :])
    arrived = np.max([each.free.max(axis=(1, 2)) for each in stages], axis=0)[:, None, None]
    for each in stages:
        each.collective("world", "all_reduce norm", arrived, work.world[:, None, None])
    return Timeline(operations=done, step_s=arrived[:, 0, 0] + work.world)


def _pipeline(shape: Shape, work: Work, stages: list[_Stage]) -> None:
    """Forward and backward of all units, each stage in its order, as soon as what it needs is there."""
    orders = [list(_order(shape, stage)) for stage in range(shape.stages)]
    ended: dict[tuple[int, str, int], F64] = {}
    while any(orders):
        for each, order in zip(stages, orders, strict=True):
            while order:
                name, unit = order[0]
                before = each.stage - 1 if name == "forward" else each.stage + 1
                if 0 <= before < shape.stages:
                    if (before, name, unit) not in ended:
                        break
                    what = "activations" if name == "forward" else "gradients"
                    transfer = work.pipe[:, min(before, each.stage)]
                    each.receive(stages[before], ended[before, name, unit], what, transfer, unit)
                seconds = work.forward if name == "forward" else work.backward
                each.compute(name, seconds[:, each.stage, ..., unit], unit)
                ended[each.stage, name, unit] = each.free
                order.pop(0)


def _order(shape: Shape, stage: int) -> Iterator[tuple[str, int]]:
    """One forward, one backward, once as many forwards have gone ahead as there are stages behind."""
    ahead = min(shape.stages - stage - 1, shape.units)
    yield from (("forward", unit) for unit in range(ahead))
    for unit in range(shape.units):
        if unit + ahead < shape.units:
            yield "forward", unit + ahead
        yield "backward", unit
