"""Whose threads are evidence, by what serves the requests of their process."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from otelgpu.engine.attribution.multiplexing import MultiplexedProcesses
from otelgpu.engine.attribution.threads import AMBIGUOUS, ThreadTimeline
from otelgpu.model.exchange import ThreadAssignment
from otelgpu.model.inputs import ProcessSeen, RuntimesSeen
from otelgpu.model.resource import resource
from otelgpu.model.runtimes import RUNTIMES, multiplexing
from tests.unit.model.builders import assignment


class Session:
    """What threads hold, as far as that is evidence."""

    def __init__(self) -> None:
        self.threads = ThreadTimeline()
        self.made = MultiplexedProcesses(self.threads)

    def runs(self, *runtimes: str, tgid: int = 100) -> None:
        self.made.learn(RuntimesSeen(tgid=tgid, time_ns=0, runtimes=runtimes))

    def take(self, *assignments: ThreadAssignment) -> None:
        self.threads.apply(self.made.evidence(assignments))

    def under_way(self, tgids: Iterable[int], time_ns: int) -> list[bool]:
        asked = np.array(list(tgids), np.uint32)
        return self.made.are_under_way(asked, np.full(len(asked), time_ns, np.uint64)).tolist()


MULTIPLEXING = [name for name, runtime in RUNTIMES.items() if runtime.multiplexes]


@pytest.mark.parametrize("runtime", MULTIPLEXING)
def test_where_a_runtime_multiplexes_a_thread_that_reads_without_waiting_names_no_request(
    runtime: str,
) -> None:
    session = Session()
    session.runs(runtime)
    session.take(assignment(10, 1, loop=True), assignment(30, 1, loop=True, begins=False))
    assert session.threads.owner(101, 20) == 0
    assert session.under_way([100, 200], 20) == [True, False]
    assert session.under_way([100], 40) == [False]


def test_what_was_read_before_the_runtime_is_known_is_taken_back() -> None:
    session = Session()
    session.take(assignment(10, 1, loop=True))
    assert session.threads.owner(101, 20) == 1
    session.runs("tokio")
    assert session.threads.owner(101, 20) == 0
    assert session.under_way([100], 20) == [True]


def test_a_thread_that_waits_for_its_request_is_evidence_beside_any_runtime() -> None:
    """A synchronous server in a program that has asyncio too."""
    session = Session()
    session.runs("cpython", "asyncio")
    session.take(assignment(10, 1))
    assert session.threads.owner(101, 20) == 1


@pytest.mark.parametrize("runtime", ["tokio", "node"])
def test_what_serves_with_nothing_else_is_believed_of_no_thread(runtime: str) -> None:
    """Also where the record is lost that says how a connection is read."""
    session = Session()
    session.runs(runtime)
    session.take(assignment(10, 1))
    assert session.threads.owner(101, 20) == 0


def test_threads_of_cpython_without_an_event_loop_have_a_request_each() -> None:
    """Sockets with a timeout do not wait, as far as the kernel knows."""
    session = Session()
    session.runs("cpython")
    session.take(assignment(10, 1, tid=101, loop=True), assignment(10, 2, tid=102, loop=True))
    assert (session.threads.owner(101, 20), session.threads.owner(102, 20)) == (1, 2)


def test_of_what_is_not_known_several_requests_at_once_are_ambiguous() -> None:
    session = Session()
    session.runs()
    session.take(assignment(10, 1, tid=101, loop=True), assignment(20, 2, tid=102, loop=True))
    assert (session.threads.owner(101, 15), session.threads.owner(101, 25)) == (1, AMBIGUOUS)


def test_no_thread_of_go_is_evidence() -> None:
    session = Session()
    go = resource({"process.runtime.name": "go"})
    session.made.see(ProcessSeen(tgid=100, time_ns=0, resource=go))
    session.take(assignment(10, 1))
    assert session.threads.owner(101, 20) == 0
    session.made.see(ProcessSeen(tgid=100, time_ns=30, resource=resource({"process.pid": 100})))
    session.take(assignment(40, 2))
    assert session.threads.owner(101, 50) == 2


def test_one_that_could_not_be_looked_at_is_looked_at_again() -> None:
    session = Session()
    session.runs("unknown")
    session.take(assignment(10, 1, loop=True))
    assert session.threads.owner(101, 20) == 0
    session.runs("cpython")
    session.take(assignment(30, 2, loop=True))
    assert session.threads.owner(101, 40) == 2


def test_a_process_that_ended_is_forgotten() -> None:
    session = Session()
    session.runs("node")
    session.take(assignment(10, 1, loop=True))
    session.made.forget_process(100)
    session.take(assignment(20, 2, loop=True))
    assert (session.threads.owner(101, 30), session.under_way([100], 30)) == (2, [False])


def test_each_runtime_says_what_it_is_known_by_and_what_can_be_done() -> None:
    for name, runtime in RUNTIMES.items():
        assert runtime.label and runtime.known_by and runtime.exact
        assert bool(runtime.remedy) == runtime.multiplexes
        assert multiplexing([name]) == ((name,) if runtime.multiplexes else ())
    assert not any("python" in RUNTIMES[name].remedy.lower() for name in ("go", "node", "tokio"))
