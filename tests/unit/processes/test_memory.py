"""Memory of processes through a worker: what is there, what is not, and who waits for it."""

from __future__ import annotations

import ctypes
import os
import time

import pytest

from otelgpu.processes.memory import ProcessMemory
from otelgpu.processes.reader.client import Limits, ReaderError
from otelgpu.processes.reader.messages import Descriptor, question

ME = os.getpid()


@question()
def waiting(memory: Descriptor, seconds: float) -> int:
    """As a page that does not come."""
    time.sleep(seconds)
    return int(memory)


def test_ranges_are_read_as_far_as_they_are_mapped() -> None:
    memory = ProcessMemory()
    content = ctypes.create_string_buffer(b"abcdef")
    with memory.open(ME) as opened:
        assert opened.read((ctypes.addressof(content), 6), (0, 8), (1 << 63, 8)) == (b"abcdef", b"", b"")
    memory.close()


def test_what_does_not_come_is_given_up_and_its_owner_pays() -> None:
    memory = ProcessMemory(Limits(busy_s=0.1, advance_s=1.0, failure_s=10.0, share=0.001))
    with memory.open(ME) as opened:
        for reason in ("worker_timed_out", "owner_over_budget"):
            with pytest.raises(ReaderError) as raised:
                opened.ask(waiting, 20.0)
            assert raised.value.reason == reason
    memory.close()
