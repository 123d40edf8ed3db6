"""Call frame instructions (DWARF 5, 6.4.2) of many functions at once: what a debugger runs for one, in lockstep.

In: byte ranges of one section. Out: :data:`ROW`, where each begins to hold. Opens nothing and never raises: what
cannot be followed becomes a row of kind ``UNSUPPORTED``, and a range that makes no sense is marked in ``damaged``.

Each step takes one instruction of every function that has one left, so that a million functions cost what the
longest has in steps, and numpy the rest. Invariant: of a function that is not live all rows are told.

Example: ``push %rbp; mov %rsp,%rbp; …; pop %rbp; ret`` has the rows (rsp + 8), (rsp + 16, rbp at -16),
(rbp + 16, rbp at -16), (rsp + 8).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]

ROW: Final = np.dtype([("pc", "<u4"), ("cfa", "<i2"), ("rule", "u1"), ("rbp", "i1")])
"""struct unwind_row of bpf/profile/unwind.h. ``pc``: address in the file from which on it holds; ``rule``:
:class:`Cfa` and, shifted by 4, :class:`Rbp`; ``cfa`` and ``rbp`` count 8 bytes each."""


class Cfa(IntEnum):
    """How the address above the return address is found. Numbers are those of ``enum unwind_cfa``."""

    NONE = 0  # no function is known here
    RSP = 1  # rsp + 8 * cfa
    RBP = 2  # rbp + 8 * cfa
    PLT = 3  # rsp + 8, and 8 more from instruction byte `cfa` of each 16 on
    AT_RBP = 4  # the word at rbp + 8 * cfa
    AT_RSP = 5  # the word at rsp + 8 * cfa
    SIGNAL = 6  # the kernel's frame of a signal: registers are in it
    END = 7  # nobody called: the outermost function
    UNSUPPORTED = 8


class Rbp(IntEnum):
    """Where the caller's rbp is. Numbers are those of ``enum unwind_rbp``."""

    SAME = 0
    AT_CFA = 1  # at CFA + 8 * rbp
    AT_RBP = 2  # at rbp + 8 * rbp


RBP, RSP, RETURN = 6, 7, 16  # DWARF numbers of x86-64 registers (System V ABI, figure 3.36)
_OTHER: Final = 9  # CFA by a register that is not followed: def_cfa_register may still name one that is
_RETURN_OK, _RETURN_NONE, _RETURN_ELSEWHERE = 0, 1, 2
_DEEPEST: Final = 4  # states that are remembered; compilers use one
MAX_STEPS: Final = 8192  # instructions of one function; the longest seen have some thousand
_RETURN_AT: Final = -8

# What follows an opcode: 0 nothing, 1 ULEB128, 2 SLEB128, 3 a block.
_FIRST: Final = dict.fromkeys((5, 6, 7, 8, 9, 12, 13, 14, 16, 17, 18, 20, 21, 22, 46, 47), 1)
_SECOND: Final = {
    5: 1,
    9: 1,
    0xC: 1,
    0xF: 3,
    0x10: 3,
    0x11: 2,
    0x12: 2,
    0x13: 2,
    0x14: 1,
    0x15: 2,
    0x16: 3,
    0x2F: 1,
}
_KNOWN: Final = {0, 1, 2, 3, 4, 0xA, 0xB, 0x2D, *_FIRST, *_SECOND}
_PLT: Final = np.frombuffer(bytes((0x77, 8, 0x80, 0, 0x3F, 0x1A, 0x30, 0x2A, 0x33, 0x24, 0x22)), np.uint8)
_DEREF: Final = 6
_STATE: Final = ("cfa", "offset", "rbp", "rbp_offset", "ret")


