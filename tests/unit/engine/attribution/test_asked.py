"""A task that had another one do something: the request that it worked for at both times, or none."""

from __future__ import annotations

from typing import Any, cast

import pytest

from otelgpu.engine.attribution.owners import Attribution
from otelgpu.engine.attribution.threads import NO_TASK, UNSETTLED, ThreadTimeline
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
