"""What is due is done when it is, at once when woken, and never after the end."""

from __future__ import annotations

import queue

from otelgpu.kernel.clock import monotonic_ns
from otelgpu.processes.due_thread import DueThread

WAIT_S = 30.0
NEVER_NS = 1 << 62


def test_it_prepares_first_and_then_does_what_is_due_when_it_is() -> None:
    done: queue.Queue[str] = queue.Queue()
    waits = iter((0, 1_000_000, NEVER_NS))

    def step(now_ns: int) -> int:
        done.put("step")
        return now_ns + next(waits)

    thread = DueThread("test", lambda: done.put("prepare"), step)
    thread.start()
    assert [done.get(timeout=WAIT_S) for _ in range(4)] == ["prepare", "step", "step", "step"]
    thread.stop()
    assert done.empty()


def test_who_waits_for_long_is_woken_and_stopped_at_once() -> None:
    done: queue.Queue[int] = queue.Queue()

    def step(now_ns: int) -> int:
        done.put(now_ns)
        return NEVER_NS

    thread = DueThread("test", lambda: None, step)
    assert not thread.was_started
    thread.start()
    thread.start()
    done.get(timeout=WAIT_S)
    thread.wake()
    assert done.get(timeout=WAIT_S) <= monotonic_ns()
    thread.stop()
    thread.stop()
    assert thread.was_started
    thread.start()
    thread.wake()
    assert done.empty()
