"""The data path of RDMA: where each provider's functions are, when they are probed, and what was counted of them.

In: records of kind ``verbs_provider``, which say what the structures of an observed process point at, and the memory
of processes that were there before. Out: probes on the provider's file, and once a second batches of kind
``verbs_counts``. An address that is not plainly a provider's function is refused and counted: a probe in the middle of
an instruction would crash every process that runs it.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from otelgpu.families.rdma.discover import contexts as verbs_contexts
from otelgpu.families.rdma.discover import devices as verbs_devices
from otelgpu.families.rdma.discover.contexts import NoProvider, ProviderFunction
from otelgpu.families.rdma.discover.windows import MAKERS, POLLS, POSTS, Calls, ProbeWindows, ProviderFile
from otelgpu.kernel.attach import places
from otelgpu.kernel.clock import monotonic_ns
from otelgpu.kernel.libbpf import Program
from otelgpu.kernel.loader import LoadedFamily
from otelgpu.kernel.probe_budget import ProbeBudget
from otelgpu.kernel.tables import CountedTable, Rows
from otelgpu.kernel.trap_cost import UNTRIED_NS, measure_trap
from otelgpu.model.inputs import Batch, Input
from otelgpu.model.losses import Reasons
from otelgpu.processes.maps import executable_mappings
from otelgpu.processes.probes import ProbePlacer

_log = logging.getLogger("otelgpu.discover")

_PROVIDER: Final = "verbs_provider"
_COUNTS: Final = "verbs_counts"
_FIRST_OF_PAIR: Final = "wr_atomic_cmp_swp"
_EVERY_NS: Final = 1_000_000_000
_FILES: Final = 64
_KINDS: Final = {
    **dict.fromkeys(("create_qp_ex", "create_cq_ex"), MAKERS),
    **dict.fromkeys(("poll_cq", "start_poll", "next_poll"), POLLS),
}
"""All others are posts."""

REASONS: Final = Reasons(
    "verbs",
    {
        "provider_address_implausible": "an RDMA device's functions are in no code of a file",
        "provider_code_writable": "an RDMA device's functions are in code that can be written over",
        "provider_in_several_files": "an RDMA device's functions are in several files",
        "provider_unknown": "an RDMA device's functions are in a file that registers no provider with libibverbs",
        "provider_unreadable": "the file of an RDMA device's functions cannot be opened or read",
        "provider_table_full": "a file of an RDMA provider beyond the 64 that are probed",
        "process_vanished": "a process ended before its RDMA provider was looked at",
        **verbs_devices.REASONS,
        "functions_shared": "an RDMA provider has one function for two of the API's: what it does is reported as "
        "the first's",
        "probes_refused": "the kernel refused a probe on an RDMA provider; the log says which and why",
    },
)
"""What is counted, and what one count means."""


class VerbsProviders:
    """A watcher, see :mod:`otelgpu.processes.discovery`.

    ``budget``: percent of a core per process; infinite: always, 0: never.
    """

    def __init__(
        self,
        loaded: LoadedFamily,
        placer: ProbePlacer,
        *,
        budget: float = 1.0,
        transfers: bool = False,
        trap_ns: float | None = None,
        library: str | None = None,
    ) -> None:
        """``library``: whose devices are opened at once; None: the system's, if the kernel has any devices."""
        btf = loaded.image.btf
        self._loaded = loaded
        self._placer = placer
        self._symbols = {
            number: name.removeprefix("API_") for name, number in btf.enumerators("verbs_api").items()
        }
        self._tables = btf.enumerators("verbs_table")
        self._kind = btf.enumerators("verbs_kind")["VERBS_COUNTS"]
        self._offsets = btf.enumerators("verbs_context_offset")
        self._record = btf.dtype(_COUNTS)
        self._counted = CountedTable(
            loaded.map("counted"), btf.dtype("verbs_counted_key"), btf.dtype("verbs_counted")
        )
        self._calls = CountedTable(loaded.map("calls"), np.dtype([("tgid", "<u4")]), btf.dtype("verbs_calls"))
        self._files: dict[verbs_contexts.Inode, ProviderFile | None] = {}
        self._refused: dict[int, set[int]] = {}  # by process: objects that were counted
        self._scanned: set[int] = set()
        self._to_scan: dict[int, None] = {}  # in the order that they came in
        self._gone: set[int] = set()
        self._first: dict[bytes, tuple[int, int, int]] = {}  # key → time and clocks that its counts began at
        self._clocks = (0, 0, 0)  # at the last read: time, posts observed, polls observed
        self._read_ns = 0
        self._counters: Counter[str] = Counter()
        self._budget_percent = budget
        self._trap_ns = trap_ns
        self._windows: ProbeWindows | None = None
        if transfers:
            loaded.set_variable("transfers", 1)
        if budget and (library is not None or verbs_devices.have_devices()):
            self._counters.update(
                verbs_devices.open_devices(
                    self._offsets, self._learn_device, library=library or verbs_devices.LIBRARY
                )
            )

    @property
    def counters(self) -> Mapping[str, int]:
        """Reasons why functions have no probes."""
        return self._counters + self._windows.counters if self._windows is not None else self._counters

    def look(self, batch: Batch) -> None:
        """Learn functions from records of kind ``verbs_provider``."""
        if batch.kind != _PROVIDER:
            return
        for record in batch.records:
            first = int(record["first_api"])
            functions = {
                self._symbols[first + place]: int(address)
                for place, address in enumerate(record["functions"])
                if first + place in self._symbols and address
            }
            self._learn(int(record["head"]["tgid"]), int(record["object"]), int(record["table"]), functions)

    def library_mapped(self, tgid: int) -> None:
        """It may have opened devices already: look for their contexts at the next collection."""
        if tgid not in self._scanned:
            self._scanned.add(tgid)
            self._to_scan[tgid] = None

    def collect(self, now_ns: int) -> Sequence[Input]:
        """Counts, once a second, and at once of processes that have ended."""
        if self._to_scan:
            oldest = next(iter(self._to_scan))
            del self._to_scan[oldest]
            self._scan(oldest)
        if not self._gone and now_ns - self._read_ns < _EVERY_NS:
            return ()
        self._read_ns = now_ns
        changed, everything = self._counted.changed()
        batch = self._batch(changed) if len(changed) else None
        self._clean_up(changed, everything)
        return () if batch is None else (batch,)

    def forget(self, tgid: int) -> None:
        """It has ended: its last counts are in the next collection."""
        self._gone.add(tgid)
        self._scanned.discard(tgid)
        self._to_scan.pop(tgid, None)
        self._refused.pop(tgid, None)

    def close(self) -> None:
        """Take the probes off; idempotent."""
        if self._windows is not None:
            self._windows.close()

    # -- providers ----------------------------------------------------------------------------------

    def _learn_device(self, tgid: int, address: int, functions: dict[str, int], pair: list[int]) -> None:
        self._learn_context(tgid, address, functions)
        first = next(number for number, symbol in self._symbols.items() if symbol == _FIRST_OF_PAIR)
        listed = {self._symbols[first + place]: function for place, function in enumerate(pair) if function}
        if listed:
            self._learn(tgid, address, self._tables["VERBS_TABLE_QUEUE_PAIR"], listed)

    def _learn_context(self, tgid: int, address: int, functions: dict[str, int]) -> None:
        self._learn(tgid, address, self._tables["VERBS_TABLE_CONTEXT"], functions)

    def _learn(self, tgid: int, address: int, table: int, functions: dict[str, int]) -> None:
        mappings = executable_mappings(tgid)
        if not mappings:
            self._counters["process_vanished"] += 1
            return
        try:
            found = verbs_contexts.locate(functions, mappings)
            if table != self._tables["VERBS_TABLE_CONTEXT"] and not self._is_whole(table, found, functions):
                return
        except NoProvider as reason:
            # Behind a plain queue pair there is anything.
            if table == self._tables["VERBS_TABLE_CONTEXT"]:
                self._refuse(tgid, address, str(reason))
            return
        if found:
            self._probe(tgid, address, found)

    def _is_whole(self, table: int, found: list[ProviderFunction], functions: Mapping[str, int]) -> bool:
        """Whether what may be a table is one: all its functions are in a provider that is known already."""
        needed = {"wr_start", "wr_complete", "wr_abort"}
        if table == self._tables["VERBS_TABLE_COMPLETION_QUEUE"]:
            needed = {"start_poll", "next_poll"}
        symbols = {each.symbol for each in found}
        inodes = {(each.mapping.device, each.mapping.inode) for each in found}
        return (
            needed <= symbols
            and len(found) == len(functions)
            and all(self._files.get(inode) is not None for inode in inodes)
        )

    def _probe(self, tgid: int, address: int, found: list[ProviderFunction]) -> None:
        mapping = found[0].mapping
        inode = (mapping.device, mapping.inode)
        if inode not in self._files:
            if len(self._files) >= _FILES:
                self._counters["provider_table_full"] += 1
                return
            try:
                descriptor = verbs_contexts.open_provider(tgid, mapping)
            except NoProvider as reason:
                self._refuse(tgid, address, str(reason))
                return
            self._files[inode] = ProviderFile(descriptor=descriptor)
            _log.info("RDMA provider %s", mapping.path)
        file = self._files[inode]
        if file is None:
            return
        windows = self._open_windows()
        by_kind: dict[str, set[tuple[str, int]]] = {}
        for each in found:
            kind = _KINDS.get(each.symbol, POSTS)
            by_kind.setdefault(kind, set()).add((each.symbol, each.offset))
        for kind, functions in by_kind.items():
            windows.add(file, kind, functions)
        windows.start()

    def _refuse(self, tgid: int, address: int, reason: str) -> None:
        """Counted for each object, said once for a process, which may have any number of them."""
        refused = self._refused.setdefault(tgid, set())
        if address in refused:
            return
        if not refused:
            _log.warning(
                "process %d: what it posts and polls is not seen (%s)", tgid, reason.replace("_", " ")
            )
        refused.add(address)
        self._counters[reason] += 1

    def _scan(self, tgid: int) -> None:
        for number, functions in enumerate(verbs_contexts.find_contexts(tgid, self._offsets)):
            self._learn_context(tgid, -1 - number, functions)

    def _open_windows(self) -> ProbeWindows:
        if self._windows is None:
            needless = (
                self._trap_ns is not None or math.isinf(self._budget_percent) or not self._budget_percent
            )
            self._windows = ProbeWindows(
                self._placer,
                ProbeBudget(self._budget_percent, UNTRIED_NS if self._trap_ns is None else self._trap_ns),
                read_calls=self._read_calls,
                set_window=lambda number: self._loaded.set_variable("window", number),
                measure_trap=None if needless else lambda: measure_trap(self._probing_polls()),
            )
        return self._windows

    def _probing_polls(self) -> list[Program]:
        return [
            program
            for program in self._loaded.programs
            if any(library == POLLS for library, _ in places(program.section))
        ]

    def _read_calls(self) -> Calls:
        rows = self._calls.read()
        return {
            int(row["key"]["tgid"]): (int(row["value"]["posts"]), int(row["value"]["polls"])) for row in rows
        }

    # -- counts -------------------------------------------------------------------------------------

    def _batch(self, rows: Rows) -> Batch:
        """``head``: of the read; its duration: for how long these were counted, whoever observed."""
        now_ns = monotonic_ns()
        posts_ns, polls_ns = self._windows.observed(now_ns) if self._windows is not None else (0, 0)
        began_ns = max(self._clocks[0], self._windows.began_ns if self._windows is not None else 0)
        began = (began_ns or now_ns, *self._clocks[1:])
        records = np.zeros(len(rows), self._record)
        records["key"], records["counted"] = rows["key"], rows["value"]
        head = records["head"]
        head["time_ns"], head["kind"] = now_ns, self._kind
        head["tgid"] = head["tid"] = rows["key"]["tgid"]
        for place, row in enumerate(rows):
            since_ns, posts_then_ns, polls_then_ns = self._first.setdefault(row["key"].tobytes(), began)
            head["duration_ns"][place] = now_ns - since_ns
            records["counted"]["observed_post_ns"][place] = posts_ns - posts_then_ns
            records["counted"]["observed_poll_ns"][place] = polls_ns - polls_then_ns
        self._clocks = (now_ns, posts_ns, polls_ns)
        return Batch(family=self._loaded.family, kind=_COUNTS, records=records)

    def _clean_up(self, changed: Rows, everything: Rows) -> None:
        """Entries that have been reported for the last time."""
        fresh = {key.tobytes() for key in changed["key"]}
        ended = [
            row["key"]
            for row in everything
            if int(row["key"]["tgid"]) in self._gone
            or (row["value"]["destroyed"] and row["key"].tobytes() not in fresh)
        ]
        self._counted.delete(ended)
        for key in ended:
            self._first.pop(key.tobytes(), None)
        if self._gone:
            self._calls.delete(np.array([(tgid,) for tgid in self._gone], [("tgid", "<u4")]))
            self._forget_contexts()
            self._gone.clear()

    def _forget_contexts(self) -> None:
        """The number of a process may come again, and with it its addresses."""
        for name in ("contexts", "queue_pairs", "pair_of_queue", "batches"):
            table = self._loaded.map(name)
            for key in table.list_keys():
                if int.from_bytes(key[8:12], "little") in self._gone:
                    table.delete(key)
