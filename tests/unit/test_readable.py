"""Descriptors of any number, as an agent with hundreds of probed files has them."""

from __future__ import annotations

import os
import resource
import socket
import time

from otelgpu.kernel.readable import is_readable

HIGH = 2000
"""select(2) would refuse it, and everything from 1,024 on."""


def test_a_descriptor_with_a_high_number_can_be_waited_for() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, HIGH + 1), hard))
    ready, other = os.pipe()
    os.dup2(ready, HIGH)
    try:
        assert not is_readable(HIGH)
        os.write(other, b"x")
        assert is_readable(HIGH) and is_readable(HIGH, None)
    finally:
        for each in (ready, other, HIGH):
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_it_waits_for_so_long_and_no_longer_when_the_other_end_is_gone() -> None:
    one, other = socket.socketpair()
    with one:
        began = time.monotonic()
        assert not is_readable(one, 0.02)
        assert time.monotonic() - began >= 0.02
        other.close()
        assert is_readable(one, 10.0)
