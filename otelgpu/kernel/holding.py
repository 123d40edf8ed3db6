"""Processes that are stopped at what they map until it has its probes: ``hold_on_load``.

A BPF program stops a process with SIGSTOP, and notes that, while :class:`Holding` says every two seconds that somebody
is there to let it go. A :class:`~otelgpu.kernel.privileges.guard.Guard` sees to those that are stopped when this one
is killed, and lets everybody go after :data:`HELD_AT_MOST_S`, whatever keeps this one from it: who maps a library
waits for that long at each that it maps while the heartbeat is not two seconds old, and for no more.
"""

from __future__ import annotations

import logging
import os
import signal
import struct
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from typing import Final

import numpy as np

from otelgpu.kernel.clock import monotonic_ns
from otelgpu.kernel.libbpf import BpfError, Map
from otelgpu.kernel.loader import LoadedFamily
from otelgpu.kernel.privileges import capabilities
from otelgpu.kernel.privileges.guard import Guard, Round
from otelgpu.model.losses import Reasons

REASONS: Final = Reasons(
    "live",
    {
        "process_vanished": "a process ended while it was held for a library that it had mapped",
        "held_too_long": "a process went on before the library that it had mapped had its probes: they took a second, "
        "or the agent did not come to it",
        "file_not_remembered": "the kernel could not note that a file needs no hold; its next load is held again",
    },
)
"""What one count of (``live``, reason) means."""

_log = logging.getLogger("otelgpu.kernel")

HELD_AT_MOST_S: Final = 1.0
"""Longer than the largest libraries take to get their probes."""

_LOOKS_EVERY_S: Final = 0.1
_IN_FLIGHT_S: Final = 0.005  # a BPF program that has begun has ended by then
_MAPPING: Final = "process_mapping"
_HEARTBEAT: Final = "hold_heartbeat_ns"
_HOLD: Final = struct.Struct("<QQ")
"""Thread (tgid << 32 | tid) and since when, in ns: a key of ``holds``."""
_AFTERWARDS_S: Final = (0.0, 0.005, 0.05, 0.3, 1.0, 1.0)
"""When the guard looks again, each time so much later: a program may stop one more until two seconds have passed."""


class Holding:
    """Holds by the programs of ``process``, the family that follows processes; ``counters`` has its losses."""

    def __init__(self, process: LoadedFamily, counters: Counter[str]) -> None:
        capabilities.require(capabilities.HOLDING)
        self._process, self.counters = process, counters
        self._holds = process.map("holds")
        self._told = False
        self._guard: Guard | None = Guard(
            partial(_let_all_go, self._holds),
            round=Round(_LOOKS_EVERY_S, partial(_let_go_who_waits, self._holds)),
            needs=(capabilities.HOLDING, capabilities.LOADING),
            descriptors=(self._holds.fd,),
        )

    def start(self) -> None:
        """Hold processes at what they map, for two seconds from now."""
        if self._guard is None:
            return
        if self._guard.stands():
            self._process.set_variable(_HEARTBEAT, monotonic_ns())
        else:
            _log.warning(
                "the process that would let others go was killed: nothing is held at its libraries any more"
            )
            self.stop()

    def stop(self) -> None:
        """Hold nobody from here on, and let those go that are held now; idempotent."""
        self._process.set_variable(_HEARTBEAT, 0)
        for _ in range(2):  # the second time for a program that had just looked at the heartbeat
            for batch in self._process.drain():
                for record in batch.records[batch.records["held"] == 1] if batch.kind == _MAPPING else ():
                    self._continue(record)
            # And those whose records were taken, and wait for their turn: nobody comes to them any more.
            for hold in self._holds.list_keys():
                self._wake(hold)
            time.sleep(_IN_FLIGHT_S)
        if self._guard is not None:
            self._guard.dismiss()
            self._guard = None

    def let_go(self, record: np.void) -> None:
        """What a ``process_mapping`` reports of has its probes: it goes on, and is not held for this file again."""
        key = struct.pack("<QIxxxx", int(record["inode"]), int(record["device"]))
        try:
            self._process.map("known_files").put(key, b"\1")
        except BpfError:
            self.counters["file_not_remembered"] += 1
        if record["held"]:
            self._continue(record)

    def holds(self, record: np.void) -> bool:
        """Whether the process of a ``process_mapping`` has been held since then, and is still."""
        return bool(record["held"]) and self._holds.get(_hold_of(record)) is not None

    def _continue(self, mapping: np.void) -> None:
        hold = _hold_of(mapping)
        if self._holds.get(hold) is None:
            self.counters["held_too_long"] += 1
            self._tell(mapping)
            return
        self._wake(hold)

    def _wake(self, hold: bytes) -> None:
        try:
            os.kill(_HOLD.unpack(hold)[0] >> 32, signal.SIGCONT)
        except ProcessLookupError:
            self.counters["process_vanished"] += 1
        self._holds.delete(hold)

    def _tell(self, mapping: np.void) -> None:
        if not self._told:
            self._told = True
            _log.warning(
                "process %d went on after %g s, before a library had its probes; further ones are only counted",
                int(mapping["head"]["tgid"]),
                HELD_AT_MOST_S,
            )


def _hold_of(mapping: np.void) -> bytes:
    head = mapping["head"]
    thread = int(head["tgid"]) << 32 | int(head["tid"])
    return _HOLD.pack(thread, int(head["time_ns"]) + int(head["duration_ns"]))


def _let_go_who_waits(holds: Map) -> None:
    """In the guard, while this program lives."""
    before_ns = monotonic_ns() - int(HELD_AT_MOST_S * 1e9)
    for key in holds.list_keys():
        thread, since_ns = _HOLD.unpack(key)
        if since_ns < before_ns:
            with suppress(OSError):
                os.kill(thread >> 32, signal.SIGCONT)
            holds.delete(key)


def _let_all_go(holds: Map) -> None:
    """In the guard, once this program is gone."""
    for pause_s in _AFTERWARDS_S:
        time.sleep(pause_s)
        for key in holds.list_keys():
            with suppress(OSError):
                os.kill(_HOLD.unpack(key)[0] >> 32, signal.SIGCONT)
