"""Functions of RDMA providers in the memory of a process: which file they are in, and whether they are what they seem.

In: addresses that structures of libibverbs hold. Out: file offsets. A context that was opened before anybody looked is
found by the mark that libibverbs leaves in each (``abi_compat``, all ones): so a process that does nothing but post and
poll, which are no calls of a library, is found too. Offsets come from the BPF object (bpf/verbs/layouts.h).
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

import numpy as np
from msgspec import Struct

from otelgpu.kernel.cut_files import survive_cut_files
from otelgpu.processes.elf_files import open_regular, paths_of
from otelgpu.processes.maps import Mapping as Mapped
from otelgpu.processes.maps import find, read_maps
from otelgpu.processes.memory import ProcessMemory, session_memory
from otelgpu.processes.reader.messages import Descriptor, question

_MARK: Final = (1 << 64) - 1
_REGISTERS: Final = (
    b"\0verbs_register_driver_"  # what every provider calls as it is loaded (libibverbs/driver.h)
)
_LIBRARY: Final = "libibverbs.so"
_SCANNED_BYTES: Final = 256 << 20  # of a process: contexts are made early and lie in small heaps
_CHUNK_BYTES: Final = 1 << 20  # for the bound of one question, should they have been swapped out
_CONTEXTS: Final = 64  # of a process
_BEFORE_BYTES: Final = 4096  # more than any field of a context is before the mark

Inode = tuple[tuple[int, int], int]


class ProviderFunction(Struct, frozen=True, kw_only=True):
    """A function at ``offset`` of the file behind ``mapping``; ``symbol`` is what the API calls it."""

    symbol: str
    offset: int
    mapping: Mapped


class NoProvider(Exception):
    """An address is not a provider's function; the argument is the counter's reason."""


def locate(functions: Mapping[str, int], mappings: Sequence[Mapped]) -> list[ProviderFunction]:
    """Where the functions of one table are: in one file, in code. Those that are not there (0) are left out.

    libibverbs has functions of its own for what a provider lacks; these are left out too. Raises
    :class:`NoProvider` when an address is anything else.
    """
    found = []
    for symbol, address in functions.items():
        mapping = find(mappings, address) if address else None
        if not address or (mapping is not None and os.path.basename(mapping.path).startswith(_LIBRARY)):
            continue
        if mapping is None or not mapping.executable or not mapping.is_file:
            raise NoProvider("provider_address_implausible")
        if "w" in mapping.permissions:
            raise NoProvider("provider_code_writable")
        found.append(ProviderFunction(symbol=symbol, offset=mapping.file_offset(address), mapping=mapping))
    if len({(each.mapping.device, each.mapping.inode) for each in found}) > 1:
        raise NoProvider("provider_in_several_files")
    return found


def open_provider(tgid: int, mapping: Mapped) -> int:
    """A descriptor of a provider's file. Raises :class:`NoProvider` where it is none or cannot be opened."""
    for path in paths_of(tgid, mapping):
        try:
            descriptor = open_regular(path)
        except OSError:
            continue
        try:
            if os.fstat(descriptor).st_ino == mapping.inode and _registers(descriptor):
                return descriptor
        except (OSError, ValueError):
            pass
        os.close(descriptor)
        if "map_files" in str(path):
            raise NoProvider("provider_unknown")
    raise NoProvider("provider_unreadable")


def _registers(descriptor: int) -> bool:
    survive_cut_files()
    with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as content:
        return content.find(_REGISTERS) >= 0


def find_contexts(
    tgid: int, offsets: Mapping[str, int], memory: ProcessMemory | None = None
) -> Iterator[dict[str, int]]:
    """Functions by symbol of each open context of a process, as :func:`locate` takes them.

    ``offsets``: ``enum verbs_context_offset``. A process that vanishes or may not be read has none.
    """
    try:
        mappings = read_maps(tgid)
        code = [mapping for mapping in mappings if mapping.executable and mapping.is_file]
        if not any(os.path.basename(mapping.path).startswith(_LIBRARY) for mapping in code):
            return
        ranges = np.array([(mapping.start, mapping.end) for mapping in code], np.uint64).reshape(-1, 2)
        count = 0
        with (memory or session_memory()).open(tgid) as opened:
            for start, end in _pieces(mappings):
                for functions in opened.ask(contexts_at, start, end, dict(offsets), ranges):
                    yield functions
                    count += 1
                if count >= _CONTEXTS:
                    return
    except OSError:
        return


def _pieces(mappings: Sequence[Mapped]) -> Iterator[tuple[int, int]]:
    """Where contexts may lie, the smallest mappings first; each piece has the end of the one before in it."""
    left = _SCANNED_BYTES
    for mapping in sorted(mappings, key=lambda each: each.end - each.start):
        if mapping.is_file or not mapping.permissions.startswith("rw"):
            continue
        for start in range(mapping.start, mapping.end, _CHUNK_BYTES):
            if left <= 0:
                return
            end = min(start + _CHUNK_BYTES + _BEFORE_BYTES, mapping.end)
            left -= end - start
            yield start, end


@question()
def contexts_at(
    memory: Descriptor, start: int, end: int, offsets: dict[str, int], code: np.ndarray
) -> list[dict[str, int]]:
    """Those in one piece of a process' memory. ``code``: where functions may be, from and to, in this order."""
    try:
        content = os.pread(memory, end - start, start)
    except (OSError, OverflowError):
        return []
    return list(islice(_contexts_in(content, offsets, code), _CONTEXTS))


def _contexts_in(
    content: bytes, offsets: Mapping[str, int], code: np.ndarray[tuple[int, ...], np.dtype[np.uint64]]
) -> Iterator[dict[str, int]]:
    words = np.frombuffer(content[: len(content) & ~7], "<u8")
    mark = offsets["CONTEXT_ABI_COMPAT"] // 8
    first = -min(offsets.values()) // 8  # of the structure around it
    places = np.flatnonzero(words == _MARK) - mark
    needed = {
        "post_send": "CONTEXT_POST_SEND",
        "post_recv": "CONTEXT_POST_RECV",
        "poll_cq": "CONTEXT_POLL_CQ",
    }
    others = {
        "post_srq_recv": "CONTEXT_POST_SRQ_RECV",
        "create_qp_ex": "CONTEXT_CREATE_QP_EX",
        "create_cq_ex": "CONTEXT_CREATE_CQ_EX",
    }
    places = places[places >= first]
    for name in needed.values():
        address = words[places + offsets[name] // 8]
        row = np.searchsorted(code[:, 0], address, side="right").astype(np.int64) - 1
        places = places[(row >= 0) & (address < code[np.maximum(row, 0), 1])] if len(code) else places[:0]
    for place in places.tolist():
        yield {
            symbol: int(words[place + offsets[name] // 8]) for symbol, name in {**needed, **others}.items()
        }
