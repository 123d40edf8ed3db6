"""From one frame of a stopped thread to its caller's, by the call frame information of the code itself.

In: registers, and a function that reads the process's memory. Out: the caller's registers. One frame at a time is
looked up, by the sorted table of ``.eh_frame_hdr``: whole files are read by the unwinder of profiles. Every byte comes
from the process, and may be anything: what makes no sense is :class:`NoFrame`.

Sources: DWARF 5, 6.4 (call frame instructions) and 2.5 (expressions); Linux Standard Base Core 5.0, 10.6
(``.eh_frame_hdr``, augmentations); the x86-64 psABI, figure 3.36 (numbers of registers).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import Struct, field

Read = Callable[[int, int], bytes]
"""(address, bytes) → that many bytes. Raises OSError."""

RSP: Final = 7
RETURN_ADDRESS: Final = 16
_MASK: Final = (1 << 64) - 1
_MOST_BYTES: Final = 1 << 16  # of one entry
_MOST_INSTRUCTIONS: Final = 4096
_SORTED_TABLE: Final = (
    b"\x01\x1b\x03\x3b"  # version 1; relative to itself, udata4, relative to the section, sdata4
)


class NoFrame(Exception):
    """Nothing that can be believed says who called."""


class Caller(Struct, frozen=True, kw_only=True):
    """A frame's caller. ``registers`` by DWARF's numbers; None: this frame is the stack's last."""

    registers: dict[int, int] | None
    is_interrupted: bool  # by a signal, whose handler this frame's callees are