def read_leb(data: Bytes, at: Ints, *, signed: bool = False) -> tuple[Ints, Ints]:
    """LEB128 numbers at ``at`` and where each ends. ``data`` has a few zeros behind its end; shapes (n,).

    Numbers of more than 35 bits are cut off, and any position is held within ``data``.
    """
    last = len(data) - 1
    byte = data[np.minimum(at, last)].astype(np.int64)
    value, shift = byte & 0x7F, np.full(len(at), 7, np.int64)
    end = at + 1
    more = np.flatnonzero(byte & 0x80)
    for step in range(1, 10):
        if not len(more):
            break
        byte_here = data[np.minimum(end[more], last)].astype(np.int64)
        byte[more] = byte_here
        if step < 5:
            value[more] |= (byte_here & 0x7F) << (7 * step)
            shift[more] = 7 * step + 7
        end[more] += 1
        more = more[(byte_here & 0x80) != 0]
    if signed:
        value -= np.where(byte & 0x40, np.int64(1) << shift, 0)
    return value, end


class _Machine:
    """Functions with their instructions; ``live`` are the numbers of those that have some left."""

    def __init__(
        self, data: Bytes, starts: Ints, ends: Ints, pcs: Ints, scales: Ints, factors: Ints, initial: States
    ) -> None:
        self.data = data
        self.live = np.arange(len(starts))
        self.at, self.end, self.pc = starts.copy(), ends, pcs.copy()
        self.scale, self.factor = scales, factors
        self.table = np.stack([initial[name] for name in _STATE], axis=1)
        self.state = _columns(self.table)
        self.initial = initial
        self.depth = np.zeros(len(starts), np.int64)
        self.kept: list[Ints] = []
        self.damaged = np.zeros(len(starts), np.bool_)
        self.told: list[tuple[Ints, Ints, Ints]] = []

    def run(self) -> tuple[Ints, Ints, States, Flags]:
        """(function, pc, state) of every row, and which functions were damaged."""
        for _ in range(MAX_STEPS):
            done = self.at[self.live] >= self.end[self.live]
            if done.any():
                self._tell(self.live[done])
                self.live = self.live[~done]
            if not len(self.live):
                break
            self._step()
        else:
            self._fail(self.live)
            self._tell(self.live)
        function, pc, table = (np.concatenate(parts) for parts in zip(*self.told, strict=True))
        return function, pc, _columns(table), self.damaged

    def _tell(self, which: Ints) -> None:
        self.told.append((which, self.pc[which], self.table[which]))

    def _fail(self, which: Ints) -> None:
        """No more of these: from here on they are not known."""
        self.damaged[which] = True
        self.state["cfa"][which] = Cfa.UNSUPPORTED
        self.at[which] = self.end[which]

    def _step(self) -> None:
        live = self.live
        code = self.data[self.at[live]]
        self.at[live] += 1
        high = code >> 6
        near = high == 1
        which = live[near]
        if len(which):
            self._tell(which)
            self.pc[which] += (code[near] & 63).astype(np.int64) * self.scale[which]
        places = np.flatnonzero(high == 2)
        if len(places):
            which = live[places]
            value, self.at[which] = read_leb(self.data, self.at[which])
            self._saved(which, (code[places] & 63).astype(np.int64), value * self.factor[which])
        places = np.flatnonzero(high == 3)
        if len(places):
            self._restored(live[places], (code[places] & 63).astype(np.int64))
        places = np.flatnonzero((high == 0) & (code != 0))
        if len(places):
            which, codes = live[places], code[places]
            for opcode in np.flatnonzero(np.bincount(codes, minlength=64)).tolist():
                self._run(opcode, which[codes == opcode])

    def _advance(self, which: Ints, size: int) -> None:
        self._tell(which)
        delta = np.zeros(len(which), np.int64)
        for i in range(size):
            delta |= self.data[np.minimum(self.at[which] + i, len(self.data) - 1)].astype(np.int64) << (8 * i)
        self.pc[which] += delta * self.scale[which]
        self.at[which] += size

    def _run(self, opcode: int, which: Ints) -> None:
        """One opcode of the low range for the functions that have come to it."""
        if opcode not in _KNOWN or opcode == 1:  # set_loc: linkers leave none
            self._fail(which)
        elif opcode in (2, 3, 4):
            self._advance(which, 1 << (opcode - 2))
        elif opcode == 0xA:
            self._remember(which)
        elif opcode == 0xB:
            self._recall(which)
        else:
            first = np.zeros(len(which), np.int64)
            second = first
            if opcode in _FIRST:
                first, self.at[which] = read_leb(self.data, self.at[which])
            if opcode in _SECOND:
                second, self.at[which] = read_leb(self.data, self.at[which], signed=_SECOND[opcode] == 2)
            if _SECOND.get(opcode) == 3:
                begin = self.at[which]
                self.at[which] = np.minimum(begin + second, self.end[which] + 1)
                self._expression(opcode, which, first, begin, second)
            else:
                self._define(opcode, which, first, second)

    def _define(self, opcode: int, which: Ints, first: Ints, second: Ints) -> None:
        state = self.state
        if opcode in (0xC, 0x12):
            state["cfa"][which] = _register(first)
            state["offset"][which] = second * (self.factor[which] if opcode == 0x12 else 1)
        elif opcode == 0xD:
            expression = state["cfa"][which] >= Cfa.PLT
            state["cfa"][which] = np.where(
                expression & (state["cfa"][which] != _OTHER), Cfa.UNSUPPORTED, _register(first)
            )
        elif opcode in (0xE, 0x13):
            state["offset"][which] = first if opcode == 0xE else second * self.factor[which]
        elif opcode in (5, 0x11):
            self._saved(which, first, second * self.factor[which])
        elif opcode == 0x2F:
            self._saved(which, first, -second * self.factor[which])
        elif opcode == 6:
            self._restored(which, first)
        elif opcode in (7, 8):  # undefined, same value
            state["rbp"][which[first == RBP]] = Rbp.SAME
            state["ret"][which[first == RETURN]] = _RETURN_NONE if opcode == 7 else _RETURN_ELSEWHERE
        elif opcode in (9, 0x14, 0x15):  # in another register, or to be computed
            state["ret"][which[(first == RETURN) | (first == RBP)]] = _RETURN_ELSEWHERE

    def _saved(self, which: Ints, register: Ints, offset: Ints) -> None:
        """Registers that lie at CFA + offset."""
        mine = register == RBP
        state = self.state
        state["rbp"][which[mine]] = Rbp.AT_CFA
        state["rbp_offset"][which[mine]] = offset[mine]
        mine = register == RETURN
        state["ret"][which[mine]] = np.where(offset[mine] == _RETURN_AT, _RETURN_OK, _RETURN_ELSEWHERE)

    def _restored(self, which: Ints, register: Ints) -> None:
        mine = which[register == RBP]
        for name in ("rbp", "rbp_offset"):
            self.state[name][mine] = self.initial[name][mine]
        mine = which[register == RETURN]
        self.state["ret"][mine] = self.initial["ret"][mine]

    def _remember(self, which: Ints) -> None:
        deep = self.depth[which] >= _DEEPEST
        self._fail(which[deep])
        which = which[~deep]
        for level in np.unique(self.depth[which]).tolist():
            if level == len(self.kept):
                self.kept.append(np.zeros_like(self.table))
            here = which[self.depth[which] == level]
            self.kept[level][here] = self.table[here]
        self.depth[which] += 1

    def _recall(self, which: Ints) -> None:
        empty = self.depth[which] == 0
        self._fail(which[empty])
        which = which[~empty]
        self.depth[which] -= 1
        for level in np.unique(self.depth[which]).tolist():
            here = which[self.depth[which] == level]
            self.table[here] = self.kept[level][here]

    def _expression(self, opcode: int, which: Ints, register: Ints, begin: Ints, size: Ints) -> None:
        """DWARF expressions: the few forms that compilers and linkers make."""
        last = len(self.data) - 1
        head = self.data[np.minimum(begin, last)]
        offset, behind = read_leb(self.data, begin + 1, signed=True)
        plain = (behind == begin + size) & (head == 0x70 + RBP)
        deref = (behind == begin + size - 1) & (self.data[np.minimum(behind, last)] == _DEREF)
        state = self.state
        if opcode == 0xF:
            kind = np.full(len(which), Cfa.UNSUPPORTED, np.int64)
            kind[deref & (head == 0x70 + RBP)] = Cfa.AT_RBP
            kind[deref & (head == 0x70 + RSP)] = Cfa.AT_RSP
            places = np.minimum(begin[:, None] + np.arange(len(_PLT)), last)
            text = self.data[places]
            literal = text[:, 6] - 0x30
            same = (np.delete(text, 6, axis=1) == np.delete(_PLT, 6)).all(axis=1)
            plt = same & (size == len(_PLT)) & (literal < 16)
            kind[plt] = Cfa.PLT
            state["cfa"][which] = kind
            state["offset"][which] = np.where(plt, 8 * literal.astype(np.int64), offset)
        elif opcode == 0x10:
            mine = register == RBP
            state["rbp"][which[mine & plain]] = Rbp.AT_RBP
            state["rbp_offset"][which[mine & plain]] = offset[mine & plain]
            state["ret"][which[mine & ~plain]] = _RETURN_ELSEWHERE
        if opcode != 0xF:
            mine = register == RETURN
            state["ret"][which[mine]] = _RETURN_ELSEWHERE


