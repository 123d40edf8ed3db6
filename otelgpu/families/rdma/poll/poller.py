"""RDMA ports, queue pairs and the kernel log, from threads of their own: hardware that hangs holds up nobody.

In: :mod:`otelgpu.families.rdma.poll.ports`, :mod:`otelgpu.families.rdma.poll.netlink`,
:mod:`otelgpu.families.rdma.poll.kernel_log`. Out: :mod:`otelgpu.model.fabric`, in order of time of each source.
Where there is no RDMA device a poll is one listing of a folder that does not exist.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Set
from typing import Final

from otelgpu.families.rdma.poll import kernel_log
from otelgpu.families.rdma.poll import netlink as rdma_netlink
from otelgpu.families.rdma.poll import ports as rdma_ports
from otelgpu.families.rdma.poll.kernel_log import KernelLogWatch
from otelgpu.families.rdma.poll.netlink import QueuePairWatch
from otelgpu.families.rdma.poll.ports import PortWatch
from otelgpu.model.fabric import FabricInput, PortGone, PortReadings, PortSeen, QueuePairReadings
from otelgpu.model.losses import Reasons
from otelgpu.processes.polling import Polled, Sensor, paused

_log = logging.getLogger("otelgpu.fabric")

INTERVAL_S: Final = 2.0
"""A port has some 100 counters, each a file, that the kernel reads anew at most every 10 ms."""

READY: Final = 8192  # inputs that wait to be collected
FIRST_S: Final = 2.0  # for the first reading, which takes milliseconds where nothing is emulated
_PAUSE_S: Final = 0.05  # between two looks at a log that is written without end

REASONS: Final = Reasons(
    "fabric",
    {
        **rdma_ports.REASONS,
        **rdma_netlink.REASONS,
        **kernel_log.REASONS,
        "ports_stuck": "an RDMA driver has not answered for a minute; its ports have no readings until it does",
        "readings_dropped": "readings of RDMA ports that nobody collected in time",
    },
    unavailable=(
        "counter_not_a_number",
        "netlink_missing",
        "netlink_refused",
        "kernel_log_missing",
        "kernel_log_refused",
    ),
)
"""What one count of (``fabric``, reason) means."""


class FabricWatch:
    """Ports, and the queue pairs of devices that have ports."""

    def __init__(self, ports: PortWatch | None = None, pairs: QueuePairWatch | None = None) -> None:
        self._ports = ports or PortWatch()
        self._pairs = pairs or QueuePairWatch()

    @property
    def counters(self) -> Mapping[str, int]:
        """Of both."""
        return self._ports.counters + self._pairs.counters

    def poll(self, now_ns: int) -> list[FabricInput]:
        """Ports first: what is reported of a queue pair is of a port that was reported."""
        found = self._ports.poll(now_ns)
        return found + self._pairs.poll(now_ns, self._ports.devices)

    def close(self) -> None:
        """Idempotent."""
        self._pairs.close()


class FabricPoller:
    """Polls from :meth:`start` to :meth:`stop`; :meth:`collect` never waits for a driver.

    ``interval_s`` 0: no ports and no queue pairs. ``log`` None: no kernel log.
    """

    def __init__(
        self,
        interval_s: float = INTERVAL_S,
        *,
        watch: Sensor[FabricInput] | None = None,
        log: Callable[[], KernelLogWatch] | None = KernelLogWatch,
    ) -> None:
        self._interval_s = interval_s
        self._open_log = log
        self._watch = watch if watch is not None or not interval_s else FabricWatch()
        self._stopping = threading.Event()
        self._ended, self._end = os.pipe()
        self._fabric: Polled[FabricInput] | None = None
        self._log: Polled[FabricInput] | None = None
        # Of the collecting side alone:
        self._reported: dict[tuple[str, int], PortSeen] = {}
        self._stuck = 0
        self._is_stuck = self._has_waited = False

    @property
    def counters(self) -> dict[str, int]:
        """By reason, since the start: see :data:`REASONS`."""
        found = Counter(ports_stuck=self._stuck)
        for polled in (self._fabric, self._log):
            if polled is not None:
                found += polled.counters
        return dict(+found)

    def start(self) -> None:
        """Begin to poll, now and then every interval; the kernel log from its end as of now."""
        if self._watch is not None:
            self._fabric = self._polled(
                self._watch, "otelgpu-fabric", paused(self._stopping, lambda: self._interval_s)
            )
            self._fabric.thread.start()
        if self._open_log is not None:
            log = self._open_log()

            def wait(took_s: float) -> bool:
                return not self._stopping.wait(_PAUSE_S) and log.wait(self._ended)

            self._log = self._polled(log, "otelgpu-kernel-log", wait)
            self._log.thread.start()

    def _polled(
        self, sensor: Sensor[FabricInput], name: str, wait: Callable[[float], bool]
    ) -> Polled[FabricInput]:
        return Polled(sensor, name, wait, room=READY, readings=(PortReadings, QueuePairReadings))

    def announce(self, found: Callable[[], None]) -> None:
        """See :class:`Announces`: ports that come and go, and errors of hardware."""
        for polled in (self._fabric, self._log):
            if polled is not None:
                polled.found = found

    def stop(self, deadline_s: float = 1.0) -> None:
        """Read once more and end the threads; one that hangs in a driver is left to itself. Idempotent."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        os.close(self._end)  # which makes the other end readable
        threads = [polled.thread for polled in (self._fabric, self._log) if polled is not None]
        until = time.monotonic() + deadline_s
        for thread in threads:
            thread.join(max(until - time.monotonic(), 0))
        if not any(thread.is_alive() for thread in threads):
            os.close(self._ended)

    def collect(self, now_ns: int, users: Set[int] = frozenset()) -> list[FabricInput]:
        """What was learnt since the last call, whoever uses it. ``now_ns``: CLOCK_MONOTONIC.

        The first call waits for the first reading: what the first records are about is known with them.
        """
        if self._fabric is not None and not self._has_waited:
            self._fabric.wait_for_first(FIRST_S)
        self._has_waited = True
        found = self._fabric.take() if self._fabric is not None else []
        for item in found:
            if isinstance(item, PortSeen):
                self._reported[item.device, item.port] = item
            elif isinstance(item, PortGone):
                self._reported.pop((item.device, item.port), None)
        stuck = self._fabric is not None and self._fabric.is_stuck(now_ns)
        if stuck and not self._is_stuck:
            self._stuck += 1
            _log.warning("an RDMA driver has not answered for a minute")
            found += [PortGone(time_ns=now_ns, device=d, port=p) for d, p in sorted(self._reported)]
        elif self._is_stuck and not stuck:
            found = [*self._reported.values(), *found]  # which the watch does not report again
        self._is_stuck = stuck
        return found + (self._log.take() if self._log is not None else [])
