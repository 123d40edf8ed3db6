"""x86-64: a call put into a stopped thread, with a way back that needs nobody, and the code that loads a library.

Bytes in, bytes out. A call is made as the kernel makes one of a signal handler: below what the thread uses of its
stack lies a signal frame with all of its registers, and the function returns to ``rt_sigreturn``, which restores them
at once. So the thread comes back on its own should we be killed at any moment.

Sources: ``arch/x86/include/uapi/asm/sigcontext.h``, ``arch/x86/kernel/signal_64.c`` and ``fpu/signal.c`` of Linux; the
x86-64 psABI, 3.2.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

RED_ZONE: Final = 128
ROOM: Final = 64 << 10
"""Of stack that a thread must have left: the frame (some 12 KB of extended state at most), and what is called."""
SIGRETURN: Final = bytes.fromhex("48c7c00f0000000f05")  # mov $15,%rax; syscall
"""``__restore_rt`` of glibc."""
SIGRETURN_NUMBER: Final = 15
ALL_SIGNALS: Final = (1 << 64) - 1
ENOSYS: Final = 38

_UCONTEXT: Final = struct.Struct("<QQQI4xQ18Q4H4QQ64xQ")
_FLAGS: Final = 1 | 2 | 4  # UC_FP_XSTATE, UC_SIGCONTEXT_SS, UC_STRICT_RESTORE_SS
_NO_STACK: Final = 0x7F  # ss_flags that sigaltstack() refuses: the thread's alternate stack stays as it is
_SOFTWARE: Final = struct.Struct("<IIQI28x")  # struct _fpx_sw_bytes
_SOFTWARE_AT: Final = 464
_FEATURES_AT: Final = 512  # XSTATE_BV of the header
_MAGIC1: Final = 0x46505853
_MAGIC2: Final = 0x46505845
_TILES: Final = 3 << 17  # AMX: XTILECFG and XTILEDATA
_BEFORE_TILES: Final = 2696  # XSAVE's standard form up to PKRU, of processors that have AMX
_TRAP_AND_DIRECTION: Final = 1 << 8 | 1 << 10

_EINTR: Final = 4
_ERESTARTNOHAND: Final = 514
_ERESTARTED: Final = frozenset({512, 513, 514, 516})
FAIL_WHEN_INTERRUPTED: Final = frozenset({232, 281, 441, 128, 65, 220, 208})
"""epoll_wait, epoll_pwait, epoll_pwait2, rt_sigtimedwait, semop, semtimedop, io_getevents: for our stop they would
report EINTR, having done nothing by then. They are begun again; where we are killed between the stop and that, they do
report it, as after SIGSTOP and SIGCONT (signal(7))."""
WAITING: Final = frozenset(
    {0, 7, 19, 23, 35, 43, 45, 47, 61, 65, 128, 202, 208, 220, 230, 232, 247, 270, 271, 281, 288, 441}
)
"""System calls that wait and can be begun again: read, poll, readv, select, nanosleep, accept, recvfrom, recvmsg,
wait4, semop, rt_sigtimedwait, futex, io_getevents, semtimedop, clock_nanosleep, epoll_wait, waitid, pselect6, ppoll,
epoll_pwait, accept4, epoll_pwait2."""


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def resumed(registers: Mapping[str, int]) -> dict[str, int]:
    """What to give back to a thread: as it was, but for calls that would fail because it was stopped."""
    found = dict(registers)
    if found["orig_rax"] in FAIL_WHEN_INTERRUPTED and _signed(found["rax"]) == -_EINTR:
        found["rax"] = -_ERESTARTNOHAND & ALL_SIGNALS
    return found


def uses_tiles(state: bytes) -> bool:
    """Whether the thread has AMX state, which a signal frame without the permission for it cannot hold."""
    return bool(int.from_bytes(state[_FEATURES_AT : _FEATURES_AT + 8], "little") & _TILES)


def _extended_state(state: bytes) -> bytes:
    """As in a signal frame: what XSAVE wrote, with the kernel's words of where it ends."""
    features = int.from_bytes(state[_SOFTWARE_AT : _SOFTWARE_AT + 8], "little")
    size = len(state)
    if features & _TILES:
        features &= ~_TILES
        size = min(size, _BEFORE_TILES)
    words = _SOFTWARE.pack(_MAGIC1, size + 4, features, size)
    whole = bytearray(state[:size])
    whole[_SOFTWARE_AT : _SOFTWARE_AT + _SOFTWARE.size] = words
    return bytes(whole) + struct.pack("<I", _MAGIC2)


