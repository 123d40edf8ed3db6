"""What a process reported the vendor's library of its kernels → what a launch's address or handle stands for.

In: columns of registrations, and (handle, meaning) pairs. Out: the text of a name, or an address to ask the
process' files about. Pure; bounded per process and in all.

Worked example: a program registers stub 0x1189 with its name at 0x2050, gets kernel 0x7000 for the stub and
function 0x8000 for the kernel, and launches 0x8000: the chain 0x8000 → 0x7000 → 0x1189 → (name at 0x2050).
A handle that is given out again means from then on what was said last: the time of each saying decides, not
the order in which it is read.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from otelgpu.model.losses import Reasons

U64 = npt.NDArray[np.uint64]

MAX_REGISTRATIONS: Final = 1 << 18
"""Of one process; libcusparse 12 alone registers 4,862 kernels. 16 bytes each, 32 once one is asked for."""

MAX_REGISTRATIONS_IN_ALL: Final = 1 << 21
MAX_HANDLES: Final = 1 << 15
"""Of one process; a handle costs about 250 bytes with its name."""

MAX_HANDLES_IN_ALL: Final = 1 << 17
MAX_CHAIN: Final = 8
"""Steps from a handle to a stub or a name: three at most in what the vendor's library does."""

REASONS: Final = Reasons(
    "symbols",
    {
        "registrations_full": "more registered kernels than are kept; names come from symbols",
        "handles_full": "more kernel handles than are kept; the oldest are forgotten",
        "handle_chain_too_long": "a kernel handle that leads to no function",
    },
)


class Meaning(Struct, frozen=True, kw_only=True):
    """What a launched address stands for: ``text`` if it is known, else the ``address`` of a function.

    ``name_address`` is where the process has the name of the kernel that this function launches; 0 when it
    was not seen to be registered.
    """

    text: str = ""
    address: int = 0
    name_address: int = 0


class _Process(Struct):
    handles: dict[int, tuple[int, int | str]] = field(default_factory=dict)  # → (time, handle or name)
    stubs: list[U64] = field(default_factory=list)
    names: list[U64] = field(default_factory=list)
    registered: int = 0
    index: tuple[U64, U64] | None = None  # stubs in order, and their names


class KernelHandles:
    """Handles and registrations of all processes, by tgid."""

    def __init__(self) -> None:
        self.counters: Counter[str] = Counter()
        self._processes: dict[int, _Process] = {}
        self._registered = 0
        self._handles = 0

    def learn_registrations(self, tgid: int, stubs: U64, names: U64) -> None:
        """Columns of equal length: addresses of host stubs, and of their kernels' names. Later ones win."""
        process = self._processes.setdefault(tgid, _Process())
        room = min(MAX_REGISTRATIONS - process.registered, MAX_REGISTRATIONS_IN_ALL - self._registered)
        if len(stubs) > room:
            self.counters["registrations_full"] += len(stubs) - max(room, 0)
            stubs, names = stubs[: max(room, 0)], names[: max(room, 0)]
        process.stubs.append(stubs)
        process.names.append(names)
        process.registered += len(stubs)
        self._registered += len(stubs)
        process.index = None

    def learn(self, tgid: int, handle: int, time_ns: int, meaning: int | str) -> None:
        """``handle`` stands for another handle or stub, or was asked for by this name."""
        process = self._processes.setdefault(tgid, _Process())
        before = process.handles.pop(handle, None)
        if before is None:
            self._handles += 1
        elif before[0] > time_ns:
            time_ns, meaning = before
        process.handles[handle] = (time_ns, meaning)
        if len(process.handles) > MAX_HANDLES or self._handles > MAX_HANDLES_IN_ALL:
            process.handles.pop(next(iter(process.handles)))
            self._handles -= 1
            self.counters["handles_full"] += 1

    def meaning(self, tgid: int, launched: int) -> Meaning:
        """What ``launched``, the address or handle that a launch was given, stands for."""
        process = self._processes.get(tgid)
        if process is None:
            return Meaning(address=launched)
        address = launched
        for _ in range(MAX_CHAIN):
            found = process.handles.get(address)
            if found is None:
                return Meaning(address=address, name_address=_registered_name(process, address))
            if isinstance(found[1], str):
                return Meaning(text=found[1])
            address = found[1]
        self.counters["handle_chain_too_long"] += 1
        return Meaning(address=launched)

    def inherit(self, parent: int, child: int) -> None:
        """A fork: the child has what its parent had, unless it has said otherwise since."""
        source = self._processes.get(parent)
        if source is None:
            return
        if self._handles + len(source.handles) > MAX_HANDLES_IN_ALL or (
            self._registered + source.registered > MAX_REGISTRATIONS_IN_ALL
        ):
            self.counters["handles_full"] += len(source.handles)
            self.counters["registrations_full"] += source.registered
            return
        own = self._processes.get(child, _Process())
        self.forget(child)
        both = self._processes[child] = _Process(
            source.handles | own.handles,
            source.stubs + own.stubs,
            source.names + own.names,
            source.registered + own.registered,
        )
        self._handles += len(both.handles)
        self._registered += both.registered

    def forget(self, tgid: int) -> None:
        """The process ended or became another program."""
        process = self._processes.pop(tgid, None)
        if process is not None:
            self._handles -= len(process.handles)
            self._registered -= process.registered


def _registered_name(process: _Process, stub: int) -> int:
    if not process.registered:
        return 0
    if process.index is None:
        stubs, names = np.concatenate(process.stubs), np.concatenate(process.names)
        order = np.argsort(stubs, kind="stable")
        process.stubs, process.names = [stubs], [names]
        process.index = (stubs[order], names[order])
    stubs, names = process.index
    row = int(np.searchsorted(stubs, np.uint64(stub), side="right")) - 1  # the last of equal ones
    return int(names[row]) if row >= 0 and int(stubs[row]) == stub else 0
