"""Steps of training: iterations of loops that move data among ranks, found by the period of their collectives.

In: operations that nobody else owns, collectives among them. Out: steps with their parts and operations, and
operations that are of none. Pure; memory is bounded, and what does not fit is passed on and counted.

Worked example, one rank of a data-parallel loop, its backward pass on a thread of its own::

    steps.take(rows)   # copy to the device, launches, AllReduce × 3, launches, copy to the host: False, unknown yet
    …                  # three times so: the period is found at the next copy to the device, and from a second later on
    steps.take(rows)   # True: copied, but for collectives
    steps.report(now)    → a TrainingStep for each that has ended, with parts that add up to its duration

The modules: what a call is to a period (``notes``); finding it (``period``); where steps begin and end (``process``);
where their time went (``breakdown``). Roles of calls: ``engine/call_roles``. A step of an engine ends where
results are waited for; a loop of training need not wait in each step.
Processes without collectives have no steps: one GPU's loop looks like any other program's.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from otelgpu.engine.call_roles import H2D_COPIES, STRETCHES, TRAINING, Role, StepCalls, StepRules, is_one_of
from otelgpu.families.steps.evidence import evidence_by_group
from otelgpu.families.steps.training.breakdown import parts_of
from otelgpu.families.steps.training.notes import Nature, Notes, TrainingCalls, communicates
from otelgpu.families.steps.training.process import COUNTERS as PROCESS_COUNTERS
from otelgpu.families.steps.training.process import FoundStep, TrainingProcess
from otelgpu.families.steps.training.step import TrainingStep
from otelgpu.model.codes import distinct
from otelgpu.model.losses import Reasons
from otelgpu.model.operations import LARGEST_SIZE, Operations, concatenate, operations
from otelgpu.model.shares import Headroom

OPERATIONS_HELD: Final = 262_144
"""32 MiB: operations of steps that have not ended. A process has at most as much as is free: alone half."""

PROCESSES: Final = 256
"""Processes that are watched."""

RECENT: Final = 4096
"""Steps of a process that it is known of when they were."""


#: What is counted, and what one count means.
COUNTERS: Final = Reasons(
    "training",
    {
        **PROCESS_COUNTERS,
        "operations_not_kept": "operations of training processes that no step could hold: there were too many",
        "processes_not_watched": "processes with collectives beyond the bound, whose steps are not looked for",
    },
)


class EndedTraining(Struct, frozen=True, kw_only=True):
    """m steps, their n operations, and operations that are of no step."""

    steps: list[TrainingStep]
    operations: Operations  # (n,)
    step: npt.NDArray[np.int64]  # (n,) in range(m)
    rest: Operations


def only_steps(
    reported: EndedTraining, chosen: Sequence[bool], rest: Operations | None = None
) -> EndedTraining:
    """Some of the steps, with their operations; and what else is of none."""
    kept = np.array(chosen, dtype=np.bool_)
    mine = kept[reported.step]
    return EndedTraining(
        steps=[step for step, keep in zip(reported.steps, chosen, strict=True) if keep],
        operations=reported.operations.compress(mine),
        step=(np.cumsum(kept) - 1)[reported.step[mine]],
        rest=operations(0) if rest is None else rest,
    )


def join_reported(parts: Sequence[EndedTraining]) -> EndedTraining:
    """One after the other."""
    if len(parts) == 1:
        return parts[0]
    firsts = np.cumsum([0, *(len(part.steps) for part in parts)]).tolist()
    return EndedTraining(
        steps=[step for part in parts for step in part.steps],
        operations=concatenate([part.operations for part in parts]) if parts else operations(0),
        step=np.concatenate(
            [
                np.zeros(0, dtype=np.int64),
                *(part.step + first for part, first in zip(parts, firsts, strict=False)),
            ]
        ),
        rest=concatenate([part.rest for part in parts]) if parts else operations(0),
    )


def _nobody(_: int) -> bool:
    return False


class TrainingSteps:
    """All steps of a session. ``apis``: by position of the family, code of a function → its exported name.

    ``is_engine``: of a process whose steps are an engine's, and are reported as such. ``serves``: of a process that
    answers requests, or a child of one: its periods are training's only where there is no doubt.
    """

    def __init__(
        self,
        apis: Sequence[Mapping[int, str]],
        *,
        rules: StepRules = TRAINING,
        is_engine: Callable[[int], bool] = _nobody,
        serves: Callable[[int], bool] = _nobody,
        headroom: Headroom | None = None,
    ) -> None:
        self._headroom = headroom or Headroom()
        self._calls, self._training = StepCalls(apis), TrainingCalls(apis)
        self._rules, self._is_engine, self._serves = rules, is_engine, serves
        self._processes: dict[int, TrainingProcess] = {}
        self._recent: dict[int, deque[tuple[int, int]]] = {}  # of each process, start and end of steps
        self._counts: Counter[str] = Counter(dict.fromkeys(COUNTERS, 0))
        self.periods: Counter[str] = (
            Counter()
        )  # ``found``, and ``widened``: batches were first taken for steps

    @property
    def counters(self) -> Mapping[str, int]:
        """Losses and oddities by name, since the start."""
        return self._counts

    @property
    def rows(self) -> int:
        """Operations held."""
        return sum(process.rows for process in self._processes.values())

    @property
    def has_processes(self) -> bool:
        """Whether any process may have steps."""
        return bool(self._processes)

    def watches(self, tgid: int) -> bool:
        """Whether a process may have steps: it moved data among ranks."""
        return tgid in self._processes

    def take(self, rows: Operations) -> npt.NDArray[np.bool_]:
        """Copy those that may be of a step: shape (n,), True where one was taken. Collectives are looked at only."""
        taken = np.zeros(len(rows), dtype=np.bool_)
        if not len(rows):
            return taken
        moves = communicates(rows)
        tgids, codes = distinct(np.ascontiguousarray(rows["tgid"]))
        free = (OPERATIONS_HELD >> self._headroom.steps) - self.rows
        for code, tgid in enumerate(tgids.tolist()):
            process = self._processes.get(tgid)
            if process is None and not moves.any():
                continue
            mine = codes == code if len(tgids) > 1 else np.ones(len(rows), dtype=np.bool_)
            if process is None:
                process = self._watch(tgid) if (moves & mine).any() else None
                if process is None:
                    continue
            chosen = rows if len(tgids) == 1 else rows.compress(mine)
            room = (free - process.rows + 1) // 2
            held = process.take(chosen, self._calls.roles(chosen), room=room)
            free -= int(np.count_nonzero(held))
            taken[mine] = held
        return taken

    def _watch(self, tgid: int) -> TrainingProcess | None:
        if self._is_engine(tgid):
            return None
        if len(self._processes) >= PROCESSES:
            self._counts["processes_not_watched"] += 1
            return None
        process = self._processes[tgid] = TrainingProcess(
            self._training.notes, self._rules, self._counts, self.periods, surely=self._serves(tgid)
        )
        return process

    def report(self, now_ns: int, *, final: bool = False) -> EndedTraining:
        """At a tick: the steps whose ends are known. Every record before ``now_ns`` was fed."""
        steps: list[TrainingStep] = []
        parts: list[Operations] = []
        rest: list[Operations] = []
        for tgid, process in list(self._processes.items()):
            process.ended |= self._is_engine(tgid)
            found, left = process.advance(now_ns, final=final)
            rest += left
            steps += self._made(tgid, found)
            for each in found:
                parts.append(each.rows)
                recent = self._recent.setdefault(tgid, deque(maxlen=RECENT))
                recent.append((each.start_ns, each.end_ns))
            if process.ended:
                del self._processes[tgid]
                self._recent.pop(tgid, None)
        counts = [len(each) for each in parts]
        return EndedTraining(
            steps=steps,
            operations=concatenate(parts) if parts else operations(0),
            step=np.repeat(np.arange(len(steps)), counts).astype(np.int64),
            rest=concatenate(rest) if rest else operations(0),
        )

    def _made(self, tgid: int, found: Sequence[FoundStep]) -> list[TrainingStep]:
        """Steps of one process, in the order of time."""
        if not found:
            return []
        steps = len(found)
        notes = np.concatenate([each.notes for each in found])
        step = np.repeat(np.arange(steps), [len(each.notes) for each in found])
        starts = np.array([each.start_ns for each in found])
        parts = parts_of(notes, step, starts, np.array([each.end_ns for each in found]))
        tids = _launching(notes, step, steps)
        rows = concatenate([each.rows for each in found])
        group = np.repeat(np.arange(steps), [len(each.rows) for each in found])
        evidence = evidence_by_group(rows, self._calls.roles(rows), group, tids)
        moves, h2d_copies = notes["symbol"] != 0, is_one_of(notes["role"], H2D_COPIES)
        collectives, collective_bytes = _counted(notes, step, moves, steps)
        copied, h2d_copy_bytes = _counted(notes, step, h2d_copies, steps)
        on_files = notes["role"] == Role.FILE
        files, file_bytes = _counted(notes, step, on_files, steps)
        _, written_bytes = _counted(notes, step, on_files & (notes["nature"] == Nature.WRITE), steps)
        slowest = _slowest(notes, step, on_files, steps)
        return [
            TrainingStep(
                tgid=tgid,
                tid=int(tids[i]),
                number=each.number,
                start_ns=each.start_ns,
                end_ns=each.end_ns,
                boundary=each.boundary,
                confidence=each.confidence,
                parts=parts[i],
                evidence=replace(evidence[i], host_ns=parts[i].busy_ns),
                collectives=collectives[i],
                collective_bytes=collective_bytes[i],
                h2d_copies=copied[i],
                h2d_copy_bytes=h2d_copy_bytes[i],
                files=files[i],
                file_bytes=file_bytes[i],
                written_bytes=written_bytes[i],
                slowest_file=slowest[i],
            )
            for i, each in enumerate(found)
        ]

    def step_at(self, tgid: int, time_ns: int) -> int | None:
        """When the step began that was under way at a time; None: there was none; -1: it is not known yet."""
        process = self._processes.get(tgid)
        if process is not None and process.may_cover(time_ns):
            return -1
        for start_ns, end_ns in reversed(self._recent.get(tgid, ())):
            if start_ns <= time_ns < end_ns:
                return start_ns
            if end_ns <= time_ns:
                break
        return None

    def forget_process(self, tgid: int) -> None:
        """A process ended: what it left is reported at the next tick, as if the session ended."""
        process = self._processes.get(tgid)
        if process is not None:
            process.ended = True


def _launching(notes: Notes, step: npt.NDArray[np.int64], steps: int) -> npt.NDArray[np.int64]:
    """The thread that launched most in each step, or computed itself; 0 where none did: shape (steps,)."""
    launches = is_one_of(notes["role"], (Role.LAUNCH, *STRETCHES))
    tids, codes = distinct(notes["tid"][launches])
    if not len(tids):
        return np.zeros(steps, dtype=np.int64)
    counts = np.bincount(step[launches] * len(tids) + codes, minlength=steps * len(tids)).reshape(steps, -1)
    return np.where(counts.any(axis=1), tids[counts.argmax(axis=1)], 0).astype(np.int64)


def _slowest(
    notes: Notes, step: npt.NDArray[np.int64], chosen: npt.NDArray[np.bool_], steps: int
) -> list[int]:
    """What the longest of the chosen calls of each step is about, 0 where there is none."""
    found = np.zeros(steps, dtype=np.uint64)
    rows = np.flatnonzero(chosen)
    rows = rows[np.argsort(notes["end_ns"][rows] - notes["start_ns"][rows], kind="stable")]
    found[step[rows]] = notes["stream"][rows]  # the last one stays
    return [int(each) for each in found]


def _counted(
    notes: Notes, step: npt.NDArray[np.int64], chosen: npt.NDArray[np.bool_], steps: int
) -> tuple[list[int], list[int]]:
    """How many of the chosen calls each step has, and their bytes."""
    counts = np.bincount(step[chosen], minlength=steps).tolist()
    sizes = np.zeros(steps, dtype=np.uint64)
    np.add.at(sizes, step[chosen], np.minimum(notes["size_bytes"][chosen], np.uint64(LARGEST_SIZE)))
    return counts, sizes.tolist()