class _Cursor:
    """Reads an entry from its beginning to its end."""

    def __init__(self, data: bytes, address: int) -> None:
        self.data, self.address, self.at = data, address, 0

    def take(self, count: int) -> bytes:
        if count < 0 or self.at + count > len(self.data):
            raise NoFrame("an entry ends too early")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, count: int, *, signed: bool = False) -> int:
        return int.from_bytes(self.take(count), "little", signed=signed)

    def uleb(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value
            if shift > 63:
                raise NoFrame("a number is too long")

    def sleb(self) -> int:
        begin = self.at
        value = self.uleb()
        bits = 7 * (self.at - begin)
        return value - (1 << bits) if value >> (bits - 1) & 1 else value

    def pointer(self, encoding: int) -> int:
        where = self.address + self.at
        sizes = {0x0: 8, 0x2: 2, 0x3: 4, 0x4: 8, 0xA: 2, 0xB: 4, 0xC: 8}
        size = sizes.get(encoding & 0xF)
        if size is None or encoding & 0x60 or encoding & 0x80:
            raise NoFrame(f"a pointer of encoding {encoding:#x}")
        value = self.number(size, signed=bool(encoding & 0x8))
        return (value + (where if encoding & 0x10 else 0)) & _MASK


class _Entry(Struct, kw_only=True):
    """What a CIE and an FDE say together."""

    code_factor: int
    data_factor: int
    is_signal: bool
    start: int
    end: int
    common: bytes
    own: bytes


class _Row(Struct):
    """How to get at the caller at one instruction: register → rule."""

    cfa: tuple[str, int, int] | tuple[str, bytes, int] = ("none", 0, 0)
    rules: dict[int, tuple[str, int | bytes]] = field(default_factory=dict)

    def copy(self) -> _Row:
        return _Row(self.cfa, dict(self.rules))


def find_entry(read: Read, header: int, size: int, pc: int) -> int:
    """The address of the FDE for ``pc`` in the table of an ``.eh_frame_hdr``. Raises NoFrame, OSError."""
    head = read(header, 12)
    if head[:4] != _SORTED_TABLE:
        raise NoFrame("no sorted table of frames")
    count = int.from_bytes(head[8:12], "little")
    if not 0 < count <= (size - 12) // 8:
        raise NoFrame("a table of frames of an impossible size")
    low, high = 0, count
    while high - low > 1:
        middle = (low + high) // 2
        start = int.from_bytes(read(header + 12 + 8 * middle, 4), "little", signed=True) + header
        low, high = (middle, high) if start <= pc else (low, middle)
    return header + int.from_bytes(read(header + 12 + 8 * low + 4, 4), "little", signed=True)


def _whole(read: Read, address: int) -> _Cursor:
    length = int.from_bytes(read(address, 4), "little")
    if not 4 <= length <= _MOST_BYTES:
        raise NoFrame("an entry of an impossible length")
    return _Cursor(read(address + 4, length), address + 4)


def _read_entry(read: Read, address: int) -> _Entry:
    own = _whole(read, address)
    back = own.number(4)
    common = _whole(read, own.address - back)
    if not back or common.number(4) != 0:
        raise NoFrame("an entry without a common one")
    version = common.number(1)
    augmentation = bytearray()
    while (byte := common.take(1)) != b"\0":
        augmentation += byte
    if version not in (1, 3) or (augmentation and augmentation[:1] != b"z"):
        raise NoFrame("a common entry of an unknown form")
    code_factor, data_factor = common.uleb(), common.sleb()
    if (common.number(1) if version == 1 else common.uleb()) != RETURN_ADDRESS:
        raise NoFrame("the return address is in another register")
    encoding, is_signal = 0, b"S" in augmentation
    if augmentation:
        end = common.uleb() + common.at
        for letter in augmentation[1:]:
            if letter == ord("R"):
                encoding = common.number(1)
            elif letter == ord("P"):
                common.pointer(common.number(1) & 0x7F)
            elif letter == ord("L"):
                common.take(1)
        common.at = end
    start = own.pointer(encoding)
    length = own.pointer(encoding & 0xF)
    if augmentation:
        own.take(own.uleb())
    return _Entry(
        code_factor=code_factor,
        data_factor=data_factor,
        is_signal=is_signal,
        start=start,
        end=start + length,
        common=common.data[common.at :],
        own=own.data[own.at :],
    )


def _row_at(entry: _Entry, pc: int) -> _Row:
    first = _Row()
    _run(entry, entry.common, first, _Row(), None)
    row = first.copy()
    _run(entry, entry.own, row, first, pc)
    return row


def _run(entry: _Entry, program: bytes, row: _Row, initial: _Row, pc: int | None) -> None:
    """Interpret instructions until ``pc`` is passed."""
    cursor, place, kept = _Cursor(program, 0), entry.start, list[_Row]()
    for _ in range(_MOST_INSTRUCTIONS):
        if cursor.at >= len(program):
            return
        code = cursor.number(1)
        low = code & 0x3F
        moved = {1: low}.get(code >> 6, {2: 1, 3: 2, 4: 4}.get(code, 0))
        if moved:
            delta = low if code >> 6 else cursor.number(moved)
            place += delta * entry.code_factor
            if pc is not None and place > pc:
                return
        elif code >> 6 == 2:
            row.rules[low] = ("offset", cursor.uleb() * entry.data_factor)
        elif code >> 6 == 3:
            _restore(row, initial, low)
        elif code == 0x0A:
            kept.append(row.copy())
        elif code == 0x0B:
            if not kept:
                raise NoFrame("nothing was kept that could be taken back")
            back = kept.pop()
            row.cfa, row.rules = back.cfa, back.rules
        else:
            _one(code, cursor, row, initial, entry.data_factor)
    raise NoFrame("too many instructions")


def _restore(row: _Row, initial: _Row, register: int) -> None:
    if register in initial.rules:
        row.rules[register] = initial.rules[register]
    else:
        row.rules.pop(register, None)


def _one(code: int, cursor: _Cursor, row: _Row, initial: _Row, factor: int) -> None:
    """An instruction that is about one register, or the frame's address."""
    match code:
        case 0x00:
            return
        case 0x05:
            register = cursor.uleb()
            row.rules[register] = ("offset", cursor.uleb() * factor)
        case 0x06:
            _restore(row, initial, cursor.uleb())
        case 0x07:
            row.rules[cursor.uleb()] = ("undefined", 0)
        case 0x08:
            row.rules.pop(cursor.uleb(), None)
        case 0x09:
            register = cursor.uleb()
            row.rules[register] = ("register", cursor.uleb())
        case 0x0C:
            row.cfa = ("register", cursor.uleb(), cursor.uleb())
        case 0x0D:
            row.cfa = ("register", cursor.uleb(), int(row.cfa[2]))
        case 0x0E:
            row.cfa = ("register", int(row.cfa[1]), cursor.uleb())
        case 0x0F:
            row.cfa = ("expression", cursor.take(cursor.uleb()), 0)
        case 0x10 | 0x16:
            register = cursor.uleb()
            kind = "expression" if code == 0x10 else "value"
            row.rules[register] = (kind, cursor.take(cursor.uleb()))
        case 0x11:
            register = cursor.uleb()
            row.rules[register] = ("offset", cursor.sleb() * factor)
        case 0x2E:  # DW_CFA_GNU_args_size
            cursor.uleb()
        case _:
            raise NoFrame(f"call frame instruction {code:#x}")


def _evaluate(read: Read, program: bytes, registers: dict[int, int], stack: list[int]) -> int:
    """A DWARF expression, as far as such are used for frames: of the PLT, of signals, of realigned stacks."""
    cursor = _Cursor(program, 0)
    try:
        while cursor.at < len(program):
            code = cursor.number(1)
            if 0x70 <= code <= 0x8F:
                stack.append(registers[code - 0x70] + cursor.sleb())
            elif 0x30 <= code <= 0x4F:
                stack.append(code - 0x30)
            elif code == 0x06:
                stack.append(int.from_bytes(read(stack.pop() & _MASK, 8), "little"))
            elif code in (0x08, 0x09):
                stack.append(cursor.number(1, signed=code == 0x09))
            elif code in (0x0A, 0x0B):
                stack.append(cursor.number(2, signed=code == 0x0B))
            elif code == 0x23:
                stack.append(stack.pop() + cursor.uleb())
            elif code in _BINARY:
                right, left = stack.pop(), stack.pop()
                stack.append(_BINARY[code](left, right) & _MASK)
            else:
                raise NoFrame(f"expression with operation {code:#x}")
        return stack[-1] & _MASK
    except (IndexError, KeyError) as error:
        raise NoFrame("an expression that cannot be") from error


_BINARY: Final[dict[int, Callable[[int, int], int]]] = {
    0x1A: lambda left, right: left & right,
    0x1C: lambda left, right: left - right,
    0x22: lambda left, right: left + right,
    0x24: lambda left, right: left << (right & 63),
    0x2A: lambda left, right: int(left >= right),
    0x2F: lambda left, right: left * right,
}


def caller_of(read: Read, header: int, size: int, registers: dict[int, int], *, is_leaf: bool) -> Caller:
    """The caller of the frame with ``registers``, by the ``.eh_frame_hdr`` at ``header``.

    ``is_leaf``: the address is that of the next instruction, not one that a call returns to. Raises NoFrame, and
    OSError where memory cannot be read.
    """
    pc = registers[RETURN_ADDRESS] - (0 if is_leaf else 1)
    entry = _read_entry(read, find_entry(read, header, size, pc))
    if not entry.start <= pc < entry.end:
        raise NoFrame("no entry for this address")
    row = _row_at(entry, pc)
    kind, what, offset = row.cfa
    if kind == "register":
        if what not in registers:
            raise NoFrame("the frame's address depends on a register that is not known")
        cfa = (registers[int(what)] + offset) & _MASK
    elif kind == "expression" and isinstance(what, bytes):
        cfa = _evaluate(read, what, registers, [])
    else:
        raise NoFrame("the frame's address is not said")
    found = {**registers, RSP: cfa}
    for register, (rule, value) in row.rules.items():
        if rule == "offset" and isinstance(value, int):
            found[register] = int.from_bytes(read((cfa + value) & _MASK, 8), "little")
        elif rule == "register" and isinstance(value, int):
            found[register] = registers.get(value, 0)
        elif isinstance(value, bytes):
            at = _evaluate(read, value, registers, [cfa])
            found[register] = at if rule == "value" else int.from_bytes(read(at, 8), "little")
        elif register == RETURN_ADDRESS:
            return Caller(registers=None, is_interrupted=entry.is_signal)
        else:
            found.pop(register, None)
    if RETURN_ADDRESS not in row.rules or not found[RETURN_ADDRESS]:
        return Caller(registers=None, is_interrupted=entry.is_signal)
    return Caller(registers=found, is_interrupted=entry.is_signal)