States = dict[str, Ints]
"""By name of :data:`_STATE`, shape (functions,) each."""


def _columns(table: Ints) -> States:
    """Views by name; shape (n, 5) → (n,) each."""
    return {name: table[:, place] for place, name in enumerate(_STATE)}


def _register(number: Ints) -> Ints:
    return np.where(number == RSP, int(Cfa.RSP), np.where(number == RBP, int(Cfa.RBP), _OTHER))


def initial_states(count: int) -> States:
    """Before any instruction: nothing is known of the CFA, and no register was saved."""
    state: States = {name: np.zeros(count, np.int64) for name in _STATE}
    state["cfa"][:] = _OTHER
    return state


def final_states(data: Bytes, starts: Ints, ends: Ints, factors: Ints) -> tuple[States, Flags]:
    """The states after the instructions that functions share (of a CIE); shapes (n,). Which were damaged."""
    count = len(starts)
    if not count:
        return initial_states(0), np.zeros(0, np.bool_)
    zeros = np.zeros(count, np.int64)
    machine = _Machine(data, starts, ends, zeros, zeros, factors, initial_states(count))
    function, _, state, damaged = machine.run()
    last = np.zeros(count, np.int64)
    last[function] = np.arange(len(function))  # the last of each, in their order
    return {name: column[last] for name, column in state.items()}, damaged


