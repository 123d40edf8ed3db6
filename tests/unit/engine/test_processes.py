"""Who is who, until a while after the end."""

from __future__ import annotations

from otelgpu.engine.processes import LINGER_NS, MADE_UP, Processes
from otelgpu.model.inputs import ProcessGone, ProcessSeen
from otelgpu.model.resource import Resource, resource

OLD, NEW = resource({"service.name": "old"}), resource({"service.name": "new"})

AGENT = resource(
    {"host.name": "gpu-1", "k8s.node.name": "gpu-1", "k8s.pod.name": "agent", "service.name": "otelgpu"}
)


def seen(what: Resource, time_ns: int = 1) -> ProcessSeen:
    return ProcessSeen(tgid=7, time_ns=time_ns, resource=what)


def test_a_process_that_nobody_saw_is_made_up_once() -> None:
    processes = Processes(AGENT)
    assert processes.known(7) is None
    assert dict(processes.resource(7).attributes) == {
        "host.name": "gpu-1",
        "k8s.node.name": "gpu-1",
        "process.pid": 7,
        "service.name": "unknown_service",
    }
    assert processes.resource(7) is processes.known(7)


def test_of_those_that_nobody_saw_the_oldest_departs() -> None:
    processes = Processes(AGENT)
    first = processes.resource(7)
    for tgid in range(1000, 1000 + 2 * MADE_UP):
        processes.resource(tgid)
    assert len(processes) == MADE_UP
    departed = processes.take_departed()
    assert (len(departed), first in departed) == (MADE_UP + 1, True)


def test_who_was_seen_at_last_is_not_made_up_any_more() -> None:
    processes = Processes(AGENT)
    processes.resource(7)
    processes.see(seen(OLD))
    for tgid in range(1000, 1000 + 2 * MADE_UP):
        processes.resource(tgid)
    assert (processes.known(7), len(processes)) == (OLD, MADE_UP + 1)


def test_a_process_that_ended_is_known_a_while() -> None:
    processes = Processes(AGENT)
    processes.see(seen(OLD))
    processes.end(ProcessGone(tgid=7, time_ns=5))
    assert processes.expire(5 + LINGER_NS - 1) == []
    assert (processes.known(7), processes.take_departed()) == (OLD, set())
    assert processes.expire(5 + LINGER_NS) == [7]
    assert (processes.known(7), processes.take_departed()) == (None, {OLD})
    assert processes.take_departed() == set()


def test_what_became_another_program_departs_and_the_process_stays() -> None:
    processes = Processes(AGENT)
    assert [processes.see(seen(what, time_ns=2)) for what in (OLD, OLD, NEW)] == [False, False, True]
    processes.expire(2 + LINGER_NS)
    assert (processes.known(7), processes.take_departed()) == (NEW, {OLD})


def test_the_end_of_a_process_that_nobody_saw_is_nothing() -> None:
    processes = Processes(AGENT)
    processes.end(ProcessGone(tgid=7, time_ns=5))
    assert processes.expire(1 << 60) == [7]  # something of it may have come
    assert processes.take_departed() == set()


def test_who_was_made_up_after_the_end_departs_too() -> None:
    processes = Processes(AGENT)
    processes.end(ProcessGone(tgid=7, time_ns=5))
    made_up = processes.resource(7)
    assert processes.expire(5 + LINGER_NS) == [7]
    assert (processes.take_departed(), len(processes)) == ({made_up}, 0)


def test_a_number_that_is_given_out_again_is_not_forgotten_for_one_that_nobody_saw() -> None:
    processes = Processes(AGENT)
    processes.end(ProcessGone(tgid=7, time_ns=5))
    processes.see(seen(NEW, time_ns=6))
    assert processes.expire(5 + LINGER_NS) == []
    assert (processes.known(7), processes.take_departed()) == (NEW, set())


def test_a_process_comes_from_those_that_started_it_as_far_as_they_are_known() -> None:
    processes = Processes(AGENT)
    for tgid, parent in ((7, 6), (6, 5), (9, 9)):
        processes.see(ProcessSeen(tgid=tgid, time_ns=1, resource=OLD, parent=parent))
    assert list(processes.lineage(7)) == [7, 6, 5]
    assert list(processes.lineage(3)) == [3]
    assert set(processes.lineage(9)) == {9}  # a number that was given out again can make a circle
    processes.end(ProcessGone(tgid=6, time_ns=2))
    processes.expire(2 + LINGER_NS)
    assert list(processes.lineage(7)) == [7, 6]
