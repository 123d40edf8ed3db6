"""Where NCCL's communicators have their hash, rank and counts, found for each copy of the library while it is used.

In: files as they get probes, records of family nccl, the memory of processes that make communicators. Out: entries
of the map ``layouts`` (``bpf/nccl/layouts.h``), by which the BPF programs read a communicator at each call.

A layout comes from, in this order: the table of known versions; the library's own debugging information, which a
worker reads meanwhile; a communicator that is made under the agent's eyes, whose memory is searched for what it must
have. Each is checked: by the programs at every use, and here against the first communicator that is made. One that
is contradicted is given up. Without a layout calls are reported without hash, rank and sequence, and counted.

The unique id of a communicator is a secret of its ranks: records have a digest of its first word, with a key that
only this session knows.
"""

from __future__ import annotations

import logging
import os
import struct
from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict

from otelgpu.elf.image import ElfError, ElfImage
from otelgpu.families.nccl.discover.layouts import (
    LISTED,
    CommunicatorLayout,
    calibrate,
    layout_of_members,
    magics_at,
    siphash,
    version_in,
)
from otelgpu.kernel.libbpf import BpfError
from otelgpu.kernel.loader import LoadedFamily
from otelgpu.model.inputs import Batch, Input
from otelgpu.model.losses import Reasons
from otelgpu.processes.memory import ProcessMemory, session_memory
from otelgpu.processes.probes import InspectedFile, ProbePlacer
from otelgpu.processes.struct_finder import Members, StructFinder, session_struct_finder

_log = logging.getLogger("otelgpu.discover")

STEM: Final = "libnccl"
STRUCTURE: Final = "ncclComm"
_MOST_MEMORY: Final = 4 << 20  # bytes of a communicator that are searched; NCCL 2.32's has 1.2 MB
_ATTEMPTS: Final = 64  # communicators of one file by which a layout is looked for
_WAITING: Final = 256  # communicators that have been made and are to be looked at
_REMEMBERED: Final = 65_536  # communicators whose entries are deleted with their process
_PROC: Final = Path("/proc")

REASONS: Final = Reasons(
    "nccl",
    {
        "communicator_version_unknown": "a copy of NCCL of a version that is not listed; its layout is looked for",
        "communicator_debug_info_missing": "such a copy without debugging information of its own, or of a version that "
        "lays its communicators out in a way that is not known; the first communicator that is made may report",
        "communicator_debug_info_not_read": "such a copy whose debugging information took too long to read, or too "
        "much memory, or whose owner had spent his share of that; the first communicator that is made may report",
        "communicator_layout_contradicted": "a communicator that was made and is not laid out as its copy's others "
        "should be: the layout is given up, and looked for",
        "communicator_not_calibrated": "a communicator that was made and does not report the layout beyond doubt",
        "communicator_memory_unreadable": "a communicator that was made and whose memory was gone when it "
        "was looked at",
        "communicator_layouts_full": "a copy of NCCL beyond those that can have a layout: hash, rank and sequence are "
        "not known of its calls",
    },
)
"""What is counted, and what one count means."""


class LibraryCopy(Struct):
    """One file with NCCL in it, and how its communicators are read. ``source``: how that is known."""

    index: int
    path: str
    version: str | None
    layout: CommunicatorLayout | None = None
    source: str = "unknown"  # listed, debug_info, calibrated
    verified: bool = False  # against a communicator that was made
    attempts: int = 0


class _Made(Struct, frozen=True):
    """A communicator that has been made, and what its maker said of it."""

    tgid: int
    address: int
    identity: int
    rank: int
    ranks: int
    copy: LibraryCopy


