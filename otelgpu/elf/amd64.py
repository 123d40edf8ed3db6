"""Instructions of amd64: where in a function's code it returns.

In: the machine code of a whole function, in 64-bit mode. Out: where its instructions begin, or where it returns.
Nothing is decoded but what a length depends on (prefixes, opcode, ModRM, SIB, immediates), and where direct jumps lead:
in a function that is understood each of them leads to an instruction of it. What is not known is refused, not guessed.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, chapter 2 and appendix A.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

MAX_INSTRUCTION_BYTES: Final = 15
_LEGACY_PREFIXES: Final = frozenset(b"\x26\x2e\x36\x3e\x64\x65\x66\x67\xf0\xf2\xf3")
_OPERAND_SIZE, _ADDRESS_SIZE = 0x66, 0x67
_NEAR_RETURN: Final = 0xC3
_OTHER_RETURNS: Final = frozenset((0xC2, 0xCA, 0xCB, 0xCF))
_JUMPS: Final = frozenset((*range(0x70, 0x80), *range(0xE0, 0xE4), 0xE9, 0xEB))
_TWO_BYTES: Final = 0x0F00  # what is added to an opcode of table A-3
_LONG_JUMPS: Final = frozenset(range(_TWO_BYTES + 0x80, _TWO_BYTES + 0x90))
_WORD: Final = -1  # an immediate of four bytes, two where the operand size is overridden


class UnknownInstruction(ValueError):
    """No instruction, or none that is known here."""


class Instruction(NamedTuple):
    """Where one begins, its bytes, its opcode (0x0fxx: of table A-3; 0: of another), and where it jumps to."""

    at: int
    size: int
    opcode: int
    target: int | None


def _one_byte() -> dict[int, tuple[bool, int]]:
    """The one-byte opcodes of table A-2: whether ModRM follows, and how many bytes of immediate."""
    table: dict[int, tuple[bool, int]] = {}
    for row in range(0x00, 0x40, 8):  # add, or, adc, sbb, and, sub, xor, cmp
        table |= dict.fromkeys(range(row, row + 4), (True, 0))
        table |= {row + 4: (False, 1), row + 5: (False, _WORD)}
    table |= dict.fromkeys(range(0x50, 0x60), (False, 0))
    table |= {0x63: (True, 0), 0x68: (False, _WORD), 0x69: (True, _WORD), 0x6A: (False, 1), 0x6B: (True, 1)}
    table |= dict.fromkeys(range(0x6C, 0x70), (False, 0))
    table |= dict.fromkeys(range(0x70, 0x80), (False, 1))
    table |= {0x80: (True, 1), 0x81: (True, _WORD), 0x83: (True, 1)}
    table |= dict.fromkeys(range(0x84, 0x90), (True, 0))
    table |= dict.fromkeys((*range(0x90, 0x9A), *range(0x9B, 0xA0)), (False, 0))
    table |= dict.fromkeys((*range(0xA4, 0xA8), *range(0xAA, 0xB0)), (False, 0))
    table |= {0xA8: (False, 1), 0xA9: (False, _WORD)}
    table |= dict.fromkeys(range(0xB0, 0xB8), (False, 1))
    table |= {0xC0: (True, 1), 0xC1: (True, 1), 0xC2: (False, 2), 0xC3: (False, 0)}
    table |= {0xC6: (True, 1), 0xC7: (True, _WORD), 0xC8: (False, 3), 0xC9: (False, 0)}
    table |= {0xCA: (False, 2), 0xCB: (False, 0), 0xCC: (False, 0), 0xCD: (False, 1), 0xCF: (False, 0)}
    table |= dict.fromkeys(range(0xD0, 0xD4), (True, 0))
    table |= {0xD7: (False, 0)} | dict.fromkeys(range(0xD8, 0xE0), (True, 0))
    table |= dict.fromkeys(range(0xE0, 0xE8), (False, 1))
    table |= {0xE8: (False, 4), 0xE9: (False, 4), 0xEB: (False, 1)}
    table |= dict.fromkeys((*range(0xEC, 0xF0), 0xF1, 0xF4, 0xF5, *range(0xF8, 0xFE)), (False, 0))
    return table | {0xF6: (True, 0), 0xF7: (True, 0), 0xFE: (True, 0), 0xFF: (True, 0)}


_ONE_BYTE: Final = _one_byte()
# Table A-3, opcodes 0f xx: those without ModRM, those that are none, and those with a byte of immediate.
_NO_MODRM: Final = frozenset(
    (
        *range(0x05, 0x0A),
        0x0B,
        0x0E,
        *range(0x30, 0x38),
        0x77,
        *range(0xA0, 0xA3),
        *range(0xA8, 0xAB),
        *range(0xC8, 0xD0),
    )
)
_NONE: Final = frozenset((0x04, 0x0A, 0x0C, 0x0F, *range(0x24, 0x28), 0x39, *range(0x3B, 0x40), 0xA6, 0xA7))
_BYTE_AFTER: Final = frozenset((*range(0x70, 0x74), 0xA4, 0xAC, 0xBA, 0xC2, 0xC4, 0xC5, 0xC6))


def instructions(code: bytes) -> Iterator[Instruction]:
    """Those of a function, one after the other. Raises :class:`UnknownInstruction`."""
    at = 0
    while at < len(code):
        decoded = _Decoder(code, at).decode()
        yield decoded
        at += decoded.size


def returns(code: bytes) -> list[int]:
    """Where a function returns, if that is all the ways out of its code. Raises :class:`UnknownInstruction`."""
    decoded = list(instructions(code))
    beginnings = {each.at for each in decoded}
    for each in decoded:
        if each.target is not None and each.target not in beginnings:
            raise UnknownInstruction(f"a jump at {each.at} that leads to no instruction of the function")
        if each.opcode in _OTHER_RETURNS:
            raise UnknownInstruction(f"a return of another kind at {each.at}")
    return [each.at for each in decoded if each.opcode == _NEAR_RETURN]


class _Decoder:
    """Reads one instruction from its first byte on."""

    def __init__(self, code: bytes, at: int) -> None:
        self._code, self._start, self._at = code, at, at
        self._word, self._wide, self._short_address = 4, False, False

    def decode(self) -> Instruction:
        """Raises :class:`UnknownInstruction`."""
        self._prefixes()
        opcode = self._byte()
        if opcode in (0xC4, 0xC5):
            self._vex(opcode)
            opcode = 0
        elif opcode == 0x62:
            self._evex()
            opcode = 0
        elif opcode == 0x0F:
            opcode = _TWO_BYTES + self._byte()
            self._two_bytes(opcode - _TWO_BYTES)
        else:
            self._opcode(opcode)
        size = self._at - self._start
        if size > MAX_INSTRUCTION_BYTES or self._at > len(self._code):
            raise UnknownInstruction(f"no instruction at {self._start}")
        return Instruction(self._start, size, opcode, self._target(opcode))

    def _target(self, opcode: int) -> int | None:
        """Where a direct jump leads: its last bytes say how far from its end."""
        if opcode not in _JUMPS and opcode not in _LONG_JUMPS:
            return None
        distance = 4 if opcode == 0xE9 or opcode in _LONG_JUMPS else 1
        return self._at + int.from_bytes(self._code[self._at - distance : self._at], "little", signed=True)

    def _byte(self) -> int:
        if self._at >= len(self._code):
            raise UnknownInstruction(f"the code ends within the instruction at {self._start}")
        self._at += 1
        return self._code[self._at - 1]

    def _peek(self) -> int:
        return self._code[self._at] if self._at < len(self._code) else -1

    def _prefixes(self) -> None:
        while self._peek() in _LEGACY_PREFIXES:
            prefix = self._byte()
            if prefix == _OPERAND_SIZE:
                self._word = 2
            self._short_address |= prefix == _ADDRESS_SIZE
            if self._at - self._start >= MAX_INSTRUCTION_BYTES:
                raise UnknownInstruction(f"nothing but prefixes at {self._start}")
        if self._peek() & ~0xF == 0x40:  # REX
            self._wide = bool(self._byte() & 8)
            self._word = 4 if self._wide else self._word

    def _opcode(self, opcode: int) -> None:
        if 0xB8 <= opcode < 0xC0:
            self._at += 8 if self._wide else self._word
        elif 0xA0 <= opcode < 0xA4:
            self._at += 4 if self._short_address else 8
        elif opcode in _ONE_BYTE:
            has_modrm, immediate = _ONE_BYTE[opcode]
            operation = self._modrm() if has_modrm else 0
            if opcode == 0x8F and operation:  # AMD's XOP
                raise UnknownInstruction(f"opcode 0x8f at {self._start}")
            if opcode in (0xF6, 0xF7) and operation < 2:  # test
                immediate = 1 if opcode == 0xF6 else _WORD
            self._at += self._word if immediate == _WORD else immediate
        else:
            raise UnknownInstruction(f"opcode {opcode:#x} at {self._start}")

    def _two_bytes(self, opcode: int) -> None:
        if opcode in (0x38, 0x3A):
            self._byte()
            self._modrm()
            self._at += opcode == 0x3A
        elif 0x80 <= opcode < 0x90:
            self._at += 4
        elif opcode in _NONE:
            raise UnknownInstruction(f"opcode 0f {opcode:#x} at {self._start}")
        elif opcode not in _NO_MODRM:
            self._modrm()
            self._at += opcode in _BYTE_AFTER

    def _vex(self, first: int) -> None:
        table = self._byte() & 0x1F if first == 0xC4 else 1
        self._byte()
        self._vector(table)

    def _evex(self) -> None:
        table = self._byte() & 7
        self._byte()
        self._byte()
        self._vector(table)

    def _vector(self, table: int) -> None:
        """After a VEX or EVEX prefix: 2.3.5.6, tables 0f, 0f 38 and 0f 3a."""
        opcode = self._byte()
        if not 1 <= table <= 3:
            raise UnknownInstruction(f"vector table {table} at {self._start}")
        if table == 1 and opcode == 0x77:
            return
        self._modrm()
        self._at += table == 3 or (table == 1 and opcode in _BYTE_AFTER)

    def _modrm(self) -> int:
        """ModRM, SIB and displacement; the field ``reg``."""
        modrm = self._byte()
        mode, operand = modrm >> 6, modrm & 7
        if mode == 3:
            return modrm >> 3 & 7
        base = self._byte() & 7 if operand == 4 else operand
        if mode == 1:
            self._at += 1
        elif mode == 2 or base == 5:  # without a base, or relative to the instruction pointer
            self._at += 4
        return modrm >> 3 & 7
