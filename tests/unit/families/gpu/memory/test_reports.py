"""Failures of a session: how many have an event, and by whose words."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from otelgpu.engine.memory_names import memory_names
from otelgpu.engine.services import AllocatorLevel
from otelgpu.families.gpu.memory.failures import WATCH_NS
from otelgpu.families.gpu.memory.ledger import MemoryLedger
from otelgpu.families.gpu.memory.reports import EVERY_NS, FailureReports
from otelgpu.model import memory_failures as names
from otelgpu.model.devices import DeviceReadings, ProcessReading, Quantity
from otelgpu.model.events import Event
from otelgpu.model.operations import Operations
from otelgpu.model.profiles import FrameType
from otelgpu.model.resource import resource
from otelgpu.model.samples import Frame, StackNamed
from tests.unit.families.gpu.memory.memory_calls import Decoder, allocation, free

S = 1_000_000_000


class Session:
    """Services of a session with the reports and their ledger."""

    def __init__(self, *, with_stacks: bool = False, is_named: bool = True) -> None:
        self.events: list[Event] = []
        self._listeners: dict[type, Any] = {}
        services: Any = SimpleNamespace(
            listen=self._listeners.__setitem__,
            report_events=self.events.extend,
            offers=SimpleNamespace(allocator_levels=lambda tgid, device: AllocatorLevel(900, 880)),
            session=SimpleNamespace(
                processes=SimpleNamespace(resource=lambda tgid: resource({"process.pid": tgid})),
                clock=SimpleNamespace(offset_ns=1000),
                functions=SimpleNamespace(name=lambda tgid, caller: f"function{caller}"),
            ),
        )
        reported = memory_names("cuda") if is_named else None
        self.reports = FailureReports(services, [reported], with_stacks=with_stacks)
        self._ledger = MemoryLedger(
            [Decoder()],
            failures=self.reports.failures,
            stacks=lambda rows: rows["caller"].astype("u8"),
        )

    def hear(self, fact: object) -> None:
        self._listeners[type(fact)](fact)

    def take(self, *rows: Operations, now: int) -> list[Event]:
        for each in rows:
            self._ledger.add(each)
        self._ledger.settle(now)
        self.events.clear()
        self.reports.report(now + WATCH_NS, final=False)
        return list(self.events)


def refused(start: int, size: int = 100, **columns: Any) -> Operations:
    return allocation(start, at=0, size=size, status=2, **columns)


def test_a_loop_of_failures_has_one_event_a_minute_that_says_how_many_there_were() -> None:
    session = Session()
    (first,) = session.take(refused(S), now=2 * S)
    assert names.UNREPORTED not in first.attributes
    assert session.take(refused(9 * S), refused(10 * S, 7), now=11 * S) == []
    assert session.reports.unreported == 2
    (later,) = session.take(refused(EVERY_NS + 2 * S), now=EVERY_NS + 3 * S)
    assert later.attributes[names.UNREPORTED] == 2 and "2 more failed before it" in later.text


def test_one_that_recovers_takes_no_place_of_one_that_does_not() -> None:
    session = Session()
    (met,) = session.take(refused(S), allocation(2 * S), free(3 * S), now=3 * S)
    (unmet,) = session.take(refused(4 * S), now=5 * S)
    assert [each.attributes[names.OUTCOME] for each in (met, unmet)] == [names.RECOVERED, names.UNMET]


def test_another_process_has_its_own_and_one_that_is_forgotten_begins_anew() -> None:
    session = Session()
    assert len(session.take(refused(S), refused(S, tgid=2), now=2 * S)) == 2
    session.reports.forget(1)
    assert len(session.take(refused(3 * S), refused(3 * S, tgid=2), now=4 * S)) == 1


def test_a_family_without_names_has_no_event() -> None:
    session = Session(is_named=False)
    assert session.take(refused(S), now=2 * S) == []
    assert session.reports.unreported == 1


def test_places_are_lines_of_python_where_stacks_are_taken_else_the_caller() -> None:
    named = StackNamed(
        tgid=1,
        stack=7,
        frames=(
            Frame(type=FrameType.NATIVE, name="cudaMalloc"),
            Frame(type=FrameType.PYTHON, name="load", file="/app/serve.py", line=31),
        ),
    )
    session = Session(with_stacks=True)
    session.hear(named)
    (event,) = session.take(
        allocation(1, size=40, caller=7), allocation(2, at=2, size=30, caller=8), refused(S), now=2 * S
    )
    assert event.attributes[names.HOLDERS] == (
        "40 B in 1 by load (serve.py:31)",
        "30 B in 1 by function8",
    )


def test_the_device_and_the_allocator_are_asked() -> None:
    session = Session()
    reading = DeviceReadings(
        time_ns=1,
        uuid="GPU-1",
        values={Quantity.MEMORY_TOTAL_BYTES: 1000, Quantity.MEMORY_USED_BYTES: 990},
        processes=(ProcessReading(tgid=1, device="GPU-1", memory_bytes=950),),
    )
    session.hear(reading)
    (event,) = session.take(refused(S), now=2 * S)
    found = [event.attributes[key] for key in (names.CAUSE, names.CACHED, names.DEVICE_FREE)]
    assert found == ["own_memory", 20, 10]
    assert (event.time_unix_ns, event.resource.get("process.pid")) == (S + 1000, 1)
