"""Where threads run tasks: what is a task's by what it answered, and what is still its thread's."""

from __future__ import annotations

from typing import Final

import numpy as np
import pytest

from otelgpu.model.context_sources import ContextSource
from otelgpu.model.inputs import RuntimesSeen
from otelgpu.model.runtimes import CPYTHON
from tests.unit.engine.test_pipeline import pipeline
from tests.unit.families.records import Host, plain_answer, stream_end, stream_event, stream_head
from tests.unit.model.builders import Row, read_out

THREAD: Final = 101
NO_TASK: Final = 0


class TaskHost(Host):
    """A process whose threads run tasks, as their records say."""

    task = NO_TASK

    def _submit(self, batch):  # type: ignore[no-untyped-def]
        if self.task:
            batch.heads["context_source"] = ContextSource.TASK
            batch.heads["span_id"] = np.array([self.task], np.uint64).view(np.uint8)
        super()._submit(batch)


def spans(host: Host, *facts: RuntimesSeen) -> list[Row]:
    session = pipeline()
    rows = [row for fact in facts for row in read_out(session.feed(fact))]
    for item in host.inputs():
        rows += read_out(session.feed(item))
    return rows + read_out(session.finish())


def sources(rows: list[Row]) -> list[str]:
    """Of each launch, how it was linked; "" where it is of no request."""
    traces = {row.trace_id for row in rows if row.name == "chat tiny"}
    return [
        str(row.get("otelgpu.context.source")) if row.trace_id in traces else "" for row in launches(rows)
    ]


def launches(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row.name.startswith("cudaLaunchKernel")]


@pytest.mark.parametrize(
    ("at_read", "at_call", "at_write", "found"),
    [
        (7, 7, 7, ["task"]),  # a goroutine, or a thread of CPython
        (1, 7, 7, ["task"]),  # an event loop's callback reads
        (NO_TASK, 7, 7, ["thread"]),  # CPython gave the thread a context after it had read its first request
        (NO_TASK, 7, NO_TASK, ["thread"]),
        (
            1,
            8,
            7,
            ["thread"],
        ),  # what a thread that waits for its requests runs beside is its request's as well
    ],
)
def test_a_call_of_a_thread_that_waits_for_what_it_reads(
    at_read: int, at_call: int, at_write: int, found: list[str]
) -> None:
    host = TaskHost()
    host.accept(tid=THREAD)
    host.task = at_read
    host.ask(tid=THREAD, stream=False)
    host.task = at_call
    host.launch(tid=THREAD)
    host.task = at_write
    host.write(plain_answer(), tid=THREAD)
    assert sources(spans(host, RuntimesSeen(tgid=host.tgid, time_ns=0, runtimes=(CPYTHON,)))) == found


def test_of_two_requests_of_a_loop_a_task_has_the_one_that_it_answered() -> None:
    host = TaskHost()
    host.accept(1, tid=THREAD)
    host.accept(2, tid=THREAD)
    host.task = 1
    host.ask(connection=1, tid=THREAD, stream=False)
    host.ask(connection=2, tid=THREAD, stream=False)
    host.task = 8
    host.launch(tid=THREAD)
    host.task = 7
    host.write(plain_answer(), connection=1, tid=THREAD)
    host.task = 8
    host.write(plain_answer(), connection=2, tid=THREAD)
    rows = spans(host, RuntimesSeen(tgid=host.tgid, time_ns=0, runtimes=("asyncio", CPYTHON)))
    assert sources(rows) == ["task"]
    (answered,) = [row for row in rows if row.get("client.port") == 40_002]
    assert launches(rows)[0].trace_id == answered.trace_id


def test_a_call_of_what_its_thread_and_task_have_answered_waits_for_no_other_request() -> None:
    """The first request of a thread: its task was made after it had read it, and began before the stream's first."""
    host = TaskHost()
    host.accept(1, tid=THREAD)
    host.accept(2, tid=THREAD + 1)
    host.task = 9
    host.ask(connection=2, tid=THREAD + 1)
    host.task = NO_TASK
    host.ask(connection=1, tid=THREAD)
    host.task = 7
    host.launch(tid=THREAD)
    for part in (stream_head(), stream_event("a"), stream_end()):
        host.write(part, connection=1, tid=THREAD)
    rows = spans(host, RuntimesSeen(tgid=host.tgid, time_ns=0, runtimes=(CPYTHON,)))
    (answered,) = [row for row in rows if row.name == "chat tiny"]
    assert answered.get("cuda.launch.calls") == 1
    assert sources(rows) == ["thread"]