def signal_frame(registers: Mapping[str, int], state: bytes, blocked: int, back: int) -> tuple[int, bytes]:
    """(address, bytes) of a frame below the thread's stack, by which ``back`` (rt_sigreturn) restores all of it.

    A system call that was interrupted is begun anew by it. (With us there it goes on where it was: a sleep of a given
    length is not prolonged.)
    """
    found = resumed(registers)
    if _signed(found["orig_rax"]) >= 0 and -_signed(found["rax"]) in _ERESTARTED:
        found["rax"] = found["orig_rax"]
        found["rip"] -= 2
    extended = _extended_state(state)
    extended_at = (found["rsp"] - RED_ZONE - len(extended)) & ~63
    address = ((extended_at - 8 - _UCONTEXT.size) & ~15) - 8
    general = ("r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "rdi", "rsi", "rbp", "rbx", "rdx", "rax")
    context = _UCONTEXT.pack(
        *(_FLAGS, 0, 0, _NO_STACK, 0),
        *(found[name] for name in general),
        *(found["rcx"], found["rsp"], found["rip"], found["eflags"]),
        *(found["cs"], 0, 0, found["ss"]),
        *(0, 0, 0, 0),
        extended_at,
        blocked,
    )
    frame = struct.pack("<Q", back) + context
    return address, frame + bytes(extended_at - address - len(frame)) + extended


def call(registers: Mapping[str, int], frame: int, function: int, *arguments: int) -> dict[str, int]:
    """Registers with which a thread calls a function of up to six integers, and returns to ``frame``."""
    names = ("rdi", "rsi", "rdx", "rcx", "r8", "r9")
    given = dict(zip(names, (*arguments, *(0,) * (6 - len(arguments))), strict=True))
    return {
        **registers,
        **given,
        "rip": function,
        "rsp": frame,
        "rax": 0,
        "orig_rax": ALL_SIGNALS,
        "eflags": registers["eflags"] & ~_TRAP_AND_DIRECTION,
    }


def at_sigreturn(registers: Mapping[str, int], frame: int, back: int) -> bool:
    """Whether the function has returned, and the thread is about to be restored."""
    return (
        registers["orig_rax"] == SIGRETURN_NUMBER
        and registers["rip"] == back + len(SIGRETURN)
        and registers["rsp"] == frame + 8
        and _signed(registers["rax"]) == -ENOSYS
    )


def before_sigreturn(registers: Mapping[str, int], back: int) -> dict[str, int]:
    """From the stop at that system call to before it: it is not made now, and is made later should we be gone."""
    return {**registers, "rip": back, "orig_rax": ALL_SIGNALS}


# -- The code that the new thread runs --------------------------------------------------------------

FUNCTIONS: Final = ("pthread_self", "pthread_detach", "dlopen", "dlsym", "dlerror")
"""In the block's first words."""
ANSWER_AT: Final = 48
DONE_AT: Final = 56
TID_AT: Final = 60
THREAD_AT: Final = 64
SOCKETS_AT: Final = 72
"""Two descriptors: of the process, and for us to take."""
OFFERED_AT: Final = 80
RESULT_AT: Final = 84
"""Of its last system call: what it gave, or an error's number below zero."""
_POLLED_AT: Final = 88
SYMBOL_AT: Final = 128
_PATH_AT: Final = 256
_MESSAGE_AT: Final = 320
_CONTROL_AT: Final = 384
_WORD_AT: Final = 408
_VECTOR_AT: Final = 416
ERROR_AT: Final = 2304
ERROR_BYTES: Final = 256
REQUEST_AT: Final = 2560
BLOCK_BYTES: Final = 4096
SYMBOL_MOST: Final = 128
_PATH: Final = b"/proc/thread-self/fd//////////"
"""What is opened: the descriptor's number is written over its end."""
_NONE: Final = -1
_POLLIN: Final = 1

LOADER: Final = bytes.fromhex(
    "53"  # push %rbx
    "4889fb"  # mov %rdi,%rbx
    "b8ba000000"  # mov $186,%eax (gettid)
    "0f05"  # syscall
    "89433c"  # mov %eax,60(%rbx)
    "ff13"  # call *(%rbx)
    "4889c7"  # mov %rax,%rdi
    "ff5308"  # call *8(%rbx)
    "4c8d5348"  # lea 72(%rbx),%r10
    "31d2"  # xor %edx,%edx
    "be05000800"  # mov $0x80005,%esi (SOCK_SEQPACKET, SOCK_CLOEXEC)
    "bf01000000"  # mov $1,%edi (AF_UNIX)
    "b835000000"  # mov $53,%eax (socketpair)
    "0f05"  # syscall
    "894354"  # mov %eax,84(%rbx)
    "85c0"  # test %eax,%eax
    "0f85db000000"  # jne done
    "8b4348"  # mov 72(%rbx),%eax
    "894358"  # mov %eax,88(%rbx)
    "c7435001000000"  # movl $1,80(%rbx)
    "488d7b58"  # lea 88(%rbx),%rdi
    "be01000000"  # mov $1,%esi
    "ba10270000"  # mov $10000,%edx
    "b807000000"  # mov $7,%eax (poll)
    "0f05"  # syscall
    "894354"  # mov %eax,84(%rbx)
    "83f801"  # cmp $1,%eax
    "0f85ad000000"  # jne done
    "8b7b48"  # mov 72(%rbx),%edi
    "488db340010000"  # lea 320(%rbx),%rsi
    "ba40000040"  # mov $0x40000040,%edx (MSG_CMSG_CLOEXEC, MSG_DONTWAIT)
    "b82f000000"  # mov $47,%eax (recvmsg)
    "0f05"  # syscall
    "894354"  # mov %eax,84(%rbx)
    "8b7b4c"  # mov 76(%rbx),%edi
    "c7434cffffffff"  # movl $-1,76(%rbx)
    "b803000000"  # mov $3,%eax (close)
    "0f05"  # syscall
    "8b8390010000"  # mov 400(%rbx),%eax
    "85c0"  # test %eax,%eax
    "7879"  # js done
    "488dbb1f010000"  # lea 287(%rbx),%rdi
    "b90a000000"  # mov $10,%ecx
    "31d2"  # digit: xor %edx,%edx
    "f7f1"  # div %ecx
    "80c230"  # add $48,%dl
    "48ffcf"  # dec %rdi
    "8817"  # mov %dl,(%rdi)
    "85c0"  # test %eax,%eax
    "75f0"  # jne digit
    "488dbb00010000"  # lea 256(%rbx),%rdi
    "be02000000"  # mov $2,%esi (RTLD_NOW)
    "ff5310"  # call *16(%rbx)
    "48894328"  # mov %rax,40(%rbx)
    "4885c0"  # test %rax,%rax
    "7424"  # je failed
    "4889c7"  # mov %rax,%rdi
    "488db380000000"  # lea 128(%rbx),%rsi
    "ff5318"  # call *24(%rbx)
    "4885c0"  # test %rax,%rax
    "7412"  # je failed
    "488dbb000a0000"  # lea 2560(%rbx),%rdi
    "8b7348"  # mov 72(%rbx),%esi
    "ffd0"  # call *%rax
    "48894330"  # mov %rax,48(%rbx)
    "eb21"  # jmp done
    # failed:
    "ff5320"  # call *32(%rbx)
    "4885c0"  # test %rax,%rax
    "7419"  # je done
    "4889c6"  # mov %rax,%rsi
    "488dbb00090000"  # lea 2304(%rbx),%rdi
    "b9ff000000"  # mov $255,%ecx
    "ac"  # next: lods (%rsi),%al
    "aa"  # stos %al,(%rdi)
    "84c0"  # test %al,%al
    "7404"  # je done
    "ffc9"  # dec %ecx
    "75f6"  # jne next
    # done:
    "8b7b48"  # mov 72(%rbx),%edi
    "b803000000"  # mov $3,%eax (close)
    "0f05"  # syscall
    "8b7b4c"  # mov 76(%rbx),%edi
    "b803000000"  # mov $3,%eax (close)
    "0f05"  # syscall
    "8bbb90010000"  # mov 400(%rbx),%edi
    "b803000000"  # mov $3,%eax (close)
    "0f05"  # syscall
    "c7433801000000"  # movl $1,56(%rbx)
    "31c0"  # xor %eax,%eax
    "5b"  # pop %rbx
    "c3"  # ret
)
"""One half of a pair of sockets is offered to us; the library's descriptor comes over the other, which its function is
given together with the request. All three are closed at the end."""


def loader_block(functions: Mapping[str, int], symbol: bytes, request: bytes, address: int) -> bytes:
    """What :data:`LOADER` is given at ``address``. Raises ValueError: too long."""
    if len(symbol) >= SYMBOL_MOST or len(request) > BLOCK_BYTES - REQUEST_AT:
        raise ValueError("a name is too long")
    block = bytearray(BLOCK_BYTES)
    block[: 8 * len(FUNCTIONS)] = b"".join(struct.pack("<Q", functions[name]) for name in FUNCTIONS)
    struct.pack_into("<ii", block, SOCKETS_AT, _NONE, _NONE)
    struct.pack_into("<ihh", block, _POLLED_AT, _NONE, _POLLIN, 0)
    block[SYMBOL_AT : SYMBOL_AT + len(symbol)] = symbol
    block[_PATH_AT : _PATH_AT + len(_PATH)] = _PATH
    # struct msghdr, with room for one descriptor (struct cmsghdr) and one word.
    control = address + _CONTROL_AT
    struct.pack_into("<QQQQQQQ", block, _MESSAGE_AT, 0, 0, address + _VECTOR_AT, 1, control, 24, 0)
    struct.pack_into("<Qiii", block, _CONTROL_AT, 0, 0, 0, _NONE)
    struct.pack_into("<QQ", block, _VECTOR_AT, address + _WORD_AT, 4)
    block[REQUEST_AT : REQUEST_AT + len(request)] = request
    return bytes(block)
