"""A thread that does what is due as soon as it is: probes come and go in windows that are shorter than a collection."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from otelgpu.kernel.clock import monotonic_ns

_SECOND_NS: Final = 1_000_000_000


class DueThread:
    """``prepare`` is called first. ``step`` does what is due at a time (CLOCK_MONOTONIC, ns) and says when more is."""

    def __init__(self, name: str, prepare: Callable[[], None], step: Callable[[int], int]) -> None:
        self._name, self._prepare, self._step = name, prepare, step
        self._wake = threading.Event()
        self._stopped = False
        self._thread: threading.Thread | None = None

    @property
    def was_started(self) -> bool:
        """It runs, or has been stopped."""
        return self._thread is not None or self._stopped

    def start(self) -> None:
        """Once; not after :meth:`stop`."""
        if not self.was_started:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def wake(self) -> None:
        """Something else may be due now."""
        self._wake.set()

    def stop(self) -> None:
        """What is under way is done first; idempotent."""
        self._stopped = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        self._prepare()
        while not self._stopped:
            due_ns = self._step(monotonic_ns())
            self._wake.wait(max(due_ns - monotonic_ns(), 0) / _SECOND_NS)
            self._wake.clear()
