"""Where a thread may be interrupted to start another: nowhere on its stack a lock is held that this needs.

In: the registers of a stopped thread, and the process's memory. Out: why not, or None. Those locks are malloc's, the
dynamic linker's, those of fork and of starting threads: held while their functions run, so a thread whose stack has a
frame of one is left alone; so is one in a signal handler, which may have interrupted anything.

A stack is walked by the call frame information of each function. Where there is none (code made at run time) what is
left of the stack is looked through for anything that could be an address in such a function.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

from otelgpu.elf.call_frames import RETURN_ADDRESS, RSP, Caller, NoFrame, caller_of
from otelgpu.processes.live_injection.amd64 import RED_ZONE, ROOM, SIGRETURN, uses_tiles
from otelgpu.processes.live_injection.target import Target

_MOST_FRAMES: Final = 1024
_MOST_SCANNED: Final = 256 << 10
_NUMBERS: Final = (
    *("rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp"),
    *("r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "rip"),
)
"""By DWARF's numbers."""


def why_not_here(target: Target, registers: Mapping[str, int], state: bytes) -> str | None:
    """Why this thread is not interrupted here; None: it may be."""
    stack = target.mapping_at(registers["rsp"])
    if stack is None or "w" not in stack.permissions:
        return "its stack is not known"
    if registers["rsp"] - stack.start < ROOM and stack.path != "[stack]":
        return "its stack has no room left"
    if uses_tiles(state):
        return "it computes with AMX"
    if registers["cs"] != 0x33:
        return "it runs 32-bit code"
    return _why_not_by_stack(target, registers, stack.end)


def _is_within(target: Target, address: int) -> bool:
    return any(start <= address < end for start, end in target.unsafe)


def _why_not_by_stack(target: Target, registers: Mapping[str, int], end: int) -> str | None:
    frame = {number: registers[name] for number, name in enumerate(_NUMBERS)}
    for depth in range(_MOST_FRAMES):
        pc = frame[RETURN_ADDRESS] - (1 if depth else 0)
        if _is_within(target, pc):
            return "it is in malloc, fork, the dynamic linker, or starts or ends a thread"
        if target.way_back <= frame[RETURN_ADDRESS] < target.way_back + len(SIGRETURN):
            return "it is in a signal handler"
        try:
            caller = _caller(target, frame, is_leaf=not depth)
        except (NoFrame, OSError):
            return _why_not_by_words(target, frame[RSP] - (0 if depth else RED_ZONE), end)
        if caller.is_interrupted:
            return "it is in a signal handler"
        if caller.registers is None:
            return None
        if caller.registers[RSP] <= frame[RSP] and depth:
            return _why_not_by_words(target, frame[RSP], end)
        frame = caller.registers
    return "its stack is too deep"


def _caller(target: Target, frame: dict[int, int], *, is_leaf: bool) -> Caller:
    module = target.module_at(frame[RETURN_ADDRESS] - (0 if is_leaf else 1))
    if module is None or not module.frames:
        raise NoFrame("code without call frame information")
    return caller_of(target.read, module.frames, module.frames_size, frame, is_leaf=is_leaf)


def _why_not_by_words(target: Target, begin: int, end: int) -> str | None:
    begin &= -8
    if not 0 <= end - begin <= _MOST_SCANNED:
        return "its stack cannot be walked"
    try:
        data = target.read(begin, end - begin)
    except OSError:
        return "its stack cannot be read"
    back = range(target.way_back, target.way_back + 1)
    for (word,) in struct.iter_unpack("<Q", data[: len(data) // 8 * 8]):
        if _is_within(target, word) or word in back:
            return "its stack cannot be walked, and may hold a call of malloc or of a signal handler"
    return None