class NcclLayouts:
    """A watcher: see :mod:`otelgpu.processes.discovery`.

    Sets the session's key and gives the index of its layout to each file as it gets its probes, so it must be there
    before the first does.
    """

    def __init__(
        self,
        loaded: LoadedFamily,
        placer: ProbePlacer,
        *,
        proc: Path = _PROC,
        memory: ProcessMemory | None = None,
        structs: StructFinder | None = None,
    ) -> None:
        self._loaded = loaded
        self._proc = proc
        self._process_memory = memory or session_memory()
        self._structs = structs or session_struct_finder()
        self._dtype = loaded.image.btf.dtype("nccl_layout")
        self._room = loaded.map("layouts").max_entries
        first, second = struct.unpack("<2Q", os.urandom(16))
        self._key = (first | 1, second)
        for number, word in enumerate(self._key):
            loaded.set_variable(f"identity_key_{number}", word)
        self._copies: list[LibraryCopy] = []
        self._by_build: dict[str, LibraryCopy] = {}
        self._made: deque[_Made] = deque(maxlen=_WAITING)
        self._read: deque[tuple[LibraryCopy, Members | None, bool]] = deque()  # by a thread
        self._known: OrderedDict[tuple[int, int], None] = OrderedDict()  # (tgid, address)
        self.counters: Counter[str] = Counter()
        placer.file_cookies[STEM] = self.index_of

    @property
    def copies(self) -> Sequence[LibraryCopy]:
        """The files that have probes, in the order of finding them."""
        return self._copies

    def index_of(self, file: InspectedFile) -> int:
        """The index of the file's layout, for the cookies of its probes; 0: there is no room for one."""
        image, path = file.image, file.path
        version, layout, source = known_layout(image)
        if image.build_id and (same := self._by_build.get(image.build_id)):
            return same.index  # the same build in another container
        index = len(self._copies) + 1
        if index >= self._room:
            self.counters["communicator_layouts_full"] += 1
            return 0
        copy = LibraryCopy(index, path, version)
        self._copies.append(copy)
        if image.build_id:
            self._by_build[image.build_id] = copy
        if layout is not None:
            self._take(copy, layout, source)
        else:
            self.counters["communicator_version_unknown"] += 1
            _log.warning(
                "%s: NCCL %s is not a version whose communicators are known; looking into its debugging information",
                path,
                version or "without a version",
            )
            self._structs.find(
                file.owner,
                file.descriptor,
                STRUCTURE,
                lambda members, was_read: self._read.append((copy, members, was_read)),
            )
        return index

    # -- As a watcher ------------------------------------------------------------------------------------

    def look(self, batch: Batch) -> None:
        """Note communicators that were made, by which a layout can be found or checked."""
        if batch.kind != "nccl_communicator":
            return
        for tgid, row in zip(batch.heads["tgid"].tolist(), batch.records, strict=True):
            key = (tgid, int(row["communicator"]))
            if row["ended"]:
                self._known.pop(key, None)
                continue
            self._known[key] = None
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
            index = int(row["layout"])
            if not row["created"] or not row["identity"] or not 0 < index <= len(self._copies):
                continue
            copy = self._copies[index - 1]
            if not copy.verified and copy.attempts < _ATTEMPTS:
                copy.attempts += 1
                self._made.append(
                    _Made(*key, int(row["identity"]), int(row["rank"]), int(row["ranks"]), copy)
                )

    def collect(self, now_ns: int) -> Sequence[Input]:
        """Take what a thread has read, and look at communicators that were made. Reports nothing by itself."""
        while self._read:
            copy, members, was_read = self._read.popleft()
            layout = described_layout(members, copy.version)
            if copy.layout is None and layout is not None:
                self._take(copy, layout, "debug_info")
            elif not was_read:
                self.counters["communicator_debug_info_not_read"] += 1
            elif layout is None:
                self.counters["communicator_debug_info_missing"] += 1
        while self._made:
            self._check(self._made.popleft())
        return ()

    def forget(self, tgid: int) -> None:
        """Its number and its communicators' addresses may come again."""
        for key in [key for key in self._known if key[0] == tgid]:
            del self._known[key]
            self._loaded.map("communicators").delete(struct.pack("<QIxxxx", key[1], key[0]))

    # -- Layouts -----------------------------------------------------------------------------------------

    def _check(self, made: _Made) -> None:
        """Check a copy's layout by a communicator that it has made, or find it by that."""
        copy = made.copy
        if copy.verified:
            return
        memory = self._memory(made.tgid, made.address)
        if not memory:
            self.counters["communicator_memory_unreadable"] += 1
            return
        identity = partial(self._is, made.identity)
        if copy.layout is not None:
            if any(identity(word) for word in _words(memory, magics_at(copy.layout))):
                copy.verified = True
                return
            self.counters["communicator_layout_contradicted"] += 1
            _log.warning("%s: its communicators are not laid out as NCCL %s", copy.path, copy.version)
            self._give_up(copy)
        found = calibrate(memory, rank=made.rank, ranks=made.ranks, is_identity=identity)
        if found is None:
            self.counters["communicator_not_calibrated"] += 1
            return
        self._take(copy, found, "calibrated")
        copy.verified = True
        _log.info("%s: the layout of its communicators was found by one that it made", copy.path)

    def _is(self, identity: int, word: int) -> bool:
        return siphash(self._key, word) == identity

    def _memory(self, tgid: int, address: int) -> bytes:
        """What is mapped from ``address`` on, as far as it is wanted; empty when the process is gone."""
        try:
            with self._process_memory.open(tgid, proc=self._proc) as memory:
                return memory.read((address, _MOST_MEMORY))[0]
        except OSError:
            return b""

    def _take(self, copy: LibraryCopy, layout: CommunicatorLayout, source: str) -> None:
        if self._put(copy.index, layout):
            copy.layout, copy.source = layout, source

    def _give_up(self, copy: LibraryCopy) -> None:
        self._put(copy.index, None)
        copy.layout, copy.source = None, "unknown"

    def _put(self, index: int, layout: CommunicatorLayout | None) -> bool:
        value = np.zeros(1, dtype=self._dtype)
        if layout is not None:
            value["known"] = 1
            for name, number in asdict(layout).items():
                value[name] = number
        try:
            self._loaded.map("layouts").put(struct.pack("<I", index), value.tobytes())
        except BpfError as error:
            self.counters["communicator_layouts_full"] += 1
            _log.warning("layout %d: %s", index, error)
            return False
        return True


def known_layout(image: ElfImage) -> tuple[str | None, CommunicatorLayout | None, str]:
    """Version, layout and how that is known, of a file that has NCCL in it, without looking into a process."""
    try:
        constants = image.section(".rodata")
    except ElfError:
        constants = None
    version = version_in(constants.content) if constants is not None else None
    layout = LISTED.get(version or "")
    return version, layout, "listed" if layout is not None else "unknown"


def described_layout(members: Members | None, version: str | None) -> CommunicatorLayout | None:
    """The layout by a file's own debugging information."""
    if members is None:
        return None
    offsets = {name: (member.offset, member.elements) for name, member in members.items()}
    return layout_of_members(offsets, version)


def _words(memory: bytes, offsets: Sequence[int]) -> list[int]:
    """Those that are there."""
    return [int.from_bytes(memory[at : at + 8], "little") for at in offsets if at + 8 <= len(memory)]
