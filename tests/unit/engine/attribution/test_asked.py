"""A task that had another one do something: the request that it worked for at both times, or none."""

from __future__ import annotations

from typing import Any, cast

import pytest
from msgspec.structs import replace

from otelgpu.engine.attribution.owners import Attribution
from otelgpu.engine.attribution.threads import NO_TASK, UNSETTLED, ThreadTimeline
from otelgpu.model.inputs import RuntimesSeen
from otelgpu.model.tasks import Asked, TaskService
from tests.unit.engine.attribution.test_tasks import over

TGID = 1


@pytest.mark.parametrize(
    ("at_ns", "since_ns", "found"),
    [
        (15, 15, 1),
        (18, 12, 1),  # in the first request, with its context
        (35, 12, NO_TASK),  # ... while the task served the second
        (25, 12, NO_TASK),  # ... after it had been answered
        (55, 12, UNSETTLED),  # ... or the third, which is open
        (55, 52, UNSETTLED),
    ],
)
def test_the_request_that_holds_both_times(at_ns: int, since_ns: int, found: int) -> None:
    nothing = cast("Any", None)
    attribution = Attribution(ThreadTimeline(), nothing, nothing, nothing)
    attribution.take_tasks([over(1, 10, 7, 20, TGID), over(2, 30, 7, 40, TGID)])
    attribution.take_tasks([TaskService(exchange=3, tgid=TGID, begin_ns=50)])
    assert attribution.owner_by_task(TGID, 100, 7, Asked(at_ns=at_ns, since_ns=since_ns)) == found


@pytest.mark.parametrize(
    ("is_framed", "runtimes", "found"),
    [
        (True, ("asyncio",), 1),
        (True, ("asyncio", "grpcio"), NO_TASK),
        (False, ("asyncio", "grpcio"), 1),  # an HTTP/1 server, which may have a client of gRPC
    ],
)
def test_who_writes_a_stream_of_grpcio_may_write_it_for_another(
    is_framed: bool, runtimes: tuple[str, ...], found: int
) -> None:
    nothing = cast("Any", None)
    attribution = Attribution(ThreadTimeline(), nothing, nothing, nothing)
    attribution.multiplexed.learn(RuntimesSeen(tgid=TGID, time_ns=0, runtimes=runtimes))
    attribution.take_tasks([replace(over(1, 10, 7, 20, TGID), is_framed=is_framed)])
    assert attribution.owner_by_task(TGID, 15, 7, Asked(at_ns=15, since_ns=15)) == found
