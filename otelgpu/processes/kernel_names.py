"""Records of API calls → what the functions and handles in them are called.

In: batches of one family. Out: :class:`FunctionNamed` for each launched kernel and each place that allocates
memory, once per process. What records report of handles is kept in :mod:`otelgpu.symbols.handles`; what they do
not report is read from the process' files by :mod:`otelgpu.processes.address_resolver`, when a launch first wants it.

Fields that are used, as in ``struct cuda_call`` and ``struct cuda_name`` (bpf/cuda/cuda.h): ``function`` of a
launch; ``caller`` of an allocation; ``object`` and ``other`` of a kernel handle (handle, what it stands for)
and of a registration (host stub, address of the name); ``object``, ``text``, ``length`` and ``status`` of a name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from otelgpu.model.inputs import Batch, FunctionNamed, Records
from otelgpu.model.losses import Reasons
from otelgpu.model.operations import OperationKind
from otelgpu.processes.address_resolver import AddressResolver
from otelgpu.symbols.demangle import MAX_NAME_LENGTH
from otelgpu.symbols.functions import unknown_place
from otelgpu.symbols.handles import KernelHandles
from otelgpu.symbols.known import U32, U64, KnownPairs, Rows

MAX_NEW_PER_BATCH: Final = 4096
"""Names that one batch may ask for: a program that launches random addresses must not stop the agent."""

MAX_HANDLES_PER_BATCH: Final = 1 << 14
"""Likewise of kernel handles and their names."""

REASONS: Final = Reasons(
    "symbols",
    {
        "names_put_off": "more new functions at once than are looked up; the next launch asks again",
    },
)
"""Beside those of :mod:`otelgpu.symbols.handles`: keys of :attr:`KernelNamer.counters`."""

_LAUNCH: Final = np.uint16(OperationKind.LAUNCH)
_ALLOCATION: Final = np.uint16(OperationKind.ALLOCATION)
# Rows that are looked at together: their two cache lines stay near while column after column is read.
_CHUNK_ROWS: Final = 1 << 13
_NONE: Final = 1 << 16
_CALL_FIELDS: Final = frozenset(("function", "caller", "object", "other", "status"))
_NAME_FIELDS: Final = frozenset(("object", "text", "length", "status"))


class NameKinds(Struct, frozen=True, kw_only=True):
    """The record kinds of a family that report of names; None: it has none such."""

    kernel: int | None = None  # a handle was given for another handle, or for a stub
    registration: int | None = None  # a stub was registered under a name

    @classmethod
    def of(cls, family: str, kinds: Mapping[str, int]) -> NameKinds:
        """From the enumerators of ``enum <family>_kind``."""
        prefix = family.upper()
        return cls(kernel=kinds.get(f"{prefix}_KERNEL"), registration=kinds.get(f"{prefix}_REGISTRATION"))


class KernelNamer:
    """Learns and answers; ask :meth:`learn` about all batches of a collection before :meth:`name`."""

    def __init__(self, resolver: AddressResolver) -> None:
        self._resolver = resolver
        self._handles = KernelHandles()
        self._known = KnownPairs()
        self._forks: dict[int, int] = {}  # child → parent, until handles are next asked for
        self._counters: Counter[str] = Counter()

    @property
    def counters(self) -> Mapping[str, int]:
        """What could not be kept, by reason."""
        return self._counters + self._handles.counters

    def learn(self, batch: Batch, kinds: NameKinds) -> None:
        """Keep what the batch reports of handles. What was named before by one of them is named anew."""
        fields = set(batch.records.dtype.names or ())
        if fields >= _CALL_FIELDS:
            of = batch.heads["kind"].copy()  # together: a strided column costs its cache lines at each use
            if of.max(initial=0) < min(kinds.kernel or _NONE, kinds.registration or _NONE):
                return  # nothing but calls, as nearly always
            if kinds.kernel is not None and (rows := np.flatnonzero(of == kinds.kernel)).size:
                self._learn_kernels(batch, rows)
            if kinds.registration is not None and (rows := np.flatnonzero(of == kinds.registration)).size:
                self._learn_registrations(batch, rows)
        elif fields >= _NAME_FIELDS:
            self._learn_names(batch)

    def name(self, batch: Batch) -> list[FunctionNamed]:
        """Answers for what the batch has that was not answered yet for its process."""
        if not set(batch.records.dtype.names or ()) >= _CALL_FIELDS:
            return []
        for child, parent in self._forks.items():
            self._handles.inherit(parent, child)
        self._forks.clear()
        answers: list[FunctionNamed] = []
        heads, records = batch.heads, batch.records
        for start in range(0, len(records), _CHUNK_ROWS):
            chunk = slice(start, start + _CHUNK_ROWS)
            kinds = heads["kind"][chunk].copy()
            tgids = heads["tgid"][chunk].copy()
            left = MAX_NEW_PER_BATCH - len(answers)
            launched = self._new(tgids, records["function"][chunk], kinds == _LAUNCH, left)
            answers += [self._name_launched(tgid, address) for tgid, address in launched]
            calling = self._new(tgids, records["caller"][chunk], kinds == _ALLOCATION, left - len(launched))
            answers += [self._name_site(tgid, address) for tgid, address in calling if address]
        return answers

    def inherit(self, parent: int, child: int) -> None:
        """A process forked. What it had by then may be in records that are still to be learned from."""
        self._forks[child] = parent

    def remap(self, tgid: int, start: int, end: int) -> None:
        """A process mapped code: what it had there has gone."""
        self._known.discard_range(tgid, start, end)

    def renew(self, tgid: int) -> None:
        """A process is described anew: whoever keeps its names has dropped them."""
        self._known.forget(tgid)

    def forget(self, tgid: int) -> None:
        """A process ended, or became another program."""
        self._known.forget(tgid)
        self._handles.forget(tgid)
        self._forks.pop(tgid, None)

    # -- Learning --------------------------------------------------------------------------------------

    def _learn_kernels(self, batch: Batch, rows: Rows) -> None:
        for record in self._some(batch.records[rows]):
            if record["status"] == 0 and record["object"]:
                head, handle = record["head"], int(record["object"])
                self._learn(int(head["tgid"]), handle, int(head["time_ns"]), int(record["other"]))

    def _learn_names(self, batch: Batch) -> None:
        for record in self._some(batch.records):
            text = bytes(record["text"])
            length = int(record["length"])
            name = text[:length].partition(b"\0")[0].decode("utf-8", "backslashreplace")
            if record["status"] == 0 and record["object"] and name:
                head, handle = record["head"], int(record["object"])
                shown = _shown(name) + ("…" if length > len(text) else "")
                self._learn(int(head["tgid"]), handle, int(head["time_ns"]), shown)

    def _some(self, records: Records) -> Records:
        """As many as are learned from at once; they are looked at one by one."""
        if len(records) > MAX_HANDLES_PER_BATCH:
            self._counters["handles_full"] += len(records) - MAX_HANDLES_PER_BATCH
        return records[:MAX_HANDLES_PER_BATCH]

    def _learn(self, tgid: int, handle: int, time_ns: int, meaning: int | str) -> None:
        self._handles.learn(tgid, handle, time_ns, meaning)
        self._known.discard(tgid, [handle])

    def _learn_registrations(self, batch: Batch, rows: Rows) -> None:
        tgids = batch.heads["tgid"][rows]
        stubs, names = batch.records["object"][rows], batch.records["other"][rows]
        distinct: list[int] = np.unique(tgids).tolist()
        for tgid in distinct:
            own = slice(None) if len(distinct) == 1 else tgids == tgid
            self._handles.learn_registrations(tgid, stubs[own], names[own])
            self._known.discard(tgid, stubs[own].tolist())

    # -- Answering -------------------------------------------------------------------------------------

    def _new(
        self, tgids: U32, addresses: U64, chosen: npt.NDArray[np.bool_], limit: int
    ) -> list[tuple[int, int]]:
        count = np.count_nonzero(chosen)
        if not count:
            return []
        if count == len(chosen):
            addresses = addresses.copy()
        else:
            rows = np.flatnonzero(chosen)
            tgids, addresses = tgids[rows], addresses[rows]
        new, left_out = self._known.add_new(tgids, addresses, limit=limit)
        if left_out:
            self._counters["names_put_off"] += left_out
        return new

    def _name_launched(self, tgid: int, launched: int) -> FunctionNamed:
        meaning = self._handles.meaning(tgid, launched)
        name = meaning.text
        if not name and meaning.name_address:
            text = self._resolver.text_at(tgid, meaning.name_address, meaning.address)
            name = _shown(text.decode("utf-8", "backslashreplace")) if text else ""
        if name:
            full = self._resolver.demangle(name, tgid)
            return FunctionNamed(tgid=tgid, address=launched, name=full, known=True)
        name, known = self._resolver.resolve(tgid, meaning.address)
        module, offset = ("", 0) if known else unknown_place(name)
        return FunctionNamed(
            tgid=tgid,
            address=launched,
            name=name,
            known=known,
            module=module,
            build_id=self._resolver.build_id_at(tgid, meaning.address) if module else "",
            offset=offset,
        )

    def _name_site(self, tgid: int, caller: int) -> FunctionNamed:
        name, known = self._resolver.resolve_return(tgid, caller)
        return FunctionNamed(tgid=tgid, address=caller, name=name, known=known)


def _shown(name: str) -> str:
    """A name from a process' memory as text that can be shown and exported."""
    if name.isprintable():
        return name[:MAX_NAME_LENGTH]
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name[:MAX_NAME_LENGTH])
