"""What requests were charged until they are closed: a row each, added to in columns. Pure.

In: :class:`~otelgpu.families.gpu.energy.sharing.Charges` of an interval of one GPU. Out: of a request that is closed
its :class:`Account`. Rows are used again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from typing import Final

import numpy as np
from msgspec import Struct, field

from otelgpu.families.gpu.energy.intervals import EnergySource
from otelgpu.families.gpu.energy.sharing import METHODS, Charges, Method, Used

_ROWS: Final = 64
_GPUS: Final = 1


class Account(Struct):
    """What a request was charged."""

    nanojoules: int = 0
    time_ns: int = 0
    by_device: Counter[str] = field(default_factory=Counter)
    by_method: Counter[Method] = field(default_factory=Counter)
    idle_power: str = ""  # how what is idle was known, the last time
    source: EnergySource = EnergySource.COUNTER

    @property
    def used(self) -> Used:
        """All of it."""
        return Used(self.nanojoules, self.time_ns)

    @property
    def method(self) -> Method:
        """The one by which most of it was found."""
        return max(Method, key=lambda each: self.by_method[each])


class Accounts:
    """Of one session, by requests' keys."""

    def __init__(self) -> None:
        self._rows: dict[int, int] = {}  # key → row
        self._free: list[int] = list(reversed(range(_ROWS)))
        self._uuids: dict[str, int] = {}  # GPU → column
        self._by_device = np.zeros((_ROWS, _GPUS), dtype=np.int64)  # nanojoules
        self._by_method = np.zeros((_ROWS, len(METHODS)), dtype=np.int64)
        self._times_ns = np.zeros(_ROWS, dtype=np.int64)
        self._known: dict[int, tuple[str, EnergySource]] = {}  # row → idle_power, source

    def charge(
        self, uuid: str, found: Charges, open_: Container[int], *, idle_power: str, source: EnergySource
    ) -> int:
        """Add charges of one GPU to the requests in ``open_``; nanojoules of the others, which are nobody's."""
        rows = np.array([self._row(key, open_) for key in found.keys.tolist()], dtype=np.int64)
        column = self._column(uuid)
        mine = rows >= 0
        nobodys = 0
        if not mine.all():
            nobodys = int(found.nanojoules[~mine].sum())
            rows, found = rows[mine], Charges(*(each[mine] for each in found))
        np.add.at(self._by_device[:, column], rows, found.nanojoules)
        np.add.at(self._by_method, (rows, found.methods), found.nanojoules)
        np.add.at(self._times_ns, rows, found.times_ns)
        self._known.update(dict.fromkeys(rows.tolist(), (idle_power, source)))
        return nobodys

    def close(self, key: int) -> Account | None:
        """What a request was charged; None: nothing ever was."""
        row = self._rows.pop(key, None)
        if row is None:
            return None
        devices, methods = self._by_device[row].tolist(), self._by_method[row].tolist()
        idle_power, source = self._known.pop(row)
        account = Account(
            nanojoules=sum(devices),
            time_ns=int(self._times_ns[row]),
            by_device=Counter(
                {uuid: devices[column] for uuid, column in self._uuids.items() if devices[column]}
            ),
            by_method=Counter(dict(zip(METHODS, methods, strict=True))),
            idle_power=idle_power,
            source=source,
        )
        self._by_device[row], self._by_method[row], self._times_ns[row] = 0, 0, 0
        self._free.append(row)
        return account

    def _row(self, key: int, open_: Container[int]) -> int:
        row = self._rows.get(key)
        if row is not None:
            return row
        if key not in open_:
            return -1
        if not self._free:
            before = len(self._times_ns)
            self._by_device = np.concatenate([self._by_device, np.zeros_like(self._by_device)])
            self._by_method = np.concatenate([self._by_method, np.zeros_like(self._by_method)])
            self._times_ns = np.concatenate([self._times_ns, np.zeros_like(self._times_ns)])
            self._free = list(reversed(range(before, 2 * before)))
        row = self._rows[key] = self._free.pop()
        return row

    def _column(self, uuid: str) -> int:
        column = self._uuids.setdefault(uuid, len(self._uuids))
        if column >= self._by_device.shape[1]:
            self._by_device = np.concatenate([self._by_device, np.zeros_like(self._by_device)], axis=1)
        return column
