"""Loops of training, simulated: the host calls of one rank, and when each step really began and ended."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from random import Random

import numpy as np

from otelgpu.families.steps.training.step import TrainingStep
from otelgpu.families.steps.training.steps import EndedTraining, TrainingSteps
from otelgpu.model.operations import CopyDirection, OperationKind, Operations, operations

US, MS, S = 1_000, 1_000_000, 1_000_000_000
TGID, MAIN, AUTOGRAD, WATCHDOG = 800, 800, 805, 806
COMPUTE, SIDE = 7, 9  # streams
WORLD, OTHER = 0x5000, 0x6000  # communicators

CUDA = {
    1: "cudaLaunchKernel",
    2: "cudaMemcpyAsync",
    3: "cudaMemcpy",
    4: "cudaStreamSynchronize",
    5: "cudaEventSynchronize",
    6: "cudaDeviceSynchronize",
}
NCCL = {
    1: "ncclAllReduce",
    2: "ncclAllGather",
    3: "ncclReduceScatter",
    4: "ncclSend",
    5: "ncclRecv",
    6: "ncclBroadcast",
}
APIS = [CUDA, NCCL]
_KINDS = {
    **{1: OperationKind.LAUNCH, 2: OperationKind.COPY, 3: OperationKind.COPY},
    **dict.fromkeys((4, 5, 6), OperationKind.SYNCHRONIZATION),
}
_MOVES = dict.fromkeys(("ncclSend", "ncclRecv"), OperationKind.POINT_TO_POINT)
H2D, D2H = CopyDirection.HOST_TO_DEVICE, CopyDirection.DEVICE_TO_HOST


@dataclass(frozen=True)
class Plan:
    """How a rank trains. Times in ns."""

    steps: int = 40
    kind: str = "ddp"  # or "fsdp", "pipeline"
    layers: int = 3  # buckets of gradients, or layers that are gathered
    micro: int = 1  # batches of a step
    launches: int = 2  # of a layer
    optimizer: int = 12  # launches
    autograd: bool = True  # the backward pass is on a thread of its own
    h2d_copies: bool = True
    read_every: int = 1  # steps between which the loss is read; 0: never
    evaluate_every: int = 0  # steps after which a few batches are evaluated
    log_every: int = 0  # steps after which the loss is summed over ranks
    shuffled: bool = False  # the order of buckets differs from step to step
    checkpoint_every: int = 0
    idle_ns: int = 80 * MS  # for the data loader


@dataclass
class Run:
    """All that a rank did. ``truth``: start and end of each step, by the rule of host-to-device copies or of waits."""

    operations: Operations
    truth: list[tuple[int, int]]


def simulate(plan: Plan, seed: int) -> Run:
    """The same for the same seed."""
    run = _simulated(plan, seed)
    return Run(run.operations.copy(), run.truth)


@cache
def _simulated(plan: Plan, seed: int) -> Run:
    return _Loop(plan, Random(seed), TGID).run()


class _Loop:
    def __init__(self, plan: Plan, random: Random, tgid: int) -> None:
        self.plan, self.random, self.tgid = plan, random, tgid
        self.now = 500 * MS
        self.ended = self.now  # the last call
        self.calls: list[dict[str, int]] = []

    def made(self) -> Operations:
        """All calls until now."""
        rows = operations(len(self.calls))
        rows["tgid"], rows["returned"] = self.tgid, 1
        for column in dict.fromkeys(column for call in self.calls for column in call):
            mine = [row for row, call in enumerate(self.calls) if column in call]
            rows[column][mine] = [self.calls[row][column] for row in mine]
        return rows

    def call(self, api: int, took: int, *, tid: int = MAIN, family: int = 0, **columns: int) -> None:
        self.now += self.random.randrange(1 * US, 4 * US)
        took = self.random.randrange(took // 2 + 1, took + 2)
        kind = _KINDS[api] if not family else _MOVES.get(NCCL[api], OperationKind.COLLECTIVE)
        fixed = {
            "start_ns": self.now,
            "duration_ns": took,
            "tid": tid,
            "api": api,
            "family": family,
            "kind": kind,
        }
        self.calls.append(fixed | columns)
        self.now += took
        self.ended = self.now

    def launch(self, count: int, tid: int = MAIN) -> None:
        for _ in range(count):
            self.call(1, 5 * US, tid=tid, stream=COMPUTE)

    def move(
        self, api: int, size: int, *, tid: int = MAIN, comm: int = WORLD, peer: int = -1, stream: int = SIDE
    ) -> None:
        self.call(
            api,
            20 * US,
            tid=tid,
            family=1,
            handle=comm,
            size_bytes=size,
            datatype=7,
            peer=peer,
            stream=stream,
        )

    def copy_to_device(self, size: int = 1 << 20) -> None:
        self.call(2, 30 * US, direction=H2D, size_bytes=size, stream=COMPUTE)

    def read(self) -> None:
        self.call(2, 5 * US, direction=D2H, size_bytes=4, stream=COMPUTE)
        self.call(4, 2 * MS, handle=COMPUTE)

    def load(self) -> None:
        self.now += self.random.randrange(self.plan.idle_ns // 2, self.plan.idle_ns)
        if self.plan.h2d_copies:
            self.copy_to_device()
            self.copy_to_device(1 << 19)

    def run(self) -> Run:
        truth = []
        for number in range(1, self.plan.steps + 1):
            began = self.ended
            self.step()
            if self.plan.log_every and number % self.plan.log_every == 0:
                self.move(1, 8)
            if self.plan.read_every and number % self.plan.read_every == 0:
                self.read()
            if self.plan.checkpoint_every and number % self.plan.checkpoint_every == 0:
                self.move(1, 1, comm=OTHER)
            ended = self.ended
            if self.plan.evaluate_every and number % self.plan.evaluate_every == 0:
                self.evaluate()
            truth.append((began, ended))
        return Run(self.made(), truth)

    def evaluate(self) -> None:
        for _ in range(self.random.randrange(2, 5)):
            self.load()
            for _ in range(self.plan.layers):
                if self.plan.kind == "fsdp":
                    self.move(2, 1 << 22)
                self.launch(self.plan.launches)
            self.read()

    def step(self) -> None:
        plan = self.plan
        back = AUTOGRAD if plan.autograd else MAIN
        for micro in range(plan.micro):
            last = micro == plan.micro - 1
            self.load()
            getattr(self, plan.kind)(back, last=last)
        if plan.kind == "fsdp":
            self.move(1, 4)
        elif plan.kind == "pipeline":
            self.move(1, 1 << 23, comm=OTHER)
        self.launch(plan.optimizer)

    def ddp(self, back: int, *, last: bool) -> None:
        plan = self.plan
        self.launch(plan.layers * plan.launches)
        buckets = [(1 << 20) * (1 + bucket % 3) for bucket in range(plan.layers)]
        if plan.shuffled:
            self.random.shuffle(buckets)
        for bucket in buckets:
            self.launch(plan.launches, back)
            if last:
                self.move(1, bucket, tid=back)

    def fsdp(self, back: int, *, last: bool) -> None:
        plan = self.plan
        for _ in range(plan.layers):
            self.move(2, 1 << 22)
            self.launch(plan.launches)
            self.call(5, 5 * US, handle=0x77)
        for _ in range(plan.layers):
            self.move(2, 1 << 22, tid=back)
            self.launch(plan.launches, back)
            self.move(3, 1 << 22, tid=back)

    def pipeline(self, back: int, *, last: bool) -> None:
        plan = self.plan
        self.move(5, 1 << 16, peer=0)
        self.launch(plan.layers * plan.launches)
        self.move(4, 1 << 16, peer=2)
        self.move(5, 1 << 16, peer=2, tid=back)
        self.launch(plan.layers * plan.launches, back)
        self.move(4, 1 << 16, peer=0, tid=back)


def reported(
    rows: Operations,
    *,
    tick_ns: int = 200 * MS,
    seed: int = 0,
    batches: int = 1,
    steps: TrainingSteps | None = None,
) -> tuple[TrainingSteps, list[EndedTraining]]:
    """All that is reported of rows that are fed as they would come: each tick after all that had returned before it."""
    steps = TrainingSteps(APIS) if steps is None else steps
    order = np.arange(len(rows))
    np.random.default_rng(seed).shuffle(order)
    rows = rows.take(order)
    ends = rows["start_ns"] + rows["duration_ns"]
    found = []
    last = int(ends.max())
    for now in _ticks(last, tick_ns):
        fed = rows.compress((ends > now - tick_ns) & (ends <= now))
        for part in np.array_split(np.arange(len(fed)), batches):
            steps.take(fed.take(part))
        found.append(steps.report(now))
    found.append(steps.report(last + tick_ns, final=True))
    return steps, found


def _ticks(last_ns: int, tick_ns: int) -> Iterator[int]:
    return iter(range(tick_ns, last_ns + 2 * tick_ns, tick_ns))


def steps_of(found: list[EndedTraining]) -> list[TrainingStep]:
    """Of all ticks."""
    return [step for each in found for step in each.steps]


def engine(*, steps: int, seed: int, sizes: tuple[int, ...] = (1 << 16,)) -> Operations:
    """A worker of an engine whose model is split among GPUs, that decodes one batch for long: a sum at each layer."""
    loop = _Loop(Plan(), Random(seed), TGID)
    for _ in range(steps):
        loop.now += 5 * MS
        loop.copy_to_device(64)
        for layer in range(8):
            loop.launch(4)
            loop.move(1, sizes[layer % len(sizes)], stream=COMPUTE)
        loop.move(2, 1 << 18, stream=COMPUTE)
        loop.read()
    return loop.made()
