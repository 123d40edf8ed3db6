"""An engine that serves in steps, simulated: its host calls, its messages, and what each step really gave."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

import numpy as np
from msgspec.structs import replace

from otelgpu.engine.call_roles import SERVING
from otelgpu.families.steps.serving.steps import EndedSteps, EngineSteps
from otelgpu.model.engine_messages import EngineItem, EngineMessage, EngineOutput, EngineRequest
from otelgpu.model.operations import CopyDirection, OperationKind, Operations, concatenate, operations

US, MS = 1_000, 1_000_000
TGID, TID, SENDER = 700, 701, 702

RULES = replace(SERVING, by_time=True)
APIS = {
    1: "cudaLaunchKernel",
    2: "cudaGraphLaunch",
    3: "cudaMemcpyAsync",
    4: "cudaMemcpy",
    5: "cudaStreamSynchronize",
    6: "cudaEventRecord",
    7: "cudaEventSynchronize_ptsz",
    8: "cuCtxSynchronize",
    9: "cudaStreamBeginCapture",
    10: "cudaStreamEndCapture",
}
_KINDS = {
    **{1: OperationKind.LAUNCH, 2: OperationKind.GRAPH_LAUNCH, 3: OperationKind.COPY, 4: OperationKind.COPY},
    **{5: OperationKind.SYNCHRONIZATION, 6: OperationKind.EVENT},
    **{7: OperationKind.SYNCHRONIZATION, 8: OperationKind.SYNCHRONIZATION},
    **{9: OperationKind.GRAPH, 10: OperationKind.GRAPH},
}
H2D, D2H = CopyDirection.HOST_TO_DEVICE, CopyDirection.DEVICE_TO_HOST


def call(
    api: int, start_ns: int, duration_ns: int = 5 * US, *, tid: int = TID, tgid: int = TGID, **columns: int
) -> Operations:
    """One successful call."""
    row = operations(1)
    row["start_ns"], row["duration_ns"], row["tgid"], row["tid"] = start_ns, duration_ns, tgid, tid
    row["kind"], row["api"], row["returned"] = _KINDS[api], api, 1
    for column, value in columns.items():
        row[column] = value
    return row


@dataclass(frozen=True)
class Plan:
    """How an engine behaves. Times in ns."""

    steps: int = 20
    asynchronous: bool = False
    events: bool = False  # waits for events only, without copying results where there are none
    waiter: int = TID  # the thread that waits for events
    clients: int = 1
    connections: bool = True  # whether messages report on which connection they went
    graphs: bool = False
    step_ns: tuple[int, int] = (2 * MS, 8 * MS)
    send_ns: tuple[int, int] = (20 * US, 100 * US)
    stalls: float = 0.0  # share of messages held up for up to ``stall_ns``
    stall_ns: int = 40 * MS
    idle: float = 0.0  # share of steps after which nothing is done for a while
    silent: float = 0.0  # share of steps that give nobody anything
    stats: bool = False  # whether those send a message all the same
    arrivals: float = 0.3


@dataclass
class Truth:
    """What a step really was."""

    start_ns: int
    end_ns: int
    launches: int
    given: dict[str, int]
    first: set[str]


@dataclass
class Run:
    """All that an engine did."""

    rows: list[Operations] = field(default_factory=list)
    messages: list[EngineMessage] = field(default_factory=list)
    truth: list[Truth] = field(default_factory=list)


def simulate(plan: Plan, seed: int) -> Run:
    """The same for the same seed. The first step begins long after time 0."""
    return _Simulation(plan, Random(seed)).run()


class _Simulation:
    def __init__(self, plan: Plan, random: Random) -> None:
        self.plan = plan
        self.random = random
        self.now = 500 * MS
        self.made = Run()
        self.running: dict[str, list[int]] = {}  # id → [tokens left, client, tokens had]
        self.finished: dict[str, list[int]] = {}
        self.under_way: dict[str, int] = {}
        self.requests = 0
        self.sent_ns = 0
        self.previous: tuple[int, int, int, dict[str, int], set[str]] | None = None

    def call(self, api: int, duration_ns: int = 5 * US, *, tid: int = TID, **columns: int) -> tuple[int, int]:
        start = self.now
        self.made.rows.append(call(api, start, duration_ns, tid=tid, **columns))
        self.now += duration_ns + self.random.randrange(1, 20 * US)
        return start, start + duration_ns

    def run(self) -> Run:
        for number in range(self.plan.steps):
            if self.random.random() < self.plan.idle:
                self.flush()
                self.now += self.random.randrange(100 * MS, 700 * MS)
            self.step(number)
        self.flush()
        return self.made

    def step(self, number: int) -> None:
        plan, random = self.plan, self.random
        while not self.running or random.random() < plan.arrivals:
            self.arrive()
        given, first = self.schedule()
        self.under_way = given if plan.asynchronous else {}
        start, _ = self.call(3, direction=H2D, size_bytes=64, stream=9)
        launches = random.randrange(1, 6)
        for _ in range(launches):
            self.call(2 if plan.graphs else 1, stream=9)
        if given or not plan.events:
            self.call(3, direction=D2H, size_bytes=8, stream=9)
        took = random.randrange(*plan.step_ns)
        if not plan.asynchronous and not plan.events:
            how = random.randrange(3)
            if how == 0:
                _, end = self.call(5, took, handle=9)
            elif how == 1:
                _, end = self.call(8, took)
            else:
                _, end = self.call(4, took, direction=D2H, size_bytes=8)
            self.finish(start, end, launches, given, first)
            return
        self.call(6, handle=1000 + number % 2, stream=9)
        if plan.asynchronous:
            self.flush(took)
        self.under_way = {}
        self.previous = (start, 1000 + number % 2, launches, given, first)
        if not plan.asynchronous:
            self.flush(took)

    def flush(self, took: int = 3 * MS) -> None:
        """Wait for the step before, in asynchronous scheduling."""
        if self.previous is None:
            return
        start, event, launches, given, first = self.previous
        _, end = self.call(7, took, tid=self.plan.waiter, handle=event)
        self.finish(start, end, launches, given, first)
        self.previous = None

    def arrive(self) -> None:
        self.requests += 1
        request_id = f"chatcmpl-{self.requests}-{self.requests:08x}"
        client = self.random.randrange(self.plan.clients)
        self.running[request_id] = [self.random.randrange(1, 12), client, 0]
        self.made.messages.append(
            EngineRequest(
                time_ns=self.now, tgid=TGID, tid=SENDER, sent=False, engine="vllm", request_id=request_id
            )
        )

    def schedule(self) -> tuple[dict[str, int], set[str]]:
        """What the step that is being queued will give to whom."""
        if self.random.random() < self.plan.silent:
            return {}, set()
        given, first = {}, set()
        for request_id, state in list(self.running.items()):
            if self.random.random() < 0.9 or not given:
                given[request_id] = 1
                if not state[2]:
                    first.add(request_id)
                state[0] -= 1
                state[2] += 1
                if not state[0]:
                    self.finished[request_id] = self.running.pop(request_id)
        return given, first

    def finish(self, start: int, end: int, launches: int, given: dict[str, int], first: set[str]) -> None:
        self.made.truth.append(Truth(start, end, launches, given, first))
        self.now += self.random.randrange(5 * US, 200 * US)
        # With asynchronous scheduling a request may end while the step before its last is being waited for.
        done = {i for i in given if i in self.finished and i not in self.under_way}
        by_client: dict[int, list[str]] = {}
        for request_id in given:
            state = self.finished.get(request_id) or self.running[request_id]
            by_client.setdefault(state[1], []).append(request_id)
        if not by_client and self.plan.stats:
            by_client[0] = []
        for client, ids in by_client.items():
            delay = self.random.randrange(*self.plan.send_ns)
            if self.random.random() < self.plan.stalls:
                delay = self.random.randrange(self.plan.stall_ns)
            self.sent_ns = max(self.sent_ns + 1, end + delay)
            items = tuple(EngineItem(request_id=i, new_tokens=given[i], finished=i in done) for i in ids)
            self.made.messages.append(
                EngineOutput(
                    time_ns=self.sent_ns,
                    tgid=TGID,
                    tid=SENDER,
                    sent=True,
                    connection=client + 1 if self.plan.connections else 0,
                    engine="vllm",
                    items=items,
                    running=len(self.running),
                )
            )


def reported(run: Run, *, tick_ns: int = 37 * MS, seed: int = 0) -> tuple[EngineSteps, list[EndedSteps]]:
    """All that is reported of a run that is fed as it would come: each tick after all that was done before it."""
    steps = EngineSteps([APIS], rules=RULES)
    steps.report(1)
    rows = concatenate(run.rows)
    np.random.default_rng(seed).shuffle(order := np.arange(len(rows)))
    rows = rows.take(order)
    ends = rows["start_ns"] + rows["duration_ns"]
    found = []
    last = max(int(ends.max()), max(message.time_ns for message in run.messages))
    for now in _ticks(last, tick_ns):
        before = now - tick_ns
        steps.hear(each for each in run.messages if before < each.time_ns <= now)
        fed = rows.compress((ends > before) & (ends <= now))
        assert steps.take(fed).all() or not len(fed)
        found.append(steps.report(now))
    found.append(steps.report(last + tick_ns, final=True))
    return steps, found


def _ticks(last_ns: int, tick_ns: int) -> Iterator[int]:
    return iter(range(tick_ns, last_ns + 2 * tick_ns, tick_ns))
