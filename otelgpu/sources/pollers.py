"""What is read beside a source, in front of whose ticks its inputs go: each family's ``poll.POLLING``."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Set
from contextlib import suppress
from functools import partial

from otelgpu.engine import registry
from otelgpu.kernel import clock
from otelgpu.model.inputs import Input
from otelgpu.model.losses import LossReports
from otelgpu.model.settings import Settings
from otelgpu.processes.polling import Adjusts, Announces, Hastens, Look, Poller, Polling


class Pollers:
    """All that the settings ask for, reading from now on."""

    def __init__(self, settings: Settings) -> None:
        self._all: list[tuple[str, Poller]] = []
        self._reports = LossReports()
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        """Readable when one of them has announced what it found; open to the end, for its thread may hang."""
        for polling in _pollings():
            poller = polling.open(settings)
            if poller is not None:
                self._all.append((polling.losses, poller))
                if isinstance(poller, Announces):
                    poller.announce(partial(os.eventfd_write, self.fd, 1))

    def join(self, inputs: list[Input], users: Set[int]) -> list[Input]:
        """``inputs`` end with a tick or hold none. ``users``: processes whose devices are wanted."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.fd)
        now_ns = clock.monotonic_ns()
        found: list[Input] = []
        counted: Counter[tuple[str, str]] = Counter()
        for name, poller in self._all:
            found += poller.collect(now_ns, users)
            counted.update({(name, reason): count for reason, count in poller.counters.items()})
        return [*found, *self._reports.take(counted), *inputs]

    def adjust(self, settings: Settings) -> None:
        """See :class:`Adjusts`."""
        for _, poller in self._all:
            if isinstance(poller, Adjusts):
                poller.adjust(settings)

    def hasten(self) -> None:
        """See :class:`Hastens`."""
        for _, poller in self._all:
            if isinstance(poller, Hastens):
                poller.hasten()

    def stop(self) -> None:
        """Read no more."""
        for _, poller in self._all:
            poller.stop()


def looks() -> Iterator[Look]:
    """What drivers say of devices and of the processes that are on them, once. May block."""
    for polling in _pollings():
        if polling.look is not None:
            yield polling.look()


def _pollings() -> Iterator[Polling]:
    for package, polling in registry.parts("poll", "POLLING").items():
        assert isinstance(polling, Polling), f"POLLING of {package} is no Polling"
        yield polling
