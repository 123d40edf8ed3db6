"""A source with nothing to collect waits longer than usual, and the first record of an empty ring wakes it."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable

from tests.kernel.observing import WAIT_S, Watch
from tests.rig import start_cuda_client

TURN_S, LONG_S = 0.05, 30.0


def test_with_nothing_to_collect_it_waits_on(watch: Callable[..., Watch]) -> None:
    watching = watch()
    watching.source.collect()
    began = time.monotonic()
    assert watching.source.wait(TURN_S, longest_s=10 * TURN_S) == set()
    assert time.monotonic() - began >= 10 * TURN_S


def test_the_first_record_of_a_ring_that_is_awaited_wakes_who_waits(watch: Callable[..., Watch]) -> None:
    watching = watch()
    with start_cuda_client(calls=1, functions=("cudaMalloc",), linger_ms=600_000) as client:
        watching.observe(client.pid)
        watching.source.collect()
        cuda = watching.source._loaded["cuda"]
        assert cuda.await_records()
        begin = threading.Timer(TURN_S, client.begin)
        begin.start()
        began = time.monotonic()
        assert select.select([cuda.ring.fd], [], [], LONG_S)[0]  # it looks once more when its time is over
        assert time.monotonic() - began < LONG_S / 2
        begin.join()
        assert not cuda.await_records()
        until = time.monotonic() + WAIT_S
        while "cudaMalloc" not in watching.calls(client.pid):  # its first call is another one
            watching.inputs += watching.source.collect()
            assert time.monotonic() < until
    assert watching.calls(client.pid)["cudaMalloc"] == 1


def test_after_a_rest_records_that_the_ring_has_room_for_wake_nobody(watch: Callable[..., Watch]) -> None:
    watching = watch()
    watching.source.collect()
    watching.source.wait(TURN_S, longest_s=2 * TURN_S)
    with start_cuda_client(calls=7, functions=("cudaMalloc",)) as client:
        watching.observe(client.pid)
        client.finish()
        assert watching.source.wait(0) == set()
    watching.source.collect()
