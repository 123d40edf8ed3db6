"""What processes leave behind in a session when they are gone: nothing but what is remembered up to a bound."""

from __future__ import annotations

import gc
from types import FunctionType, ModuleType
from typing import Any, Final

from otelgpu.engine.pipeline import HISTORY_NS, Pipeline
from otelgpu.engine.processes import LINGER_NS
from otelgpu.model.inputs import FunctionNamed, ProcessSeen, RuntimesSeen, Tick
from tests.endurance.observed import container_lengths
from tests.unit.engine.test_pipeline import allocate, pipeline
from tests.unit.families.records import MS, Host

BOUNDED: Final = (
    "otelgpu.families.requests.identities.Identit",
    "otelgpu.engine.attribution.pending.PendingOperations._finished",
    "otelgpu.families.steps.serving.request_index.",
    "otelgpu.model.shares.Remembered.",
    "otelgpu.model.context.Context",
    "otelgpu.model.exchange.Opened",
    "otelgpu.engine.summary.Latencies.values",
)
"""What remembers the last so many, by the beginnings of the names."""


def reachable(root: object) -> list[Any]:
    """Every object that ``root`` keeps, functions and classes aside."""
    found: dict[int, Any] = {}
    waiting = [root]
    while waiting:
        each = waiting.pop()
        if id(each) not in found and not isinstance(each, type | ModuleType | FunctionType):
            found[id(each)] = each
            waiting += gc.get_referents(each)
    return list(found.values())


def live(session: Pipeline, first: int, count: int) -> None:
    """Processes one after another: each serves a request, holds memory and ends; then all is long past."""
    now_ns = first * 10_000 * MS
    for tgid in range(first, first + count):
        host = Host(tgid=tgid, now_ns=now_ns)
        host.accept(connection=tgid, tid=tgid)
        host.serve(connection=tgid, tid=tgid, tokens=2)
        allocate(host, 0xA000, 500)
        if tgid % 2:
            host.ask(connection=tgid, tid=tgid)  # and is killed while it works
            host.launch(tid=tgid)
        place = FunctionNamed(tgid=tgid, address=0x3000, name="malloc_all", known=True)
        serves = RuntimesSeen(tgid=tgid, time_ns=now_ns, runtimes=("node",) if tgid % 2 else ("cpython",))
        inputs, gone = [*host.inputs(), place, serves], host.gone()
        if tgid % 4:
            inputs.append(gone)
        else:  # it had ended when it was to be looked at, and what it did is read after its end
            inputs = [each for each in inputs if not isinstance(each, ProcessSeen)]
            inputs[:0] = [gone, Tick(time_ns=gone.time_ns)]
        for item in inputs:
            session.feed(item)
        now_ns = host.now_ns
    for waited_ns in (MS, LINGER_NS, HISTORY_NS, 2 * HISTORY_NS, 2 * HISTORY_NS + LINGER_NS):
        for _ in session.feed(Tick(time_ns=now_ns + waited_ns)):
            pass
    session.read_metrics()
    session.read_metrics()


def test_processes_that_are_gone_leave_nothing_that_grows() -> None:
    session = pipeline()
    for first in (100, 200):  # the second time, for what happens once and is kept for good
        live(session, first, 4)
    before = container_lengths(reachable(session))
    live(session, 300, 4)
    grown = container_lengths(reachable(session)) - before
    assert {name: more for name, more in grown.items() if not name.startswith(BOUNDED)} == {}
