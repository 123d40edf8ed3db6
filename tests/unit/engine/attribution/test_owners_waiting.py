"""Requests wait for operations of which it is not yet known whose they are, and not for long."""

from __future__ import annotations

from otelgpu.engine.pipeline import Pipeline
from otelgpu.model.handoffs import HandoffEvent
from otelgpu.model.inputs import Tick
from tests.unit.engine.test_pipeline import pipeline
from tests.unit.families.records import MS, Host, plain_answer, record
from tests.unit.model.builders import Row, read_out

EARLIER, WORKER = 7, 8
SERVER = 101


def hand_off(host: Host, tid: int, event: HandoffEvent, *, waker: int = 0, idle_ns: int = 0) -> int:
    """One event of a thread, and when it was."""
    host.now_ns += MS
    head = {"time_ns": host.now_ns, "tgid": host.tgid, "tid": tid}
    given = {"waker": waker, "idle_ns": idle_ns, "event": int(event)}
    host._submit(record("sched", "sched_handoff", head, **given))
    return host.now_ns


def answered(*, by: int) -> Host:
    """A request that has its answer; while it was served, thread ``by`` made a call of CUDA.

    Thread 8 has given the thread of an earlier request a result, so that what it does may be for its next one.
    """
    host = Host()
    host.accept(1, tid=SERVER)
    host.accept(2, tid=EARLIER)
    host.ask(connection=2, tid=EARLIER, stream=False)
    for _ in range(2):  # an object for the result, and a semaphore to wait at
        hand_off(host, EARLIER, HandoffEvent.MADE)
    since_ns = hand_off(host, EARLIER, HandoffEvent.AWAITS)
    hand_off(host, EARLIER, HandoffEvent.WOKEN, waker=WORKER, idle_ns=since_ns)
    host.write(plain_answer(), connection=2, tid=EARLIER)
    host.ask(tid=SERVER, stream=False)
    host.launch(tid=by)
    host.write(plain_answer(), tid=SERVER)
    return host


def tick(session: Pipeline, host: Host, after_ms: int) -> list[Row]:
    """The spans that a tick gives, so long after the answer."""
    return read_out(session.feed(Tick(time_ns=host.now_ns + after_ms * MS)))


def requests(rows: list[Row]) -> list[Row]:
    """Those of the request that is waited with."""
    return [row for row in rows if row.name == "chat tiny" and row["thread.id"] == SERVER]


def calls(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row.name.startswith("cudaLaunchKernel")]


def session_of(host: Host) -> Pipeline:
    session = pipeline()
    for item in host.inputs()[:-1]:
        assert read_out(session.feed(item)) == []
    return session


def test_a_request_waits_for_work_that_may_be_its_own() -> None:
    host = answered(by=WORKER)
    assert requests(tick(session_of(host), host, 100)) == []


def test_it_does_not_wait_where_it_is_known_that_the_work_is_not_its_own() -> None:
    host = answered(by=9)  # never seen to work for another
    assert len(requests(tick(session_of(host), host, 100))) == 1


def test_it_does_not_wait_for_long() -> None:
    host = answered(by=WORKER)
    session = session_of(host)
    assert requests(tick(session, host, 200)) == []
    rows = tick(session, host, 300)
    assert len(requests(rows)) == 1
    assert calls(rows) == []  # of which is still not known whose it is


def test_what_it_did_not_wait_for_is_exported_all_the_same() -> None:
    host = answered(by=WORKER)
    session = session_of(host)
    rows = tick(session, host, 300) + tick(session, host, 6_000) + read_out(session.finish())
    assert len(calls(rows)) == len(requests(rows)) == 1