def rows_of(
    data: Bytes,
    starts: Ints,
    ends: Ints,
    pcs: Ints,
    scales: Ints,
    factors: Ints,
    initial: States,
) -> tuple[Ints, Ints, npt.NDArray[np.void], Flags]:
    """Rows of functions whose instructions lie in ``data`` from ``starts`` to ``ends``; all arrays of shape (n,).

    ``pcs``: where each begins; ``scales`` and ``factors``: code and data alignment. ``data`` ends in at least 16 zeros.
    Returns each row's function, its pc (unbounded), the rows (``pc`` is not set) and which functions were damaged.
    """
    if not len(starts):
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, ROW), np.zeros(0, np.bool_)
    function, pc, state, damaged = _Machine(data, starts, ends, pcs, scales, factors, initial).run()
    return function, pc, _packed(state), damaged


def _packed(state: States) -> npt.NDArray[np.void]:
    """States as rows; those that have no room in one are ``UNSUPPORTED``."""
    cfa, offset, rbp, rbp_offset = (state[name] for name in _STATE[:4])
    saved = rbp != Rbp.SAME
    unfit = (
        (offset % 8 != 0) | (abs(offset) >= 8 << 15) | (cfa == _OTHER) | (state["ret"] == _RETURN_ELSEWHERE)
    )
    unfit |= saved & ((rbp_offset % 8 != 0) | (rbp_offset < -8 * 128) | (rbp_offset > 8 * 127))
    rule = np.where(unfit, int(Cfa.UNSUPPORTED), cfa)
    rule[state["ret"] == _RETURN_NONE] = Cfa.END
    void = (rule == Cfa.UNSUPPORTED) | (rule == Cfa.END)
    rows = np.zeros(len(cfa), ROW)
    rows["rule"] = np.where(void, rule, rule | np.where(saved, rbp, 0) << 4)
    rows["cfa"] = np.where(void, 0, offset // 8)
    rows["rbp"] = np.where(void | ~saved, 0, rbp_offset // 8)
    return rows
