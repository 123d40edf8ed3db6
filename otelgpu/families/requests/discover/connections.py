"""The kernel's tables of connections, as far as user space keeps them: what was open before, and what is left behind.

In: processes as they come into scope; in the tables, entries of holders (processes, by numbers that no other has
again: bpf/http/holders.h). Out: entries for connections that began before the programs of family ``http`` were there,
within the share of their process; and without those of processes that have ended, a part of the tables at each look.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from otelgpu.kernel.libbpf import Map
from otelgpu.kernel.loader import LoadedFamily
from otelgpu.kernel.tables import CountedTable, Walk
from otelgpu.model.inputs import Input
from otelgpu.model.losses import Reasons
from otelgpu.processes.connections import open_connections

REASONS: Final = Reasons(
    "http",
    {
        "found_beyond_share": "a connection that a process had open before, beyond its share of the table: not "
        "followed",
        "open_before_not_looked_for": "a process has more descriptors, or its network more connections, than are "
        "looked through for what was open before: more of its connections may not be followed",
    },
)
"""What one count of (``http``, reason) means."""

SWEEP_ROWS: Final = 8192
"""Entries that are looked at between two ticks: 1 to 2 ms."""
SWEEP_EVERY_NS: Final = 100_000_000
"""Between two sweeps at least, and before what is newer than a look counts as known."""
SWEEP_REST: Final = 100
"""How many times as long as a sweep took nothing is swept: processes may end all the time."""
_FIRST: Final = bytes(4)


class ConnectionTables:
    """A watcher: see :mod:`otelgpu.processes.discovery`."""

    def __init__(self, loaded: LoadedFamily) -> None:
        btf = loaded.image.btf
        tables = btf.enumerators("http_table")
        self._connections, self._holders = tables["HTTP_TABLE_CONNECTIONS"], tables["HTTP_TABLE_HOLDERS"]
        self._roles = btf.enumerators("http_role")
        self._key = np.zeros(1, btf.dtype("connection_key"))
        self._value = np.zeros(1, btf.dtype("connection"))
        self._holder = np.zeros(1, btf.dtype("holder"))
        self._loaded = loaded
        self._turnover = _Turnover(loaded)
        self._found_from = 1 << btf.enumerators("connection_number")["CONNECTION_FOUND_SHIFT"]
        self._next = self._found_from
        self._sweeper = _Sweeper(loaded, self._turnover, self._found_from)
        self.counters: Counter[str] = Counter()

    def enter(self, tgid: int) -> None:
        """Put those that a process has open into the kernel's table, unless they are known."""
        looked = open_connections(tgid)
        self.counters["open_before_not_looked_for"] += not looked.complete
        found = looked.connections
        if not found:
            return
        within = found[: self._turnover.free(self._connections) // 2]  # half: as much as is free then
        self.counters["found_beyond_share"] += len(found) - len(within)
        number, charged = self._holder_of(tgid, len(within))
        if not number:
            self.counters["found_beyond_share"] += len(within)
            return
        table, added = self._loaded.map("connections"), 0
        self._key["holder"], self._value["late"], self._value["charged"] = number, 1, charged
        for each in within:
            self._next += 1
            self._key["fd"], self._value["id"] = each.descriptor, self._next
            self._value["role"] = self._roles[f"HTTP_ROLE_{each.role}"]
            added += table.put_new(self._key.tobytes(), self._value.tobytes())
        self._turnover.add("in", self._connections, added)
        if self._read_holder(tgid) != number:
            self._sweeper.left_behind += 1  # it ended meanwhile, perhaps before these were there

    def collect(self, now_ns: int) -> Sequence[Input]:
        """Take out entries of processes that have ended, if any have."""
        self._sweeper.go_on(now_ns)
        return ()

    def _holder_of(self, tgid: int, held: int) -> tuple[int, bool]:
        """The number of a process, and whether it is new, and charged for the ``held`` connections; 0: no room."""
        if number := self._read_holder(tgid):
            return number, False
        self._next += 1
        self._holder["number"] = self._next
        self._holder["held"][0, self._connections] = held
        if self._loaded.map("holders").put_new(tgid.to_bytes(4, "little"), self._holder.tobytes()):
            self._turnover.add("in", self._holders, 1)
            return self._next, True
        return self._read_holder(tgid), False  # the process came first, or there is no room

    def _read_holder(self, tgid: int) -> int:
        """The number of a process; 0: it has none."""
        value = self._loaded.map("holders").get(tgid.to_bytes(4, "little"))
        return int(np.frombuffer(value, self._holder.dtype)["number"][0]) if value else 0


class _Turnover:
    """``struct http_turnover``: how many entries went in and out, counted by programs and, in another one, by us."""

    def __init__(self, loaded: LoadedFamily) -> None:
        btf = loaded.image.btf
        self._loaded = loaded
        self._ours = np.zeros(1, btf.dtype("http_turnover"))
        self._capacities = [
            loaded.map(name).max_entries for name in ("connections", "tls_sessions", "go_calls", "holders")
        ]  # by enum http_table

    def free(self, table: int) -> int:
        """Entries for which there is room in a table."""
        theirs = np.frombuffer(self._loaded.variable("http_turnover"), self._ours.dtype)
        taken = sum(int(each["in"][0, table]) - int(each["out"][0, table]) for each in (theirs, self._ours))
        return max(self._capacities[table] - taken, 0)

    def add(self, way: str, table: int, count: int) -> None:
        """``way``: "in" or "out"."""
        if count:
            self._ours[way][0, table] += count
            self._loaded.map("user_turnover").put(_FIRST, self._ours.tobytes())


class _Known(NamedTuple):
    """Whose entries stay. Numbers of processes that began after ``until`` are not known."""

    numbers: npt.NDArray[np.uint64]
    until: int


class _Sweeper:
    """Takes out what processes that ended left behind. It goes through the tables only after some have."""

    def __init__(self, loaded: LoadedFamily, turnover: _Turnover, found_from: int) -> None:
        btf = loaded.image.btf
        tables = btf.enumerators("http_table")
        value = btf.dtype("connection")
        self._swept = [
            (tables["HTTP_TABLE_CONNECTIONS"], loaded.map("connections"), btf.dtype("connection_key"), value),
            (tables["HTTP_TABLE_SESSIONS"], loaded.map("tls_sessions"), btf.dtype("session_key"), value),
            (
                tables["HTTP_TABLE_GO_CALLS"],
                loaded.map("go_calls"),
                btf.dtype("go_call_key"),
                btf.dtype("go_call"),
            ),
        ]
        self._holders = CountedTable(loaded.map("holders"), np.dtype([("tgid", "<u4")]), btf.dtype("holder"))
        self._loaded, self._turnover, self._found_from = loaded, turnover, found_from
        self.left_behind = 0  # by processes that ended while user space put in what they had
        self._looked_for = 0  # how many had left something when the last sweep began
        self._next_ns = 0
        # At the look before: how many had left something, and the last number that was given.
        self._ended, self._number = 0, 0
        self._sweep: Iterator[None] | None = None

    def go_on(self, now_ns: int) -> None:
        """Look at :data:`SWEEP_ROWS` more, if there is a reason to."""
        began_ns = time.monotonic_ns()
        if self._sweep is None:
            if now_ns < self._next_ns:
                return
            self._next_ns = now_ns + SWEEP_EVERY_NS
            ended, number = self._ended, self._number
            self._ended = self._read("http_left_behind") + self.left_behind
            self._number = self._read("http_holders")
            if ended == self._looked_for:
                return
            self._looked_for = ended
            self._sweep = self._go_through(_Known(self._holders.read()["value"]["number"], number))
        if next(self._sweep, self) is self:
            self._sweep = None
        self._next_ns += SWEEP_REST * (time.monotonic_ns() - began_ns)

    def _read(self, variable: str) -> int:
        return int.from_bytes(self._loaded.variable(variable), "little")

    def _go_through(self, known: _Known) -> Iterator[None]:
        for number, table, key, value in self._swept:
            for rows in Walk(table, key, value, rows=SWEEP_ROWS):
                self._take_out(number, table, rows["key"], known)
                yield

    def _take_out(self, number: int, table: Map, keys: npt.NDArray[np.void], known: _Known) -> None:
        holders = keys["holder"]
        ended = (holders <= known.until) | (holders >= self._found_from)
        ended &= ~np.isin(holders, known.numbers)
        if ended.any():
            self._turnover.add("out", number, table.delete_many(keys[ended].tobytes()))
