"""ptrace(2): one thread of another process is stopped, looked at, changed and let go.

Only the thread that has seized may ask anything of it, and what a thread has seized is let go when that ends: nobody
stays stopped because of a fault of ours. PTRACE_O_EXITKILL is never set.

Sources: ptrace(2); ``arch/x86/include/asm/user_64.h`` of Linux for the registers.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import time
from typing import Final

_CONT: Final = 7
_GETREGS: Final = 12
_SETREGS: Final = 13
_DETACH: Final = 17
_SYSCALL: Final = 24
_GETREGSET: Final = 0x4204
_SETREGSET: Final = 0x4205
_SEIZE: Final = 0x4206
_INTERRUPT: Final = 0x4207
_GETSIGMASK: Final = 0x420A
_SETSIGMASK: Final = 0x420B
_SECCOMP_GET_FILTER: Final = 0x420C
_INSTRUCTION_BYTES: Final = 8  # struct sock_filter
_MOST_FILTERS: Final = 4096  # MAX_INSNS_PER_PATH over what the shortest counts for
_O_TRACESYSGOOD: Final = 1
_EVENT_STOP: Final = 128
_SYSCALL_TRAP: Final = signal.SIGTRAP | 0x80
_NT_X86_XSTATE: Final = 0x202
_MOST_XSTATE: Final = 1 << 16
_WALL: Final = 0x40000000
_WNOTHREAD: Final = 0x20000000
_SIGSET: Final = struct.Struct("<Q")
_POLL_S: Final = 0.0002

REGISTERS: Final = (
    *("r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi"),
    *("orig_rax", "rip", "cs", "eflags", "rsp", "ss", "fs_base", "gs_base", "ds", "es", "fs", "gs"),
)
"""Of ``struct user_regs_struct``, in its order: 8 bytes each."""
_REGISTERS: Final = struct.Struct(f"<{len(REGISTERS)}Q")


class _Iovec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.restype = ctypes.c_long
_libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)


def _request(request: int, tid: int, address: int | None = None, data: object = None) -> int:
    result: int = _libc.ptrace(request, tid, address, data)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


class ThreadEnded(Exception):
    """The thread, or its whole process, ended while it was held."""


class HeldThread:
    """A thread that is seized from construction on. Raises OSError: EPERM, ESRCH.

    Everything but :meth:`stop` needs it to be stopped. For use by one thread only.
    """

    def __init__(self, tid: int) -> None:
        self.tid = tid
        _request(_SEIZE, tid, None, _O_TRACESYSGOOD)

    def stop(self, within_s: float) -> bool:
        """Stop it wherever it is; False where it did not stop in time. Signals on their way are delivered first."""
        _request(_INTERRUPT, self.tid)
        until = time.monotonic() + within_s
        while (status := self._changed(until)) is not None:
            number = os.WSTOPSIG(status)
            if status >> 16 == _EVENT_STOP:
                return True
            _request(_CONT, self.tid, None, 0 if number == _SYSCALL_TRAP else number)
        return False

    def next_syscall(self, within_s: float) -> bool:
        """Let it go on to the next begin or end of a system call; False where none came in time."""
        _request(_SYSCALL, self.tid)
        until = time.monotonic() + within_s
        while (status := self._changed(until)) is not None:
            number = os.WSTOPSIG(status)
            if number == _SYSCALL_TRAP:
                return True
            passed = 0 if status >> 16 == _EVENT_STOP else number
            _request(_SYSCALL, self.tid, None, passed)
        return False

    def interrupt_again(self, within_s: float) -> bool:
        """From a stop at a system call to one where a system call that was interrupted begins again on its own."""
        _request(_INTERRUPT, self.tid)
        _request(_CONT, self.tid)
        until = time.monotonic() + within_s
        while (status := self._changed(until)) is not None:
            if status >> 16 == _EVENT_STOP:
                return True
            number = os.WSTOPSIG(status)
            _request(_CONT, self.tid, None, 0 if number == _SYSCALL_TRAP else number)
        return False

    def _changed(self, until: float) -> int | None:
        while True:
            done, status = os.waitpid(self.tid, _WALL | _WNOTHREAD | os.WNOHANG)
            if done and os.WIFSTOPPED(status):
                return status
            if done:
                raise ThreadEnded(self.tid)
            if time.monotonic() >= until:
                return None
            time.sleep(_POLL_S)

    def registers(self) -> dict[str, int]:
        """By the names of :data:`REGISTERS`."""
        buffer = ctypes.create_string_buffer(_REGISTERS.size)
        _request(_GETREGS, self.tid, None, ctypes.addressof(buffer))
        return dict(zip(REGISTERS, _REGISTERS.unpack(buffer.raw), strict=True))

    def set_registers(self, registers: dict[str, int]) -> None:
        """All of them."""
        words = (registers[name] & 0xFFFF_FFFF_FFFF_FFFF for name in REGISTERS)
        buffer = ctypes.create_string_buffer(_REGISTERS.pack(*words), _REGISTERS.size)
        _request(_SETREGS, self.tid, None, ctypes.addressof(buffer))

    def extended_state(self) -> bytes:
        """Floating point, vectors and the rest, as XSAVE writes it in its standard form."""
        buffer = ctypes.create_string_buffer(_MOST_XSTATE)
        vector = _Iovec(ctypes.addressof(buffer), _MOST_XSTATE)
        _request(_GETREGSET, self.tid, _NT_X86_XSTATE, ctypes.addressof(vector))
        return buffer.raw[: vector.length]

    def set_extended_state(self, state: bytes) -> None:
        """What :meth:`extended_state` gave."""
        buffer = ctypes.create_string_buffer(state, len(state))
        vector = _Iovec(ctypes.addressof(buffer), len(state))
        _request(_SETREGSET, self.tid, _NT_X86_XSTATE, ctypes.addressof(vector))

    def blocked_signals(self) -> int:
        """A bit for each signal, from SIGHUP in bit 0 on."""
        buffer = ctypes.create_string_buffer(_SIGSET.size)
        _request(_GETSIGMASK, self.tid, _SIGSET.size, ctypes.addressof(buffer))
        return int(_SIGSET.unpack(buffer.raw)[0])

    def block_signals(self, mask: int) -> None:
        """Those, and no others."""
        buffer = ctypes.create_string_buffer(_SIGSET.pack(mask), _SIGSET.size)
        _request(_SETSIGMASK, self.tid, _SIGSET.size, ctypes.addressof(buffer))

    def seccomp_filters(self) -> tuple[bytes, ...]:
        """Its filters of system calls as they were installed, the latest first; () without one.

        Raises OSError: EACCES without CAP_SYS_ADMIN, or where this process has a filter itself; EINVAL for one in
        strict mode, or without a filter on some kernels; EIO of a kernel without CONFIG_CHECKPOINT_RESTORE.
        """
        found: list[bytes] = []
        for index in range(_MOST_FILTERS):
            try:
                count = _request(_SECCOMP_GET_FILTER, self.tid, index)
            except FileNotFoundError:
                break
            buffer = ctypes.create_string_buffer(count * _INSTRUCTION_BYTES)
            _request(_SECCOMP_GET_FILTER, self.tid, index, ctypes.addressof(buffer))
            found.append(buffer.raw)
        return tuple(found)

    def let_go(self) -> None:
        """Go on as if nothing had been; it is nobody's then."""
        _request(_DETACH, self.tid)
