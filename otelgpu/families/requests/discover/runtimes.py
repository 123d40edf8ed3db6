"""What serves the requests of a process, looked up once it reads from a connection without waiting.

In: the records of connections that begin. Out: :class:`~otelgpu.model.inputs.RuntimesSeen`, before the tick at which
the first of its requests could be linked by thread.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from otelgpu.kernel.loader import LoadedFamily
from otelgpu.model.codes import values_of
from otelgpu.model.inputs import Batch, Input, RuntimesSeen
from otelgpu.model.runtimes import UNKNOWN
from otelgpu.processes.function_finder import FunctionFinder, session_function_finder
from otelgpu.processes.reader.accounts import owner_of
from otelgpu.processes.runtimes import recognise

_OPEN = "http_open"


class RuntimeWatcher:
    """A watcher: see :mod:`otelgpu.processes.discovery`. A process is looked at once, but where that fails, again."""

    def __init__(self, loaded: LoadedFamily, finder: FunctionFinder | None = None) -> None:
        self._server = loaded.image.btf.enumerators("http_role")["HTTP_ROLE_SERVER"]
        self._finder = finder or session_function_finder()
        self._known: set[int] = set()
        self._found: list[RuntimesSeen] = []

    def look(self, batch: Batch) -> None:
        """Recognise the processes of which this is the first connection of the kind."""
        if batch.kind != _OPEN:
            return
        records = batch.records
        read = (records["role"] == self._server) & (records["nonblocking"] != 0)
        for tgid in values_of(np.ascontiguousarray(records["head"]["tgid"][read])):
            if tgid not in self._known:
                self._recognise(tgid, int(records["head"]["time_ns"].min()))

    def _recognise(self, tgid: int, time_ns: int) -> None:
        owner = owner_of(tgid)
        runtimes = recognise(tgid, lambda descriptor: self._finder.runtimes(owner, descriptor))
        if UNKNOWN not in runtimes:
            self._known.add(tgid)
        self._found.append(RuntimesSeen(tgid=tgid, time_ns=time_ns, runtimes=runtimes))

    def collect(self, now_ns: int) -> Sequence[Input]:
        """What was recognised since the last tick."""
        found, self._found = self._found, []
        return found

    def forget(self, tgid: int) -> None:
        """A process has ended."""
        self._known.discard(tgid)
