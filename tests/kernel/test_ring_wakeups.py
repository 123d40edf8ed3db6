"""How often the reader of a ring is woken: a wake-up is an interrupt on the thread that wrote the record."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tests.kernel.observing import WAIT_S, Watch
from tests.rig import start_cuda_client

RING_BYTES = 65_536
CALLS = 1009  # more than the ring holds


def wakeups_during_calls(watching: Watch) -> int:
    """How often the source says that a ring fills, while a program calls and nobody drains."""
    with start_cuda_client(calls=CALLS, functions=("cudaMalloc",)) as client:
        watching.observe(client.pid)
        thread = threading.Thread(target=client.finish)
        thread.start()
        woken = 0
        while thread.is_alive():
            woken += bool(watching.source.wait(0.1))
        thread.join(WAIT_S)
    return woken + bool(watching.source.wait(0))


def test_a_ring_that_fills_wakes_its_reader_once_until_it_is_drained(watch: Callable[..., Watch]) -> None:
    watching = watch(ring_bytes=RING_BYTES)
    assert wakeups_during_calls(watching) == 1
    assert watching.total("cuda", "ring_full") > 0
    watching.source.collect()
    assert wakeups_during_calls(watching) == 1
