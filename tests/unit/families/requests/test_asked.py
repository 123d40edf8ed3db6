"""Requests that a task had another one write: for whom, and when it asked."""

from __future__ import annotations

import struct

from otelgpu.model.context_sources import ContextSource
from otelgpu.model.tasks import Asked
from tests.unit.families.requests.traffic import opened, request, response


def test_a_request_that_another_task_had_written_says_when_that_was() -> None:
    connection, seen = opened("CLIENT")
    connection.published = (struct.pack("<2Q", 70, 50), struct.pack("<Q", 7), 0, ContextSource.TASK)
    seen.feed(connection.write(request()))
    connection.run_task(8)  # what reads the response
    seen.feed(connection.read(response()))
    [exchange] = seen.exchanges
    assert (exchange.task, exchange.asked) == (7, Asked(at_ns=70, since_ns=50))
    assert [(each.task, each.asked) for each in seen.opened] == [(7, exchange.asked)]


def test_a_request_that_its_task_wrote_itself_says_nothing_of_the_kind() -> None:
    connection, seen = opened("CLIENT")
    connection.run_task(7)
    seen.feed(connection.write(request()))
    assert [(each.task, each.asked) for each in seen.opened] == [(7, None)]
