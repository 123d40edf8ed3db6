"""Whether a descriptor has something to read: by poll(2), as select(2) knows none beyond the first 1,024."""

from __future__ import annotations

import math
import select
import socket


def is_readable(descriptor: int | socket.socket, wait_s: float | None = 0.0) -> bool:
    """Whether it is, or its other end is gone, within so many seconds, in whole milliseconds; None: however long."""
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(None if wait_s is None else math.ceil(max(wait_s, 0.0) * 1000)))
