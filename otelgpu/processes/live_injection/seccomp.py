"""What a process's seccomp filters make of a system call: classic BPF programs, run on a call that is not made. Pure.

In: the filters of a thread as the kernel gives them (``PTRACE_SECCOMP_GET_FILTER``), a call's number and arguments,
None for one that is not known. Out: the action that the kernel would take.

Sources: ``include/uapi/linux/seccomp.h``, ``linux/bpf_common.h``; ``kernel/seccomp.c`` (``seccomp_check_filter``: what
a filter may consist of; ``seccomp_run_filters``: which of several decides) and ``bpf_convert_filter`` of
``net/core/filter.c`` of Linux.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from otelgpu.errors import OtelgpuError

KILL_PROCESS: Final = 0x8000_0000
KILL_THREAD: Final = 0
TRAP: Final = 0x0003_0000
ERRNO: Final = 0x0005_0000
USER_NOTIF: Final = 0x7FC0_0000
TRACE: Final = 0x7FF0_0000
LOG: Final = 0x7FFC_0000
ALLOW: Final = 0x7FFF_0000
ACTION: Final = 0xFFFF_0000
"""Of a result; the rest is data: an error's number."""
ARCH_X86_64: Final = 0xC000_003E

_INSTRUCTION: Final = struct.Struct("<HBBI")  # struct sock_filter: code, jump if true, if false, k
_WORD: Final = 0xFFFF_FFFF
_DATA_BYTES: Final = 64  # struct seccomp_data
_X: Final = 0x08  # the operand is X, not k
_STEPS: Final = 32768  # MAX_INSNS_PER_PATH

_ALU: Final[Mapping[int, Callable[[int, int], int]]] = {
    0x04: operator.add,
    0x14: operator.sub,
    0x24: operator.mul,
    0x44: operator.or_,
    0x54: operator.and_,
    0x64: lambda a, b: a << (b & 31),
    0x74: lambda a, b: a >> (b & 31),
    0xA4: operator.xor,
}
_DIVIDE: Final = 0x34
_NEGATE: Final = 0x84
_JUMPS: Final[Mapping[int, Callable[[int, int], bool]]] = {
    0x15: operator.eq,
    0x25: operator.gt,
    0x35: operator.ge,
    0x45: lambda a, b: bool(a & b),
}
_ALWAYS: Final = 0x05
_LOAD, _LOAD_LENGTH, _LOAD_NUMBER, _LOAD_MEMORY = 0x20, 0x80, 0x00, 0x60
_LOAD_X_LENGTH, _LOAD_X_NUMBER, _LOAD_X_MEMORY = 0x81, 0x01, 0x61
_TO_INDEX: Final = 0x01  # BPF_LDX
_STORE, _STORE_X, _TO_X, _FROM_X = 0x02, 0x03, 0x07, 0x87
_RETURN, _RETURN_A = 0x06, 0x16


class NotKnown(OtelgpuError):
    """It depends on what is not known of the call: a pointer, or where it is made from."""


class BadFilter(OtelgpuError):
    """No filter that a kernel has taken."""


def result_of(filters: Sequence[bytes], number: int, arguments: Sequence[int | None] = ()) -> int:
    """What the kernel's ``seccomp_run_filters`` gives: of several filters the one that allows least decides.

    ``arguments`` that are not given are not known. Raises :class:`NotKnown`, :class:`BadFilter`.
    """
    words = _words(number, arguments)
    results = [_run(each, words) for each in filters] or [ALLOW]
    return min(results, key=lambda result: _signed(result & ACTION))


def _signed(value: int) -> int:
    return value - (1 << 32) if value >> 31 else value


def _words(number: int, arguments: Sequence[int | None]) -> list[int | None]:
    """``struct seccomp_data``: number, architecture, instruction pointer, six arguments; of each the low half first."""
    words: list[int | None] = [number & _WORD, ARCH_X86_64, None, None]
    for each in (*arguments, *(None,) * (6 - len(arguments))):
        words += (None, None) if each is None else (each & _WORD, each >> 32 & _WORD)
    return words


def _run(program: bytes, words: Sequence[int | None]) -> int:
    if len(program) % _INSTRUCTION.size:
        raise BadFilter("it ends within an instruction")
    try:
        return _Machine([*_INSTRUCTION.iter_unpack(program)], words).run()
    except IndexError as error:
        raise BadFilter("it leads out of itself") from error


class _Machine:
    """Registers A and X, sixteen words of memory; jumps go forward only, so that it ends."""

    def __init__(self, program: Sequence[tuple[int, ...]], words: Sequence[int | None]) -> None:
        self._program, self._words = program, words
        self._a = self._x = 0
        self._memory = [0] * 16

    def run(self) -> int:
        at = 0
        for _ in range(_STEPS):
            code, if_true, if_false, k = self._program[at]
            at += 1
            if code in (_RETURN, _RETURN_A):
                return k if code == _RETURN else self._a
            if code == _ALWAYS:
                at += k
            elif code & ~_X in _JUMPS:
                holds = _JUMPS[code & ~_X](self._a, self._x if code & _X else k)
                at += if_true if holds else if_false
            elif code & ~_X == _DIVIDE:
                divisor = self._x if code & _X else k
                if not divisor:
                    return KILL_THREAD  # a program ends with 0 for it
                self._a //= divisor
            else:
                self._move(code, k)
        raise BadFilter("it does not end")

    def _move(self, code: int, k: int) -> None:
        if code == _LOAD:
            if k % 4 or k >= _DATA_BYTES:
                raise BadFilter(f"it reads at {k}")
            word = self._words[k // 4]
            if word is None:
                raise NotKnown("it looks at an argument that is not known beforehand")
            self._a = word
        elif code & ~_X in _ALU:
            self._a = _ALU[code & ~_X](self._a, self._x if code & _X else k) & _WORD
        elif code == _NEGATE:
            self._a = -self._a & _WORD
        elif code in (_STORE, _STORE_X):
            self._memory[k] = self._a if code == _STORE else self._x
        elif code == _TO_X:
            self._x = self._a
        elif code == _FROM_X:
            self._a = self._x
        else:
            self._load(code, k)

    def _load(self, code: int, k: int) -> None:
        if code in (_LOAD_MEMORY, _LOAD_X_MEMORY):
            value = self._memory[k]
        elif code in (_LOAD_NUMBER, _LOAD_X_NUMBER):
            value = k
        elif code in (_LOAD_LENGTH, _LOAD_X_LENGTH):
            value = _DATA_BYTES
        else:
            raise BadFilter(f"instruction {code:#x} is not for filters of system calls")
        if code & _TO_INDEX:
            self._x = value
        else:
            self._a = value
