"""Kernel addresses → function names, from the text of ``/proc/kallsyms``, kept in little memory.

In: the text. Out: (name, module). Pure. Source: proc_kallsyms(5) and kernel/kallsyms.c: a line is ``ADDRESS TYPE
NAME[\\t[MODULE]]``, the kernel's own in order of address, then those of modules and BPF programs, without sizes.

A million bytes instead of tens: addresses are 32 bits from the first, names are compressed in blocks of 256. Example:
122,000 functions are 0.5 MB of addresses and 1 MB of names. Invariant: row i's name is in block i // 256.
"""

from __future__ import annotations

import re
import zlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

MAX_SYMBOLS: Final = 2_000_000
"""Rows that are read at most; kernels have 60,000 to 300,000 functions, every BPF program one more."""

_BLOCK: Final = 256
_KEPT_BLOCKS: Final = 16
_LONGEST_NAME: Final = 512  # KSYM_NAME_LEN
_LARGEST_FUNCTION: Final = 1 << 20  # bytes: what is further behind the last symbol is none of it
_TEXT: Final = b"tTwW"
_GLOBAL: Final = b"TW"
_NAME: Final = 19  # where in a line the name begins: 16 digits, a letter, blanks between
_DIGITS: Final = np.full(256, 255, dtype=np.uint8)  # by character
_DIGITS[list(b"0123456789abcdef")] = range(16)

_OWN_PROGRAM: Final = re.compile(r"bpf_prog_[0-9a-f]{16}_(?:cpu|offcpu|syscall|file|block|call)_")
_WAY_IN: Final = (
    *("bpf_prog_", "bpf_trampoline_", "__bpf_prog_", "bpf_trace_run", "__bpf_trace_", "__traceiter_"),
    *("trace_call_bpf", "perf_trace_", "perf_syscall_", "perf_call_bpf_", "bpf_get_stack"),
)
_SCHEDULER: Final = ("__schedule", "schedule", "preempt_schedule")

Places = npt.NDArray[np.unsignedinteger[Any]]


class KernelSymbols:
    """The functions of the running kernel, as of when the text was read."""

    def __init__(self, text: bytes) -> None:
        places, starts, ends, local = _parsed(text)
        self.is_hidden = bool(len(places)) and not places.any()
        """All addresses are zero: ``kernel.kptr_restrict`` hides them from whoever reads."""
        order = np.lexsort((local, places))
        order = order[np.searchsorted(places[order], 1) :]
        places = places[order]
        first = np.ones(len(places), dtype=bool)
        first[1:] = places[1:] != places[:-1]  # of several names the first global one
        order, places = order[first], places[first]
        self._base = int(places[0]) if len(places) else 0
        offsets = places - np.uint64(self._base)
        wide = bool(len(offsets)) and int(offsets[-1]) > 0xFFFFFFFF
        self._offsets: Places = offsets if wide else offsets.astype(np.uint32)
        starts, ends = starts[order], ends[order]
        self._blocks = [
            _compressed(text, starts[at : at + _BLOCK], ends[at : at + _BLOCK])
            for at in range(0, len(starts), _BLOCK)
        ]
        self._open: OrderedDict[int, list[bytes]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def size_bytes(self) -> int:
        """What is kept, beside a few decompressed blocks."""
        return self._offsets.nbytes + sum(map(len, self._blocks))

    def name_at(self, address: int) -> tuple[str, str] | None:
        """(name, module) of the function that holds ``address``; the kernel's own have module "kernel"."""
        offset = address - self._base
        if offset < 0 or not len(self._offsets) or offset > int(self._offsets[-1]) + _LARGEST_FUNCTION:
            return None
        row = int(np.searchsorted(self._offsets, offset, side="right")) - 1
        if offset - int(self._offsets[row]) > _LARGEST_FUNCTION:
            return None
        block = self._open.get(row // _BLOCK)
        if block is None:
            block = zlib.decompress(self._blocks[row // _BLOCK]).split(b"\n")
            self._open[row // _BLOCK] = block
            if len(self._open) > _KEPT_BLOCKS:
                self._open.popitem(last=False)
        name, _, module = block[row % _BLOCK].decode("utf-8", "replace").partition("\t")
        return name, module.strip("[]") or "kernel"


def probe_frames(names: Sequence[str]) -> int:
    """How many functions, the leaf first, are the program that took the stack and the way into it.

    Of a thread that gives its processor away the scheduler is such a way: what it waits for is behind that. 0 of
    stacks that begin in other BPF programs: those are part of what the thread did.
    """
    count = 0
    while count < len(names) and names[count].startswith(_WAY_IN):
        count += 1
    if not any(map(_OWN_PROGRAM.match, names[:count])):
        return 0
    while count < len(names) and names[count].startswith(_SCHEDULER):
        count += 1
    return count


def _compressed(text: bytes, starts: Places, ends: Places) -> bytes:
    """The names of one block."""
    names = [text[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
    return zlib.compress(b"\n".join(names), 3)


def _parsed(text: bytes) -> tuple[Places, Places, Places, npt.NDArray[np.bool_]]:
    """Of each function its address, where in ``text`` its name begins and ends, and whether it is local.

    Damaged lines are passed over. Columns, for there are 100,000 lines.
    """
    data = np.frombuffer(text, dtype=np.uint8)
    ends = np.flatnonzero(data == ord("\n"))
    starts = np.concatenate([np.zeros(1, ends.dtype), ends[:-1] + 1])[: len(ends)]
    whole = ends - starts > _NAME
    starts, ends = starts[whole], ends[whole]
    head = data[starts[:, np.newaxis] + np.arange(_NAME)]
    digits = _DIGITS[head[:, :16]]
    kind = head[:, 17]
    function = (digits < 16).all(axis=1) & (head[:, 16] == ord(" ")) & (head[:, 18] == ord(" "))
    function &= np.isin(kind, np.frombuffer(_TEXT, np.uint8))
    rows = np.flatnonzero(function)[:MAX_SYMBOLS]
    digits, kind = digits[rows], kind[rows]
    places = np.zeros(len(rows), dtype=np.uint64)
    for column in range(16):
        places <<= np.uint64(4)
        places |= digits[:, column]
    names = starts[rows] + _NAME
    return (
        places,
        names.astype(np.uint32),
        np.minimum(ends[rows], names + _LONGEST_NAME).astype(np.uint32),
        ~np.isin(kind, np.frombuffer(_GLOBAL, np.uint8)),
    )
